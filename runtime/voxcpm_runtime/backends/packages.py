"""Step models made of one or several packages, each with one or several functions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from voxcpm_constants.errors import BundleError
from voxcpm_constants.manifest import Manifest
from voxcpm_constants.step_models import ATTENTION, PART_OUTPUT, Precision, StepModel
from voxcpm_constants.targets import StateForm, updated_name, utterances_of
from voxcpm_runtime.backends.step_function import Array, StepFunction, StepState


class PackageFunction(NamedTuple):
    """One function of a package, the unit of loading."""

    package: Path
    name: str
    declared: StepModel
    state: StateForm

    def check(self, inputs: Iterable[str], outputs: Iterable[str], states: Iterable[str]) -> None:
        """Raises BundleError unless its tensors have the declared names. states: the native ones."""
        state = {t.name for t in self.declared.state}
        passed = set() if self.state == "native" else state
        updated = {updated_name(t, self.state) for t in self.declared.state if t.name in passed}
        for kind, expected, found in (
            ("inputs", {t.name for t in self.declared.inputs} | passed, set(inputs)),
            ("outputs", {t.name for t in self.declared.outputs} | updated, set(outputs)),
            ("states", state - passed, set(states)),
        ):
            if wrong := sorted(expected ^ found):
                what = "missing" if wrong[0] in expected else "unknown"
                raise BundleError(
                    f"{self.package}: {kind} do not match {self.declared.name} ({wrong[0]} is {what}); "
                    "convert again"
                )


OpenPackage = Callable[[StepModel, Sequence[PackageFunction], str], Callable[[int], StepFunction]]
"""open(declaration, functions, key) -> load(index), which returns a function. key: the package's digest."""


def open_step_model(
    folder: Path, manifest: Manifest, precision: Precision, name: str, open_package: OpenPackage
) -> StepFunction:
    """A step model of the bundle in `folder`. Loads the first function of each package; others on their first call."""

    def opened(package: StepModel) -> StepFunction:
        form = manifest.form(package)
        path = folder / manifest.package_path(precision, package.name)
        items = [(n, f) for n, f in form.functions.items() if utterances_of(n) == manifest.utterances]
        functions = [PackageFunction(path, *item, form.state_in(item[0])) for item in items]
        load = open_package(package, functions, manifest.package_key(precision, package.name))
        first = load(0)
        return first if len(functions) == 1 else FunctionsByLength(package, first, load)

    declared = manifest.parts(name)
    parts = list(map(opened, declared))
    return parts[0] if len(parts) == 1 else SplitStepModel(declared, parts)


class FunctionsByLength:
    """A step model with one function per length, which share the state. load(index): called once per function."""

    def __init__(self, declared: StepModel, first: StepFunction, load: Callable[[int], StepFunction]) -> None:
        tensor, self._axis = declared.chunk_axis
        self._name, self._input = declared.name, tensor.name
        self._chunks = {length: chunk for chunk, length in enumerate(declared.chunk_lengths)}
        self._load, self._loaded, self.releases_gil = load, {0: first}, first.releases_gil
        self._loading = threading.Lock()

    def new_state(self) -> StepState:
        """See `StepFunction`."""
        return self._loaded[0].new_state()

    def __call__(self, inputs: Mapping[str, Array], state: StepState | None = None) -> dict[str, Array]:
        """See `StepFunction`."""
        length = inputs[self._input].shape[self._axis]
        chunk = self._chunks.get(length)
        if chunk is None:
            lengths = ", ".join(map(str, self._chunks))
            raise ValueError(f"{self._name}: {self._input} may have the lengths {lengths}, not {length}")
        with self._loading:
            if chunk not in self._loaded:
                self._loaded[chunk] = self._load(chunk)
        return self._loaded[chunk](inputs, state)


class SplitState(NamedTuple):
    """The combined state of all parts. states: each with the names of its tensors."""

    states: Sequence[tuple[StepState, frozenset[str]]]

    def rows(self, start: int, stop: int) -> dict[str, Array]:
        """See `StepState`."""
        return {name: array for state, _ in self.states for name, array in state.rows(start, stop).items()}

    def set_rows(self, start: int, rows: Mapping[str, Array]) -> None:
        """See `StepState`."""
        for state, names in self.states:
            state.set_rows(start, {name: rows[name] for name in names & rows.keys()})


class SplitStepModel:
    """A step model in several packages (`voxcpm_constants.step_models.parts`), called in sequence."""

    def __init__(self, declared: Sequence[StepModel], parts: Sequence[StepFunction]) -> None:
        self._declared, self._parts = declared, parts
        self.releases_gil = all(part.releases_gil for part in parts)

    def new_state(self) -> SplitState:
        """See `StepFunction`."""
        names = [frozenset(t.name for t in declared.state) for declared in self._declared]
        return SplitState([(p.new_state(), n) for p, n in zip(self._parts, names, strict=True)])

    def __call__(self, inputs: Mapping[str, Array], state: StepState | None = None) -> dict[str, Array]:
        """See `StepFunction`."""
        if not isinstance(state, SplitState) or len(state.states) != len(self._parts):
            raise ValueError(f"{self._declared[0].name}: pass a state of this step model")
        first_input, outputs = self._declared[0].inputs[0].name, dict(inputs)
        rows: list[Array] = []
        for part, (own, _) in zip(self._parts, state.states, strict=True):
            outputs = part({**inputs, first_input: outputs.get(PART_OUTPUT, inputs[first_input])}, own)
            rows += [outputs.pop(ATTENTION)] if ATTENTION in outputs else []
        return outputs | ({ATTENTION: np.concatenate(rows, axis=2)} if rows else {})
