"""The backend and device: the caller's choice, or the best for the bundle and the machine."""

from __future__ import annotations

import sys
from numbers import Integral
from typing import Any, Literal

from voxcpm_constants.errors import InputError
from voxcpm_constants.macos import macos
from voxcpm_constants.step_models import LOCDIT_SOLVE, STEP_MODEL_NAMES
from voxcpm_constants.targets import CORE_AI
from voxcpm_runtime.argument_types import wrong_type
from voxcpm_runtime.backends.core_ml.compute_units import AUTO, ComputeUnits, chosen_units
from voxcpm_runtime.backends.machine import cores
from voxcpm_runtime.bundle.opening import Bundle

Backend = Literal["auto", "coreml", "coreai", "portable"]
BACKENDS: tuple[Backend, ...] = ("auto", "coreml", "coreai", "portable")
Chosen = Literal["coreml", "coreai", "portable"]
"""A backend, "auto" resolved."""

CPU_DEVICE = "cpu"
AUTO_DEVICE = "auto"
"""Upstream's word for the best device: see `chosen_device`."""


def check_engine(
    backend: str,
    threads: int | None,
    compute_units: ComputeUnits,
    bundle: Bundle | None = None,
    *,
    device: str = CPU_DEVICE,
) -> Chosen:
    """The backend that these arguments choose. bundle: None before it is open.

    Raises InputError for a wrong argument or combination, DeviceError for a device that this machine lacks.
    """
    gpu = gpu_device(device)
    chosen = choose_backend(backend, bundle)
    if gpu is not None:
        if chosen != "portable":
            raise InputError(
                f"device {device} is the portable backend's, and this is {chosen}: use --backend portable, "
                "or leave out the device"
            )
        gpu.check()
    # Core ML takes no threads, but the portable backend may take its place.
    whole = isinstance(threads, Integral) and not isinstance(threads, bool)
    if threads is not None and not (whole and 1 <= threads <= cores()):
        expected = f"a whole number from 1 to {cores()} (the cores that this process may use)"
        raise wrong_type(threads, "threads", expected)
    chosen_units(compute_units, (*STEP_MODEL_NAMES, LOCDIT_SOLVE))
    if chosen == "coreai" and compute_units != AUTO:
        raise InputError("compute units are for Core ML only; leave them out")
    return chosen


def gpu_device(name: str) -> Any | None:
    """The GPU (`gpu.device.Device`) of a device name; None for "cpu" and "auto". Raises InputError if it is unknown."""
    if name in (CPU_DEVICE, AUTO_DEVICE):
        return None
    try:
        from voxcpm_runtime.backends.gpu.device import read_device
    except ModuleNotFoundError:
        raise wrong_type(name, "device", f"{AUTO_DEVICE} or {CPU_DEVICE}") from None
    return read_device(name)


def chosen_device(device: str, chosen: Chosen) -> str:
    """The device, "auto" resolved: the first GPU that the portable backend can use, otherwise the CPU."""
    if gpu_device(device) is not None:
        return device
    if device == CPU_DEVICE or chosen != "portable":
        return CPU_DEVICE
    try:
        from voxcpm_runtime.backends.gpu.device import usable_gpu
    except ModuleNotFoundError:
        return CPU_DEVICE
    return CPU_DEVICE if (gpu := usable_gpu()) is None else str(gpu)


def choose_backend(backend: str, bundle: Bundle | None = None) -> Chosen:
    """The backend on this machine, "auto" resolved. bundle: None before it is open.

    Raises InputError for a backend that does not run here, or that cannot run the bundle.
    """
    if backend not in BACKENDS:
        raise wrong_type(backend, "backend", f"one of {', '.join(BACKENDS)}")
    on_mac = macos() is not None
    if backend == "coreml" and not on_mac:
        raise InputError(
            f"backend coreml needs macOS, and this is {sys.platform}; use --backend portable (or auto)"
        )
    if backend != "auto":
        chosen: Chosen = backend
    elif bundle is not None and bundle.manifest.target == CORE_AI:
        chosen = "coreai"
    else:
        chosen = "coreml" if on_mac else "portable"
    if bundle is not None and (chosen == "coreai") != (bundle.manifest.target == CORE_AI):
        raise InputError(
            f"{bundle.folder}: backend {chosen} does not run bundles for {bundle.manifest.target.lower()}; "
            "use --backend auto, or convert with another --target"
        )
    if chosen == "coreai":
        from voxcpm_runtime.backends.core_ai.step_model import check_installed

        check_installed()
    return chosen
