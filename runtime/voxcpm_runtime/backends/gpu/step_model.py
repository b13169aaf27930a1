"""Runs an .mlpackage on a GPU, with fixed buffers and calls of one shape captured as CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from voxcpm_runtime.backends.gpu.device import Device, DeviceWorker
from voxcpm_runtime.backends.gpu.state import BufferPool, Buffers, DeviceState
from voxcpm_runtime.backends.portable.lowered import Interface, Lowered
from voxcpm_runtime.backends.portable.onnx_runtime import ort
from voxcpm_runtime.backends.portable.sessions import mapped_weights, session_options
from voxcpm_runtime.backends.portable.step_model import PortableStepModel
from voxcpm_runtime.backends.step_function import StepState

if TYPE_CHECKING:
    from onnx import NodeProto

MAX_GRAPHS = 64
"""Maximum number of captured calls per session, some megabytes each; others are launched node by node."""
GRAPH_ID = "gpu_graph_id"
NOT_CAPTURED = "-1"

Feeds = Mapping[str, np.ndarray]
Signature = tuple[tuple[int, ...], ...]


@dataclass
class _Tensors:
    """The input and output buffers for one set of shapes, shared by all streams, as calls are serialized."""

    inputs: dict[str, ort.OrtValue]
    outputs: dict[str, ort.OrtValue]
    last: dict[str, np.ndarray] = field(default_factory=dict)
    """Current contents of the inputs."""

    def fill(self, feeds: Feeds) -> None:
        """Copy changed inputs to the device: most inputs of an Euler step equal those of the previous one."""
        for name, array in feeds.items():
            if name not in self.last or not np.array_equal(self.last[name], array):
                self.inputs[name].update_inplace(array)
                self.last[name] = array.copy()


@dataclass
class _BoundCall:
    """A session's binding to buffers, and whether the call is captured."""

    binding: ort.IOBinding
    options: ort.RunOptions
    captured: bool


class DeviceCalls:
    """Runs a session on a device. The outputs of a call are arrays; its state stays on the device.

    outputs: names of visible ones. state: state input -> the output with its next value. With `returns_rows` these
    outputs hold the new rows of caches, which are inputs only.
    """

    def __init__(
        self, session: ort.InferenceSession, worker: DeviceWorker, outputs: Iterable[str], state: Mapping[str, str],
        interfaces: Mapping[str, Interface], in_place: frozenset[str], *, returns_rows: bool, captured: bool,
    ) -> None:  # fmt: skip
        self._session, self._worker, self._state = session, worker, dict(state)
        self._returns_rows, self._captured = returns_rows, captured
        self._visible = [*(state.values() if returns_rows else ()), *outputs]
        self._pool = BufferPool(interfaces, in_place, worker)
        self.new_state = self._pool.new_state
        self._tensors: dict[Signature, _Tensors] = {}
        self._bound: dict[tuple[Signature, Buffers | None, int], _BoundCall] = {}

    def begin(self, feeds: Callable[[], Feeds], state: DeviceState | None) -> Future[dict[str, np.ndarray]]:
        """Queue a step, which updates the state. feeds: called just before the step."""

        def called() -> dict[str, np.ndarray]:
            with self._worker.device.memory_checked("run a step model"):
                return self._call(feeds(), state)

        return self._worker.begin(called)

    def _call(self, feeds: Feeds, state: DeviceState | None) -> dict[str, np.ndarray]:
        signature = tuple(array.shape for array in feeds.values())
        buffers = None if state is None else state.buffers
        key = (signature, buffers, 0 if buffers is None else buffers.turn)
        gate = self._worker.gate
        # A captured call does not allocate, but writing returned rows does.
        captured = key in self._bound and self._bound[key].captured and not self._returns_rows
        with gate.shared() if captured else gate.exclusive():
            if signature not in self._tensors:
                results = self._first(feeds, buffers, signature)
            else:
                tensors = self._tensors[signature]
                tensors.fill(feeds)
                if key not in self._bound:
                    self._bound[key] = self._bind(tensors, buffers)
                self._session.run_with_iobinding(self._bound[key].binding, self._bound[key].options)
                # A copy, because on the CPU the array shares the OrtValue's memory.
                results = {name: value.numpy().copy() for name, value in tensors.outputs.items()}
            if state is not None and self._returns_rows:
                rows = {i: results.pop(o) for i, o in self._state.items()}
                state.append(rows, int(feeds["position"].item()))
        if buffers is not None:
            buffers.advance()
        return results

    def _first(self, feeds: Feeds, buffers: Buffers | None, signature: Signature) -> dict[str, np.ndarray]:
        """The first call with these input shapes, which determines the output shapes."""
        memory, index = self._worker.device.kind, self._worker.device.index

        def on_device(arrays: Feeds) -> dict[str, ort.OrtValue]:
            copies = ((name, array.copy()) for name, array in arrays.items())
            return {name: ort.OrtValue.ortvalue_from_numpy(copy, memory, index) for name, copy in copies}

        inputs = on_device(feeds)
        binding = self._binding(inputs, buffers)
        for name in self._visible:
            binding.bind_output(name, memory, index)
        self._session.run_with_iobinding(binding, _options(NOT_CAPTURED))
        # The outputs of the state were bound first, these after them in order.
        values = binding.get_outputs()[-len(self._visible) :]
        results = {name: value.numpy() for name, value in zip(self._visible, values, strict=True)}
        self._tensors[signature] = _Tensors(inputs, on_device(results))
        return results

    def _bind(self, tensors: _Tensors, buffers: Buffers | None) -> _BoundCall:
        binding = self._binding(tensors.inputs, buffers)
        for name, value in tensors.outputs.items():
            binding.bind_ortvalue_output(name, value)
        captured = self._captured and len(self._bound) < MAX_GRAPHS
        return _BoundCall(
            binding, _options(str(len(self._bound) + 1) if captured else NOT_CAPTURED), captured
        )

    def _binding(self, inputs: Mapping[str, ort.OrtValue], buffers: Buffers | None) -> ort.IOBinding:
        binding = self._session.io_binding()
        for name, value in inputs.items():
            binding.bind_ortvalue_input(name, value)
        if buffers is not None:
            for name, output in self._state.items():
                binding.bind_ortvalue_input(name, buffers.now(name))
                if not self._returns_rows:
                    binding.bind_ortvalue_output(output, buffers.next(name))
        return binding


def _options(graph: str) -> ort.RunOptions:
    options = ort.RunOptions()
    options.add_run_config_entry(GRAPH_ID, graph)
    return options


class GPUStepModel(PortableStepModel):
    """A step model on a GPU, in fp16 arithmetic by default. Arguments and errors: see `PortableStepModel`.

    Also raises DeviceError, from calls too, for a GPU that cannot be used or has too little memory.
    """

    def __init__(self, package: Path, *, device: Device, **options: Any) -> None:
        self._device = device
        super().__init__(package, **{"mode": "half", **options})

    @property
    def writes_in_place(self) -> bool:
        """Whether a call updates its whole state in place."""
        return not self._returns_rows and self._in_place == self.state.keys()

    def new_state(self) -> DeviceState:
        """See `StepFunction`."""
        return self._calls.new_state()

    def _load(self, **options: Any) -> Lowered:
        return super()._load(**options, rewrite=_fused)

    def _open(self, threads: int | None, prepared_key: str | None) -> None:  # noqa: ARG002 - prepared graphs are for processors
        worker = DeviceWorker(self._device)
        self.weights = mapped_weights(self._package, self.lowered)
        names = [ref.name for ref in self.lowered.weights]
        with self._device.memory_checked(f"load {self._name}"):
            session, captured = worker.run_exclusively(
                open_on_device, self.lowered.model, names, self.weights, self._device, threads
            )
        self._calls = DeviceCalls(
            session, worker, self._visible, self.state, self._caches, self._in_place,
            returns_rows=self._returns_rows, captured=captured,
        )  # fmt: skip

    def _computed(self, feeds: Mapping[str, np.ndarray], state: StepState | None) -> dict[str, np.ndarray]:
        if state is not None and (not isinstance(state, DeviceState) or state.in_place != self._in_place):
            raise ValueError(f"{self._name}: pass a state of this step model")
        return self._calls.begin(lambda: feeds, state).result()


def _fused(nodes: list[NodeProto], *graph: Any) -> list[NodeProto]:
    from voxcpm_runtime.backends.gpu.fusion import fuse_for_gpu  # imports onnx; only on a cache miss

    return fuse_for_gpu(nodes, *graph)


def open_on_device(
    model: bytes,
    names: Sequence[str],
    weights: Sequence[ort.OrtValue],
    device: Device,
    threads: int | None = None,
) -> tuple[ort.InferenceSession, bool]:
    """A session on the device, and whether its calls can be captured. names: of the weights in the graph."""

    def session(*, captured: bool) -> ort.InferenceSession:
        # Higher levels are for processors.
        options = session_options(ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED, threads)
        # CUDA's provider benchmarks its kernels for few rows against cuBLAS, once per shape and process.
        options.add_session_config_entry("ep.cuda.enable_gemm_auto_tune", "1")
        if weights:
            options.add_external_initializers(list(names), list(weights))
        return ort.InferenceSession(
            model, options, device.providers(captured=captured),
            # Do not silently fall back to the CPU.
            enable_fallback=0,
            # Slices would become splits into unequal parts, for which CUDA copies pointers from the host, even in
            # captured calls.
            disabled_optimizers=["GatherSliceToSplitFusion"],
        )  # fmt: skip

    try:
        opened, captured = session(captured=True), device.captures
    except Exception as error:
        if "graph capture" not in str(error):
            raise
        # A node runs on the processor, so the graph cannot be captured.
        opened, captured = session(captured=False), False
    device.check_provider(opened)
    return opened, captured
