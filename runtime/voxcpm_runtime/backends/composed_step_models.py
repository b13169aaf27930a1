"""Step models of several functions or packages: a call runs the function for its length, or the parts in turn."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

from voxcpm_constants.step_models import PASSED_ON, StepModel
from voxcpm_runtime.backends.step_function import Array, StepFunction, StepState


class FunctionsByLength:
    """A step model of one function for each length. All functions except the first load when first called.

    The functions share one state. declared: the whole step model. first: the function for its first length. load:
    a function from the index of a length to the function for it.
    """

    def __init__(self, declared: StepModel, first: StepFunction, load: Callable[[int], StepFunction]) -> None:
        tensor, self._axis = declared.chunk_axis
        self._name = declared.name
        self._input = tensor.name
        self._chunks = {length: chunk for chunk, length in enumerate(declared.chunk_lengths)}
        self._load = load
        self._loading = threading.Lock()
        self._loaded = {0: first}

    def new_state(self) -> StepState:
        """The state at the start of a stream: zeros."""
        return self._loaded[0].new_state()

    def __call__(self, inputs: Mapping[str, Array], state: StepState | None = None) -> dict[str, Array]:
        """Run one step. Raises ValueError for a length that no function takes."""
        length = inputs[self._input].shape[self._axis]
        if length not in self._chunks:
            taken = ", ".join(map(str, self._chunks))
            raise ValueError(f"{self._name}: {self._input} may have the lengths {taken}, not {length}")
        return self._function(self._chunks[length])(inputs, state)

    def _function(self, chunk: int) -> StepFunction:
        with self._loading:
            if chunk not in self._loaded:
                self._loaded[chunk] = self._load(chunk)
            return self._loaded[chunk]


def by_length(declared: StepModel, functions: Sequence[StepFunction]) -> StepFunction:
    """A step model of these functions, one for each of its lengths."""
    first = functions[0]
    return first if len(functions) == 1 else FunctionsByLength(declared, first, functions.__getitem__)


class StatesInTurn:
    """The state of each part, as one."""

    def __init__(self, declared: Sequence[StepModel], states: Sequence[StepState]) -> None:
        self._declared = declared
        self.states = states

    def rows(self, start: int, stop: int) -> dict[str, Array]:
        """Copies of positions start..stop of every KV cache (1, kv_heads, positions, head_dim), by tensor name."""
        return {name: array for state in self.states for name, array in state.rows(start, stop).items()}

    def set_rows(self, start: int, rows: Mapping[str, Array]) -> None:
        """Overwrite positions from `start` on with arrays (1, kv_heads, positions, head_dim), by tensor name."""
        for declared, state in zip(self._declared, self.states, strict=True):
            state.set_rows(start, {t.name: rows[t.name] for t in declared.state if t.name in rows})


class PartsInTurn:
    """A step model whose parts (`voxcpm_constants.step_models.parts`) are loaded each by itself."""

    def __init__(self, declared: Sequence[StepModel], parts: Sequence[StepFunction]) -> None:
        self._declared = declared
        self._parts = parts

    def new_state(self) -> StatesInTurn:
        """The state at the start of a stream: zeros."""
        return StatesInTurn(self._declared, [part.new_state() for part in self._parts])

    def __call__(self, inputs: Mapping[str, Array], state: StepState | None = None) -> dict[str, Array]:
        """Run one step. Raises ValueError for wrong inputs, and for a missing state or one of another step model."""
        if not isinstance(state, StatesInTurn) or len(state.states) != len(self._parts):
            raise ValueError(f"{self._declared[0].name}: pass a state that this step model made")
        taken, outputs = self._declared[0].inputs[0].name, dict(inputs)
        for part, own in zip(self._parts, state.states, strict=True):
            outputs = part({**inputs, taken: outputs.get(PASSED_ON, inputs[taken])}, own)
        return outputs


def in_turn(declared: Sequence[StepModel], load: Callable[[StepModel], StepFunction]) -> StepFunction:
    """A step model of these parts; the only one itself."""
    parts = [load(part) for part in declared]
    return parts[0] if len(parts) == 1 else PartsInTurn(declared, parts)
