from types import SimpleNamespace

import numpy as np
import pytest

from voxcpm_constants.step_models import StepSizes
from voxcpm_conversion import alignment
from voxcpm_conversion.alignment import MIN_SCORE, head_scores, with_alignment
from voxcpm_conversion.checkpoint import Checkpoint
from voxcpm_conversion.default_bundle import DEFAULT_CHECKPOINT, SIZES


def _rows(position, tokens, width):
    """Attention (patches, tokens) around a position at each patch."""
    rows = np.exp(-(((np.arange(tokens) - position[:, None]) / width) ** 2))
    return rows / rows.sum(axis=1, keepdims=True)


def test_a_head_is_good_if_it_follows_the_text_evenly_and_looks_at_little_else():
    tokens, time = 60, np.linspace(0, 59, 25)
    rng = np.random.default_rng(0)
    follows = _rows(time, tokens, 0.5)
    heads = {
        "follows": follows,
        "blurred": _rows(time, tokens, 15.0),
        "backwards": follows[::-1],
        "shuffled": rng.permutation(follows),
        "stays": _rows(np.full(25, 30.0), tokens, 0.5),
        "first half": _rows(time / 2, tokens, 0.5),
        "looks elsewhere": follows * 0.3,
    }
    scores = dict(zip(heads, head_scores(np.stack(list(heads.values()), axis=1)), strict=True))
    best = scores.pop("follows")
    assert best > MIN_SCORE > max(scores.values())


class _KnownSpeaker:
    """Speaks with vowels and liquids loud, commas silent, and heads whose lead is known; the second one follows."""

    lead, patience = 0.0, 1.0
    tokenizer = SimpleNamespace(
        encode=lambda text, **_: SimpleNamespace(ids=text, offsets=[(i, i + 1) for i in range(len(text))])
    )

    def __init__(self, checkpoint):
        self.patch, self.rate = (
            checkpoint.architecture.patch_seconds,
            checkpoint.architecture.output_sample_rate,
        )

    def speak(self, text, seed):
        rng = np.random.default_rng(seed)
        seconds = np.array([{" ": 0.0, ",": 0.3, ".": 0.0}.get(c, rng.uniform(0.03, 0.11)) for c in text])
        # A head that looks ahead spends the rest of a pause at the word's first letter.
        commas, looked = np.flatnonzero([c == "," for c in text]), seconds.copy()
        looked[commas] *= self.patience
        looked[commas + 2] += seconds[commas] - looked[commas]
        samples = np.arange(round(seconds.sum() * self.rate)) / self.rate
        letter = np.searchsorted(np.cumsum(seconds), samples, side="right").clip(max=len(text) - 1)
        level = np.array([0.0 if c in " ,." else 0.1 if c in "aeiouylr" else 0.02 for c in text])
        fed = np.arange(1, int(seconds.sum() / self.patch)) * self.patch
        position = np.interp(fed + self.lead, np.cumsum([0, *looked]), range(len(text) + 1))
        rows = [_rows(np.full(len(fed), 30.0), len(text), 0.5), _rows(position, len(text), 1.0)]
        return np.stack(rows, axis=1), level[letter] * rng.standard_normal(len(samples))


@pytest.mark.parametrize("patience", [1.0, 0.1], ids=["waits in pauses", "looks ahead in pauses"])
@pytest.mark.parametrize("lead", [0.0, 0.13, 0.26])
def test_the_shift_is_the_head_s_lead(monkeypatch, lead, patience):
    monkeypatch.setattr(alignment, "_Speaker", _KnownSpeaker)
    monkeypatch.setattr(_KnownSpeaker, "lead", lead)
    monkeypatch.setattr(_KnownSpeaker, "patience", patience)
    base_lm = SimpleNamespace(num_heads=2)
    architecture = SimpleNamespace(patch_seconds=0.16, output_sample_rate=24000, base_lm=base_lm)
    checkpoint = SimpleNamespace(architecture=architecture)
    (head,) = with_alignment(StepSizes(), checkpoint, lambda *_: None, lambda _: None).alignment
    assert head[:2] == (0, 1)
    assert abs(head.shift - lead) <= 0.015


@pytest.mark.long
def test_the_built_in_voice_has_a_head_that_follows_the_text():
    """That of the bundle in the tree; another machine's rounding moves the shift a little."""
    said: list[str] = []
    found = with_alignment(StepSizes(), Checkpoint.open(DEFAULT_CHECKPOINT), lambda *_: None, said.append)
    (head,), (expected,) = found.alignment, SIZES.alignment
    assert head[:2] == expected[:2]
    assert head.score > MIN_SCORE + 0.05
    assert abs(head.shift - expected.shift) < 0.03
    assert said == [
        f"alignment: head {head.head} of layer {head.layer} of the base LM (score {head.score:.2f})"
    ]


def test_random_weights_have_none(tiny_checkpoint, monkeypatch):
    monkeypatch.setattr(alignment, "TEXTS", alignment.TEXTS[:1])
    monkeypatch.setattr(alignment, "_MAX_PATCHES", 12)
    said: list[str] = []
    sizes = StepSizes(kv_length=128)
    assert with_alignment(sizes, Checkpoint.open(tiny_checkpoint), lambda *_: None, said.append) == sizes
    assert len(said) == 1
    assert said[0].startswith("alignment: none, as no head of the base LM follows the text (score 0.")
