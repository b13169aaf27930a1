"""A step model whose package has one function for each length: a call runs the function for its length."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

from voxcpm_constants.step_models import StepModel
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
