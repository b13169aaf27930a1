"""A GPU through ONNX Runtime's CUDA provider, and the threads that call it; this room's entry point."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import io
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from voxcpm_constants.errors import DeviceError, first_line
from voxcpm_constants.generations import Traits
from voxcpm_constants.step_models import StepSizes
from voxcpm_runtime.argument_types import wrong_type
from voxcpm_runtime.backends.step_function import Array, NextPatch, StepFunction

P = ParamSpec("P")
T = TypeVar("T")

_PROVIDER = "CUDAExecutionProvider"
_OPTIONS = {
    # The default benchmarks every algorithm of every convolution, for seconds, to find the same ones.
    "cudnn_conv_algo_search": "HEURISTIC",
    "arena_extend_strategy": "kSameAsRequested",
    # An fp32 bundle computes in fp32: TF32 has only ten bits, like fp16.
    "use_tf32": "0",
    # The fused node of a sum and its RMSNorm accumulates squares of fp16 numbers in float32.
    "enable_skip_layer_norm_strict_mode": "1",
}

INSTALL_CUDA = (
    'pip install "voxcpm-coreml[cuda]", then pip uninstall onnxruntime, which shares a folder with onnxruntime-gpu, '
    "and pip install --force-reinstall --no-deps onnxruntime-gpu"
)
_INSTALL_LIBRARIES = 'pip install "onnxruntime-gpu[cuda,cudnn]"'
_PROVIDER_LIBRARY = "libonnxruntime_providers_{}.so"
_DRIVER = "libcuda.so.1"
_NO_DEVICE = 100
"""CUDA_ERROR_NO_DEVICE"""
_FATAL = 4
"""ONNX Runtime's log level at which only fatal errors are printed."""
_OUT_OF_MEMORY = (
    "out of memory",
    "failed to allocate memory",
    "bad allocation",
    "cublas_status_alloc_failed",
)


@dataclass(frozen=True)
class Device:
    """A GPU. kind: "cuda", also ONNX Runtime's name for its memory; "cpu" to test GPU graphs."""

    kind: str
    index: int = 0

    def __str__(self) -> str:
        return self.kind if self.kind == "cpu" else f"{self.kind}:{self.index}"

    @property
    def captures(self) -> bool:
        """Whether calls of one shape can be captured as CUDA graphs."""
        return self.kind == "cuda"

    def providers(self, *, captured: bool = False) -> list[tuple[str, dict[str, str]]]:
        """ONNX Runtime's providers with their options. captured: whether to capture calls as CUDA graphs."""
        processor: tuple[str, dict[str, str]] = ("CPUExecutionProvider", {})
        if self.kind == "cpu":
            return [processor]
        graphs = {"enable_cuda_graph": "1"} if captured else {}
        return [(_PROVIDER, {"device_id": str(self.index), **_OPTIONS, **graphs}), processor]

    @contextlib.contextmanager
    def memory_checked(self, doing: str) -> Iterator[None]:
        """A context that turns out-of-memory errors into DeviceError. doing: the action, for the message."""
        try:
            yield
        except Exception as error:
            if not any(sign in str(error).lower() for sign in _OUT_OF_MEMORY):
                raise
            raise DeviceError(
                f"--device {self}: not enough GPU memory to {doing}; stop other programs on it, speak fewer "
                "utterances at once, or use --device cpu"
            ) from None

    def step_model(self, package: Path, **options: Any) -> StepFunction:
        """A step model on this GPU: see `GPUStepModel`."""
        from voxcpm_runtime.backends.gpu.step_model import GPUStepModel

        return GPUStepModel(package, device=self, **options)

    def joined_patch(
        self,
        models: Mapping[str, StepFunction],
        sizes: StepSizes,
        traits: Traits,
        constants: Mapping[str, Array],
    ) -> NextPatch | None:
        """All step models of a patch in one call, if possible: see `joined_patch.joined_patch`."""
        from voxcpm_runtime.backends.gpu.joined_patch import joined_patch

        return joined_patch(models, self, sizes, traits, constants)

    def check(self) -> None:
        """Raises DeviceError if this machine or its ONNX Runtime lacks the device."""
        # ONNX Runtime is optional on a Mac.
        from voxcpm_runtime.backends.portable.onnx_runtime import ort

        if sys.version_info < (3, 11) or sys.platform == "darwin":
            raise DeviceError(f"--device {self.kind} needs Linux and Python 3.11 or newer; use --device cpu")
        if _PROVIDER not in ort.get_available_providers():
            raise DeviceError(
                f"--device {self.kind} needs ONNX Runtime with {_PROVIDER}, which is missing: {INSTALL_CUDA}"
            )
        count = gpu_count()
        if self.index >= count:
            there = ", ".join(f"cuda:{i}" for i in range(count)) or "none"
            raise DeviceError(f"--device {self}: no such GPU; this machine has {there}")
        _load_libraries()

    def check_provider(self, session: Any) -> None:
        """Raises DeviceError, with the reason, if ONNX Runtime opened a session without the device's provider."""
        wanted = self.providers()[0][0]
        if session.get_providers()[0] != wanted:
            reason = _missing_library() or "CUDA reports no reason"
            raise DeviceError(
                f"--device {self}: ONNX Runtime could not load {wanted} ({reason}); install what it needs: "
                f"{_INSTALL_LIBRARIES}"
            )


def read_device(name: str) -> Device:
    """Parse the name of a GPU. Raises InputError for an unknown name."""
    match = re.fullmatch(r"cuda(?::([0-9]{1,9}))?", name if isinstance(name, str) else "")
    if match is None:
        raise wrong_type(name, "device", "auto, cpu, cuda or cuda:N, N a GPU's number from 0")
    return Device("cuda", int(match[1] or 0))


def usable_gpu() -> Device | None:
    """The first GPU, if ONNX Runtime can use it; otherwise None."""
    gpu = Device("cuda")
    try:
        gpu.check()
    except DeviceError:
        return None
    return None if _missing_library() else gpu


def gpu_count() -> int:
    """The number of NVIDIA GPUs. Raises DeviceError if there is no driver, or it does not respond."""
    try:
        driver = ctypes.CDLL(_DRIVER)
    except OSError:
        raise DeviceError(
            f"no NVIDIA driver found ({_DRIVER} cannot be loaded); install it, or use --device cpu"
        ) from None
    count = ctypes.c_int(0)
    for name, argument in (("cuInit", 0), ("cuDeviceGetCount", ctypes.byref(count))):
        status = getattr(driver, name)(argument)
        if status == _NO_DEVICE:
            return 0
        if status:
            raise DeviceError(
                f"the NVIDIA driver does not respond (CUDA error {status}); check nvidia-smi, or use --device cpu"
            )
    return count.value


@functools.cache
def _load_libraries() -> None:
    """Load CUDA's and cuDNN's libraries from Python packages, if installed; the system's are found anyway."""
    from voxcpm_runtime.backends.portable.onnx_runtime import ort

    # `check_provider` reports what is missing, in one line.
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(Exception):
        ort.preload_dlls()
    ort.set_default_logger_severity(_FATAL)


def _missing_library() -> str:
    """The system loader's error for the provider; empty if it can be loaded."""
    from voxcpm_runtime.backends.portable.onnx_runtime import ort

    folder = Path(ort.__file__).parent / "capi"
    try:
        for name in ("shared", "cuda"):
            ctypes.CDLL(str(folder / _PROVIDER_LIBRARY.format(name)), ctypes.RTLD_GLOBAL)
    except OSError as error:
        return first_line(error)
    return ""


class DeviceGate:
    """A readers-writer lock that prefers writers.

    CUDA forbids allocations by any thread during a capture, so calls that may allocate or capture run exclusively.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._readers = self._waiting_writers = 0
        self._writing = False

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """A context with shared access."""
        with self._changed:
            self._changed.wait_for(lambda: not self._writing and not self._waiting_writers)
            self._readers += 1
        try:
            yield
        finally:
            with self._changed:
                self._readers -= 1
                self._changed.notify_all()

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """A context with exclusive access."""
        with self._changed:
            self._waiting_writers += 1
            self._changed.wait_for(lambda: not self._writing and not self._readers)
            self._waiting_writers -= 1
            self._writing = True
        try:
            yield
        finally:
            with self._changed:
                self._writing = False
                self._changed.notify_all()


class DeviceWorker:
    """A thread for the calls of one session: ONNX Runtime stores captured calls per thread."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.gate = _gate(device)
        self._thread = ThreadPoolExecutor(1, str(device))

    def begin(self, call: Callable[[], T]) -> Future[T]:
        """Queue a call on the thread. It must not wait for a later one."""
        return self._thread.submit(call)

    def run_exclusively(self, call: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Run a call on the thread, with exclusive access, and return its result."""

        def called() -> T:
            with self.gate.exclusive():
                return call(*arguments, **named)

        return self._thread.submit(called).result()


@functools.cache
def _gate(device: Device) -> DeviceGate:  # noqa: ARG001 - one for each GPU
    return DeviceGate()
