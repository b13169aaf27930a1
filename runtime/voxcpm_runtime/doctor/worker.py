"""The child process of a trial. It reports each stage as a line of JSON as soon as it is reached, because Core ML may
end the process at any time.

An event has the `step_model`, the `stage` that begins, and the results of the stage before; or an `outcome` and its
`message`. Stages: load, check (the vectors), time, plan (Core ML's devices), done; in an endurance trial: running.
"""

from __future__ import annotations

import gc
import importlib
import itertools
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from voxcpm_constants.errors import core_ml_reason
from voxcpm_constants.targets import MAIN
from voxcpm_constants.vectors import read_vectors
from voxcpm_runtime.backends.choice import Backend
from voxcpm_runtime.backends.compilation import CompiledPackage
from voxcpm_runtime.backends.core_ml.child import compile_package
from voxcpm_runtime.backends.core_ml.compute_units import AUTO, COMPUTE_UNITS, COREAI, PORTABLE
from voxcpm_runtime.backends.loading import load_step_models
from voxcpm_runtime.bundle.opening import Bundle, open_bundle
from voxcpm_runtime.commands.benchmark import median_seconds
from voxcpm_runtime.doctor.agreement import compared, repeatable_call

Event = dict[str, Any]

_BACKENDS: dict[str, Backend] = {PORTABLE: "portable", COREAI: "coreai"}
_IMPORTED = {PORTABLE: "voxcpm_runtime.backends.portable", COREAI: "coreai.runtime"}
"""Slow imports of a unit; the others need coremltools."""
_DEVICES = {"MLCPUComputeDevice": "cpu", "MLGPUComputeDevice": "gpu", "MLNeuralEngineComputeDevice": "ne"}
"""coremltools' classes -> the names used here."""
_TIMED_CALLS = 30
_SECONDS_IN_TURN = 1.0


def main() -> None:
    """Answer the request in the first argument, JSON, through the file descriptor in the second.

    Further arguments: seconds for one step model, and of an endurance trial (0: none).
    """
    request, descriptor, limit, seconds = sys.argv[1:]
    given = json.loads(request)
    bundle, units = open_bundle(given["bundle"], given["precision"]), given["units"]
    with os.fdopen(int(descriptor), "wb", buffering=0) as reports:
        for event in _endurance(bundle, units, float(seconds)) if float(seconds) else _trials(bundle, units):
            reports.write(json.dumps(event).encode() + b"\n")
            # The system then ends this process, whatever Core ML does: no Python handler would run.
            if event.get("stage") in ("load", "plan", "running"):
                signal.alarm(int(limit))


def _trials(bundle: Bundle, units: dict[str, str]) -> Iterator[Event]:
    # Imported first, so that this time does not count as a step model's loading time.
    importlib.import_module(_IMPORTED.get(next(iter(units.values())), "coremltools"))
    for name, unit in units.items():
        try:
            for event in _trial(bundle, name, unit):
                yield {"step_model": name, **event}
        except Exception as error:  # noqa: BLE001 - coremltools raises what Core ML gives it, of any class
            yield {"step_model": name, "outcome": "refused", "message": core_ml_reason(error)}
        gc.collect()


def _trial(bundle: Bundle, name: str, unit: str) -> Iterator[Event]:
    manifest = bundle.manifest
    declared, sizes = manifest.step_models[name], manifest.sizes
    yield {"stage": "load"}
    began = time.perf_counter()
    backend = _BACKENDS.get(unit, "coreml")
    units = AUTO if unit in _BACKENDS else unit
    model = load_step_models(bundle, backend, names=[name], compute_units=units, first_use=None)[name]
    yield {"stage": "check", "load_seconds": time.perf_counter() - began}
    vectors = read_vectors(bundle.folder, declared, sizes) if manifest.vector_files() else None
    agreement = None if vectors is None else compared(model, declared, sizes, vectors).model_dump()
    yield {"stage": "time", "agreement": agreement}
    call = repeatable_call(model, declared, sizes, vectors)
    timed: Event = {"call_seconds": median_seconds(call, _TIMED_CALLS)}
    if unit in COMPUTE_UNITS:
        yield {"stage": "plan", **timed}
        # Planning loads the model again.
        del model, call
        gc.collect()
        timed = {"operations": operations_by_device(bundle, name, unit)}
    yield {"stage": "done", **timed}


def operations_by_device(bundle: Bundle, name: str, unit: str) -> Counter[str]:
    """Number of a step model's operations on each device in Core ML's plan: cpu, gpu and ne.

    Core ML plans only the default function of a package, and nothing before macOS 14.4. Raises what coremltools raises.
    """
    import coremltools as ct  # takes seconds, and works on a Mac only
    from coremltools.models.compute_plan import MLComputePlan

    operations: Counter[str] = Counter()
    for part in bundle.manifest.parts(name):
        package = bundle.folder / bundle.manifest.package_path(bundle.precision, part.name)
        digest = bundle.manifest.package_key(bundle.precision, part.name)
        compiled = CompiledPackage(package, digest, compile_package)
        path = compiled.shipped or compiled.path()[0]
        plan = MLComputePlan.load_from_path(str(path), getattr(ct.ComputeUnit, COMPUTE_UNITS[unit]))
        function = ct.utils.load_spec(str(package)).description.defaultFunctionName or MAIN
        for operation in plan.model_structure.program.functions[function].block.operations:
            usage = plan.get_compute_device_usage_for_mlprogram_operation(operation)
            # Constants run nowhere.
            device = usage and _DEVICES.get(type(usage.preferred_compute_device).__name__)
            operations.update([device] if device else [])
    return operations


def _endurance(bundle: Bundle, units: dict[str, str], seconds: float) -> Iterator[Event]:
    """Call the step models in turn, a second each."""
    manifest, names = bundle.manifest, tuple(units)
    importlib.import_module("coremltools")
    yield {"step_model": names[0], "stage": "load"}
    # The models load together, so a refusal ends the whole trial.
    models = load_step_models(bundle, "coreml", names=names, compute_units=units, first_use=None)
    calls = {}
    for name in names:
        declared = manifest.step_models[name]
        vectors = read_vectors(bundle.folder, declared, manifest.sizes) if manifest.vector_files() else None
        calls[name] = repeatable_call(models[name], declared, manifest.sizes, vectors)
    began = time.monotonic()
    for name in itertools.cycle(names):
        elapsed = time.monotonic() - began
        if elapsed >= seconds:
            break
        yield {"step_model": name, "stage": "running", "elapsed": elapsed}
        until = time.monotonic() + _SECONDS_IN_TURN
        while time.monotonic() < until:
            calls[name]()
    yield {"step_model": names[-1], "stage": "done", "elapsed": time.monotonic() - began}
