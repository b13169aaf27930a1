"""Running an .mlpackage on a GPU, through ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from voxcpm_runtime.backends.gpu.calls import DeviceCalls
from voxcpm_runtime.backends.gpu.device import Device
from voxcpm_runtime.backends.gpu.state import DeviceState
from voxcpm_runtime.backends.gpu.worker import DeviceWorker
from voxcpm_runtime.backends.portable.lowered import Lowered
from voxcpm_runtime.backends.portable.onnx_runtime import ort
from voxcpm_runtime.backends.portable.sessions import mapped_weights, session_options
from voxcpm_runtime.backends.portable.step_model import PortableStepModel
from voxcpm_runtime.backends.step_function import StepState

if TYPE_CHECKING:
    from onnx import NodeProto


class GPUStepModel(PortableStepModel):
    """A step model on a GPU, in fp16 arithmetic by default. Arguments and errors: see `PortableStepModel`.

    Also raises DeviceError, from calls too, for a GPU that cannot be used or has too little memory.
    """

    def __init__(self, package: Path, *, device: Device, **options: Any) -> None:
        self._device = device
        super().__init__(package, **{"mode": "half", **options})

    @property
    def lowered(self) -> Lowered:
        """The graph and its interface."""
        return self._lowered

    @property
    def weights(self) -> list[ort.OrtValue]:
        """The mapped weights that the graph names, in the order of `lowered.weights`."""
        return self._weights

    @property
    def state(self) -> Mapping[str, str]:
        """State input -> the output that holds its next value."""
        return self._state

    @property
    def writes_in_place(self) -> bool:
        """Whether a call updates its whole state in place."""
        return not self._returns_rows and self._in_place == self._state.keys()

    def new_state(self) -> DeviceState:
        """See `StepFunction`."""
        return self._calls.new_state()

    def _load(self, **options: Any) -> Lowered:
        return super()._load(**options, rewrite=_fused)

    def _open(self, threads: int | None, prepared_key: str | None) -> None:  # noqa: ARG002 - prepared graphs are for processors
        worker = DeviceWorker(self._device)
        self._weights = mapped_weights(self._package, self._lowered)
        names = [ref.name for ref in self._lowered.weights]
        with self._device.memory_checked(f"load {self._name}"):
            session, captured = worker.run_alone(
                open_on_device, self._lowered.model, names, self._weights, self._device, threads
            )
        self._calls = DeviceCalls(
            session, worker, self._visible, self._state, self._caches, self._in_place,
            returns_rows=self._returns_rows, captured=captured,
        )  # fmt: skip

    def _computed(self, feeds: Mapping[str, np.ndarray], state: StepState | None) -> dict[str, np.ndarray]:
        if state is not None and (not isinstance(state, DeviceState) or state.in_place != self._in_place):
            raise ValueError(f"{self._name}: the state is not of this step model")
        return self._calls.begin(lambda: feeds, state).result()


def _fused(nodes: list[NodeProto], *graph: Any) -> list[NodeProto]:
    from voxcpm_runtime.backends.gpu.fusion import fuse_for_gpu  # imports onnx: only if there is work

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
        # What comes after the extended level is for processors.
        options = session_options(ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED, threads)
        # CUDA's provider times its kernels for few rows against cuBLAS's, once for each shape in a process.
        options.add_session_config_entry("ep.cuda.enable_gemm_auto_tune", "1")
        if weights:
            options.add_external_initializers(list(names), list(weights))
        return ort.InferenceSession(
            model, options, device.providers(captured=captured),
            # The fallback would go on without the GPU, in silence.
            enable_fallback=0,
            # Slices would become splits into unequal parts, for which CUDA copies pointers from the host, in captured
            # calls too.
            disabled_optimizers=["GatherSliceToSplitFusion"],
        )  # fmt: skip

    try:
        opened, captured = session(captured=True), device.captures
    except Exception as error:
        if "graph capture" not in str(error):
            raise
        # A node that only the processor has: the graph is launched node by node.
        opened, captured = session(captured=False), False
    device.check_provider(opened)
    return opened, captured
