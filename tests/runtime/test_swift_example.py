"""The constants and defaults of the Swift example are the Python driver's; `tests/test_swift_speaks.py` runs it."""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from pathlib import Path

import pytest

from voxcpm_constants import step_models, tokenizer_file
from voxcpm_constants.generations import GENERATIONS
from voxcpm_constants.manifest import schema_version
from voxcpm_constants.step_models import STEP_MODEL_NAMES, StepModel
from voxcpm_runtime.audio import pcm
from voxcpm_runtime.model import driver, flow_matching, sequence
from voxcpm_runtime.options import DEFAULT_MAX_LEN, GenerationOptions

REPOSITORY = Path(__file__).resolve().parents[2]
SWIFT = REPOSITORY / "examples" / "swift" / "VoxCPMSpeech.swift"
SOURCE = SWIFT.read_text(encoding="utf-8")


def block(opening: str) -> str:
    """The lines from the one that contains `opening` to the brace that closes it, at the same indentation."""
    lines = SOURCE.splitlines()
    first = next(index for index, line in enumerate(lines) if opening in line)
    indent = re.match(" *", lines[first])[0]
    last = next(index for index in range(first + 1, len(lines)) if lines[index].startswith(f"{indent}}}"))
    return "\n".join(lines[first : last + 1])


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
