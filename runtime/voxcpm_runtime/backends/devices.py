"""Where the portable backend computes: the processor, or a GPU through ONNX Runtime's CUDA or TensorRT provider."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass

from voxcpm_constants.errors import DeviceError
from voxcpm_runtime.argument_types import wrong_type

CPU_DEVICE = "cpu"
AUTO_DEVICE = "auto"
"""Upstream's word for the best that is here: `choice.chosen_device` says what that is."""

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
        # Squares of fp16 numbers are added up in float32, in the node of a sum and its RMSNorm, too.
        "enable_skip_layer_norm_strict_mode": "1",
    },
    "TensorrtExecutionProvider": {"trt_fp16_enable": "1"},
}

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
    """The GPU that a name means; None for the processor, and for `auto`, which names none.

    Raises InputError for a name that means nothing.
    """
    said = name if isinstance(name, str) else ""
    if said in (CPU_DEVICE, AUTO_DEVICE):
        return None
    match = re.fullmatch(rf"({'|'.join(PROVIDERS)})(?::([0-9]{{1,9}}))?", said)
    if match is None:
        expected = "auto, cpu, cuda, cuda:N, tensorrt or tensorrt:N, N a GPU's number from 0"
        raise wrong_type(name, "device", expected)
    return Device(match[1], int(match[2] or 0))
