"""Opening a lowered graph, with its mapped weights, as a session of ONNX Runtime."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from voxcpm_constants.errors import first_line
from voxcpm_runtime.backends.machine import fair_threads
from voxcpm_runtime.backends.portable.lowered import Lowered, Mode
from voxcpm_runtime.backends.portable.onnx_runtime import ERRORS, ort
from voxcpm_runtime.backends.portable.package import PackageError, map_weights
from voxcpm_runtime.backends.portable.prepared import is_worth_preparing, open_prepared

# ONNX Runtime logs messages from this severity up: errors.
LOG_SEVERITY = 3

# Earlier versions do not know `spin_duration_us`, and would spin until the next call.
BOUNDED_SPINNING = tuple(map(int, ort.__version__.split(".")[:2])) >= (1, 26)
SPIN_MICROSECONDS = "50"

OPTIMIZATION = {
    "plain": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
    # What comes after that is for processors.
    "half": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    # Folds constants, so that fp16 weights are unpacked once; merges nothing across a rounding.
    "faithful": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
}

CPU_PROVIDERS: list[tuple[str, dict[str, str]]] = [("CPUExecutionProvider", {})]

# Slices would become splits into unequal parts, for which CUDA copies pointers from the host, in captured calls too.
DISABLED_OPTIMIZERS = {"half": ["GatherSliceToSplitFusion"]}


_NO_MEMORY = ("std::bad_alloc", "bad allocation", "Failed to allocate memory", "Cannot allocate memory")
_NO_THREAD = "pthread_create failed"
"""What ONNX Runtime says where the system has refused it something."""


@contextmanager
def refusal_named(package: Path) -> Iterator[None]:
    """A context in which an error of ONNX Runtime becomes a PackageError: its graph was lowered from the package.

    Where the system has refused memory or a thread, it is a MemoryError or OSError, as Python's own refusals are.
    """
    try:
        yield
    # A thread that cannot be started is none of ERRORS, nor is what fails in a call with bound inputs.
    except Exception as error:
        if any(sign in str(error) for sign in _NO_MEMORY):
            raise MemoryError from error
        if _NO_THREAD in str(error):
            raise OSError(errno.EAGAIN, "the system starts no more threads") from error
        # Subclasses are Python's own (RecursionError) and say something else.
        if not isinstance(error, ERRORS) and type(error) is not RuntimeError:
            raise
        raise PackageError(
            f"{package} is damaged, or its entry in the cache: ONNX Runtime refuses it ({first_line(error)}); convert "
            "again, or clear the cache"
        ) from error


def mapped_weights(package: Path, lowered: Lowered) -> list[ort.OrtValue]:
    """The memory-mapped weights, which must stay alive as long as the session."""
    if not lowered.weights:
        return []
    mapped = map_weights(package)
    if mapped is None or mapped.size != lowered.weight_file_size:
        raise PackageError(f"{package}: weight.bin is missing or has changed")
    return [ort.OrtValue.ortvalue_from_numpy(ref.view(mapped)) for ref in lowered.weights]


def open_on_processor(
    package: Path, lowered: Lowered, mode: Mode, threads: int | None, *, prepared_key: str | None = None
) -> tuple[ort.InferenceSession, list[ort.OrtValue]]:
    """A session on the processor, and the weights that must stay alive as long as the session.

    prepared_key: the function's identity, under which a prepared form is saved; None for none.
    """
    values = mapped_weights(package, lowered)
    names = [ref.name for ref in lowered.weights]

    def session(model: str | bytes, options: ort.SessionOptions) -> ort.InferenceSession:
        return open_session(model, options, mode, names, values, CPU_PROVIDERS)

    def options() -> ort.SessionOptions:
        options = session_options(mode, threads)
        options.add_session_config_entry("session.use_env_allocators", "1")  # the arena of onnx_runtime.py
        return options

    if prepared_key is not None and is_worth_preparing(lowered, mode):
        prepared = open_prepared(package, prepared_key, lowered, options, session)
        if prepared is not None:
            return prepared, []
    return session(lowered.model, options()), values


def open_session(
    model: str | bytes,
    options: ort.SessionOptions,
    mode: Mode,
    names: Sequence[str],
    weights: Sequence[ort.OrtValue],
    providers: Sequence[tuple[str, dict[str, str]]],
) -> ort.InferenceSession:
    """A session of a graph with its weights, or of a saved form, which has its own."""
    if isinstance(model, bytes) and weights:
        options.add_external_initializers(list(names), list(weights))
    # The fallback would go on without the GPU, in silence.
    return ort.InferenceSession(
        model, options, list(providers),
        enable_fallback=0, disabled_optimizers=DISABLED_OPTIMIZERS.get(mode),
    )  # fmt: skip


def session_options(mode: Mode, threads: int | None) -> ort.SessionOptions:
    """ONNX Runtime's options for a mode. threads: of one operation; None for this machine's share."""
    options = ort.SessionOptions()
    options.log_severity_level = LOG_SEVERITY
    options.graph_optimization_level = OPTIMIZATION[mode]
    # Several step models run, each with threads of its own. Idle threads that spin for long take the cores from the
    # model at work, and from other programs: up to tenfold time on a busy machine. Spinning from one operation to the
    # next saves a sixth (TRIALS.md).
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(BOUNDED_SPINNING)))
    options.add_session_config_entry("session.intra_op.spin_duration_us", SPIN_MICROSECONDS)
    # Planning which tensors share memory takes a time that grows with the square of the graph: most of what opening a
    # language model took. Without a plan the allocator reuses memory as it is freed; peak and speed are the same.
    # Sessions for a GPU keep the plan, as captured calls were tested with it.
    options.enable_mem_reuse = mode == "half"
    if mode == "half":
        # CUDA's provider times its kernels for few rows beside cuBLAS's, once for each shape in a process.
        options.add_session_config_entry("ep.cuda.enable_gemm_auto_tune", "1")
    threads = threads or fair_threads()
    if threads is not None:
        options.intra_op_num_threads = threads
    return options
