"""Runs packages on ONNX Runtime for CoreML.swift. Usage: server.py REQUESTS ANSWERS LOG, two pipes and a file.

The log gets a line of JSON for each package that is loaded: its name, function and compute unit.
"""

from __future__ import annotations

import json
import struct
import sys
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from voxcpm_constants.manifest import Manifest
from voxcpm_runtime.backends.portable import PortableStepModel

TYPES = {"FLOAT16": "float16", "INT32": "int32"}
STATES: dict[str, Any] = {}


@cache
def model(package: Path, function: str) -> tuple[PortableStepModel, bool]:
    """A function of a package, the default one for an empty name, and whether Core ML would keep its state."""
    manifest = Manifest.read(package.parents[1])
    packages = [part for name in manifest.step_models for part in manifest.parts(name)]
    declared = next(part for part in packages if part.name == package.stem)
    form = manifest.form(declared)
    kept = {t.name: t.output_name for t in declared.state} if form.state == "native" else {}
    chosen = function or next(iter(form.functions))
    return PortableStepModel(package, function=chosen, state=kept), bool(kept)


def answer(request: dict[str, Any], data: bytes, log: Any) -> tuple[dict[str, Any], bytes]:
    package = Path(request.get("load") or request["run"])
    step, keeps_state = model(package, request["function"])
    if "load" in request:
        log.write(json.dumps([package.stem, request["function"], request["unit"]]) + "\n")
        return {"inputs": {name: TYPES.get(i.dtype, "float32") for name, i in step.inputs.items()}}, b""
    inputs, place = {}, 0
    for tensor in request["tensors"]:
        dtype, count = np.dtype(tensor["type"]), int(np.prod(tensor["shape"]))
        inputs[tensor["name"]] = np.frombuffer(data, dtype, count, place).reshape(tensor["shape"])
        place += count * dtype.itemsize
    state = None
    if keeps_state:
        state = STATES.setdefault(request["state"], None) or step.new_state()
        STATES[request["state"]] = state
    results = {
        name: np.ascontiguousarray(array, TYPES.get(step.outputs[name].dtype, "float32"))
        for name, array in step(inputs, state).items()
    }
    shapes = [{"name": n, "shape": list(a.shape), "type": a.dtype.name} for n, a in results.items()]
    return {"tensors": shapes}, b"".join(array.tobytes() for array in results.values())


def serve(requests: BinaryIO, answers: BinaryIO, log: Any) -> None:
    while len(lengths := requests.read(8)) == 8:
        header, data = (requests.read(length) for length in struct.unpack("<II", lengths))
        try:
            document, numbers = answer(json.loads(header), data, log)
        except Exception as error:  # what Core ML would throw
            document, numbers = {"error": f"{type(error).__name__}: {error}"}, b""
        text = json.dumps(document).encode()
        answers.write(struct.pack("<II", len(text), len(numbers)) + text + numbers)
        answers.flush()


if __name__ == "__main__":
    requests, answers, log = map(Path, sys.argv[1:])
    with requests.open("rb") as asked, answers.open("wb") as told, log.open("w") as loaded:
        serve(asked, told, loaded)
