"""A flipped byte, a truncation and a swap in every file that is read."""

import pytest

from robustness.watched import Watched

# What is damaged → the bundle, its precision, and the cases of `make test-robustness` and of `make torture`.
BUNDLES = {
    "bundle": ("speaking_bundle", "int8", 40, 430),
    "voice": ("speaking_bundle", "int8", 6, 130),
    "lowered": ("speaking_bundle", "int8", 2, 50),
    "verified": ("speaking_bundle", "int8", 2, 50),
    "segments": ("speaking_bundle", "int8", 5, 90),
    "batch": ("speaking_bundle", "int8", 0, 50),
    "bundle, macOS 27": ("tiny_bundle_27", "fp16", 0, 120),
}
CHECKPOINTS = {"safetensors": 80, "pickle": 80, "lora": 40}
PICKLES = {"model.safetensors": "pytorch_model.bin", "audiovae.safetensors": "audiovae.pth"}
"""Weight files and their names as pickles."""


def _check(count, seed, **given):
    with Watched("robustness.damage:scene", **given) as process:
        process.check({"number": number, "seed": seed} for number in range(count))


@pytest.mark.parametrize("name", [name for name, (_, _, some, _) in BUNDLES.items() if some])
def test_some_damage(request, torture_seed, name):
    bundle, precision, count, _ = BUNDLES[name]
    _check(count, torture_seed, kind=name, source=request.getfixturevalue(bundle), precision=precision)


@pytest.mark.torture
@pytest.mark.parametrize("name", BUNDLES)
def test_damage(request, torture_seed, share, name):
    bundle, precision, _, count = BUNDLES[name]
    kind = name.partition(",")[0]
    source = request.getfixturevalue(bundle)
    _check(share(count), torture_seed, kind=kind, source=source, precision=precision)


@pytest.fixture(params=CHECKPOINTS)
def source(request, tiny_checkpoint, tmp_path, write_lora):
    """A checkpoint in that form, or a LoRA of one, as `scene` takes it."""
    import torch
    from safetensors.torch import load_file

    folder = tmp_path / request.param
    if request.param == "lora":
        write_lora(folder, tiny_checkpoint, enable_lm=True, enable_dit=True, r=2)
        return {"kind": "lora", "source": folder, "checkpoint": tiny_checkpoint}
    folder.mkdir()
    for path in tiny_checkpoint.iterdir():
        if request.param == "pickle" and path.name in PICKLES:
            torch.save({"state_dict": load_file(path)}, folder / PICKLES[path.name])
        else:
            (folder / path.name).write_bytes(path.read_bytes())
    return {"kind": "checkpoint", "source": folder}


@pytest.mark.parametrize("some", [4, pytest.param(None, marks=pytest.mark.torture)])
def test_damage_to_a_checkpoint(source, torture_seed, share, some):
    _check(some or share(CHECKPOINTS[source["source"].name]), torture_seed, **source)
