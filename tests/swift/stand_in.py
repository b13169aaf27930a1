"""Runs packages for the stand-ins of Core ML and Core AI: stand_in.py REQUESTS ANSWERS LOG, two pipes and a file.

Packages run on ONNX Runtime, programs on Core AI's runtime for Linux. The log gets a line of JSON for each function
that is loaded: the package's name, the function and the compute unit.
"""

import json
import struct
import sys
from functools import cache
from pathlib import Path

import numpy as np

from voxcpm_constants.manifest import Manifest
from voxcpm_runtime.backends.portable import PortableStepModel

TYPES = {"FLOAT16": "float16", "INT32": "int32"}
STATES = {}


@cache
def declared(package):
    """The declaration of a package and its form."""
    manifest = Manifest.read(package.parents[1])
    packages = [part for name in manifest.step_models for part in manifest.parts(name)]
    model = next(part for part in packages if part.name == package.stem)
    return model, manifest.form(model)


@cache
def model(package, function):
    """A function of a package, the default one for an empty name, and dtypes of its outputs other than float32."""
    spec, form = declared(package)
    if package.suffix == ".aimodel":
        from voxcpm_runtime.backends.core_ai.step_model import load_core_ai_step_model

        bundle = package.parents[1]
        return load_core_ai_step_model(bundle, Manifest.read(bundle), package.parent.name, package.stem), {}
    kept = {t.name: t.output_name for t in spec.state} if form.state == "native" else {}
    step = PortableStepModel(package, function=function or next(iter(form.functions)), state=kept)
    return step, {name: TYPES[o.dtype] for name, o in step.outputs.items() if o.dtype in TYPES}


def loaded(package, function):
    """A framework's description of a function: types of the inputs, and for Core AI its states."""
    step, _ = model(package, function)
    if package.suffix == ".mlpackage":
        return {"inputs": {name: TYPES.get(i.dtype, "float32") for name, i in step.inputs.items()}}
    compute = "float32" if package.parent.name == "fp32" else "float16"
    state = declared(package)[1].functions[function].state
    return {"states": {t.name: {"shape": [*t.shape_at(0)], "type": compute} for t in state}}


def buffer(request, data):
    """Return one whole array of a state, or store the caller's."""
    step, _ = model(Path(request["of"]), request["function"])
    state, name = kept_state(request["state"], step), request["name"]
    array = state.rows(0, sys.maxsize)[name]
    if request.get("written"):
        state.set_rows(0, {name: np.frombuffer(data, np.float32).reshape(array.shape)})
    return {"shape": list(array.shape)}, np.ascontiguousarray(array, np.float32).tobytes()


def kept_state(key, step):
    """The state of that key, created on first use."""
    if key not in STATES:
        STATES[key] = step.new_state()
    return STATES[key]


def answer(request, data, log):
    if "of" in request:
        return buffer(request, data)
    package = Path(request.get("load") or request["run"])
    if "load" in request:
        log.write(json.dumps([package.stem, request["function"], request["unit"]]) + "\n")
        return loaded(package, request["function"]), b""
    step, types = model(package, request["function"])
    inputs, place = {}, 0
    for tensor in request["tensors"]:
        dtype, count = np.dtype(tensor["type"]), int(np.prod(tensor["shape"]))
        inputs[tensor["name"]] = np.frombuffer(data, dtype, count, place).reshape(tensor["shape"])
        place += count * dtype.itemsize
    state = kept_state(key, step) if (key := request["state"]) else None
    results = {
        name: np.ascontiguousarray(array, types.get(name, "float32"))
        for name, array in step(inputs, state).items()
    }
    shapes = [{"name": n, "shape": list(a.shape), "type": a.dtype.name} for n, a in results.items()]
    return {"tensors": shapes}, b"".join(array.tobytes() for array in results.values())


def serve(requests, answers, log):
    while len(lengths := requests.read(8)) == 8:
        header, data = (requests.read(length) for length in struct.unpack("<II", lengths))
        try:
            document, numbers = answer(json.loads(header), data, log)
        except Exception as error:  # noqa: BLE001 - as the framework would throw
            document, numbers = {"error": f"{type(error).__name__}: {error}"}, b""
        text = json.dumps(document).encode()
        answers.write(struct.pack("<II", len(text), len(numbers)) + text + numbers)
        answers.flush()


if __name__ == "__main__":
    requests, answers, log = map(Path, sys.argv[1:])
    with requests.open("rb") as asked, answers.open("wb") as told, log.open("w") as record:
        serve(asked, told, record)
