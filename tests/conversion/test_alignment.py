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


@pytest.mark.long
def test_the_built_in_voice_has_a_head_that_follows_the_text():
    """That of the bundle in the tree; another machine's rounding moves the pauses a little."""
    said: list[str] = []
    found = with_alignment(StepSizes(), Checkpoint.open(DEFAULT_CHECKPOINT), lambda *_: None, said.append)
    (head,), (expected,) = found.alignment, SIZES.alignment
    assert head[:2] == expected[:2]
    assert head.score > MIN_SCORE + 0.05
    assert abs(head.shift - expected.shift) < 0.03
    assert said == [f"alignment: head 2 of layer 2 of the base LM (score {head.score:.2f})"]


def test_random_weights_have_none(tiny_checkpoint, monkeypatch):
    monkeypatch.setattr(alignment, "TEXTS", alignment.TEXTS[:1])
    monkeypatch.setattr(alignment, "_MAX_PATCHES", 12)
    said: list[str] = []
    sizes = StepSizes(kv_length=128)
    assert with_alignment(sizes, Checkpoint.open(tiny_checkpoint), lambda *_: None, said.append) == sizes
    assert len(said) == 1
    assert said[0].startswith("alignment: none, as no head of the base LM follows the text (score 0.")
