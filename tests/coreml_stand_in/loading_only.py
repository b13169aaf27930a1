"""The part of coremltools that a compiling or loading child uses, as importing coremltools takes a second."""

import enum
import shutil
from types import SimpleNamespace

from coreml_stand_in.binding import Model

ComputeUnit = enum.Enum("ComputeUnit", ["ALL", "CPU_AND_GPU", "CPU_ONLY", "CPU_AND_NE"])
ReshapeFrequency = enum.Enum("ReshapeFrequency", ["Frequent", "Infrequent"])


def _compile_model(package, destination_path):
    shutil.move(Model.compileModel(package), destination_path)


def _load(path, unit, function_name="", optimization_hints=None):
    hints = {name: chosen.name for name, chosen in (optimization_hints or {}).items()}
    return Model(path, unit.name, function_name, hints, None)


utils = SimpleNamespace(compile_model=_compile_model)
models = SimpleNamespace(CompiledMLModel=_load)
