from importlib.util import find_spec

import pytest

from voxcpm_conversion.default_bundle import DEFAULT_CHECKPOINT
from voxcpm_validation.upstream import load_upstream

pytestmark = pytest.mark.skipif(
    find_spec("voxcpm") is None, reason="needs upstream's code: pip install --no-deps voxcpm==2.0.3"
)


def test_capitals_survive_a_lowercasing_tokenizer():
    model = load_upstream(DEFAULT_CHECKPOINT)
    assert model.text_tokenizer("HELLO.") == model.text_tokenizer("hello.")
    assert len(model.text_tokenizer("HELLO.")) == len("▁hello.")
