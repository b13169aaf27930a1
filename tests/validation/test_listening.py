"""The listening test: its measures, and the built-in voice transcribed by a recogniser."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from voxcpm_conversion.default_bundle import DEFAULT_CHECKPOINT
from voxcpm_validation.listening.hearing import (
    Case,
    CaseTranscripts,
    Listener,
    Reading,
    SpokenSegment,
    TranscribedSegment,
    speech_level,
)
from voxcpm_validation.listening.material import material, narration, prompt_clip, prose, short_texts
from voxcpm_validation.listening.parts import PARTS, Extent, Report, listen
from voxcpm_validation.listening.plots import write_plots
from voxcpm_validation.listening.recognition import (
    Recogniser,
    WordErrors,
    is_repeated,
    lost_words,
    word_errors,
)
from voxcpm_validation.listening.scores import (
    is_understood,
    narration_scores,
    prose_scores,
    sentence_scores,
)
from voxcpm_validation.listening.speaker_similarity import SpeakerEncoder
from voxcpm_validation.listening.speakers import bundle_speaker, upstream_speaker
from voxcpm_validation.listening.tables import COLUMNS, tables

# What the built-in voice must not exceed in the sample of a test run: twelve sentences and the beginning of each text.
# All figures are in docs/measurements.md.
SAMPLE = Extent(sentences=4, words=8)
BOUNDS = {
    "word errors of sentences": 0.15,
    "word errors of prose": 0.40,
    "longest sentence over natural": 1.5,
    "longest segment of prose over natural": 2.0,
    "cut ends of sentences": 0,
    "sentences in another voice": 0.25,
}


@pytest.fixture(scope="module")
def listener() -> Listener:
    return Listener.of(material())


def heard(said: str, transcript: str, seconds: float = 2.0, **given: object) -> TranscribedSegment:
    """A segment that was measured."""
    fields = {
        "written": said, "pause": 0.0, "attempts": 1, "suspicious": False, "ends_abruptly": False, "level": -20.0,
        "embedding": (1.0, 0.0), **given,
    }  # fmt: skip
    return TranscribedSegment(said=said, heard=transcript, seconds=seconds, **fields)


def heard_case(*segments: TranscribedSegment) -> CaseTranscripts:
    return CaseTranscripts("system", Case("zero-shot", None, {}), {"story": segments})


def test_word_errors_count_words_not_spelling():
    assert word_errors(["the gray cat.", "two dogs"], ["The grey cat", "2 dogs"]).errors == 0
    counted = word_errors(["one bird sang loudly today"], ["one word sang today now"])
    assert (counted.errors, counted.words) == (3, 5)


def test_lost_and_repeated_words_are_told_from_wrong_ones():
    said = "the old man went down to the sea again to look for his boat"

    assert lost_words(said, "The old man went again to look for his boat.") == 4
    assert lost_words(said, "The old man went town to a sea again to look for this boat.") == 0
    assert is_repeated(said, f"{said} for his boat")
    assert not is_repeated(said, said)
    # The text itself says it twice.
    assert not is_repeated("do cats eat bats, do cats eat bats", "do cats eat bats do cats eat bats")


@pytest.mark.parametrize(
    ("said", "transcript", "understood"),
    [
        ("42", "Forty-two.", True),
        ("Goodbye.", "Good bye!", True),
        ("Who's there?", "Whose there", True),
        ("Why not?", "Why knot.", True),
        ("Two hundred.", "To 100.", False),
        ("Stop!", "Stop. Stop.", False),
        ("No.", "", False),
    ],
)
def test_short_texts_are_understood_by_their_sound(said: str, transcript: str, understood: bool):
    assert is_understood(said, transcript) is understood


def test_the_material_is_as_large_as_its_figures_say():
    texts = prose()
    assert all(700 <= len(text.split()) <= 800 for text in texts.values())
    assert len(narration().split()) > 5000
    assert len(short_texts()) == 20
    # Whole sentences, and no more of them than it takes.
    beginning = prose(20)["story"]
    assert texts["story"].startswith(beginning)
    assert beginning[-1] in '.?!"'


@pytest.mark.parametrize(
    "said", ["the work (or a part of it) is free", "the work [or a part of it] is <free>"]
)
def test_words_in_brackets_are_asked_for(said: str):
    everything = "the work or a part of it is free"
    assert word_errors([said], [everything]) == WordErrors(0, 9)
    assert word_errors([said], ["the work is free"]).errors == 5
    assert lost_words(said, "the work is free") == 5
    assert not is_repeated(said, everything)
    assert is_repeated(said, f"{everything} a part of it")


def test_prose_scores_find_what_is_long_cut_and_repeated():
    said = "ten words are in this one sentence of our test"
    segments = [
        heard(said, said, 4.0),
        heard(said, said, 4.0, suspicious=True),
        heard(said, f"{said} one sentence of our test", 6.4),
        heard(said, said, 8.0, attempts=2),
        heard(said, "ten words are in", 2.0),
        heard("it was 5 o'clock", "it was five o'clock", 1.2, written="it was 5 o'clock"),
    ]
    natural = lambda letters: letters / 10  # noqa: E731 - 37 letters: 3.7 s

    scores, everything = prose_scores(heard_case(*segments), None, natural)

    assert (scores.long, scores.long_untried, scores.cut, scores.repeated) == (2, 1, 1, 1)
    assert (scores.tried_again, scores.suspicious) == (1, 1)
    assert scores.word_error_rate == pytest.approx((5 + 6) / 54, abs=0.01)
    assert scores.longest_ratio == pytest.approx(8.0 / 3.7)
    assert scores.length_ratio == pytest.approx(25.6 / (5 * 3.7 + 1.2))
    assert everything == scores.model_copy(update={"kind": "all"})
    # By default a segment's natural length is that of the median letter: 4 s for 37.
    by_median, _ = prose_scores(heard_case(*segments), None)
    assert by_median.longest_ratio == pytest.approx(2.0)


def test_narration_scores_follow_pace_level_and_voice_through_the_minutes():
    """Six segments of 10 s a minute, each minute with fewer words and quieter; the last one in another voice."""
    words = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
    segments = [
        heard(
            said := " ".join(words[minute:]),
            said,
            10.0,
            level=-20.0 - minute,
            embedding=(0.6, 0.8) if minute == 2 else (1.0, 0.0),
        )
        for minute in range(3)
        for _ in range(6)
    ]

    (scores,) = narration_scores(heard_case(*segments, heard("short", "short", 5.0)), None)

    assert [minute.words_per_minute for minute in scores.minutes] == pytest.approx([60, 54, 48])
    assert [minute.level for minute in scores.minutes] == pytest.approx([-20, -21, -22])
    assert [minute.similarity for minute in scores.minutes] == pytest.approx([1, 1, 0.6])
    assert scores.min_similarity == pytest.approx(0.6)
    assert (scores.pace_drift, scores.level_drift) == pytest.approx((-12 / 54, -2))
    assert (scores.pace_spread, scores.level_spread) == pytest.approx((6 / 54, 1))
    assert scores.word_error_rate == 0


def test_the_level_of_speech_leaves_out_its_pauses():
    rate = 24000
    tone = 0.1 * np.sin(2 * np.pi * 220 * np.arange(rate) / rate).astype(np.float32)
    silence = np.zeros(rate, np.float32)

    # A sine of amplitude 0.1 has an effective value of 0.1 / √2.
    assert speech_level(tone, rate) == pytest.approx(-23.01, abs=0.05)
    assert speech_level(np.concatenate([tone, silence]), rate) == pytest.approx(-23.01, abs=0.1)
    assert speech_level(silence, rate) == -120


@pytest.mark.listening
def test_the_recogniser_hears_the_prompts(listener: Listener):
    transcripts = [listener.recogniser.transcribe(*prompt_clip(voice)) for voice in listener.voices]
    assert word_errors([voice.transcript for voice in listener.voices], transcripts).rate < 0.1


def test_a_folder_without_a_recogniser_is_refused(tmp_path: Path):
    with pytest.raises(Exception, match=r"expected a Whisper in CTranslate2's form"):
        Recogniser(tmp_path)


@pytest.mark.listening
def test_a_voice_is_most_like_itself():
    encoder = SpeakerEncoder()
    halves = []
    for voice in material().voices:
        audio, rate = prompt_clip(voice)
        halves.append([encoder.embed(half, rate) for half in np.array_split(audio, 2)])
    first, second = (np.stack(part) for part in zip(*halves, strict=True))
    assert (np.argmax(first @ second.T, axis=1) == np.arange(len(halves))).all()
    np.testing.assert_allclose(np.linalg.norm(first, axis=1), 1, rtol=1e-5)


@pytest.mark.listening
def test_scores_tell_a_runaway_a_cut_end_and_another_voice(listener: Listener):
    prompts = {voice.name: prompt_clip(voice) for voice in listener.voices}
    female, male = (voice for voice in listener.voices if voice.continued and not voice.unheard)

    def speak(text, voice, seed, _=None):
        """A recording of the other voice that stops abruptly and, for the second sentence, is far too long."""
        audio, rate = prompts[male.name if voice is female else female.name]
        repeated = np.tile(audio, 5 if seed == 1 else 1)
        return Reading([SpokenSegment(text, text, repeated[: int(len(repeated) * 0.75)])], rate)

    report = listen("swapped", speak, ["sentences"], listener=listener, extent=Extent(sentences=3))

    scores = {score.case: score for score in report.sentences}
    swapped = scores[f"continuation, {female.name}"]
    assert swapped.word_error_rate > 0.5
    assert swapped.runaways == 1
    assert swapped.longest_ratio > 2
    assert swapped.right_voice == 0
    assert swapped.similarity < swapped.other_similarity
    assert scores["zero-shot"].right_voice is None


def test_a_voice_whose_natural_lengths_are_unknown_has_no_length_scores():
    voice = material().voices[0].model_copy(update={"natural_seconds": (), "unheard": True})
    gallery = {voice.name: np.array([1.0, 0.0]), "other": np.array([0.0, 1.0])}
    case = CaseTranscripts("s", Case("continuation", voice, {}), {"sentence 1": [heard("one", "One.")]})

    (scores,) = sentence_scores(case, Listener(None, None, [voice], gallery))

    assert (scores.length_ratio, scores.runaways) == (None, None)
    assert (scores.similarity, scores.right_voice) == (1, 1)


@pytest.fixture(scope="module")
def small_report() -> Report:
    """A report with a row of every part."""
    words = "ten words are in this one sentence of our test"
    segments = [heard(words, words, 4.0) for _ in range(30)]
    case = heard_case(*segments)
    return Report(prose=tuple(prose_scores(case, None)), narration=tuple(narration_scores(case, None)))


@pytest.mark.listening
def test_every_column_is_a_field_and_every_part_has_columns(small_report: Report):
    assert set(COLUMNS) == {*Report.model_fields, "minutes"}
    assert list(PARTS) == list(Report.model_fields)
    models = {name: field.annotation.__args__[0] for name, field in Report.model_fields.items()}
    models["minutes"] = type(small_report.narration[0].minutes[0])
    for part, columns in COLUMNS.items():
        assert {column.field for column in columns} <= set(models[part].model_fields), part
    assert [table.row_count for table in tables(small_report)] == [2, 1, 2]


@pytest.mark.listening
def test_saved_reports_are_shown_together_and_drawn(small_report: Report, tmp_path: Path):
    import typer

    from voxcpm_validation.listening.command import listen as command

    path = tmp_path / "listening.json"
    path.write_text(small_report.model_dump_json())
    app = typer.Typer()
    app.command()(command)

    result = CliRunner().invoke(
        app, ["--saved", str(path), "--saved", str(path), "--report", str(tmp_path / "both")]
    )

    assert result.exit_code == 0, result.output
    both = json.loads((tmp_path / "both" / "listening.json").read_text())
    assert [len(both[part]) for part in ("sentences", "prose", "narration")] == [0, 4, 2]
    drawn = [tmp_path / "both" / name for name in ("narration.svg", "prose.svg")]
    assert all(0 < file.stat().st_size < 60_000 for file in drawn)
    assert all(path.read_bytes() == other.read_bytes() for path, other in zip(
        drawn, write_plots(Report.model_validate(both), tmp_path / "again"), strict=True))  # fmt: skip


@pytest.mark.listening
def test_upstream_reads_a_page_in_the_runtimes_segments_and_voice(
    speaking_bundle: Path, monkeypatch: pytest.MonkeyPatch
):
    """With the same noise, and each later segment as a continuation of the first, as the runtime speaks it."""
    monkeypatch.setattr("voxcpm_runtime.speech.plan.longest_segment", lambda *_, **__: 24)
    text = "the cat sat on a mat. a dog came in from the rain."

    ours = bundle_speaker(speaking_bundle, "fp32")(text, None, 3)
    theirs = upstream_speaker(DEFAULT_CHECKPOINT, speaking_bundle)(text, None, 3)

    assert [segment.said for segment in theirs.segments] == [segment.said for segment in ours.segments]
    assert len(ours.segments) >= 2
    for own, other in zip(ours.segments, theirs.segments, strict=True):
        count = min(len(own.audio), len(other.audio), ours.sample_rate)
        assert np.corrcoef(own.audio[:count], other.audio[:count])[0, 1] > 0.9


@pytest.mark.listening
def test_the_built_in_voice_is_understood(speaking_bundle: Path, listener: Listener, record_property: object):
    speak = bundle_speaker(speaking_bundle, "int8")

    # Prose is read zero-shot only: in a voice as well, it would take as long again.
    heart = tuple(voice for voice in listener.voices if voice.name == "heart")
    report = listen("int8", speak, ["sentences"], listener=replace(listener, voices=heart), extent=SAMPLE)
    report += listen("int8", speak, ["prose"], listener=replace(listener, voices=()), extent=SAMPLE)

    record_property("report", report.model_dump_json())
    sentences = [segment for score in report.sentences for segment in score.heard]
    prose_read = [score for score in report.prose if score.kind == "all"]
    segments = [segment.heard for score in prose_read for segment in score.segments]
    found = {
        "word errors of sentences": _word_error_rate(sentences),
        "word errors of prose": _word_error_rate(segments),
        "longest sentence over natural": max(score.longest_ratio or 0 for score in report.sentences),
        "longest segment of prose over natural": max(score.longest_ratio for score in prose_read),
        "cut ends of sentences": sum(score.cut_ends for score in report.sentences),
        "sentences in another voice": max(1 - (score.right_voice or 1) for score in report.sentences),
    }
    assert found.keys() == BOUNDS.keys()
    assert {name: value for name, value in found.items() if value > BOUNDS[name]} == {}, report


def _word_error_rate(segments: list[TranscribedSegment]) -> float:
    return word_errors([s.said for s in segments], [s.heard for s in segments]).rate
