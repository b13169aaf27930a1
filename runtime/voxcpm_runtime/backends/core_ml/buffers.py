"""The arrays that Core ML reads its inputs from, which outlive every prediction.

Core ML keeps the inputs of a prediction and releases them about a second later, on a thread of its own. coremltools
9.0 does not take Python's lock there, so that the process crashes if that was the last reference to an array
(coremltools pull requests 2827 and 2829).
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from voxcpm_constants.step_models import TensorSpec
from voxcpm_runtime.backends.step_function import Array

LINGER_SECONDS = 10.0
"""How long arrays outlive their step model: ten times what Core ML was seen to keep them for."""
# Core ML counts down without a lock, so that one of two updates at the same time may be lost.
_SPARE_REFERENCES = 16


class InputBuffers:
    """C-contiguous float32 and int32 arrays for the inputs and the states of one step model.

    owner: the step model. The arrays live as long as it does and `LINGER_SECONDS` longer, and are not freed at the
    exit of the process. coremltools replaces float16 inputs by float32 arrays of its own, so that there are none.
    """

    def __init__(self, owner: object) -> None:
        self._inputs: dict[tuple[str, tuple[int, ...]], Array] = {}
        self._unused_states: list[dict[str, Array]] = []
        self._all: list[Array] = []
        # The exit of Python would free them, while Core ML still has them.
        _count_reference("Py_IncRef", self._all)
        weakref.finalize(owner, _free_later, self._all).atexit = False

    def filled(self, name: str, values: npt.ArrayLike, dtype: Any = np.float32) -> Array:
        """The array for an input of that name and shape, with these values. The next call for them overwrites it."""
        key = name, np.shape(values)
        if key not in self._inputs:
            self._inputs[key] = self._new(key[1], dtype)
        np.copyto(self._inputs[key], values, casting="same_kind")
        return self._inputs[key]

    def zero_state(self, owner: object, tensors: Iterable[TensorSpec]) -> dict[str, Array]:
        """Zeros for state tensors, by name. When `owner` is freed, another state gets the same arrays."""
        try:
            arrays = self._unused_states.pop()
        except IndexError:
            arrays = {t.name: self._new(t.shape_at(0)) for t in tensors}
        for array in arrays.values():
            array.fill(0)
        weakref.finalize(owner, self._unused_states.append, arrays).atexit = False
        return arrays

    def _new(self, shape: tuple[int, ...], dtype: Any = np.float32) -> Array:
        array = np.zeros(shape, dtype)
        self._all += [array] * _SPARE_REFERENCES
        return array


def _free_later(arrays: list[Array]) -> None:
    timer = threading.Timer(LINGER_SECONDS, _count_reference, ("Py_DecRef", arrays))
    timer.daemon = True
    # At the exit no thread can be started: then nothing frees them.
    with suppress(RuntimeError):
        timer.start()


def _count_reference(function: str, item: object) -> None:
    getattr(ctypes.pythonapi, function)(ctypes.py_object(item))
