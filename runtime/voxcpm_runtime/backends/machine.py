"""The machine: its system, chip, cores, backends and speed, without user or host names."""

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
_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")
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
"""Name -> flags of /proc/cpuinfo, any of which indicates it."""


def system() -> str:
    """The system with its version, such as "macOS 15.5" or "Linux 6.8.0"."""
    return str(macos() or f"{platform.system()} {platform.release()}")


def build() -> str:
    """The system's build, such as "24F74", which changes with every update."""
    mac = macos()
    return platform.version() if mac is None else mac.build


@functools.cache
def chip() -> str:
    """The processor's name, such as "Apple M4", or its architecture if unknown."""
    for name, value in _cpu_info():
        if name == "model name":
            return value
    try:
        command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
        result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)  # noqa: S603 - a fixed command
    except (OSError, subprocess.SubprocessError):
        return platform.machine()
    return result.stdout.strip() or platform.machine()


@functools.cache
def cpu_features() -> tuple[str, ...]:
    """The instruction sets by which ONNX Runtime selects its kernels, such as "AMX"; empty except on Linux."""
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
    """Number of threads by this process's CPU affinity and quota; None if it may use the whole machine.

    ONNX Runtime's default is a thread pinned to each core of the machine.
    """
    fair = min(cores(), _cores_of_quota() or cores())
    return None if fair >= (os.cpu_count() or 1) else fair


def _cores_of_quota() -> int | None:
    """The CPU quota of this process's control group (cgroup v2), in whole cores, at least 1; None for no limit."""
    try:
        groups = _OWN_CGROUP.read_text(encoding="utf-8").splitlines()
        own = next(line.removeprefix("0::/") for line in groups if line.startswith("0::/"))
        quota, period = (_CGROUPS / own / "cpu.max").read_text(encoding="utf-8").split()
        return max(1, int(quota) // int(period))
    except (OSError, StopIteration, ValueError):  # another system, the root group, or "max"
        return None


def backends() -> tuple[str, ...]:
    """The backends that can run here: those whose libraries are installed, "coreml" only on a Mac."""
    return tuple(
        backend
        for backend, libraries in _BACKENDS.items()
        if all(importlib.util.find_spec(library) for library in libraries)
        and (backend != "coreml" or macos() is not None)
    )


def median_seconds(
    call: Callable[[], object], maximum: int, enough: float = 1.0, *, warm_up: bool = True
) -> float:
    """Median seconds of 1 to `maximum` calls, stopping after `enough` seconds in total."""
    if warm_up:
        call()
    seconds: list[float] = []
    while not seconds or (len(seconds) < maximum and sum(seconds) < enough):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)
