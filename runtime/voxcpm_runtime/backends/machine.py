"""The machine: its system, chip, cores, backends and speed. No name of a user or a host is among these."""

from __future__ import annotations

import functools
import importlib.util
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from voxcpm_constants.macos import macos

_BACKENDS = {"coreml": ("coremltools",), "coreai": ("coreai",), "portable": ("onnx", "onnxruntime")}
"""Backend -> the libraries that it needs."""
_CPU_INFO = Path("/proc/cpuinfo")
_CONTROL_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")
_FEATURES = {
    "AVX2": {"avx2"},
    "AVX-512": {"avx512f"},
    "VNNI": {"avx512_vnni", "avx_vnni"},
    "AMX": {"amx_int8", "amx_bf16"},
    "NEON": {"neon", "asimd"},
    "dot product": {"asimddp"},
    "I8MM": {"i8mm"},
    "SVE": {"sve"},
}
"""Name -> the flags of /proc/cpuinfo of which one says that the processor has it."""


def system() -> str:
    """The system with its version, such as "macOS 15.5" or "Linux 6.8.0"."""
    return str(macos() or f"{platform.system()} {platform.release()}")


def build() -> str:
    """The system's build, such as "24F74", which every update changes."""
    mac = macos()
    return platform.version() if mac is None else mac.build


@functools.cache
def chip() -> str:
    """The processor's name, such as "Apple M4"; its architecture where the system does not report it."""
    for name, value in _cpu_info():
        if name == "model name":
            return value
    try:
        asked = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
        answer = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=10)  # noqa: S603 - a fixed command
    except (OSError, subprocess.SubprocessError):
        return platform.machine()
    return answer.stdout.strip() or platform.machine()


@functools.cache
def cpu_features() -> tuple[str, ...]:
    """The instructions by which ONNX Runtime chooses its products, such as "AMX"; empty elsewhere than on Linux."""
    listed = (value.split() for name, value in _cpu_info() if name in ("flags", "Features"))  # x86, ARM
    flags = {flag for line in listed for flag in line}
    return tuple(name for name, any_of in _FEATURES.items() if flags & any_of)


def _cpu_info() -> list[tuple[str, str]]:
    try:
        lines = _CPU_INFO.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    parts = (line.partition(":") for line in lines)
    return [(name.strip(), value.strip()) for name, _, value in parts]


def cores() -> int:
    """The number of processor cores that this process may use."""
    if hasattr(os, "process_cpu_count"):  # Python 3.13 and newer
        return os.process_cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):  # Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def fair_threads() -> int | None:
    """Threads for the cores and the processor time that this process may use; None if that is the whole machine.

    ONNX Runtime's own choice is a thread bound to each core of the machine.
    """
    fair = min(cores(), _cores_of_quota() or cores())
    return None if fair >= (os.cpu_count() or 1) else fair


def _cores_of_quota() -> int | None:
    """Whole cores, at least one, that its control group (Linux, version 2) gives it time for; None for no limit."""
    try:
        groups = _OWN_GROUPS.read_text(encoding="utf-8").splitlines()
        own = next(line.removeprefix("0::/") for line in groups if line.startswith("0::/"))
        quota, period = (_CONTROL_GROUPS / own / "cpu.max").read_text(encoding="utf-8").split()
        return max(1, int(quota) // int(period))
    except (OSError, StopIteration, ValueError):  # another system, the first group, or "max"
        return None


def backends() -> tuple[str, ...]:
    """The backends that can run here: "coreml" on a Mac, "coreai" and "portable" where their libraries are."""
    return tuple(
        backend
        for backend, libraries in _BACKENDS.items()
        if all(importlib.util.find_spec(library) for library in libraries)
        and (backend != "coreml" or macos() is not None)
    )


def median_seconds(
    call: Callable[[], object], maximum: int, enough: float = 1.0, *, warm_up: bool = True
) -> float:
    """Median seconds of at least one and at most `maximum` calls, until they have taken `enough` seconds together."""
    if warm_up:
        call()
    seconds: list[float] = []
    while not seconds or (len(seconds) < maximum and sum(seconds) < enough):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)
