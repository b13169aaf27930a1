"""The default length of an utterance: what the checkpoint was made for, if it says so."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from voxcpm_constants.speech_profile import SpeechProfile
from voxcpm_conversion.default_bundle import DEFAULT_CHECKPOINT
from voxcpm_runtime.options import GenerationOptions
from voxcpm_runtime.speech.arguments import Arguments
from voxcpm_runtime.speech.plan import Plan, plan
from voxcpm_runtime.text.segments import Segment
from voxcpm_runtime.text.tokenizer import TextTokenizer

SENTENCE = "the old farmer fed his chickens, and then he walked down to the river. "
LONG_SENTENCE = "and so the old farmer walked along the river " * 9 + "to the sea."
PROSE = SENTENCE * 3 + LONG_SENTENCE + " " + SENTENCE * 5


@pytest.fixture
def letters() -> Any:
    """A stand-in for a bundle with a vocabulary of letters, utterances of 80 tokens, and room for any text."""
    profile = SpeechProfile(longest_seconds=6, longest_tokens=80, seconds_per_letter=0.06)
    return with_vocabulary(TextTokenizer.from_folder(DEFAULT_CHECKPOINT), profile)


@pytest.fixture
def published(tts) -> Any:
    """The same without a `speech.json`, and with a vocabulary that has digits, as published ones do."""
    return with_vocabulary(tts.bundle.tokenizer)


def with_vocabulary(tokenizer: TextTokenizer, speech: SpeechProfile | None = None) -> Any:
    sizes = SimpleNamespace(kv_length=100_000)
    return SimpleNamespace(
        tokenizer=tokenizer,
        architecture=SimpleNamespace(patch_seconds=0.16),
        manifest=SimpleNamespace(sizes=sizes, speech=speech),
    )


def longest(bundle: Any, parts: list[Segment]) -> int:
    return max(len(bundle.tokenizer(part.text)) for part in parts)


def plan_of(bundle: Any, **options: Any) -> Plan:
    """A plan without a text."""
    return plan(bundle, Arguments(options=GenerationOptions(**options)))


def planned(bundle: Any, **options: Any) -> int:
    """The number of tokens of the longest segment."""
    return longest(bundle, plan_of(bundle, **options).split(PROSE))


def test_segments_are_as_long_as_the_checkpoint_was_made_for(letters):
    assert 80 / 2 < planned(letters) <= 80


def test_no_segment_is_expected_to_take_longer_than_the_checkpoint_was_made_for():
    """Three seconds are 40 letters, fewer than 80 tokens have, unless a length is asked for."""
    profile = SpeechProfile(longest_seconds=3, longest_tokens=80, seconds_per_letter=0.06, seconds_beside=0.6)
    bundle = with_vocabulary(TextTokenizer.from_folder(DEFAULT_CHECKPOINT), profile)

    for parts in (plan_of(bundle).split(PROSE), plan_of(bundle).split_sentence(LONG_SENTENCE)):
        assert 20 < max(sum(char.isalpha() for char in part.text) for part in parts) <= 40
    assert planned(bundle, segment_tokens=80) > 40


def test_so_it_does_where_text_comes_a_sentence_at_a_time(letters):
    parts = plan_of(letters).split_sentence(LONG_SENTENCE)
    assert 80 / 2 < longest(letters, parts) <= 80


def test_without_a_speech_json_they_have_up_to_200_tokens(published):
    assert 120 < planned(published) <= 200


@pytest.mark.parametrize("tokens", [40, 150])
def test_what_is_asked_for_holds_with_any_vocabulary(letters, published, tokens):
    for bundle in (letters, published):
        assert tokens / 2 < planned(bundle, segment_tokens=tokens) <= tokens
