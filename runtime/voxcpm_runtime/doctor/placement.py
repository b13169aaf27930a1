"""Which device Core ML gives each operation of a package to, from its own plan (`MLComputePlan`)."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from pathlib import Path

from voxcpm_constants.targets import MAIN
from voxcpm_runtime.backends.compiled_packages import CompiledPackage
from voxcpm_runtime.backends.core_ml.child import compile_package
from voxcpm_runtime.backends.core_ml.compute_units import COMPUTE_UNITS

_DEVICES = {"MLCPUComputeDevice": "cpu", "MLGPUComputeDevice": "gpu", "MLNeuralEngineComputeDevice": "ne"}
"""coremltools' classes -> the names used here."""


def operations_by_device(package: Path, digest: str, unit: str) -> Counter[str]:
    """Number of operations of a package, all its functions together, on "cpu", "gpu" and "ne".

    digest: identifies the package's content. Raises what coremltools raises; it has no plan before macOS 14.4.
    """
    import coremltools as ct  # seconds, and on a Mac only

    spec = ct.utils.load_spec(str(package))
    names = [function.name for function in spec.description.functions] or [MAIN]
    default = spec.description.defaultFunctionName or names[0]
    compiled = CompiledPackage(package, digest, compile_package)
    operations = _planned(compiled.shipped or compiled.path()[0], default, unit)
    # coremltools cannot ask for another function's plan: Core ML plans the default one only. So each of the others is
    # made the default one of a copy.
    for name in (name for name in names if name != default):
        spec.description.defaultFunctionName = name
        with tempfile.TemporaryDirectory() as folder:
            copy, compiled_copy = Path(folder) / package.name, Path(folder) / "copy.mlmodelc"
            shutil.copytree(package, copy, copy_function=_link_or_copy)
            model = next(copy.rglob("*.mlmodel"))
            # It is a link to the bundle's.
            model.unlink()
            model.write_bytes(spec.SerializeToString())
            compile_package(copy, compiled_copy)
            operations += _planned(compiled_copy, name, unit)
    return operations


def _planned(compiled: Path, function: str, unit: str) -> Counter[str]:
    import coremltools as ct
    from coremltools.models.compute_plan import MLComputePlan

    plan = MLComputePlan.load_from_path(str(compiled), getattr(ct.ComputeUnit, COMPUTE_UNITS[unit]))
    usages = [
        plan.get_compute_device_usage_for_mlprogram_operation(operation)
        for operation in plan.model_structure.program.functions[function].block.operations
    ]
    # Constants run nowhere, and have no usage.
    devices = (type(usage.preferred_compute_device).__name__ for usage in usages if usage is not None)
    return Counter(_DEVICES[device] for device in devices if device in _DEVICES)


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another volume
        shutil.copy2(source, target)
