"""Where the portable backend computes: the processor, or a GPU through ONNX Runtime's CUDA or TensorRT provider."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import io
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voxcpm_constants.errors import DeviceError, InputError, first_line

CPU_DEVICE = "cpu"

PROVIDERS = {
    "cuda": ("CUDAExecutionProvider",),
    # What TensorRT does not take, CUDA does.
    "tensorrt": ("TensorrtExecutionProvider", "CUDAExecutionProvider"),
}
"""Kind of GPU device -> ONNX Runtime's providers for it, by preference."""

_OPTIONS: dict[str, dict[str, str]] = {
    "CUDAExecutionProvider": {
        # The default tries every algorithm of every convolution, for seconds, to find the same ones.
        "cudnn_conv_algo_search": "HEURISTIC",
        "arena_extend_strategy": "kSameAsRequested",
        # An fp32 bundle is one in fp32: TF32 has fp16's ten bits.
        "use_tf32": "0",
    },
    "TensorrtExecutionProvider": {"trt_fp16_enable": "1"},
}

INSTALL_CUDA = (
    'pip install "voxcpm-coreml[cuda]", then pip uninstall onnxruntime, which shares a folder with onnxruntime-gpu, '
    "and pip install --force-reinstall --no-deps onnxruntime-gpu"
)
"""What brings the CUDA provider."""

_LIBRARIES = {
    "cuda": 'pip install "onnxruntime-gpu[cuda,cudnn]"',
    "tensorrt": 'NVIDIA TensorRT, and pip install "onnxruntime-gpu[cuda,cudnn]"',
}
"""Kind of GPU device -> what brings the libraries of its provider."""

_DRIVERS = {"linux": "libcuda.so.1", "win32": "nvcuda.dll"}
_OUT_OF_MEMORY = (
    "out of memory",
    "failed to allocate memory",
    "bad allocation",
    "cublas_status_alloc_failed",
)


@dataclass(frozen=True)
class Device:
    """A GPU of this machine, and the kind of provider that computes on it."""

    kind: str
    """A key of PROVIDERS; "cpu" is for tests of what GPUs have."""
    index: int = 0

    def __str__(self) -> str:
        return self.kind if self.kind == CPU_DEVICE else f"{self.kind}:{self.index}"

    @property
    def memory(self) -> str:
        """ONNX Runtime's name of the memory that belongs to it."""
        return CPU_DEVICE if self.kind == CPU_DEVICE else "cuda"

    @property
    def captures(self) -> bool:
        """Whether calls of one shape can be captured as CUDA graphs."""
        return self.kind == "cuda"

    @property
    def scatters_in_place(self) -> bool:
        """Whether a scatter's input may be its output. TensorRT does not promise it."""
        return self.kind != "tensorrt"

    def providers(self, *, captured: bool = False) -> list[tuple[str, dict[str, str]]]:
        """ONNX Runtime's providers with their options. captured: for sessions whose calls are captured."""
        gpu = [
            (name, {"device_id": str(self.index), **_OPTIONS[name]}) for name in PROVIDERS.get(self.kind, ())
        ]
        for name, options in gpu:
            if captured and self.captures and name == "CUDAExecutionProvider":
                options["enable_cuda_graph"] = "1"
        return [*gpu, ("CPUExecutionProvider", {})]

    @contextlib.contextmanager
    def memory_checked(self, doing: str) -> Iterator[None]:
        """Raises DeviceError, one line, where ONNX Runtime has not enough memory on the GPU. doing: what for."""
        try:
            yield
        except Exception as error:
            if not any(sign in str(error).lower() for sign in _OUT_OF_MEMORY):
                raise
            raise DeviceError(
                f"--device {self}: the GPU's memory is not enough to {doing}; end what else uses it, speak fewer "
                "utterances at the same time, or use --device cpu"
            ) from None


def read_device(name: str) -> Device | None:
    """The GPU that a name means; None for the processor. Raises InputError for a name that means nothing."""
    if name == CPU_DEVICE:
        return None
    match = re.fullmatch(rf"({'|'.join(PROVIDERS)})(?::([0-9]+))?", name) if isinstance(name, str) else None
    if match is None:
        raise InputError(
            f"device must be cpu, cuda, cuda:N, tensorrt or tensorrt:N, N a GPU's number from 0, got {name!r}"
        )
    return Device(match[1], int(match[2] or 0))


def check_device(device: Device) -> None:
    """Raises DeviceError, one line, if this machine or its ONNX Runtime lacks the device."""
    from voxcpm_runtime.backends.portable.onnx_runtime import ort

    wanted = PROVIDERS[device.kind][0]
    if sys.version_info < (3, 11) or sys.platform == "darwin":
        raise DeviceError(
            f"--device {device.kind} needs Python 3.11 or newer, and Linux or Windows; use --device cpu"
        )
    if wanted not in ort.get_available_providers():
        raise DeviceError(
            f"--device {device.kind} needs ONNX Runtime with {wanted}, and this one has none: {INSTALL_CUDA}"
        )
    count = gpu_count()
    if device.index >= count:
        there = ", ".join(f"cuda:{i}" for i in range(count)) or "none"
        raise DeviceError(f"--device {device}: no such GPU; this machine has {there}")
    _load_libraries(ort)


def check_provider(device: Device, session: Any) -> None:
    """Raises DeviceError, with the reason, if ONNX Runtime opened a session without the device's provider."""
    wanted = device.providers()[0][0]
    if session.get_providers()[0] != wanted:
        raise DeviceError(
            f"--device {device}: ONNX Runtime could not load {wanted} ({_reason(device)}); install what it needs: "
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
    name = _DRIVERS.get(sys.platform, "")
    try:
        return ctypes.CDLL(name) if name else None
    except OSError:
        raise DeviceError(
            f"no NVIDIA driver here ({name} cannot be loaded); install it, or use --device cpu"
        ) from None


@functools.cache
def _load_libraries(ort: Any) -> None:
    """Load CUDA's and cuDNN's libraries from Python packages, if they are there; the system's are found anyway."""
    # What is missing is said once, by `check_provider`, in one line.
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(Exception):
        ort.preload_dlls()
    ort.set_default_logger_severity(_FATAL)


_FATAL = 4
"""ONNX Runtime's log level at which only fatal errors are printed."""


def _reason(device: Device) -> str:
    """Why the device's provider cannot be loaded, as the system's loader says it."""
    from voxcpm_runtime.backends.portable.onnx_runtime import ort

    folder = Path(ort.__file__).parent / "capi"
    try:
        for name in ("shared", *(["tensorrt"] if device.kind == "tensorrt" else []), "cuda"):
            ctypes.CDLL(str(folder / f"libonnxruntime_providers_{name}.so"), ctypes.RTLD_GLOBAL)
    except OSError as error:
        return first_line(error)
    return "CUDA reports no reason"
