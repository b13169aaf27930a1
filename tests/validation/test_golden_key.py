"""The key of a golden record: a bundle's content and the machine's instruction sets."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from voxcpm_constants.manifest import Manifest, record_file
from voxcpm_constants.step_models import AUDIO_VAE_DECODER, StepSizes
from voxcpm_validation.golden import key
from voxcpm_validation.golden.key import content_digest


def test_what_a_bundle_says_is_its_content_and_not_its_dates_and_identifiers(
    speaking_bundle: Path, tmp_path: Path
) -> None:
    from coremltools.proto import Model_pb2

    package = Path("fp16/locdit_step.mlpackage")
    files = {
        name: record
        for name, record in Manifest.read(speaking_bundle).files.items()
        if name.startswith(package.as_posix())
    }
    digest = content_digest(speaking_bundle, files)
    bundle = tmp_path / "bundle"
    shutil.copytree(speaking_bundle / package, bundle / package)
    program = bundle / package / "Data/com.apple.CoreML/model.mlmodel"
    (bundle / package / "Manifest.json").write_text("{}")
    model = Model_pb2.Model()
    model.ParseFromString(program.read_bytes())
    model.description.metadata.userDefined["com.github.apple.coremltools.conversion_date"] = "1970-01-01"
    program.write_bytes(model.SerializeToString())

    def now() -> str:
        return content_digest(bundle, {name: record_file(bundle / name) for name in files})

    assert record_file(program) != files[program.relative_to(bundle).as_posix()]
    assert now() == digest

    block = next(iter(model.mlProgram.functions["main"].block_specializations.values()))
    block.operations[0].outputs[0].name = "another"
    program.write_bytes(model.SerializeToString())
    assert now() != digest

    program.write_bytes((speaking_bundle / program.relative_to(bundle)).read_bytes())
    assert now() == digest
    weights = bundle / package / "Data/com.apple.CoreML/weights/weight.bin"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    assert now() != digest


@pytest.mark.core_ai
def test_the_names_of_weights_are_not_the_content_of_a_core_ai_program(
    some_packages: Callable[..., Path], tmp_path: Path
) -> None:
    """Another process that converts the same checkpoint names them otherwise."""
    pytest.importorskip("coreai_torch", exc_type=ImportError)
    sizes = StepSizes(kv_length=128, prefill_chunks=(1, 16))
    made = some_packages("core-ai-names", "tiny", [AUDIO_VAE_DECODER], sizes, ("fp32",), "macOS27")
    program = Path("fp32/audio_vae_decoder.aimodel")
    shutil.copytree(made / program, tmp_path / program)
    stored = (made / program / "main.mlirb").read_bytes()

    def now(folder: Path) -> str:
        names = sorted(path.relative_to(folder).as_posix() for path in (folder / program).iterdir())
        return content_digest(folder, {name: record_file(folder / name) for name in names})

    def of(altered: bytes) -> str:
        (tmp_path / program / "main.mlirb").write_bytes(altered)
        return now(tmp_path)

    metadata = tmp_path / program / "metadata.json"
    metadata.write_text(re.sub(r'"\d{8}T\d{6}Z"', '"19700101T000000Z"', metadata.read_text()))
    (tmp_path / program / "main.hash").write_bytes(bytes(32))
    renamed = re.sub(rb"resource_(\d+)", lambda found: b"resource_" + found[1][::-1], stored)
    assert renamed != stored
    assert of(renamed) == now(made)

    weight = bytearray(stored)
    weight[len(weight) // 2] ^= 1
    assert of(bytes(weight)) != now(made)


@pytest.mark.parametrize(
    ("cpuinfo", "expected"),
    [
        (
            "processor\t: 0\nflags\t\t: fpu sse2 avx512bw avx2 avx512f fma\nbugs\t: none\n",
            "avx2+avx512f+avx512bw",
        ),
        ("processor\t: 0\nFeatures\t: fp asimd aes asimddp sve i8mm\n", "asimd+asimddp+i8mm+sve"),
        (None, "Apple M4"),
    ],
)
def test_the_processor_is_the_instruction_sets_that_kernels_are_chosen_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpuinfo: str | None, expected: str
) -> None:
    monkeypatch.setattr(key, "_CPU_INFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(key, "chip", lambda: "Apple M4")
    if cpuinfo is not None:
        (tmp_path / "cpuinfo").write_text(cpuinfo)
    assert key.processor() == expected
