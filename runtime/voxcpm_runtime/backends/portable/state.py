"""The state of one stream: buffers of KV caches and convolution contexts, which ONNX Runtime writes to directly."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from voxcpm_runtime.backends.portable.lowered import Interface, Mode, graph_dtype, rounded_to_fp16
from voxcpm_runtime.backends.portable.onnx_runtime import ort
from voxcpm_runtime.backends.step_function import write_rows
from voxcpm_runtime.storage.process_memory import mapped_zeros


class State:
    """The state of one stream: zeros at its start, updated by every call of the model that made it.

    A tensor written by one scatter has one buffer, read and written in place. Any other has two, which take turns.
    Caches whose new rows are returned (`append`) are only read by the model, and `outputs` is empty.
    One state belongs to one stream: two threads must not run with the same state at the same time.
    """

    def __init__(
        self,
        interfaces: Mapping[str, Interface],
        tensors: Mapping[str, tuple[tuple[int, ...], np.dtype]],
        outputs: Mapping[str, str],
        in_place: frozenset[str],
        mode: Mode,
    ) -> None:
        self._interfaces = interfaces
        self._outputs = outputs
        self._mode = mode
        self._now: dict[str, np.ndarray] = {}
        self._next: dict[str, np.ndarray] = {}
        for name, (shape, dtype) in tensors.items():
            self._now[name] = mapped_zeros(shape, dtype)
            if name not in in_place:
                self._next[name] = mapped_zeros(shape, dtype)
        self.in_place = in_place
        self._bindings: dict[ort.InferenceSession, ort.IOBinding] = {}

    def binding(self, session: ort.InferenceSession) -> ort.IOBinding:
        """The session's inputs and outputs, bound to the state's buffers."""
        if session not in self._bindings:
            self._bindings[session] = session.io_binding()
            for name in self._now:
                self._bind(name, self._bindings[session])
        return self._bindings[session]

    def numpy(self, name: str) -> np.ndarray:
        """A copy of a state tensor, float32 (its shape is the model's)."""
        return self._buffer(name).copy()

    def set(self, name: str, array: np.ndarray) -> None:
        """Overwrite a state tensor. Raises ValueError for another shape, KeyError for an unknown name."""
        buffer = self._buffer(name)
        if array.shape != buffer.shape:
            raise ValueError(f"state {name} has shape {buffer.shape}, not {array.shape}")
        value = array.astype(buffer.dtype)
        buffer[...] = rounded_to_fp16(value) if self._rounds(name) else value

    def rows(self, start: int, stop: int) -> dict[str, np.ndarray]:
        """Copies of positions start..stop of every KV cache (1, kv_heads, positions, head_dim), by tensor name."""
        return {name: array[:, :, start:stop].copy() for name, array in self._now.items()}

    def set_rows(self, start: int, rows: Mapping[str, np.ndarray]) -> None:
        """Overwrite positions from `start` on with arrays (1, kv_heads, positions, head_dim), by tensor name."""
        for name, array in rows.items():
            self._now[name][:, :, start : start + array.shape[2]] = array

    def append(self, rows: Mapping[str, np.ndarray], positions: np.ndarray) -> None:
        """Write the rows that a call returned, by name of the cache, at its positions (utterances,)."""
        for name, array in rows.items():
            write_rows(self._now[name], array, positions)

    def advance(self) -> None:
        """Make what the last run wrote the state that the next run reads."""
        for name, written in self._next.items():
            self._next[name], self._now[name] = self._now[name], written
            for binding in self._bindings.values():
                self._bind(name, binding)

    def _bind(self, name: str, binding: ort.IOBinding) -> None:
        now = self._now[name]
        binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(now))
        if name not in self._outputs:
            return
        target = ort.OrtValue.ortvalue_from_numpy(self._next.get(name, now))
        binding.bind_ortvalue_output(self._outputs[name], target)

    def _buffer(self, name: str) -> np.ndarray:
        if name not in self._now:
            raise KeyError(f"no state tensor {name}; there are {', '.join(self._now)}")
        return self._now[name]

    def _rounds(self, name: str) -> bool:
        return self._mode == "faithful" and self._interfaces[name].dtype == "FLOAT16"


def form(interface: Interface, mode: Mode) -> tuple[tuple[int, ...], np.dtype]:
    """Shape and dtype of a state tensor. Raises ValueError if it has no one fixed shape."""
    shape = interface.fixed_shape
    if shape is None:
        raise ValueError(f"state {interface.name} must have one fixed shape, not {interface.describe()}")
    return shape, graph_dtype(interface.dtype, mode)
