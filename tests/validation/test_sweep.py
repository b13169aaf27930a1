"""The sweep over Euler steps and guidance: every cell once, resumed from its files, with the options that it names."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from voxcpm_constants.errors import InputError
from voxcpm_constants.manifest import Manifest
from voxcpm_validation.listening import sweep as module
from voxcpm_validation.listening.command import listen as command
from voxcpm_validation.listening.material import material
from voxcpm_validation.listening.parts import Report
from voxcpm_validation.listening.scores import Scores
from voxcpm_validation.listening.speakers import bundle_speaker
from voxcpm_validation.listening.sweep import PatchTime, patch_times, sweep, sweep_table, write_sweep_plot


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple]:
    """What was spoken, where nothing is: the precision and the options of each cell. Times are eight ms a step."""
    spoken: list[tuple] = []

    def scores(system: str, case: str, errors: float) -> Scores:
        return Scores(
            system=system, case=case, sentences=2, word_error_rate=errors, length_ratio=1.0, similarity=0.8,
            cut_ends=0, tried_again=1, heard=(),
        )  # fmt: skip

    def listen(system, speak, parts, *, extent, **_):
        spoken.append((*speak, extent.sentences, extent.voices))
        assert parts == ["sentences"]
        return Report(sentences=(scores(system, "zero-shot", 0.1), scores(system, "continuation", 0.2)))

    def speaker(_, precision, **options):
        return precision, options["inference_timesteps"], options["cfg_value"]

    monkeypatch.setattr(module, "listen", listen)
    monkeypatch.setattr(module, "bundle_speaker", speaker)

    def times(bundle, precisions, steps):
        digest = Manifest.read(bundle).digest
        return tuple(
            PatchTime(bundle=digest(p), precision=p, steps=n, milliseconds=8.0 * n)
            for p in precisions
            for n in steps
        )

    monkeypatch.setattr(module, "patch_times", times)
    return spoken


def test_an_interrupted_sweep_goes_on_where_it_ended(tiny_bundle: Path, asked: list[tuple], tmp_path: Path):
    small = {"ears": None, "sentences": 2, "steps": (4, 10), "cfg_values": (2.0, 1.5)}

    first = sweep(tiny_bundle, tmp_path, **small)
    every = [(p, n, cfg, 2, 1) for cfg in (2.0, 1.5) for p in ("int8", "fp16") for n in (4, 10)]
    assert asked == every
    assert [(c.precision, c.steps, c.cfg_value) for c in first.cells] == [cell[:3] for cell in every]

    asked.clear()
    (tmp_path / "fp16-4-1.5.json").unlink()
    assert sweep(tiny_bundle, tmp_path, **small) == first
    assert asked == [("fp16", 4, 1.5, 2, 1)]
    assert first.milliseconds("fp16", 10) == 80.0


def test_cells_of_another_sweep_are_refused(tiny_bundle: Path, asked: list[tuple], tmp_path: Path):
    small = {"ears": None, "steps": (4,), "cfg_values": (2.0,)}
    sweep(tiny_bundle, tmp_path, sentences=2, **small)

    with pytest.raises(InputError, match="a cell of another bundle, seed or number of sentences"):
        sweep(tiny_bundle, tmp_path, sentences=3, **small)
    with pytest.raises(InputError, match="a cell of another bundle, seed or number of sentences"):
        sweep(tiny_bundle, tmp_path, sentences=2, seed=1, **small)
    (tmp_path / "int8-4-2.json").write_text("{}")
    with pytest.raises(InputError, match="expected a cell of a sweep"):
        sweep(tiny_bundle, tmp_path, sentences=2, **small)
    assert len(asked) == 2


def test_what_was_heard_stays_as_it_is(tiny_bundle: Path, asked: list[tuple], tmp_path: Path):
    small = {"ears": None, "sentences": 2, "steps": (4,), "cfg_values": (2.0,)}
    sweep(tiny_bundle, tmp_path, **small)
    files = {path: path.stat().st_ino for path in tmp_path.iterdir()}
    assert {path.name for path in files} == {"int8-4-2.json", "fp16-4-2.json", "times.json"}
    sweep(tiny_bundle, tmp_path, **small)
    # A file that is written again is another one, renamed.
    assert {path: path.stat().st_ino for path in tmp_path.iterdir()} == files
    assert len(asked) == 2


def test_times_of_another_bundle_or_other_steps_are_measured_again(
    tiny_bundle: Path, asked: list[tuple], tmp_path: Path
):
    small = {"ears": None, "sentences": 2, "cfg_values": (2.0,)}
    first = sweep(tiny_bundle, tmp_path, steps=(4,), **small)
    times = tmp_path / "times.json"
    other = [{**t.model_dump(), "bundle": "another", "milliseconds": 1.0} for t in first.times]
    times.write_text(json.dumps(other))
    assert sweep(tiny_bundle, tmp_path, steps=(4,), **small) == first
    assert "another" not in times.read_text()
    assert sweep(tiny_bundle, tmp_path, steps=(4, 10), **small).milliseconds("int8", 10) == 80.0
    assert len(asked) == 4


def test_damaged_times_are_one_line_before_anything_is_heard(
    tiny_bundle: Path, asked: list[tuple], tmp_path: Path
):
    (tmp_path / "times.json").write_text('[{"precision": "int8"')
    with pytest.raises(InputError, match=r"times\.json: expected the times of a sweep; remove it"):
        sweep(tiny_bundle, tmp_path, None, sentences=2, steps=(4,), cfg_values=(2.0,))
    assert not asked


def test_a_bundle_without_the_precisions_is_refused(
    tiny_bundle: Path, asked: list[tuple], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "_PRECISIONS", ("int3", "fp8"))
    with pytest.raises(InputError, match=r"expected a bundle with int3 or fp8; it has .*int8"):
        sweep(tiny_bundle, tmp_path, None, sentences=2)
    assert not asked


def test_a_sweep_is_a_table_and_a_plot(tiny_bundle: Path, asked: list[tuple], tmp_path: Path):
    measured = sweep(tiny_bundle, tmp_path, None, sentences=2, steps=(10, 4), cfg_values=(2.0,))

    table = sweep_table(measured)
    rows = list(zip(*(list(column.cells) for column in table.columns), strict=True))
    assert [row[:6] for row in rows] == [
        ("fp16", "2", "4", "32", "10.0%", "20.0%"),
        ("fp16", "2", "10", "80", "10.0%", "20.0%"),
        ("int8", "2", "4", "32", "10.0%", "20.0%"),
        ("int8", "2", "10", "80", "10.0%", "20.0%"),
    ]
    drawn = write_sweep_plot(measured, tmp_path)
    text = drawn.read_text()
    assert "int8, cfg 2" in text
    assert write_sweep_plot(measured, tmp_path).read_text() == text
    assert len(asked) == 4


def test_the_command_needs_a_folder():
    app = typer.Typer()
    app.command()(command)
    result = CliRunner().invoke(app, ["--sweep"])
    assert isinstance(result.exception, InputError)
    assert "name a folder with --report" in str(result.exception)


def test_the_command_refuses_what_a_sweep_leaves_out(tmp_path: Path):
    app = typer.Typer()
    app.command()(command)
    given = ["--sweep", "--report", str(tmp_path), "--seed", "1", "--sentences", "2"]
    others = ["--prose", "--narration", "--precision", "int8", "--minutes", "30", "--upstream-words", "9"]
    result = CliRunner().invoke(app, [*given, *others])
    assert isinstance(result.exception, InputError)
    named = str(result.exception).partition("leave out ")[2].split(", ")
    assert set(named) == {"--prose", "--narration", "--precision", "--minutes", "--upstream-words"}


def test_a_speaker_has_the_options_that_it_is_given(tiny_bundle: Path):
    text = material(1).sentences[0]

    def audio_of(**options: float) -> np.ndarray:
        return (
            bundle_speaker(tiny_bundle, "fp32", max_len=4, retry_badcase=False, **options)(text, None, 0)
            .segments[0]
            .audio
        )

    default = audio_of()
    assert np.array_equal(default, audio_of(inference_timesteps=10, cfg_value=2.0))
    for other in ({"inference_timesteps": 4}, {"cfg_value": 3.0}):
        assert not np.array_equal(default, audio_of(**other))


@pytest.mark.long
def test_more_steps_take_longer_in_every_precision(tiny_bundle: Path):
    times = patch_times(tiny_bundle, ("int8", "fp32"), (2, 40), rounds=3)
    by_setting = {(t.precision, t.steps): t.milliseconds for t in times}
    assert by_setting.keys() == {(p, n) for p in ("int8", "fp32") for n in (2, 40)}
    for precision in ("int8", "fp32"):
        assert by_setting[precision, 40] > 2 * by_setting[precision, 2] > 0
    assert json.loads(times[0].model_dump_json())["steps"] == 2
