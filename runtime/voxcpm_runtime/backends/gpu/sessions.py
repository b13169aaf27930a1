"""Opening a graph as a session of ONNX Runtime on a GPU."""

from __future__ import annotations

from collections.abc import Sequence

from voxcpm_runtime.backends.devices import Device
from voxcpm_runtime.backends.gpu.device_checks import check_provider
from voxcpm_runtime.backends.portable.lowered import Mode
from voxcpm_runtime.backends.portable.onnx_runtime import ort
from voxcpm_runtime.backends.portable.sessions import open_session, session_options


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
