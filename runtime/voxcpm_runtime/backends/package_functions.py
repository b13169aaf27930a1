"""The functions of a package, as a bundle's manifest declares them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from voxcpm_constants.errors import BundleError
from voxcpm_constants.manifest import Manifest
from voxcpm_constants.step_models import Precision, StepModel
from voxcpm_constants.targets import StateForm, updated_name


class PackageFunction(NamedTuple):
    """One function of a package, the unit of loading."""

    package: Path
    name: str
    declared: StepModel
    state: StateForm

    def check(self, inputs: Iterable[str], outputs: Iterable[str], states: Iterable[str]) -> None:
        """Raises BundleError if its tensors are not named as declared. states: Core ML's own states."""
        state = {t.name for t in self.declared.state}
        passed = set() if self.state == "native" else state
        updated = {updated_name(t, self.state) for t in self.declared.state if t.name in passed}
        expected = {
            "inputs": {t.name for t in self.declared.inputs} | passed,
            "outputs": {t.name for t in self.declared.outputs} | updated,
            "states": state - passed,
        }
        found = {"inputs": set(inputs), "outputs": set(outputs), "states": set(states)}
        for kind, names in expected.items():
            wrong = sorted(names ^ found[kind])
            if wrong:
                what = "missing" if wrong[0] in names else "unknown"
                raise BundleError(
                    f"{self.package}: {kind} are not those of {self.declared.name} ({wrong[0]} is {what}); "
                    "convert again"
                )


def package_functions(
    folder: Path, manifest: Manifest, precision: Precision, package: StepModel
) -> list[PackageFunction]:
    """The functions of a package of the bundle at `folder`, the default one first.

    package: the declaration of a step model that has one package, or of a part of one (`Manifest.parts`).
    """
    form = manifest.form(package)
    path = folder / manifest.package_path(precision, package.name)
    return [PackageFunction(path, *item, form.state) for item in form.functions.items()]
