"""The Swift driver has the numbers, names and order of the Python driver. This needs no compiler, and no Mac.

`tests/test_swift_speaks.py` compiles it and lets it speak, where there is a Swift compiler.
"""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from pathlib import Path

import pytest

from voxcpm_constants import step_models, tokenizer_file
from voxcpm_constants.architecture import Architecture
from voxcpm_constants.generations import GENERATIONS
from voxcpm_constants.manifest import Manifest, schema_version
from voxcpm_constants.step_models import (
    AUDIO_VAE_DECODER,
    AUDIO_VAE_ENCODER,
    BASE_LM_STEP,
    FEAT_ENCODER,
    LOCDIT_STEP,
    RESIDUAL_LM_STEP,
    STEP_MODEL_NAMES,
    StepModel,
    StepSizes,
    declare_step_models,
)
from voxcpm_runtime.audio import pcm
from voxcpm_runtime.model import driver, flow_matching, sequence
from voxcpm_runtime.options import DEFAULT_MAX_LEN, GenerationOptions

REPOSITORY = Path(__file__).resolve().parents[2]
SWIFT = REPOSITORY / "examples" / "swift" / "VoxCPMSpeech.swift"
SOURCE = SWIFT.read_text(encoding="utf-8")
# Function of the driver that calls a step model -> the step models that it may call.
CALLERS = {
    "encode": [AUDIO_VAE_ENCODER],
    "decode": [AUDIO_VAE_DECODER],
    "embed": [FEAT_ENCODER],
    "languageModel": [BASE_LM_STEP, RESIDUAL_LM_STEP],
    "baseStep": [BASE_LM_STEP],
    "residualStep": [RESIDUAL_LM_STEP],
    "solve": [LOCDIT_STEP],
}
UNITS = {"cpuOnly": "cpu", "cpuAndGPU": "cpu_and_gpu", "cpuAndNeuralEngine": "cpu_and_ne", "all": "all"}


def block(opening: str) -> str:
    """The lines from the one that contains `opening` to the brace that closes it, at the same indentation."""
    lines = SOURCE.splitlines()
    first = next(index for index, line in enumerate(lines) if opening in line)
    indent = re.match(" *", lines[first])[0]
    last = next(index for index in range(first + 1, len(lines)) if lines[index].startswith(f"{indent}}}"))
    return "\n".join(lines[first : last + 1])


def function(name: str) -> str:
    return block(f"func {name}(")


def literal(swift: str) -> object:
    """The value of a Swift literal: a number, a dictionary or an array of strings, or a closed range."""
    if (closed := re.fullmatch(r"(\w+)\.\.\.(\w+)", swift)) is not None:
        return tuple(ast.literal_eval(end) for end in closed.groups())
    if re.match(r'\[\s*"\w+":', swift):
        swift = "{" + re.sub(r": \.(\w+)", r': "\1"', swift[1:-1]) + "}"
    return ast.literal_eval(swift.replace("true", "True"))


def constants() -> dict[str, object]:
    body = re.sub(r"^ *///.*\n", "", block("enum Constant {"), flags=re.MULTILINE)
    found = re.findall(r"static let (\w+)(?:: [^=]+)? = (.+?)(?=\n    static|\n\})", body, re.DOTALL)
    return {name: literal(value) for name, value in found}


def snake(camel: str) -> str:
    return re.sub(r"([A-Z])", lambda capital: f"_{capital[1].lower()}", camel)


def declared(generation: Architecture, sizes: StepSizes, name: str):
    return declare_step_models(generation, sizes)[name]


def test_the_constants_are_those_of_python() -> None:
    assert constants() | {"computeUnits": None} == {
        "schemaVersion": schema_version("macOS15"),
        "audioStart": tokenizer_file.AUDIO_START,
        "stopIndex": driver._STOP,
        "zeroVelocityFraction": step_models._ZERO_VELOCITY_FRACTION,
        "normFloor": pytest.approx(float(flow_matching._NORM_FLOOR)),
        "angleScale": float(flow_matching._ANGLE_SCALE),
        "lowestFrequency": flow_matching._LOWEST_FREQUENCY,
        "callCost": sequence._CALL_COST,
        "patchesBeyondTheRatio": GenerationOptions().patch_bound(0),
        "peak": pcm._PEAK,
        "oneChinese": (0x4E00, 0x9FFF),
        "decoderContextPatches": {name: t.decoder_context_patches for name, t in GENERATIONS.items()},
        "modelsWithCaches": [
            name for name in STEP_MODEL_NAMES if StepModel(name=name, inputs=(), outputs=()).has_caches
        ],
        "computeUnits": None,
    }


def test_the_options_have_pythons_defaults() -> None:
    found = {
        snake(name): literal(value)
        for name, value in re.findall(r"var (\w+)(?:: \w+)? = (\S+)", block("struct SpeechOptions {"))
    }
    defaults = {f.name: getattr(GenerationOptions(), f.name) for f in fields(GenerationOptions)}
    defaults["max_len"] = defaults["max_len"] or DEFAULT_MAX_LEN

    assert len(found) == 8
    assert found == {name: defaults[name] for name in found}


def test_fields_of_the_manifest_are_there(bundle_folder: Path) -> None:
    document = Manifest.read(bundle_folder).model_dump(mode="json", by_alias=True)
    model = document["step_models"]["base_lm_step"]
    places = {
        "Tensor": model["inputs"][0],
        "StepModel": model,
        "Sizes": document["sizes"],
        "LanguageModel": document["architecture"]["lm_config"],
        "DiT": document["architecture"]["dit_config"],
        "AudioVAE": document["architecture"]["audio_vae_config"],
        "Architecture": document["architecture"],
        "File": next(iter(document["files"].values())),
    }
    manifest = block("struct Manifest: Decodable {")
    for name, place in places.items():
        body = block(f"    struct {name}: Decodable {{")
        stored = re.findall(r"^        let ([\w, ]+):", body, re.MULTILINE)
        assert stored, name
        assert {field for line in stored for field in line.split(", ")} <= set(place), name
    top = set(re.findall(r"^    let (\w+):", manifest, re.MULTILINE))
    assert {"step_models", "target", "files"} <= top <= set(document)


@pytest.mark.parametrize("caller", CALLERS)
def test_tensors_have_the_declared_names(caller: str, architecture: Architecture, sizes: StepSizes) -> None:
    body = function(caller)
    given = set(re.findall(r'["(,\[]\s*"(\w+)": ', body)) | set(re.findall(r'\["(\w+)": ', body))
    read = set(re.findall(r'\["(\w+)"\]!', body))
    named = re.findall(r'(?:model|languageModel)\("(\w+)"', body)
    lengths = re.findall(r'lengths\("(\w+)", (\d)\)', body)

    assert given or read or lengths
    for name in CALLERS[caller]:
        model = declared(architecture, sizes, name)
        if named:
            assert named == [name]
        if given:
            assert given == {t.name for t in model.inputs}
        outputs = {t.name for t in model.outputs}
        if read:
            assert read == outputs if name != BASE_LM_STEP or caller == "baseStep" else read <= outputs
        by_name = {t.name: t for t in model.inputs}
        for tensor, axis in lengths:
            assert int(axis) < len(by_name[tensor].shape)
        if lengths and model.chunk_count > 1:
            assert [(t, int(i)) for t, i in lengths] == [(model.chunk_axis[0].name, model.chunk_axis[1])]
