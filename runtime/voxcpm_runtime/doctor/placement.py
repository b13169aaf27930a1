"""The device to which Core ML assigns each operation of a package, from its plan (`MLComputePlan`)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from voxcpm_constants.targets import MAIN
from voxcpm_runtime.backends.compilation import CompiledPackage
from voxcpm_runtime.backends.core_ml.child import compile_package
from voxcpm_runtime.backends.core_ml.compute_units import COMPUTE_UNITS

_DEVICES = {"MLCPUComputeDevice": "cpu", "MLGPUComputeDevice": "gpu", "MLNeuralEngineComputeDevice": "ne"}
"""coremltools' classes -> the names used here."""


def operations_by_device(package: Path, digest: str, unit: str) -> Counter[str]:
    """Number of operations of a package's default function, the only one that Core ML plans, on "cpu", "gpu" and "ne".

    digest: identifies the package's content. Raises what coremltools raises; it has no plan before macOS 14.4.
    """
    import coremltools as ct  # takes seconds, and works on a Mac only
    from coremltools.models.compute_plan import MLComputePlan

    compiled = CompiledPackage(package, digest, compile_package)
    plan = MLComputePlan.load_from_path(
        str(compiled.shipped or compiled.path()[0]), getattr(ct.ComputeUnit, COMPUTE_UNITS[unit])
    )
    description = ct.utils.load_spec(str(package)).description
    function = description.defaultFunctionName or MAIN
    usages = [
        plan.get_compute_device_usage_for_mlprogram_operation(operation)
        for operation in plan.model_structure.program.functions[function].block.operations
    ]
    # Constants run nowhere.
    devices = (type(usage.preferred_compute_device).__name__ for usage in usages if usage is not None)
    return Counter(_DEVICES[device] for device in devices if device in _DEVICES)
