"""Lints a bundle: every function of every package in each precision."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from voxcpm_constants.manifest import Manifest, check_files
from voxcpm_constants.step_models import Precision
from voxcpm_constants.targets import CORE_AI
from voxcpm_constants.user_folders import user_path
from voxcpm_runtime.bundle.opening import choose_precision, locate_bundle
from voxcpm_runtime.bundle.verified_files import check_digests

from .core_ai import CORE_AI_RULES, CoreAIFunction, read_program
from .function import Function, read_function
from .report import Finding, LintReport, PrecisionReport
from .rules import RULES, Rule

BUILT_IN = "the built-in voice"


def lint_bundle(
    bundle: str | None, precisions: Sequence[str] = (), *, report: Callable[[str], None] = lambda line: None
) -> LintReport:
    """Check a bundle's packages against every rule.

    bundle: a folder or hub id; None is the built-in voice. precisions: those to check. Default: all.
    `report` is called with the path of each package.

    Raises BundleError for a missing or damaged bundle, InputError for a precision that it lacks, or if it needs Core
    AI's package and that is not installed.
    """
    # Each call downloads one precision of a hub's bundle, always into the same folder.
    for other in precisions[1:]:
        locate_bundle(bundle, other)
    folder = locate_bundle(bundle, precisions[0] if precisions else None)
    manifest = Manifest.read(folder)
    chosen = [choose_precision(folder, manifest, precision) for precision in dict.fromkeys(precisions)]
    if not chosen:
        # A bundle from the hub was downloaded in one precision only.
        downloaded = bundle is not None and folder != user_path(bundle)
        chosen = [choose_precision(folder, manifest, None)] if downloaded else list(manifest.precisions)
    return LintReport(
        bundle=bundle or BUILT_IN,
        target=manifest.target,
        precisions={precision: _lint_precision(folder, manifest, precision, report) for precision in chosen},
    )


def lint_function(
    function: Function | CoreAIFunction, package: str, rules: Sequence[Rule]
) -> Iterator[Finding]:
    """All findings in one function of a package, in the order of the rules. package: its name in findings."""
    for rule in rules:
        reason = rule.accepted if rule.accepts(function) else None
        for violation in rule.check(function):
            yield Finding(
                package=package,
                function=function.name,
                rule=rule.name,
                why=rule.reason,
                sources=rule.sources,
                accepted=reason,
                **violation._asdict(),
            )


def _lint_precision(
    folder: Path, manifest: Manifest, precision: Precision, report: Callable[[str], None]
) -> PrecisionReport:
    files = {path: r for path, r in manifest.files.items() if path.startswith(f"{precision}/")}
    check_files(folder, files, digests=False)
    check_digests(folder, files)
    findings: list[Finding] = []
    functions: list[Function | CoreAIFunction] = []
    for declared in manifest.packages:
        package = str(manifest.package_path(precision, declared.name))
        report(package)
        read: Sequence[Function | CoreAIFunction]
        if manifest.target == CORE_AI:
            read, rules = read_program(folder / package), CORE_AI_RULES
        else:
            rules = RULES
            read = [
                read_function(folder / package, name, form, precision=precision, is_first=not index)
                for index, (name, form) in enumerate(manifest.form(declared).functions.items())
            ]
        findings += [finding for function in read for finding in lint_function(function, package, rules)]
        functions += read
    return PrecisionReport(
        packages=len(manifest.packages),
        functions=len(functions),
        operations=sum(function.operation_count for function in functions),
        findings=tuple(findings),
    )
