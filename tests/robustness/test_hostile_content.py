"""Malicious content: nothing is executed, read or written outside, and memory and time are bounded."""

from robustness.hostile import BUNDLES, CHECKPOINTS, READ
from robustness.watched import FAILURES, Watched

HARMLESS = "tokenizer"
"""The materials that may be read."""


def _check(names, **given):
    with Watched("robustness.hostile:scene", **given) as process:
        ended = {name: process.run(name) for name in names}
    print(ended)
    wrong = {
        name: end
        for name, end in ended.items()
        if end.outcome in FAILURES or (end.outcome == READ and not name.startswith(HARMLESS))
    }
    assert not wrong, wrong


def test_hostile_bundles_and_voices(speaking_bundle):
    _check(BUNDLES, bundle=speaking_bundle)


def test_hostile_checkpoints(speaking_bundle, tiny_checkpoint):
    _check(CHECKPOINTS, bundle=speaking_bundle, checkpoint=tiny_checkpoint)
