"""Golden records: the built-in voice passes its examination, and every kind of difference fails it."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from voxcpm_constants.manifest import Manifest, record_file
from voxcpm_runtime.commands import cli
from voxcpm_validation.golden import examination as examination_
from voxcpm_validation.golden import key
from voxcpm_validation.golden.examination import CASES, Examination, case_arguments, examine, open_voice
from voxcpm_validation.golden.key import content_digest
from voxcpm_validation.golden.records import RECORDS, GoldenRecord, read_records


@pytest.fixture(scope="module")
def examination(speaking_bundle: Path) -> Examination:
    """A zero-shot case and a continuation of a recording, examined."""
    return examine(speaking_bundle, "int8", "portable", cases=(CASES[0], CASES[-1]))


@pytest.fixture
def record(examination: Examination) -> GoldenRecord:
    return examination.record


def test_the_built_in_voice_says_the_same_in_every_process_and_every_chunking(
    examination: Examination,
) -> None:
    assert examination.failures == {"short": (), "numbers": ()}


def test_the_built_in_voice_is_as_the_tree_has_it_on_record(record: GoldenRecord) -> None:
    records = read_records(RECORDS)
    assert {known.key.precision for known in records} == {"fp16", "int8"}
    for known in records:
        assert set(known.cases) == {case.name for case in CASES}
        assert (RECORDS / known.key.file_name).is_file()
        if known.key == record.key:
            assert {name: known.cases[name] for name in record.cases} == record.cases


def test_a_record_describes_the_speech(record: GoldenRecord, speaking_bundle: Path, tmp_path: Path) -> None:
    tts = open_voice(speaking_bundle, "int8", "portable")
    audio = tts.speak(**case_arguments(CASES[0])).audio
    patch = tts.bundle.architecture.patch_output_samples
    ends = [*range(patch, len(audio), 5 * patch), len(audio)]
    samples = np.round(np.clip(audio, -1, 1) * 32767).astype("<i2")
    chunks = [samples[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    speech = record.cases["short"]

    assert (speech.samples, list(speech.boundaries)) == (len(audio), ends[:-1])
    assert list(speech.chunks) == [hashlib.sha256(chunk.tobytes()).hexdigest() for chunk in chunks]
    # A new record of the same machine replaces the old one.
    earlier = record.model_copy(update={"cases": {}})
    assert earlier.write(tmp_path / "records") == record.write(tmp_path / "records")
    assert read_records(tmp_path / "records") == (record,)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"samples": 7}, "samples, the record has 7"),
        ({"boundaries": ()}, "the record has the end only"),
        ({"chunks": ("0", "1", "2")}, "chunk 0: PCM16 is not that of the record"),
    ],
)
def test_every_difference_from_a_record_is_reported(
    record: GoldenRecord, change: dict[str, object], message: str
) -> None:
    speech = record.cases["short"]
    assert message in next(speech.differences(speech.model_copy(update=change), "the record"))


def test_speech_that_is_not_repeatable_is_reported_by_case_and_chunk(
    speaking_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The decoder here is louder in each stream than in the one before, from the third patch on."""
    tts = open_voice(speaking_bundle, "int8", "portable")
    decoder = tts.driver.models["audio_vae_decoder"]

    class Drifting:
        streams = 0

        def new_state(self) -> object:
            self.streams, self.calls = self.streams + 1, 0
            return decoder.new_state()

        def __call__(self, inputs: object, state: object) -> dict[str, np.ndarray]:
            self.calls += 1
            audio = decoder(inputs, state)["audio"]
            return {"audio": audio * (1 + 0.01 * self.streams) if self.calls > 2 else audio}

    tts.driver.models["audio_vae_decoder"] = Drifting()
    monkeypatch.setattr(examination_, "open_voice", lambda *_: tts)

    found = examine(speaking_bundle, "int8", "portable", cases=CASES[:1])

    failures = "\n".join(found.failures["short"])
    # The other process speaks without the drift.
    assert "chunk 1: PCM16 is not that of this process" in failures
    assert "chunk 0" not in failures
    for how in ("whole", "in chunks of 1", "in chunks of 2", "in chunks of 12"):
        assert f"chunk 1: {how} " in failures


def run(bundle: Path, *options: object) -> int:
    return cli.main([*map(str, ("validate", bundle, "--golden", "--precision", "int8", *options))])


def test_the_command_records_and_then_compares(
    speaking_bundle: Path,
    examination: Examination,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "records"
    monkeypatch.setattr(examination_, "examine", lambda *_, **__: examination)

    assert run(speaking_bundle, "--records", folder, "--record") == 0
    (path,) = folder.iterdir()
    assert f"int8: recorded in {path}" in capsys.readouterr().err
    assert run(speaking_bundle, "--records", folder) == 0
    captured = capsys.readouterr()
    assert "compared with the record of" in captured.err
    assert captured.out.splitlines()[-1] == "Everything that can be compared is the same."

    document = json.loads(path.read_text())
    document["cases"]["short"]["chunks"][1] = "0" * 64
    del document["cases"]["numbers"]
    path.write_text(json.dumps(document))
    assert run(speaking_bundle, "--records", folder) == 1
    captured = capsys.readouterr()
    assert "differs: int8 short: chunk 1: PCM16 is not that of the record" in captured.err
    assert "differs: int8 numbers: the record does not have this case" in captured.err
    assert captured.out.splitlines()[-1] == "Samples differ."

    document["key"]["processor"] = "another"
    path.write_text(json.dumps(document))
    assert run(speaking_bundle, "--records", folder) == 0
    assert "int8: no record of this conversion for portable, " in capsys.readouterr().err

    # What differs from itself is not recorded.
    failures = {"short": ("chunk 2: whole 1 samples differ, the first at 9",), "numbers": ()}
    monkeypatch.setattr(examination_, "examine", lambda *_, **__: replace(examination, failures=failures))
    assert run(speaking_bundle, "--records", tmp_path / "new", "--record") == 1
    err = capsys.readouterr().err
    assert "int8: not recorded, as it differs from itself" in err
    assert "differs: int8 short: chunk 2: whole 1 samples differ" in err
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{bundle}"], "expected a bundle and the --checkpoint"),
        (["--checkpoint", "x"], "expected a bundle and the --checkpoint"),
        (
            ["{bundle}", "--checkpoint", "x", "--prompt", "a.wav"],
            "--prompt and --prompt-text: give both",
        ),
        (["{bundle}", "--golden", "--text", "a", "--seed", "0"], "leave out --text, --seed"),
        (["{bundle}", "--records", "."], "--record and --records need --golden"),
        (["nowhere", "--golden"], "no bundle here"),
        (["{bundle}", "--golden", "--precision", "int4"], "has no int4 precision"),
        (["{bundle}", "--golden", "--precision", "int3"], "expected one of fp16"),
        (["{bundle}", "--golden", "--records", "nowhere"], "no such folder; make it with --record"),
        (["{bundle}", "--golden", "--records", "{tmp}"], "no golden record: key: Field required"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_two(
    speaking_bundle: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    (tmp_path / "a.json").write_text("{}")
    given = [part.format(bundle=speaking_bundle, tmp=tmp_path) for part in arguments]

    assert cli.main(["validate", *given]) == 2

    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert message in err
    assert err.count("\n") == 1


def test_on_fewer_cores_than_the_records_need_it_is_said_so(
    speaking_bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(examination_, "cores", lambda: 1)
    assert run(speaking_bundle) == 2
    assert "records are made with 2 threads, and this process may use 1 core" in capsys.readouterr().err


def test_what_a_bundle_says_is_its_content_and_not_its_dates_and_identifiers(
    speaking_bundle: Path, tmp_path: Path
) -> None:
    from coremltools.proto import Model_pb2

    package = Path("fp16/locdit_step.mlpackage")
    names = [
        name for name in Manifest.read(speaking_bundle).files if name.startswith(f"{package.as_posix()}/")
    ]

    def digest(folder: Path) -> str:
        return content_digest(folder, {name: record_file(folder / name) for name in names})

    bundle = tmp_path / "bundle"
    shutil.copytree(speaking_bundle / package, bundle / package)
    program = bundle / package / "Data/com.apple.CoreML/model.mlmodel"
    (bundle / package / "Manifest.json").write_text("{}")
    model = Model_pb2.Model.FromString(program.read_bytes())
    model.description.metadata.userDefined["com.github.apple.coremltools.conversion_date"] = "1970-01-01"
    program.write_bytes(model.SerializeToString())
    assert digest(bundle) == digest(speaking_bundle)

    block = next(iter(model.mlProgram.functions["main"].block_specializations.values()))
    block.operations[0].outputs[0].name = "another"
    program.write_bytes(model.SerializeToString())
    assert digest(bundle) != digest(speaking_bundle)

    shutil.copy(speaking_bundle / program.relative_to(bundle), program)
    weights = bundle / package / "Data/com.apple.CoreML/weights/weight.bin"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    assert digest(bundle) != digest(speaking_bundle)


@pytest.mark.parametrize(
    ("cpuinfo", "expected"),
    [
        ("processor\t: 0\nflags\t\t: fpu sse2 avx512bw avx2 avx512f fma\n", "avx2+avx512f+avx512bw"),
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
