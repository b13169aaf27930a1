"""Which device Core ML gives each operation of a package to, from its own plan (`MLComputePlan`)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from voxcpm_runtime.backends.compiled_packages import CompiledPackage
from voxcpm_runtime.backends.compute_units import COMPUTE_UNITS

_DEVICES = {"MLCPUComputeDevice": "cpu", "MLGPUComputeDevice": "gpu", "MLNeuralEngineComputeDevice": "ne"}
"""coremltools' classes -> the names used here."""


def operations_by_device(package: Path, digest: str, unit: str) -> Counter[str]:
    """Number of operations of a package, all its functions together, on "cpu", "gpu" and "ne".

    digest: identifies the package's content. Raises what coremltools raises; it has no plan before macOS 14.4.
    """
    import coremltools as ct  # seconds, and on a Mac only
    from coremltools.models.compute_plan import MLComputePlan

    compiled = CompiledPackage(package, digest).loadable()
    plan = MLComputePlan.load_from_path(str(compiled), getattr(ct.ComputeUnit, COMPUTE_UNITS[unit]))
    usages = [
        plan.get_compute_device_usage_for_mlprogram_operation(operation)
        for function in plan.model_structure.program.functions.values()
        for operation in function.block.operations
    ]
    # Constants run nowhere, and have no usage.
    devices = (type(usage.preferred_compute_device).__name__ for usage in usages if usage is not None)
    return Counter(_DEVICES[device] for device in devices if device in _DEVICES)
