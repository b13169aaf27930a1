"""The functions of a step model's package, as a bundle's manifest declares them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from voxcpm_constants.errors import BundleError
from voxcpm_constants.manifest import Manifest, package_path
from voxcpm_constants.step_models import Precision, StepModel
from voxcpm_constants.targets import package_form


class PackageFunction(NamedTuple):
    """One function of a package, the unit of loading."""

    package: Path
    name: str
    declared: StepModel
    keeps_state: bool

    def check(self, inputs: Iterable[str], outputs: Iterable[str], states: Iterable[str]) -> None:
        """Raises BundleError if the function's tensors are not named as declared."""
        check_interface(
            self.declared, inputs, outputs, self.package, states=states if self.keeps_state else None
        )


def package_functions(
    folder: Path, manifest: Manifest, precision: Precision, name: str
) -> list[PackageFunction]:
    """The functions of a step model's package in the bundle at `folder`, the default one first."""
    form = package_form(manifest.step_models[name], manifest.target)
    package = folder / package_path(precision, name)
    return [PackageFunction(package, *item, form.keeps_state) for item in form.functions.items()]


def check_interface(
    declared: StepModel,
    inputs: Iterable[str],
    outputs: Iterable[str],
    package: Path,
    *,
    states: Iterable[str] | None = None,
) -> None:
    """Raises BundleError if a package's tensors are not named as declared.

    states: names of Core ML's own states; None if state is passed as inputs and outputs.
    """
    state = {t.name for t in declared.state}
    expected = {"inputs": {t.name for t in declared.inputs}, "outputs": {t.name for t in declared.outputs}}
    found = {"inputs": set(inputs), "outputs": set(outputs)}
    if states is None:
        expected["inputs"] |= state
        expected["outputs"] |= {t.output_name for t in declared.state}
    else:
        expected["states"], found["states"] = state, set(states)
    for kind, names in expected.items():
        wrong = sorted(names ^ found[kind])
        if wrong:
            what = "missing" if wrong[0] in names else "unknown"
            raise BundleError(
                f"{package}: {kind} are not those of {declared.name} ({wrong[0]} is {what}); convert again"
            )
