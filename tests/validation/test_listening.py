import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from voxcpm_conversion.default_bundle import DEFAULT_CHECKPOINT
from voxcpm_runtime.commands import cli
from voxcpm_validation.listening.hearing import (
    Listener,
    Reading,
    ReadingCase,
    ReadSegment,
    TranscribedCase,
    TranscribedSegment,
)
from voxcpm_validation.listening.material import chinese_sentences, prompt_clip, prompt_voices
from voxcpm_validation.listening.parts import Extent, Report, listen, tables
from voxcpm_validation.listening.recognition import WordErrors, is_repeated, longest_lost_run, word_errors
from voxcpm_validation.listening.scores import (
    narration_scores,
    prose_scores,
    sentence_scores,
    short_text_scores,
)
from voxcpm_validation.listening.sound_quality import SoundQuality
from voxcpm_validation.listening.speakers import bundle_speaker, upstream_speaker

# Limits of the default voice in a test run: twelve sentences and the beginning of each text.
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
def listener():
    return Listener.of()


def heard(said, transcript, seconds=2.0, **given):
    """A segment that was measured."""
    fields = {
        "written": said, "pause": 0.0, "attempts": 1, "suspicious": False, "ends_abruptly": False, "level": -20.0,
        "embedding": (1.0, 0.0), "mos": 4.0, "dnsmos": 3.0, "pitch": 200.0, "comb": 0.25, **given,
    }  # fmt: skip
    return TranscribedSegment(said=said, heard=transcript, seconds=seconds, **fields)


def heard_case(*segments):
    return TranscribedCase("system", ReadingCase("zero-shot", None, {}), {"story": segments})


def test_word_errors_count_words_not_spelling_or_brackets():
    assert word_errors(["the gray cat.", "two dogs"], ["The grey cat", "2 dogs"]).errors == 0
    assert word_errors(["one bird sang loudly today"], ["one word sang today now"]) == WordErrors(3, 5)
    said, everything = "the work (or a [part] of it) is <free>", "the work or a part of it is free"
    assert word_errors([said], [everything]) == WordErrors(0, 9)
    assert longest_lost_run(said, "the work is free") == 5


def test_lost_repeated_and_substituted_words_are_distinguished():
    said = "the old man went down to the sea again to look for his boat"
    assert longest_lost_run(said, "The old man went again to look for his boat.") == 4
    assert longest_lost_run(said, "The old man went town to a sea again to look for this boat.") == 0
    assert is_repeated(said, f"{said} for his boat")
    assert not is_repeated(said, said)
    # The text itself repeats it.
    assert not is_repeated("do cats eat bats, do cats eat bats", "do cats eat bats do cats eat bats")


def test_prose_scores_detect_long_truncated_and_repeated_speech():
    said = "ten words are in this one sentence of our test"
    segments = [
        heard(said, said, 4.0),
        heard(said, said, 4.0, suspicious=True),
        heard(said, f"{said} one sentence of our test", 6.4),
        heard(said, said, 8.0),
        heard(said, "ten words are in", 2.0, attempts=2),
        heard("it was 5 o'clock", "it was five o'clock", 1.2, written="it was 5 o'clock"),
    ]

    voice = prompt_voices()[0]
    # Five segments are half like the prompt, and the last one is like it.
    gallery = {voice.name: np.array([0.5, 1.0])}
    segments[-1] = segments[-1].model_copy(update={"embedding": (0.0, 1.0)})
    case = TranscribedCase("system", ReadingCase("continuation", voice, {}), {"story": segments})

    # 37 letters: 3.7 s.
    listener = Listener(None, None, None, [voice], gallery)
    scores, everything = prose_scores(case, listener, lambda letters: letters / 10)

    assert (scores.long, scores.long_untried, scores.cut, scores.repeated) == (2, 2, 1, 1)
    assert (scores.tried_again, scores.suspicious) == (1, 1)
    assert scores.word_error_rate == pytest.approx((5 + 6) / 54, abs=0.01)
    assert scores.longest_ratio == pytest.approx(8.0 / 3.7)
    assert scores.length_ratio == pytest.approx(25.6 / (5 * 3.7 + 1.2))
    assert scores.similarity == pytest.approx((5 * 0.5 + 1) / 6)
    assert everything == scores.model_copy(update={"kind": "all"})
    # The default natural length is that of the median letter: 4 s for 37.
    by_median, _ = prose_scores(heard_case(*segments), None)
    assert by_median.longest_ratio == pytest.approx(2.0)


def test_homophones_of_short_texts_are_accepted():
    pairs = {"Good night.": "Goodnight", "Too.": "Two", "Whose?": "Who's?", "Yes.": "Yet.", "No.": ""}
    (scores,) = short_text_scores(heard_case(*(heard(*pair) for pair in pairs.items())))
    assert (scores.texts, scores.understood) == (5, 3)
    assert scores.misunderstood == (("Yes.", "Yet."), ("No.", ""))


def test_chinese_is_heard_as_chinese_and_scored_by_characters():
    """In traditional characters, with numbers as digits and without punctuation, as Whisper may write it."""
    texts = chinese_sentences(2)
    transcripts = iter(["今天早上下了1場小雨,空氣很清新", "妈妈在厨房里准备晚饭 孩子在客厅写作业"])
    languages = []

    def transcribe(_, __, language):
        languages.append(language)
        return next(transcripts)

    def speak(text, *_):
        return Reading([ReadSegment(text, text, np.ones(1600, np.float32))], 16000)

    listener = Listener(
        SimpleNamespace(transcribe=transcribe),
        SimpleNamespace(embed=lambda *_: [1.0]),
        SimpleNamespace(quality=lambda *_: SoundQuality(4.0, 3.0, 200.0, 0.25, 0.3, -10.0)),
        prompt_voices(),
        {},
    )
    (scores,) = listen("s", speak, ["chinese"], listener=listener, extent=Extent(sentences=2)).chinese
    assert languages == ["zh", "zh"]
    assert (scores.case, scores.sentences, scores.cut_ends) == ("zero-shot", 2, 2)
    said = sum(len(text) for text in texts) - 4  # two commas, two full stops
    assert scores.character_error_rate == pytest.approx(1 / said)


def test_narration_scores_track_pace_level_and_voice_over_time():
    """Six segments of 9 s with pauses a minute, each minute with fewer words and quieter; the last in another voice."""
    words = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
    segments = []
    for minute, embedding in enumerate([(1.0, 0.0), (1.0, 0.0), (0.6, 0.8)]):
        said, given = (
            " ".join(words[minute:]),
            {"pause": 1.0, "level": -20.0 - minute, "embedding": embedding},
        )
        segments += [heard(said, said, 9.0, **given) for _ in range(6)]
    (scores,) = narration_scores(heard_case(*segments, heard("short", "short", 5.0)))
    assert [minute.words_per_minute for minute in scores.minutes] == pytest.approx([60, 54, 48])
    assert [minute.level for minute in scores.minutes] == pytest.approx([-20, -21, -22])
    assert [minute.similarity for minute in scores.minutes] == pytest.approx([1, 1, 0.6])
    assert scores.min_similarity == pytest.approx(0.6)
    assert (scores.pace_drift, scores.level_drift) == pytest.approx((-12 / 54, -2))
    assert (scores.pace_spread, scores.level_spread) == pytest.approx((6 / 54, 1))
    assert scores.word_error_rate == 0


def test_sentence_scores_compare_lengths_and_voices():
    gallery = {"a": np.array([1.0, 0.0]), "b": np.array([0.0, 1.0])}
    one, two = heard("one", "One."), heard("two", "too", 2.5, embedding=(0.0, 1.0), ends_abruptly=True)

    def scored(*natural):
        changes = {"name": "a", "natural_seconds": natural, "continued": True}
        voice = prompt_voices()[0].model_copy(update=changes)
        case = TranscribedCase("s", ReadingCase("continuation", voice, {}), {"1": [one], "2": [two]})
        (scores,) = sentence_scores(case, Listener(None, None, None, [voice], gallery))
        return scores

    scores, unknown = scored(2.0, 1.0), scored()
    assert (scores.length_ratio, scores.within_natural, scores.longest_ratio) == (1.5, 0.5, 2.5)
    assert (scores.similarity, scores.other_similarity, scores.right_voice) == (0.5, 0.5, 0.5)
    assert (scores.word_error_rate, scores.cut_ends, scores.runaways) == (0.5, 1, 1)
    assert (unknown.length_ratio, unknown.right_voice) == (None, 0.5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--chinese"], "--chinese: expected a multilingual recogniser"),
        (["--recogniser", "."], "expected a Whisper model in CTranslate2 format"),
        (["--precision", "int4"], "--precision int4: the bundle has"),
        (["--saved", "nowhere.json"], "nowhere.json: expected a listening.json of this release"),
    ],
)
def test_invalid_input_is_a_one_line_error(refusal, arguments, message):
    assert message in refusal("listen", *arguments)


def test_saved_reports_are_combined(tmp_path, capsys):
    words = "ten words are in this one sentence of our test"
    case = heard_case(*[heard(words, words, 4.0) for _ in range(30)])
    report = Report(prose=tuple(prose_scores(case, None)), narration=tuple(narration_scores(case)))
    path = tmp_path / "listening.json"
    path.write_text(report.model_dump_json())
    assert [table.row_count for table in tables(report)] == [2, 1, 2]
    assert cli.main(["listen", *("--saved", str(path)) * 2, "--report", str(tmp_path / "both")]) == 0
    shown = capsys.readouterr().out
    assert "prose, system" in shown
    assert "minute by minute, system" in shown
    both = json.loads((tmp_path / "both" / "listening.json").read_text())
    assert [len(both[part]) for part in ("sentences", "prose", "narration")] == [0, 4, 2]


@pytest.mark.listening
def test_prompts_are_transcribed_and_a_voice_is_most_similar_to_itself(listener):
    transcripts, halves = [], []
    for voice in listener.voices:
        audio, rate = prompt_clip(voice)
        transcripts.append(listener.recogniser.transcribe(audio, rate))
        halves.append([listener.encoder.embed(half, rate) for half in np.array_split(audio, 2)])
    assert word_errors([voice.transcript for voice in listener.voices], transcripts).rate < 0.1
    first, second = (np.stack(part) for part in zip(*halves, strict=True))
    assert (np.argmax(first @ second.T, axis=1) == np.arange(len(halves))).all()
    np.testing.assert_allclose(np.linalg.norm(first, axis=1), 1, rtol=1e-5)


@pytest.mark.listening
def test_upstream_reads_a_page_with_the_runtimes_segments_and_voice(speaking_bundle, monkeypatch):
    """With the same noise, and later segments continuing the first, as in the runtime."""
    for module in ("budget", "splitting", "planning"):
        monkeypatch.setattr(f"voxcpm_runtime.speech.{module}.max_segment_tokens", lambda *_, **__: 24)
    text = "the cat sat on a mat. a dog came in from the rain."
    ours = bundle_speaker(speaking_bundle, "fp32")(text, None, 3, None)
    theirs = upstream_speaker(DEFAULT_CHECKPOINT, speaking_bundle)(text, None, 3, None)
    assert [segment.said for segment in theirs.segments] == [segment.said for segment in ours.segments]
    assert len(ours.segments) >= 2
    for own, other in zip(ours.segments, theirs.segments, strict=True):
        count = min(len(own.audio), len(other.audio), ours.sample_rate)
        assert np.corrcoef(own.audio[:count], other.audio[:count])[0, 1] > 0.9


@pytest.mark.listening
def test_default_voice_is_intelligible(speaking_bundle, listener):
    speak = bundle_speaker(speaking_bundle, "int8")
    # Prose is read zero-shot only; with a voice it would take as long again.
    heart = tuple(voice for voice in listener.voices if voice.name == "heart")
    report = listen("int8", speak, ["sentences"], listener=replace(listener, voices=heart), extent=SAMPLE)
    report += listen("int8", speak, ["prose"], listener=replace(listener, voices=()), extent=SAMPLE)
    whole = [score for score in report.prose if score.kind == "all"]
    found = {
        "word errors of sentences": _word_error_rate([s for score in report.sentences for s in score.heard]),
        "word errors of prose": _word_error_rate([s.heard for score in whole for s in score.segments]),
        "longest sentence over natural": max(score.longest_ratio or 0 for score in report.sentences),
        "longest segment of prose over natural": max(score.longest_ratio for score in whole),
        "cut ends of sentences": sum(score.cut_ends for score in report.sentences),
        "sentences in another voice": max(1 - (score.right_voice or 1) for score in report.sentences),
    }
    assert found.keys() == BOUNDS.keys()
    assert {name: value for name, value in found.items() if value > BOUNDS[name]} == {}, report


def _word_error_rate(segments):
    return word_errors([s.said for s in segments], [s.heard for s in segments]).rate
