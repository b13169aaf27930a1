"""A plan: what of a call is normalized, trimmed and rejected, and long texts."""

import time
from dataclasses import replace

import numpy as np
import pytest

from voxcpm_constants.errors import InputError
from voxcpm_constants.step_models import StepSizes
from voxcpm_runtime.bundle.opening import DEFAULT_BUNDLE, open_bundle
from voxcpm_runtime.model.driver import Driver
from voxcpm_runtime.options import GenerationOptions
from voxcpm_runtime.speech import budget
from voxcpm_runtime.speech.planning import plan
from voxcpm_runtime.speech.request import Cancelled, CancelToken, Request
from voxcpm_runtime.speech.spine import prepared
from voxcpm_runtime.speech.splitting import split_sentence
from voxcpm_runtime.voices.recordings import encoded
from voxcpm_runtime.voxcpm import VoxCPM

RATE = 1000  # of the tiny architectures, whose patch is 20 samples


@pytest.fixture
def tts(bundle_folder, architecture, sizes, constants, models, monkeypatch):
    """A model with room for seconds of audio, which is counted instead of encoded."""
    bundle = open_bundle(bundle_folder)
    manifest = bundle.manifest.model_copy(update={"sizes": StepSizes(kv_length=1024)})
    driver = Driver(architecture, sizes, constants, models)
    for encode in ("encode_prompt", "encode_reference"):
        monkeypatch.setattr(driver, encode, lambda audio: np.zeros((-(-len(audio) // 20), 2, 4), np.float32))
    return VoxCPM(replace(bundle, manifest=manifest), driver)


def sequence(tts, *arguments, **options):
    """The sequence that is prefilled for the first segment."""
    plan = tts.plan(*arguments, **options)
    return prepared(plan, 0, plan.segments[0], encoded(plan.voice, tts.driver)).sequence


def text_of(prefilled):
    """The letters of the sequence's text tokens (see `conftest.write_tokenizer`)."""
    return "".join(
        "▁abcdefghijklmnopqrstuvwxyz0123456789.,!?()"[i - 3] for i in prefilled.tokens if 3 <= i < 46
    )


def sound(silence_before):
    """One second of sound after silence, and its sample rate."""
    tone = np.resize(np.float32([0.5, -0.5]), RATE)
    return np.concatenate([np.zeros(silence_before, np.float32), tone]), RATE


def test_only_the_target_is_normalized(tts):
    arguments = {"text": "- 5\n🙂 cats", "prompt_wav_path": sound(0), "prompt_text": "5  x "}
    # White space becomes one space before, so that only the start of a text can be a list item.
    assert text_of(sequence(tts, **arguments, normalize=True)) == "▁5▁▁x▁five▁cats"
    with pytest.warns(UserWarning, match="no token for"):
        assert text_of(sequence(tts, **arguments)) == "▁5▁▁x▁▁5▁▁cats"


def test_continued_segment_is_spelled_out_once(tts, letters, monkeypatch):
    """Read again, max. would be maximum and ed. edition."""
    monkeypatch.setattr(budget, "_ANCHOR_SECONDS", 0)
    tts.bundle = replace(tts.bundle, tokenizer=letters)
    text = "I met Max.\n\nHe was with Ed.\n\nThey left."
    first, *later = tts.plan(text, segment_tokens=16).segments
    assert first.tokens == letters("i met max.")
    assert later[0].tokens == letters("i met max. he was with ed.")
    assert all(segment.transcript_tokens == letters("i met max. ") for segment in later)


@pytest.mark.filterwarnings("ignore:the prompt has")
def test_prompt_and_reference_are_trimmed_on_request(tts, architecture):
    roles = ["prompt_wav_path"] + ["reference_wav_path"] * (architecture.generation == "voxcpm2")
    for role in roles:
        arguments = {"text": "a", role: sound(4000)} | (
            {"prompt_text": "b"} if role == "prompt_wav_path" else {}
        )
        whole = sequence(tts, **arguments)
        trimmed = sequence(tts, **arguments, trim_silence_vad=True)
        # The first loud frame has its centre at sample 3072, the last whole one its end at 4608; 200 samples more stay.
        assert [int((r.tokens == 0).sum()) for r in (whole, trimmed)] == [5000 // 20, -(-1936 // 20)]


def test_a_request_is_planned_and_spoken_like_its_keywords_whole_and_in_chunks(tts):
    given = {"seed": 3, "max_len": 6, "lexicon": {"there": "here"}}
    request = Request("hello there.", options=GenerationOptions(max_len=6), seed=3, lexicon={"there": "here"})
    planned = tts.plan_request(request)
    assert planned.request is request
    assert planned.segments == tts.plan("hello there.", **given).segments
    whole = tts.generate("hello there.", **given)
    np.testing.assert_array_equal(tts.speak_plan(planned).audio, whole)
    np.testing.assert_array_equal(np.concatenate(list(tts.stream_plan(planned))), whole)
    with pytest.raises(InputError, match="chunk_patches must be a whole number of patches from 1, got 0"):
        tts.stream_plan(planned, chunk_patches=0)
    for empty in ("", " \n"):
        with pytest.raises(InputError, match="the text is empty"):
            Request(empty)


def test_plan_of_another_bundle_is_rejected(tts, bundle_folder):
    other = open_bundle(bundle_folder, "fp16")
    plan = VoxCPM(other, tts.driver).plan("a")
    with pytest.raises(InputError, match="made for another bundle"):
        tts.speak_plan(plan)


BOOK = "the first sentence of all. " + "and so he said, it is far. was it? yes.\n\n" * 400


def test_unspeakable_letter_on_the_last_page_fails_immediately(tts, letters):
    tts.bundle.__dict__["tokenizer"] = letters
    with pytest.raises(InputError, match="cannot say 'ж'"):
        tts.plan(BOOK + "Жили.", segment_tokens=16, strict=True)


@pytest.mark.usefixtures("stopping")
def test_progress_estimates_time_without_the_number_of_segments(tts):
    told = []
    planned = tts.plan(BOOK[:6000], segment_tokens=16, seed=1, retry_badcase=False, progress=told.append)
    chunks = tts.stream_plan(planned, chunk_patches=1)
    for _ in range(12):
        next(chunks)
    assert {progress.segments for progress in told} == {None}
    assert told[0].remaining_seconds is None
    assert told[-1].remaining_seconds > 10 * told[-1].elapsed_seconds


def test_two_megabytes_without_a_space_start_immediately(tts):
    began = time.process_time()
    planned = tts.plan("a" * 2_000_000, segment_tokens=16)
    assert time.process_time() - began < 2
    assert len(planned.opening[0].text) <= 16


SENTENCE = "the old farmer fed his chickens, and then he walked down to the river. "
LONG_SENTENCE = "and so the old farmer walked along the river " * 30 + "to the sea. "


def test_segments_fit_the_checkpoints_positions():
    bundle = open_bundle(DEFAULT_BUNDLE)
    profile = bundle.manifest.speech

    def expected(texts):
        return max(profile.expected_seconds(sum(map(str.isalnum, text))) for text in texts)

    planned = plan(bundle, Request(text=SENTENCE * 20 + LONG_SENTENCE + SENTENCE * 5))
    sentence = split_sentence(planned, str, LONG_SENTENCE)
    asked = replace(planned.request, options=GenerationOptions(segment_tokens=60))
    assert 0.4 < expected(part.text for part in planned.segments) / profile.longest_seconds <= 1
    assert 0.4 < expected(part.text for part in sentence) / profile.longest_seconds <= 1
    assert 30 < max(part.target_tokens for part in plan(bundle, asked).segments) <= 60


def test_cancellation_stops_planning_and_reading(tts):
    token = CancelToken()
    planned = tts.plan(BOOK, segment_tokens=16, cancel=token)
    token.cancel()
    with pytest.raises(Cancelled):
        tts.plan("hi.", cancel=token)
    with pytest.raises(Cancelled):
        _ = planned.segments
    assert planned.opening[0].text == "the first"


def test_words_are_said_as_the_call_the_voice_or_the_bundle_says_in_this_order(tts):
    tts.bundle = replace(tts.bundle, lexicon={"ada": "of bundle", "ben": "bb", "cy": "cc"})
    noise = np.random.default_rng(0).standard_normal(400).astype(np.float32) * 0.1
    voice = tts.create_voice((noise, 1000), "so", name="v", lexicon={"ada": "of voice", "ben": "of voice"})
    (segment,) = tts.plan("Ada, ben, cy.", voice=voice, lexicon={"ada": "aa"}).segments
    (said,) = tts.plan("aa, of voice, cc.", voice=replace(voice, header=voice.header.model_copy(
        update={"lexicon": {}}))).segments  # fmt: skip
    assert segment.tokens == said.tokens
    # Times of words are those of the text as it is written.
    assert segment.text == "Ada, ben, cy."
