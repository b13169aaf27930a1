"""The functions of a package, as a bundle's manifest declares them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from voxcpm_constants.errors import BundleError
from voxcpm_constants.manifest import Manifest, package_path
from voxcpm_constants.step_models import Precision, StepModel
from voxcpm_constants.targets import StateForm, updated_name


class PackageFunction(NamedTuple):
    """One function of a package, the unit of loading."""

    package: Path
    name: str
    declared: StepModel
    state: StateForm

    def check(self, inputs: Iterable[str], outputs: Iterable[str], states: Iterable[str]) -> None:
        """Raises BundleError if the function's tensors are not named as declared."""
        check_interface(self.declared, self.state, inputs, outputs, states, self.package)


def package_functions(
    folder: Path, manifest: Manifest, precision: Precision, package: StepModel
) -> list[PackageFunction]:
    """The functions of a package of the bundle at `folder`, the default one first.

    package: the declaration of a step model that has one package, or of a part of one (`Manifest.parts`).
    """
    form = manifest.form(package)
    path = folder / package_path(precision, package.name)
    return [PackageFunction(path, *item, form.state) for item in form.functions.items()]


def check_interface(
    declared: StepModel,
    state: StateForm,
    inputs: Iterable[str],
    outputs: Iterable[str],
    states: Iterable[str],
    package: Path,
) -> None:
    """Raises BundleError if a package's tensors are not named as declared. states: Core ML's own states."""
    kept = {t.name for t in declared.state}
    passed = set() if state == "native" else kept
    updated = {updated_name(t, state) for t in declared.state if t.name in passed}
    expected = {
        "inputs": {t.name for t in declared.inputs} | passed,
        "outputs": {t.name for t in declared.outputs} | updated,
        "states": kept - passed,
    }
    found = {"inputs": set(inputs), "outputs": set(outputs), "states": set(states)}
    for kind, names in expected.items():
        wrong = sorted(names ^ found[kind])
        if wrong:
            what = "missing" if wrong[0] in names else "unknown"
            raise BundleError(
                f"{package}: {kind} are not those of {declared.name} ({wrong[0]} is {what}); convert again"
            )
