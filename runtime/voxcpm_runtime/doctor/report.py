"""The doctor's report: the machine, what every step model did on every compute unit, the choice, and advice."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, version

from pydantic import BaseModel, ConfigDict

from voxcpm_constants.step_models import Precision
from voxcpm_constants.targets import CORE_AI
from voxcpm_runtime.backends.compute_units import COREAI, PORTABLE
from voxcpm_runtime.backends.fallback import INSTALL_PORTABLE
from voxcpm_runtime.backends.machine import backends, build, chip, system
from voxcpm_runtime.bundle.opening import Bundle
from voxcpm_runtime.doctor.agreement import FLOORS
from voxcpm_runtime.doctor.trials import Trial, fastest_correct

_LIBRARIES = ("voxcpm-coreml", "coremltools", "coreai-core", "onnxruntime", "onnx", "numpy")


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Machine(_Record):
    """The machine and the libraries of this project on it."""

    system: str
    build: str
    chip: str
    architecture: str
    processors: int | None
    python: str
    libraries: dict[str, str | None]
    """Installed versions; None for a library that is not installed."""
    backends: tuple[str, ...]


class Described(_Record):
    """The bundle, without its name."""

    generation: str
    precision: Precision
    target: str
    batch: int
    kv_length: int
    digest: str
    judged: bool
    """Whether it has test vectors."""


class Report(_Record):
    """Everything that the doctor found."""

    machine: Machine
    bundle: Described
    floor: float
    """The lowest correlation that counts as correct in this precision."""
    step_models: tuple[str, ...]
    trials: tuple[Trial, ...]
    refusal: str = ""
    """Why no step model of the bundle was tried on Core ML: it needs a newer system."""

    @property
    def chosen(self) -> dict[str, Trial]:
        """The fastest correct trial of each step model that has one."""
        return fastest_correct(self.trials)

    @property
    def healthy(self) -> bool:
        """Whether every step model has a correct unit."""
        return self.chosen.keys() == set(self.step_models)

    def advice(self) -> list[str]:
        """What to use, what failed, and what to do about it, one sentence each."""
        return [sentence for advise in _ADVICE for sentence in advise(self)]


def this_machine() -> Machine:
    """The machine that this process runs on."""
    return Machine(
        system=system(),
        build=build(),
        chip=chip(),
        architecture=platform.machine(),
        processors=os.cpu_count(),
        python=platform.python_version(),
        libraries={name: _version(name) for name in _LIBRARIES},
        backends=backends(),
    )


def describe_bundle(bundle: Bundle) -> Described:
    """What a report says about a bundle."""
    manifest = bundle.manifest
    return Described(
        generation=manifest.architecture.generation,
        precision=bundle.precision,
        target=manifest.target,
        batch=manifest.sizes.batch,
        kv_length=manifest.sizes.kv_length,
        digest=bundle.digest,
        judged=bool(manifest.vector_files()),
    )


def report_of(bundle: Bundle, trials: Iterable[Trial], refusal: str = "") -> Report:
    """The report of a bundle's trials on this machine. refusal: see `Report`."""
    return Report(
        machine=this_machine(),
        bundle=describe_bundle(bundle),
        floor=FLOORS[bundle.precision],
        step_models=tuple(bundle.manifest.step_models),
        trials=tuple(trials),
        refusal=refusal,
    )


def _version(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:
        return None


def _unjudged(report: Report) -> Iterable[str]:
    if not report.bundle.judged:
        yield (
            "This bundle has no test vectors: its numbers cannot be judged, only timed. Convert the checkpoint again."
        )


def _refused(report: Report) -> Iterable[str]:
    if report.refusal:
        yield f"Core ML was not tried: {report.refusal}."


def _usable(report: Report) -> Iterable[str]:
    if not report.healthy:
        return
    portable = [name for name, trial in report.chosen.items() if trial.unit == PORTABLE]
    if len(portable) == len(report.chosen):
        yield "Every step model is correct on the portable backend."
        return
    if all(trial.unit == COREAI for trial in report.chosen.values()):
        yield "Every step model is correct on Core AI."
        return
    yield "Every step model is correct somewhere. What --compute-units auto uses has a star."
    if portable:
        yield f"Only the portable backend is correct for {', '.join(portable)}."


def _without_a_unit(report: Report) -> Iterable[str]:
    lost = [name for name in report.step_models if name not in report.chosen]
    if lost and report.bundle.judged:
        yield (
            f"No unit is correct for {', '.join(lost)}. Try another --precision, and please report it: attach what "
            "--json prints to an issue; it has no names and no paths."
        )
        if "portable" not in report.machine.backends and report.bundle.target != CORE_AI:
            yield f"The portable backend would be a way to speak: {INSTALL_PORTABLE}"


def _failures(report: Report) -> Iterable[str]:
    """One sentence for each way in which a step model failed on some units."""
    grouped: dict[tuple[str, str, str], list[str]] = {}
    for trial in report.trials:
        if trial.outcome in _FAILED:
            grouped.setdefault((trial.step_model, trial.outcome, trial.message), []).append(trial.unit)
    for (name, outcome, message), units in grouped.items():
        yield f"{name} {_FAILED[outcome]} on {', '.join(units)}{f': {message}' if message else '.'}"


def _too_slow(report: Report) -> Iterable[str]:
    if any(trial.outcome == "hung" for trial in report.trials):
        yield "What did not answer in time may only be slow to compile: give it longer with --timeout."


_FAILED = {
    "wrong": "gives wrong numbers",
    "refused": "is refused",
    "crashed": "ends the process",
    "hung": "does not answer in time",
}
"""Outcome -> what the advice says about it."""

_ADVICE: tuple[Callable[[Report], Iterable[str]], ...] = (
    _refused,
    _usable,
    _unjudged,
    _without_a_unit,
    _failures,
    _too_slow,
)
