"""The state of one stream on a GPU: buffers that never move, so that captured calls find them again."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from voxcpm_runtime.backends.devices import Device
from voxcpm_runtime.backends.gpu.device_worker import DeviceWorker
from voxcpm_runtime.backends.portable.lowered import Interface
from voxcpm_runtime.backends.portable.onnx_runtime import ort
from voxcpm_runtime.backends.portable.state import form
from voxcpm_runtime.storage.process_memory import mapped_zeros

ROWS_AXIS = 2


@dataclass(eq=False)
class Buffers:
    """The tensors of one stream. Those that no scatter writes in place have two, which take turns."""

    pairs: dict[str, tuple[ort.OrtValue, ...]]
    """One buffer, or two, by name of the state tensor."""
    turn: int = 0
    number: int = 1
    """Which of its pool's buffers these are, from 1."""
    parts: dict[str, Buffers] = field(default_factory=dict)
    """What `part` has given, by prefix."""

    def part(self, prefix: str) -> Buffers:
        """The tensors whose names begin with the prefix, without it: each time the same object, as calls are captured
        by it.
        """
        if prefix not in self.parts:
            pairs = {n.removeprefix(prefix): pair for n, pair in self.pairs.items() if n.startswith(prefix)}
            self.parts[prefix] = Buffers(pairs)
        return self.parts[prefix]

    def now(self, name: str) -> ort.OrtValue:
        """The buffer that the next call reads."""
        return self.pairs[name][self.turn % len(self.pairs[name])]

    def next(self, name: str) -> ort.OrtValue:
        """The buffer that the next call writes."""
        return self.pairs[name][(self.turn + 1) % len(self.pairs[name])]

    def advance(self) -> None:
        """Make what the last call wrote what the next one reads."""
        if any(len(pair) > 1 for pair in self.pairs.values()):
            self.turn = 1 - self.turn


class BufferPool:
    """Buffers of streams that have ended serve the next ones, with the calls that were captured for them."""

    def __init__(
        self, interfaces: Mapping[str, Interface], in_place: frozenset[str], worker: DeviceWorker
    ) -> None:
        self._worker = worker
        self._in_place = in_place
        self._zeros = {name: mapped_zeros(*form(interface, "half")) for name, interface in interfaces.items()}
        self._blank: dict[tuple[Any, ...], ort.OrtValue] = {}
        self._free: list[Buffers] = []
        self._made = 0

    def new_state(self) -> DeviceState:
        """The state at the start of a stream: zeros. When it is gone, its buffers serve another one."""
        with self._worker.device.memory_checked("hold another stream"):
            buffers = self._worker.run_alone(self._take)
        state = DeviceState(buffers, self._in_place, self._worker)
        weakref.finalize(state, self._free.append, buffers)
        return state

    def _take(self) -> Buffers:
        """Buffers of zeros. Runs on the worker's thread."""
        # The oldest ones: their calls are captured, those of the latest perhaps no more (`device_calls.MAX_GRAPHS`).
        buffers = min(self._free, key=lambda free: free.number, default=None)
        if buffers is None:
            self._made += 1
            return Buffers({name: self._allocated(name) for name in self._zeros}, number=self._made)
        self._free.remove(buffers)
        for name, pair in buffers.pairs.items():
            for buffer in pair:
                buffer.update_inplace(self._blank_like(name))
        return buffers

    def _allocated(self, name: str) -> tuple[ort.OrtValue, ...]:
        count = 1 if name in self._in_place else 2
        return tuple(self._on_device(self._zeros[name]) for _ in range(count))

    def _blank_like(self, name: str) -> ort.OrtValue:
        """Zeros on the device, shared by tensors of one shape."""
        array = self._zeros[name]
        key = (array.dtype, array.shape)
        if key not in self._blank:
            self._blank[key] = self._on_device(array)
        return self._blank[key]

    def _on_device(self, array: np.ndarray) -> ort.OrtValue:
        # On the CPU an OrtValue of an array is that array itself.
        device = self._worker.device
        return ort.OrtValue.ortvalue_from_numpy(array.copy(), device.memory, device.index)


@dataclass(eq=False)
class DeviceState:
    """The state of one stream on a GPU: zeros at its start, updated by every call of the model that made it.

    One state belongs to one stream: two threads must not run with the same state at the same time.
    """

    buffers: Buffers
    in_place: frozenset[str]
    """Names of the tensors that a call writes where they lie."""
    worker: DeviceWorker
    whole: DeviceState | None = None
    """The state that this one is a part of, which lives as long as its parts."""

    def part(self, prefix: str) -> DeviceState:
        """The state of one step model in a call of several: tensors whose names begin with the prefix, without it."""
        in_place = frozenset(n.removeprefix(prefix) for n in self.in_place if n.startswith(prefix))
        return DeviceState(self.buffers.part(prefix), in_place, self.worker, self)

    def numpy(self, name: str) -> np.ndarray:
        """A copy of a state tensor, float32 (its shape is the model's). Raises KeyError for an unknown name."""
        buffer = self._buffer(name)
        return self.worker.run_alone(buffer.numpy).astype(np.float32)

    def set(self, name: str, array: np.ndarray) -> None:
        """Overwrite a state tensor. Raises ValueError for another shape, KeyError for an unknown name."""
        buffer = self._buffer(name)
        if tuple(array.shape) != tuple(buffer.shape()):
            raise ValueError(f"state {name} has shape {tuple(buffer.shape())}, not {array.shape}")
        self.worker.run_alone(buffer.update_inplace, np.ascontiguousarray(array, _dtype(buffer)))

    def rows(self, start: int, stop: int) -> dict[str, np.ndarray]:
        """Copies of positions start..stop of every KV cache (1, kv_heads, positions, head_dim), by tensor name."""
        return self.worker.run_alone(self._rows, start, stop)

    def set_rows(self, start: int, rows: Mapping[str, np.ndarray]) -> None:
        """Overwrite positions from `start` on with arrays (1, kv_heads, positions, head_dim), by tensor name."""
        self.worker.run_alone(self._set_rows, start, rows)

    def append(self, rows: Mapping[str, np.ndarray], positions: np.ndarray) -> None:
        """Write the rows that a call returned, by name of the cache, at its positions (utterances,).

        Runs on the worker's thread.
        """
        for name, array in rows.items():
            length, count = (
                self.buffers.now(name).shape()[ROWS_AXIS] // len(positions),
                array.shape[ROWS_AXIS] // len(positions),
            )
            for utterance, position in enumerate(positions):
                part = array[:, :, utterance * count : (utterance + 1) * count]
                self._set_rows(utterance * length + int(position), {name: part})

    def _rows(self, start: int, stop: int) -> dict[str, np.ndarray]:
        bounds = [np.array([bound], np.int64) for bound in (start, stop)]
        found = {}
        for name in self.buffers.pairs:
            cache = self.buffers.now(name)
            if stop <= start:
                found[name] = np.zeros(
                    (*cache.shape()[:ROWS_AXIS], 0, *cache.shape()[ROWS_AXIS + 1 :]), np.float32
                )
                continue
            binding = row_sessions(self.worker.device, _dtype(cache).name)[0].io_binding()
            binding.bind_ortvalue_input("cache", cache)
            for bound, array in zip(("start", "stop"), bounds, strict=True):
                binding.bind_cpu_input(bound, array)
            binding.bind_output("rows")
            row_sessions(self.worker.device, _dtype(cache).name)[0].run_with_iobinding(binding)
            found[name] = binding.get_outputs()[0].numpy().astype(np.float32)
        return found

    def _set_rows(self, start: int, rows: Mapping[str, np.ndarray]) -> None:
        memory, index = self.worker.device.memory, self.worker.device.index
        targets: dict[tuple[int, ...], ort.OrtValue] = {}
        for name, array in rows.items():
            if not array.size:
                continue
            cache = self.buffers.now(name)
            if array.shape not in targets:
                positions = np.arange(start, start + array.shape[ROWS_AXIS], dtype=np.int64)
                spread = np.broadcast_to(positions.reshape(1, 1, -1, 1), array.shape)
                targets[array.shape] = ort.OrtValue.ortvalue_from_numpy(
                    np.ascontiguousarray(spread), memory, index
                )
            written = np.ascontiguousarray(array, _dtype(cache))
            session = row_sessions(self.worker.device, written.dtype.name)[1]
            binding = session.io_binding()
            binding.bind_ortvalue_input("cache", cache)
            binding.bind_ortvalue_input("positions", targets[array.shape])
            binding.bind_ortvalue_input("rows", ort.OrtValue.ortvalue_from_numpy(written, memory, index))
            binding.bind_ortvalue_output("updated", cache)
            session.run_with_iobinding(binding)

    def _buffer(self, name: str) -> ort.OrtValue:
        if name not in self.buffers.pairs:
            raise KeyError(f"no state tensor {name}; there are {', '.join(self.buffers.pairs)}")
        return self.buffers.now(name)


@functools.cache
def row_sessions(device: Device, dtype: str) -> tuple[ort.InferenceSession, ort.InferenceSession]:
    """Sessions that read rows of a cache, and that write rows into it where it lies."""
    from onnx import TensorProto, helper

    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))

    def session(
        kind: str, inputs: dict[str, tuple[int, int]], output: str, *names: str, **attributes: Any
    ) -> ort.InferenceSession:
        graph = helper.make_graph(
            [helper.make_node(kind, names, [output], **attributes)],
            kind,
            [
                helper.make_tensor_value_info(name, type_, [None] * rank)
                for name, (type_, rank) in inputs.items()
            ],
            [helper.make_tensor_value_info(output, element, [None] * 4)],
            [helper.make_tensor("axes", TensorProto.INT64, [1], [ROWS_AXIS])] if "axes" in names else [],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
        return ort.InferenceSession(model.SerializeToString(), providers=device.providers())

    integers = TensorProto.INT64
    return (
        session("Slice", {"cache": (element, 4), "start": (integers, 1), "stop": (integers, 1)}, "rows",
                "cache", "start", "stop", "axes"),
        session("ScatterElements", {"cache": (element, 4), "positions": (integers, 4), "rows": (element, 4)}, "updated",
                "cache", "positions", "rows", axis=ROWS_AXIS),
    )  # fmt: skip


_DTYPES: dict[str, np.dtype] = {
    "tensor(float16)": np.dtype(np.float16),
    "tensor(float)": np.dtype(np.float32),
}


def _dtype(value: ort.OrtValue) -> np.dtype:
    return _DTYPES[value.data_type()]
