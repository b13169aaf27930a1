"""What ONNX Runtime was refused by the system is said so: not that a package is damaged, and without a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from voxcpm_constants.errors import SYSTEM_ERRORS, BundleError, system_reason
from voxcpm_runtime.backends.portable.onnx_runtime import errors
from voxcpm_runtime.backends.portable.sessions import refusal_named

PTHREAD = (
    "/onnxruntime_src/onnxruntime/core/platform/posix/env.cc:327 PosixThread::PosixThread(...) pthread_create failed, "
    "error code: {} error msg: {}\n"
)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            errors.InvalidArgument("Failed to load model with error: std::bad_alloc"),
            "the memory is not enough",
        ),
        (errors.RuntimeException("bad allocation"), "the memory is not enough"),
        (
            errors.RuntimeException("BFCArena: Failed to allocate memory for 7 bytes"),
            "the memory is not enough",
        ),
        (RuntimeError(PTHREAD.format(12, "Cannot allocate memory")), "the memory is not enough"),
        (
            RuntimeError(PTHREAD.format(11, "Resource temporarily unavailable")),
            "the system starts no more threads",
        ),
    ],
)
def test_memory_and_threads_that_are_refused_are_what_is_said(error: Exception, line: str) -> None:
    with pytest.raises(SYSTEM_ERRORS) as raised, refusal_named(Path("a.mlpackage")):
        raise error

    assert system_reason(raised.value) == line


@pytest.mark.parametrize(
    "error", [errors.InvalidGraph("no such operator"), RuntimeError("Error in execution: ScatterND")]
)
def test_other_refusals_are_the_packages(error: Exception) -> None:
    """What fails in a call with bound inputs, ONNX Runtime raises as a plain RuntimeError."""
    with (
        pytest.raises(BundleError, match=r"a\.mlpackage is damaged"),
        refusal_named(Path("a.mlpackage")),
    ):
        raise error


@pytest.mark.parametrize("error", [RecursionError("mine"), NotImplementedError("mine"), KeyError("mine")])
def test_other_errors_pass(error: Exception) -> None:
    with pytest.raises(type(error), match="mine"), refusal_named(Path("a.mlpackage")):
        raise error
