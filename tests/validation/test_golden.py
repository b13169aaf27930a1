"""The examination of golden cases: the built-in voice passes it, and every kind of difference fails it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from voxcpm_constants.errors import InputError
from voxcpm_constants.manifest import Source
from voxcpm_runtime.commands import cli
from voxcpm_validation.golden.cases import (
    CASES,
    CHUNKING,
    case_arguments,
    open_voice,
)
from voxcpm_validation.golden.examination import Examination, examine
from voxcpm_validation.golden.record import (
    RECORDS,
    GoldenRecord,
    compare,
    nearest,
    read_records,
    voice_digest,
)

# Zero-shot, and the continuation of a recording.
EXAMINED = (CASES[0], CASES[-1])


@pytest.fixture(scope="module")
def examination(speaking_bundle: Path) -> Examination:
    return examine(speaking_bundle, "int8", "portable", cases=EXAMINED)


@pytest.fixture
def record(examination: Examination) -> GoldenRecord:
    return examination.record


def changed(record: GoldenRecord, case: str, **speech: object) -> GoldenRecord:
    cases = record.cases | {case: record.cases[case].model_copy(update=speech)}
    return record.model_copy(update={"cases": cases})


def elsewhere(record: GoldenRecord, **key: str) -> GoldenRecord:
    """The record of another machine, with other hashes for all chunks."""
    cases = {
        name: speech.model_copy(update={"chunks": tuple("0" * 64 for _ in speech.chunks)})
        for name, speech in record.cases.items()
    }
    return record.model_copy(update={"key": record.key.model_copy(update=key), "cases": cases})


def differences(found: GoldenRecord, *records: GoldenRecord) -> list[str]:
    compared = compare(found, records).differences
    return [f"{case}: {line}" for case, lines in compared.items() for line in lines]


def test_the_built_in_voice_says_the_same_in_every_process_and_every_chunking(
    examination: Examination,
) -> None:
    assert examination.failures == {"short": (), "numbers": ()}
    assert examination.is_consistent


def test_the_built_in_voice_is_as_the_tree_has_it_on_record(record: GoldenRecord) -> None:
    comparison = compare(record, read_records(RECORDS))

    assert comparison.record is not None
    assert comparison.record.key.precision == "int8"
    assert not any(comparison.differences.values()), comparison.differences


def test_a_record_describes_the_speech(examination: Examination, speaking_bundle: Path) -> None:
    tts = open_voice(speaking_bundle, "int8", "portable")
    case = EXAMINED[0]
    audio = tts.speak(**case_arguments(case), seed=case.seed).audio
    patch = tts.bundle.architecture.patch_output_samples
    assert CHUNKING == {"chunk_patches": 5, "first_chunk_patches": 1}
    ends = [*range(patch, len(audio), 5 * patch), len(audio)]

    record = examination.record.cases["short"]

    assert (record.samples, list(record.boundaries)) == (len(audio), ends[:-1])
    samples = np.round(np.clip(audio, -1, 1) * 32767).astype("<i2")
    chunks = [samples[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    assert list(record.chunks) == [hashlib.sha256(chunk.tobytes()).hexdigest() for chunk in chunks]
    assert record.peak == pytest.approx(np.abs(audio).max(), abs=1e-6)
    assert record.rms == pytest.approx(np.sqrt(np.mean(audio.astype(np.float64) ** 2)), abs=1e-6)


def test_a_record_is_read_back_as_it_was_written(record: GoldenRecord, tmp_path: Path) -> None:
    first = record.write(tmp_path / "records")
    second = elsewhere(record, processor="avx512f+avx512bw").write(tmp_path / "records")

    assert first != second
    read = read_records(tmp_path / "records")
    assert {entry.key.processor for entry in read} == {record.key.processor, "avx512f+avx512bw"}
    assert record in read
    # A new record of the same machine replaces the old one.
    assert changed(record, "short", samples=1).write(tmp_path / "records") == first
    assert record not in read_records(tmp_path / "records")


def test_a_record_of_the_same_key_must_be_equal(record: GoldenRecord) -> None:
    assert compare(record, [record]).exact
    assert differences(record, record) == []

    chunks = list(record.cases["numbers"].chunks)
    chunks[2] = "0" * 64
    assert differences(record, changed(record, "numbers", chunks=tuple(chunks))) == [
        "numbers: chunk 2: PCM16 is not that of the record"
    ]


@pytest.mark.parametrize(
    ("speech", "message"),
    [
        ({"samples": 7}, "samples, the record has 7"),
        ({"boundaries": (1, 2)}, "the record has 1, 2"),
        ({"boundaries": ()}, "the record has the end only"),
        ({"rms": 0.9}, "equal hashes, but RMS"),
    ],
)
def test_every_difference_from_a_record_is_reported(
    record: GoldenRecord, speech: dict[str, object], message: str
) -> None:
    (line,) = differences(record, changed(record, "short", **speech))
    assert message in line


def test_without_a_record_of_the_machine_figures_are_compared(record: GoldenRecord) -> None:
    other = elsewhere(record, processor="avx512f+avx512bw")
    comparison = compare(record, [other])

    assert (comparison.record, comparison.exact) == (other, False)
    assert differences(record, other) == []


@pytest.mark.parametrize(
    ("factor", "figure", "name"),
    [
        (2.0, "rms", "RMS"),
        (0.5, "peak", "peak"),
        (0.0, "silence_ratio", "silence ratio"),
        (2, "samples", "length"),
    ],
)
def test_figures_far_from_the_nearest_record_fail(
    record: GoldenRecord, factor: float, figure: str, name: str
) -> None:
    other = elsewhere(record, processor="avx512f")
    value = factor * getattr(record.cases["short"], figure)

    (line,) = differences(record, changed(other, "short", **{figure: value}))

    assert line.startswith(f"short: {name} ")
    assert "the nearest record has" in line


def test_the_nearest_record_has_most_in_common(record: GoldenRecord) -> None:
    key, voice = record.key, record.voice
    same_machine = elsewhere(record, content="another conversion")
    far = elsewhere(record, machine="arm64", processor="asimd", engine="onnxruntime 9.9")
    of_fp16 = record.model_copy(update={"key": key.model_copy(update={"precision": "fp16"})})
    of_another_voice = record.model_copy(update={"voice": "another"})

    assert nearest(key, voice, [far, same_machine]) == same_machine
    assert nearest(key, voice, [far, record, same_machine]) == record
    assert nearest(key, voice, [far]) == far
    assert nearest(key, voice, [of_fp16, of_another_voice]) is None


def test_another_voice_is_compared_with_itself_only(record: GoldenRecord) -> None:
    stranger = record.model_copy(update={"voice": "another checkpoint"})

    assert compare(stranger, [record]).record is None
    assert differences(stranger, record) == []


def test_a_case_that_is_not_on_record_is_reported(record: GoldenRecord) -> None:
    shorter = record.model_copy(update={"cases": {"short": record.cases["short"]}})

    assert differences(record, shorter) == [
        "numbers: the record does not have this case; record it again with --record"
    ]


def test_a_merged_lora_makes_another_voice() -> None:
    source = Source(checkpoint="a", sha256="1")
    lora = {"name": "l", "sha256": "2", "r": 1, "alpha": 1, "weights": 1, "modules": ()}

    assert voice_digest(source) == "1"
    assert voice_digest(Source(checkpoint="a", sha256="1", lora=lora)) == "1+2"


def test_speech_that_is_not_repeatable_is_reported_by_case_and_chunk(
    speaking_bundle: Path, monkeypatch: pytest.MonkeyPatch, examination: Examination
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
    monkeypatch.setattr("voxcpm_validation.golden.examination.open_voice", lambda *_: tts)
    recorded = {"short": examination.record.cases["short"]}
    monkeypatch.setattr("voxcpm_validation.golden.examination.recorded_elsewhere", lambda *_: recorded)

    found = examine(speaking_bundle, "int8", "portable", cases=EXAMINED[:1])

    failures = "\n".join(found.failures["short"])
    assert "chunk 1: PCM16 is not that of this process" in failures
    assert "chunk 0" not in failures
    for how in ("offline", "in chunks of 1", "in chunks of 2", "in chunks of 12"):
        assert f"chunk 1: {how} " in failures


@pytest.fixture
def on_the_command_line(examination: Examination, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("voxcpm_validation.golden.command.examine", lambda *_, **__: examination)


def run(bundle: Path, *options: str) -> int:
    return cli.main(["validate", str(bundle), "--golden", "--precision", "int8", *options])


@pytest.mark.usefixtures("on_the_command_line")
def test_the_command_records_and_then_agrees(
    speaking_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "records"

    assert run(speaking_bundle, "--records", str(folder), "--record") == 0
    (path,) = folder.iterdir()
    assert f"int8: recorded in {path}" in capsys.readouterr().err
    assert run(speaking_bundle, "--records", str(folder)) == 0
    captured = capsys.readouterr()
    assert "compared with the record of" in captured.err
    assert "differs" not in captured.out

    document = json.loads(path.read_text())
    document["cases"]["short"]["chunks"][1] = "0" * 64
    path.write_text(json.dumps(document))
    assert run(speaking_bundle, "--records", str(folder)) == 1
    captured = capsys.readouterr()
    assert "differs: int8 short: chunk 1: PCM16 is not that of the record" in captured.err
    assert "differs" in captured.out

    document["key"]["processor"] = "another"
    path.write_text(json.dumps(document))
    assert run(speaking_bundle, "--records", str(folder)) == 0
    assert "int8: no hashes on record for portable, " in capsys.readouterr().err


def test_what_differs_from_itself_is_not_recorded(
    speaking_bundle: Path,
    examination: Examination,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    failures = {"short": ("chunk 2: offline 1 samples differ, the first at 9",), "numbers": ()}
    inconsistent = replace(examination, failures=failures)
    monkeypatch.setattr("voxcpm_validation.golden.command.examine", lambda *_, **__: inconsistent)

    assert run(speaking_bundle, "--records", str(tmp_path), "--record") == 1

    err = capsys.readouterr().err
    assert "int8: not recorded, as it differs from itself" in err
    assert "differs: int8 short: chunk 2: offline 1 samples differ" in err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "expected a bundle and --checkpoint"),
        (["{bundle}"], "expected a bundle and --checkpoint"),
        (["--checkpoint", "x"], "expected a bundle and --checkpoint"),
        (["{bundle}", "--golden", "--text", "a", "--seed", "0"], "leave out --text, --seed"),
        (["{bundle}", "--golden", "--checkpoint", "a"], "leave out --checkpoint"),
        (["{bundle}", "--record"], "--record and --records belong to --golden"),
        (["{bundle}", "--records", "."], "--record and --records belong to --golden"),
        (["nowhere", "--golden"], "no bundle here"),
        (["{bundle}", "--golden", "--precision", "int4"], "has no int4 precision"),
        (["{bundle}", "--golden", "--precision", "int3"], "expected one of fp16"),
        (["{bundle}", "--golden", "--backend", "gpu"], "backend must be one of"),
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


def test_without_a_bundle_the_built_in_voice_is_examined(
    speaking_bundle: Path,
    examination: Examination,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = []

    def examined(bundle: Path, *_: object, **__: object) -> Examination:
        asked.append(bundle)
        return examination

    monkeypatch.setattr("voxcpm_validation.golden.command.examine", examined)
    monkeypatch.setattr("voxcpm_runtime.bundle.opening.DEFAULT_BUNDLE", speaking_bundle)

    assert cli.main(["validate", "--golden", "--precision", "int8"]) == 0
    assert asked == [speaking_bundle]
    assert capsys.readouterr().out.splitlines()[-1] == "Everything that can be compared is the same."


def test_on_fewer_cores_than_the_records_need_it_is_said_so(monkeypatch, tmp_path):
    monkeypatch.setattr("voxcpm_validation.golden.cases.cores", lambda: 1)
    with pytest.raises(InputError, match="records are made with 2 threads, and this process may use 1 core"):
        open_voice(tmp_path, "int8", "portable")


def test_the_records_of_the_tree_contain_all_cases() -> None:
    records = read_records(RECORDS)

    assert {(record.key.backend, record.key.precision) for record in records} == {
        ("portable", "fp16"),
        ("portable", "int8"),
        ("coreai", "fp32"),
    }
    for record in records:
        assert set(record.cases) == {case.name for case in CASES}
        assert (RECORDS / record.key.file_name).is_file()
