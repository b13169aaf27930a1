"""Whether this machine and its ONNX Runtime have a GPU device, and what brings what is missing."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import io
import sys
from pathlib import Path
from typing import Any

from voxcpm_constants.errors import DeviceError, first_line
from voxcpm_runtime.backends.devices import PROVIDERS, Device
from voxcpm_runtime.backends.portable.onnx_runtime import ort

INSTALL_CUDA = (
    'pip install "voxcpm-coreml[cuda]", then pip uninstall onnxruntime, which shares a folder with onnxruntime-gpu, '
    "and pip install --force-reinstall --no-deps onnxruntime-gpu"
)
"""What brings the CUDA provider."""

# The first that was tried.
_OLDEST = (1, 31)

_LIBRARIES = {
    "cuda": 'pip install "onnxruntime-gpu[cuda,cudnn]"',
    "tensorrt": 'NVIDIA TensorRT, and pip install "onnxruntime-gpu[cuda,cudnn]"',
}
"""Kind of GPU device -> what brings the libraries of its provider."""

_PROVIDER_LIBRARY = "libonnxruntime_providers_{}.so"
_DRIVER = "libcuda.so.1"


def check_device(device: Device) -> None:
    """Raises DeviceError, one line, if this machine or its ONNX Runtime lacks the device."""
    wanted = PROVIDERS[device.kind][0]
    if sys.version_info < (3, 11) or sys.platform == "darwin":
        raise DeviceError(f"--device {device.kind} needs Python 3.11 or newer, and Linux; use --device cpu")
    if wanted not in ort.get_available_providers():
        raise DeviceError(
            f"--device {device.kind} needs ONNX Runtime with {wanted}, and this one has none: {INSTALL_CUDA}"
        )
    if tuple(map(int, ort.__version__.split(".")[:2])) < _OLDEST:
        oldest, here = ".".join(map(str, _OLDEST)), ort.__version__
        raise DeviceError(
            f"--device {device.kind} needs ONNX Runtime {oldest} or newer, and this one is {here}: {INSTALL_CUDA}"
        )
    count = gpu_count()
    if device.index >= count:
        there = ", ".join(f"cuda:{i}" for i in range(count)) or "none"
        raise DeviceError(f"--device {device}: no such GPU; this machine has {there}")
    _load_libraries()


def usable_gpu() -> Device | None:
    """The first GPU, if all that ONNX Runtime needs for it is here; otherwise None."""
    gpu = Device("cuda")
    try:
        check_device(gpu)
    except DeviceError:
        return None
    return None if _missing_library(gpu) else gpu


def check_provider(device: Device, session: Any) -> None:
    """Raises DeviceError, with the reason, if ONNX Runtime opened a session without the device's provider."""
    wanted = device.providers()[0][0]
    if session.get_providers()[0] != wanted:
        reason = _missing_library(device) or "CUDA reports no reason"
        raise DeviceError(
            f"--device {device}: ONNX Runtime could not load {wanted} ({reason}); install what it needs: "
            f"{_LIBRARIES[device.kind]}"
        )


def gpu_count() -> int:
    """NVIDIA GPUs that the driver shows. Raises DeviceError if there is no driver, or it does not answer."""
    driver, count = _driver(), ctypes.c_int(0)
    for name, argument in (("cuInit", 0), ("cuDeviceGetCount", ctypes.byref(count))):
        status = getattr(driver, name)(argument)
        if status == _NO_DEVICE:
            return 0
        if status:
            raise DeviceError(
                f"NVIDIA's driver does not answer (CUDA error {status}); look at nvidia-smi, or use --device cpu"
            )
    return count.value


_NO_DEVICE = 100
"""CUDA_ERROR_NO_DEVICE"""


def _driver() -> Any:
    try:
        return ctypes.CDLL(_DRIVER)
    except OSError:
        raise DeviceError(
            f"no NVIDIA driver here ({_DRIVER} cannot be loaded); install it, or use --device cpu"
        ) from None


@functools.cache
def _load_libraries() -> None:
    """Load CUDA's and cuDNN's libraries from Python packages, if they are there; the system's are found anyway."""
    # What is missing is said once, by `check_provider`, in one line.
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(Exception):
        ort.preload_dlls()
    ort.set_default_logger_severity(_FATAL)


_FATAL = 4
"""ONNX Runtime's log level at which only fatal errors are printed."""


def _missing_library(device: Device) -> str:
    """Why the device's provider cannot be loaded, as the system's loader says it; empty if it can be."""
    folder = Path(ort.__file__).parent / "capi"
    try:
        for name in ("shared", *(["tensorrt"] if device.kind == "tensorrt" else []), "cuda"):
            ctypes.CDLL(str(folder / _PROVIDER_LIBRARY.format(name)), ctypes.RTLD_GLOBAL)
    except OSError as error:
        return first_line(error)
    return ""
