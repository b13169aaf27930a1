"""Running an .mlpackage on a GPU, through ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from voxcpm_runtime.backends.devices import Device
from voxcpm_runtime.backends.gpu.device_calls import DeviceCalls
from voxcpm_runtime.backends.gpu.device_checks import check_provider
from voxcpm_runtime.backends.gpu.device_state import DeviceState
from voxcpm_runtime.backends.gpu.device_worker import DeviceWorker
from voxcpm_runtime.backends.portable.lowered import Mode
from voxcpm_runtime.backends.portable.onnx_runtime import ort
from voxcpm_runtime.backends.portable.sessions import mapped_weights, open_session, session_options
from voxcpm_runtime.backends.portable.step_model import PortableStepModel
from voxcpm_runtime.backends.step_function import StepState


class GPUStepModel(PortableStepModel):
    """A step model on a GPU, in fp16 arithmetic by default. Arguments and errors: see `PortableStepModel`.

    Also raises DeviceError, from calls too, for a GPU that cannot be used or has too little memory.
    """

    def __init__(self, package: Path, *, device: Device, **options: Any) -> None:
        self._device = device
        self.scatters_in_place = device.scatters_in_place
        super().__init__(package, **{"mode": "half", **options})

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

    def _open(self, threads: int | None, prepared_key: str | None) -> None:  # noqa: ARG002 - prepared graphs are for processors
        worker = DeviceWorker(self._device)
        self._weights = mapped_weights(self._package, self._lowered)
        names = [ref.name for ref in self._lowered.weights]
        with self._device.memory_checked(f"load {self._name}"):
            session, captured = worker.run_alone(
                open_on_device, self._lowered.model, names, self._weights, self._device, self._mode, threads
            )
        self._calls = DeviceCalls(
            session, worker, self._visible, self._state, self._state_inputs, self._in_place,
            returns_rows=self._returns_rows, captured=captured,
        )  # fmt: skip

    def new_state(self) -> DeviceState:
        """The state at the start of a stream: zeros."""
        return self._calls.new_state()

    def _computed(self, feeds: Mapping[str, np.ndarray], state: StepState | None) -> dict[str, np.ndarray]:
        if state is not None and (not isinstance(state, DeviceState) or state.in_place != self._in_place):
            raise ValueError(f"{self._name}: the state is not of this step model")
        return self._calls.call(feeds, state)


def open_on_device(
    model: bytes,
    names: Sequence[str],
    weights: Sequence[ort.OrtValue],
    device: Device,
    mode: Mode = "half",
    threads: int | None = None,
) -> tuple[ort.InferenceSession, bool]:
    """A session on the device, and whether its calls can be captured. names: of the weights in the graph."""

    def session(providers: Sequence[tuple[str, dict[str, str]]]) -> ort.InferenceSession:
        return open_session(model, session_options(mode, threads), mode, names, weights, providers)

    try:
        opened, captured = session(device.providers(captured=True)), device.captures
    except Exception as error:
        if "graph capture" not in str(error):
            raise
        # A node that only the processor has: the graph is launched node by node.
        opened, captured = session(device.providers()), False
    check_provider(device, opened)
    return opened, captured
