from importlib.util import find_spec

import pytest
import torch

from voxcpm_conversion.checkpoint import Checkpoint
from voxcpm_conversion.default_bundle import DEFAULT_CHECKPOINT
from voxcpm_conversion.synthetic import write_synthetic_checkpoint
from voxcpm_conversion.synthetic_presets import presets, write_tokenizer
from voxcpm_validation.upstream import load_upstream

pytestmark = pytest.mark.skipif(
    find_spec("voxcpm") is None, reason="needs upstream's code: pip install --no-deps voxcpm==2.0.3"
)


@pytest.mark.parametrize("preset", ["tiny", "tiny-2", "tiny-kv"])
def test_upstream_loads_every_synthetic_weight(tmp_path, preset):
    folder = write_synthetic_checkpoint(
        tmp_path / preset, presets()[preset], seed=0, tokenizer=write_tokenizer(tmp_path / "tokenizer")
    )
    checkpoint = Checkpoint.open(folder)
    state = load_upstream(folder).state_dict()
    loaded = {name: value for name, value in state.items() if not name.endswith("boundaries")}
    plain = {name for name in loaded if not name.endswith(("weight_g", "weight_v"))}
    folded = {name.removesuffix("_g") for name in loaded if name.endswith("weight_g")}
    assert plain | folded == set(checkpoint.shapes())
    assert all(torch.equal(loaded[name], checkpoint.tensor(name)) for name in plain)


def test_capitals_survive_a_lowercasing_tokenizer():
    model = load_upstream(DEFAULT_CHECKPOINT)
    assert model.text_tokenizer("HELLO.") == model.text_tokenizer("hello.")
    assert len(model.text_tokenizer("HELLO.")) == len("▁hello.")
