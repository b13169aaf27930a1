"""The state of one stream on a GPU: buffers at fixed addresses, as captured calls require."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from voxcpm_runtime.backends.gpu.device import Device, DeviceWorker
from voxcpm_runtime.backends.portable.lowered import Interface, graph_dtype
from voxcpm_runtime.backends.portable.onnx_runtime import ort
from voxcpm_runtime.storage.process_memory import mapped_zeros

_ELEMENTS: dict[str, type[np.floating]] = {"tensor(float16)": np.float16, "tensor(float)": np.float32}


@dataclass(eq=False)
class Buffers:
    """The tensors of one stream. Those that are not updated in place are double-buffered."""

    pairs: dict[str, tuple[ort.OrtValue, ...]]
    """One buffer, or two, by name of the state tensor."""
    turn: int = 0
    number: int = 1
    """Serial number in the pool, from 1."""
    parts: dict[str, Buffers] = field(default_factory=dict)
    """Cached results of `part`, by prefix."""

    def part(self, prefix: str) -> Buffers:
        """The tensors with that prefix, without it; always the same object, as calls are captured by it."""
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
        """Swap the double buffers after a call."""
        if any(len(pair) > 1 for pair in self.pairs.values()):
            self.turn = 1 - self.turn


class BufferPool:
    """Reuses the buffers of finished streams, with the calls captured for them."""

    def __init__(
        self, interfaces: Mapping[str, Interface], in_place: frozenset[str], worker: DeviceWorker
    ) -> None:
        self._worker, self._in_place = worker, in_place
        self._zeros = {
            name: mapped_zeros(i.fixed_shape or (), graph_dtype(i.dtype, "half"))
            for name, i in interfaces.items()
        }
        self._blank: dict[tuple[object, ...], ort.OrtValue] = {}
        """Zeros on the device, by dtype and shape."""
        self._free: list[Buffers] = []
        self._made = 0

    def new_state(self) -> DeviceState:
        """The state at the start of a stream: zeros. Its buffers are reused when it is freed."""
        with self._worker.device.memory_checked("hold another stream"):
            buffers = self._worker.run_exclusively(self._take)
        state = DeviceState(buffers, self._in_place, self._worker)
        weakref.finalize(state, self._free.append, buffers)
        return state

    def _take(self) -> Buffers:
        """Buffers of zeros. Runs on the worker's thread."""
        # The oldest, as only the first `step_model.MAX_GRAPHS` calls are captured.
        buffers = min(self._free, key=lambda free: free.number, default=None)
        if buffers is None:
            self._made += 1
            pairs = {
                name: tuple(self._on_device(zeros) for _ in range(1 if name in self._in_place else 2))
                for name, zeros in self._zeros.items()
            }
            return Buffers(pairs, number=self._made)
        self._free.remove(buffers)
        for name, pair in buffers.pairs.items():
            zeros = self._zeros[name]
            form = (zeros.dtype, zeros.shape)
            if form not in self._blank:
                self._blank[form] = self._on_device(zeros)
            for buffer in pair:
                buffer.update_inplace(self._blank[form])
        return buffers

    def _on_device(self, array: np.ndarray) -> ort.OrtValue:
        # A copy, because on the CPU the OrtValue shares the array's memory.
        device = self._worker.device
        return ort.OrtValue.ortvalue_from_numpy(array.copy(), device.kind, device.index)


@dataclass(eq=False)
class DeviceState:
    """The state of one stream on a GPU. Not thread-safe."""

    buffers: Buffers
    in_place: frozenset[str]
    """Names of the tensors that a call updates in place."""
    worker: DeviceWorker
    whole: DeviceState | None = None
    """The state that this one is a part of, kept alive by its parts."""

    def part(self, prefix: str) -> DeviceState:
        """The state of one step model in a call of several: see `Buffers.part`."""
        in_place = frozenset(n.removeprefix(prefix) for n in self.in_place if n.startswith(prefix))
        return DeviceState(self.buffers.part(prefix), in_place, self.worker, self)

    def rows(self, start: int, stop: int) -> dict[str, np.ndarray]:
        """See `StepState`."""
        return self.worker.run_exclusively(self._rows, start, stop)

    def set_rows(self, start: int, rows: Mapping[str, np.ndarray]) -> None:
        """See `StepState`."""
        self.worker.run_exclusively(self.append, rows, start)

    def _rows(self, start: int, stop: int) -> dict[str, np.ndarray]:
        now = self.buffers.now
        return {name: now(name).numpy()[:, :, start:stop].astype(np.float32) for name in self.buffers.pairs}

    def append(self, rows: Mapping[str, np.ndarray], start: int) -> None:
        """Write rows into the caches from position `start` on. Runs on the worker's thread."""
        memory, index = self.worker.device.kind, self.worker.device.index
        targets: dict[tuple[int, ...], ort.OrtValue] = {}
        for name, array in rows.items():
            if not array.size:
                continue
            cache = self.buffers.now(name)
            if array.shape not in targets:
                positions = np.arange(start, start + array.shape[2], dtype=np.int64)
                spread = np.ascontiguousarray(np.broadcast_to(positions.reshape(1, 1, -1, 1), array.shape))
                targets[array.shape] = ort.OrtValue.ortvalue_from_numpy(spread, memory, index)
            written = np.ascontiguousarray(array, _dtype(cache))
            session = _write_session(self.worker.device, written.dtype.name)
            binding = session.io_binding()
            binding.bind_ortvalue_input("cache", cache)
            binding.bind_ortvalue_input("positions", targets[array.shape])
            binding.bind_ortvalue_input("rows", ort.OrtValue.ortvalue_from_numpy(written, memory, index))
            binding.bind_ortvalue_output("updated", cache)
            session.run_with_iobinding(binding)


@functools.cache
def _write_session(device: Device, dtype: str) -> ort.InferenceSession:
    """A session that writes rows into a cache in place."""
    from onnx import parser  # slow, and only needed here

    kind = "float" if dtype == "float32" else dtype
    inputs = f"{kind}[a, b, n, d] cache, int64[a, b, r, d] positions, {kind}[a, b, r, d] rows"
    node = "updated = ScatterElements <axis = 2> (cache, positions, rows)"
    model = parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 18]> '
        f"rows ({inputs}) => ({kind}[a, b, n, d] updated) {{ {node} }}"
    )
    return ort.InferenceSession(model.SerializeToString(), providers=device.providers())


def _dtype(value: ort.OrtValue) -> np.dtype:
    return np.dtype(_ELEMENTS[value.data_type()])
