"""The layout of FluidInference's bundle: a driver written from its card alone, against upstream's modules.

The card: fp16/ and int8/ with six packages, constants/ with arrays; times from 1 to 0.001 without sway; quantised
hidden states at every position; keys and values passed in and out.
"""

import json
import shutil
from itertools import pairwise

import coremltools as ct
import numpy as np
import pytest
import torch

from voxcpm_constants.errors import BundleError
from voxcpm_runtime import VoxCPM
from voxcpm_runtime.backends.portable import PortableStepModel
from voxcpm_validation.upstream import load_upstream

TOKENS = [3, 120, 45, 200, 77, 101]
PATCHES = 6


@pytest.fixture(scope="module")
def bundle(tmp_path_factory, tiny_checkpoint, command):
    folder = tmp_path_factory.mktemp("fluid") / "bundle"
    done = command("convert", tiny_checkpoint, "-o", folder, "--layout", "fluid")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def upstream(tiny_checkpoint):
    return load_upstream(tiny_checkpoint, max_length=64)


def of_packages(bundle, precision, mode="plain"):
    models: dict[str, PortableStepModel] = {}

    def predict(name, inputs):
        if name not in models:
            models[name] = PortableStepModel(bundle / precision / f"{name}.mlpackage", mode=mode)
        return models[name](inputs)

    return predict


class OfUpstream:
    """The packages' functions by upstream's modules; the LMs recompute the whole sequence, without caches."""

    def __init__(self, model):
        self.model, self.seen = model, {"base_lm_step": [], "residual_lm_step": []}

    @torch.inference_mode()
    def __call__(self, name, inputs):
        m, given = self.model, {k: torch.from_numpy(v) for k, v in inputs.items()}
        if name == "feat_encoder":
            return {"embedding": m.feat_encoder(given["feat"]).numpy()}
        if name == "locdit_step":
            dit = m.feat_decoder.estimator
            return {"velocity": dit(*(given[k] for k in ("x", "mu", "t", "cond", "dt"))).numpy()}
        if name == "audio_vae_decoder":
            return {"audio": m.audio_vae.decode(given["latent"]).numpy()}
        self.seen[name].append(given["embed"])
        lm = m.base_lm if name == "base_lm_step" else m.residual_lm
        hidden = lm(inputs_embeds=torch.stack(self.seen[name], 1), is_causal=True)[0][:, -1]
        if name == "residual_lm_step":
            return {"res_hidden": hidden.numpy()}
        quantised = m.fsq_layer(hidden)
        logits = m.stop_head(m.stop_actn(m.stop_proj(quantised)))
        return {"lm_hidden": hidden.numpy(), "lm_hidden_fsq": quantised.numpy(), "stop_logit": logits.numpy()}


def drive(predict, constants, caches):
    """Speak TOKENS as the card's driver does, without stopping: latents, audio and stop logits."""
    scale = json.loads((constants / "config.json").read_text())["scale_emb"]
    stored = {path.stem: np.load(path) for path in constants.glob("*.npy")}
    assert all(array.dtype == np.float32 for array in stored.values())

    def project(layer, x):
        return x @ stored[f"{layer}_proj_w"].T + stored[f"{layer}_proj_b"]

    def lm(name, embed, position):
        given = {"embed": embed, "position": np.array([position], np.int32), **caches[name]}
        out = predict(name, given)
        caches[name] = {n.removeprefix("out_"): v for n, v in out.items() if n.startswith("out_")}
        return out

    def both(embed, position, heard):
        base = lm("base_lm_step", embed, position)
        residual = lm("residual_lm_step", base["lm_hidden_fsq"] + heard * embed, position)
        return base["lm_hidden_fsq"], residual["res_hidden"], base["stop_logit"]

    for position, token in enumerate(TOKENS):
        hidden, residual, stop = both(stored["embed_tokens"][[token]] * np.float32(scale), position, 0.0)
    rng, latents, stops = np.random.default_rng(5), [], [stop]
    cond = np.zeros((16, 2), np.float32)
    times = np.linspace(1, 0.001, 11, dtype=np.float32)
    for patch in range(PATCHES):
        mu = project("lm_to_dit", hidden) + project("res_to_dit", residual)
        x = rng.standard_normal(cond.shape, np.float32)
        for now, then in pairwise(times):
            velocity = predict("locdit_step", {
                "x": np.stack([x, x]), "mu": np.concatenate([mu, mu * 0]), "t": np.full(2, now),
                "cond": np.stack([cond, cond]), "dt": np.zeros(2, np.float32),
            })["velocity"]  # fmt: skip
            x = x + (then - now) * (velocity[1] + 2 * (velocity[0] - velocity[1]))
        cond = x
        latents.append(x)
        encoded = predict("feat_encoder", {"feat": x.T[None, None]})["embedding"][:, 0]
        hidden, residual, stop = both(project("enc_to_lm", encoded), len(TOKENS) + patch, 1.0)
        stops.append(stop)
    latent = np.concatenate(latents, -1)[None]
    audio = predict("audio_vae_decoder", {"latent": latent})["audio"]
    return {"latent": latent, "audio": audio, "stop_logit": np.concatenate(stops)}


def empty_caches(bundle):
    def zeros(name):
        spec = ct.utils.load_spec(str(bundle / f"fp16/{name}.mlpackage"))
        shapes = {i.name: tuple(i.type.multiArrayType.shape) for i in spec.description.input}
        return {n: np.zeros(s, np.float32) for n, s in shapes.items() if n not in ("embed", "position")}

    return {name: zeros(name) for name in ("base_lm_step", "residual_lm_step")}


def correlation(found, expected):
    return float(np.corrcoef(found.ravel(), expected.ravel())[0, 1])


@pytest.mark.parametrize(("precision", "lowest"), [("fp16", 0.9999), ("int8", 0.98)])
def test_driver_of_the_card_speaks_as_upstreams_modules(bundle, upstream, precision, lowest):
    found = drive(of_packages(bundle, precision), bundle / "constants", empty_caches(bundle))
    lms = ("base_lm_step", "residual_lm_step")
    expected = drive(OfUpstream(upstream), bundle / "constants", {name: {} for name in lms})
    for name, values in expected.items():
        assert found[name].shape == values.shape
        assert correlation(found[name], values) > lowest, name


@pytest.mark.parametrize("time", [0.9995117, 0.75, 0.3503418, 0.0010004])  # floatFloat16 holds them
def test_angles_are_float32(bundle, upstream, time):
    """In faithful arithmetic, as on hardware: angles of up to 1000 rad in float16 are off by a quarter of one."""
    rng = np.random.default_rng(2)
    latents = (2, 16, 2)
    inputs = {
        "x": rng.standard_normal(latents, np.float32), "mu": rng.standard_normal((2, 64), np.float32),
        "t": np.full(2, time, np.float16).astype(np.float32),
        "cond": rng.standard_normal(latents, np.float32), "dt": np.zeros(2, np.float32),
    }  # fmt: skip
    found = of_packages(bundle, "fp16", "faithful")("locdit_step", inputs)["velocity"]
    value = correlation(found, OfUpstream(upstream)("locdit_step", inputs)["velocity"])
    assert value > 0.99999


def test_names_shapes_and_types_are_the_cards(bundle):
    """The table of the card with the sizes of this checkpoint; every float is float16, the specification is 8."""
    caches = {f"{half}{layer}": (1, 2, 512, 16) for layer in (0, 1) for half in "kv"}
    lm = {"embed": (1, 64), "position": (1,)}
    latents = dict.fromkeys(("x", "cond"), (2, 16, 2))
    out = [f"out_{name}" for name in caches]
    card = {
        "audio_vae_encoder": ({"audio": (1, 1, 79_968)}, ["latent"]),
        "audio_vae_decoder": ({"latent": (1, 16, 50)}, ["audio"]),
        "feat_encoder": ({"feat": (1, 1, 2, 16)}, ["embedding"]),
        "base_lm_step": (lm | caches, ["lm_hidden", "lm_hidden_fsq", "stop_logit", *out]),
        "residual_lm_step": (
            lm | {"k0": caches["k0"], "v0": caches["v0"]},
            ["res_hidden", "out_k0", "out_v0"],
        ),
        "locdit_step": (latents | {"mu": (2, 64), "t": (2,), "dt": (2,)}, ["velocity"]),
    }
    half, integer = 65552, 131104  # Core ML's ArrayDataType
    for precision in ("fp16", "int8"):
        assert {path.stem for path in (bundle / precision).iterdir()} == card.keys()
        for name, (inputs, outputs) in card.items():
            spec = ct.utils.load_spec(str(bundle / precision / f"{name}.mlpackage"))
            arrays = {i.name: i.type.multiArrayType for i in spec.description.input}
            assert spec.specificationVersion == 8
            assert {n: tuple(array.shape) for n, array in arrays.items()} == inputs
            assert [o.name for o in spec.description.output] == outputs
            types = {o.type.multiArrayType.dataType for o in spec.description.output}
            types |= {array.dataType for n, array in arrays.items() if n != "position"}
            assert types == {half}
            assert "position" not in arrays or arrays["position"].dataType == integer
    decoder = ct.utils.load_spec(str(bundle / "int8/audio_vae_decoder.mlpackage")).description.input[0]
    frames = decoder.type.multiArrayType.shapeRange.sizeRanges[2]
    assert (frames.lowerBound, frames.upperBound) == (2, 2000)
    config = json.loads((bundle / "constants/config.json").read_text())
    assert len(config) == 17
    assert all(isinstance(value, int | float) for value in config.values())
    assert {path.name for path in bundle.iterdir()} == {"constants", "fp16", "int8"}


def test_opening_it_says_what_it_is_and_only_such_a_folder_is_overwritten(
    bundle, tiny_checkpoint, tmp_path, refusal, command
):
    with pytest.raises(BundleError, match=r"FluidInference's.* convert CHECKPOINT -o BUNDLE"):
        VoxCPM.from_bundle(bundle)
    folder = shutil.copytree(bundle, tmp_path / "out")
    options = ("--layout", "fluid", "--overwrite", "--precision", "int8")
    again = ("convert", tiny_checkpoint, "-o", folder, *options)
    (folder / "notes.txt").touch()
    assert "--overwrite replaces only bundles" in refusal(*again)
    (folder / "notes.txt").unlink()
    done = command(*again)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in folder.iterdir()} == {"constants", "int8"}


@pytest.mark.parametrize(
    ("checkpoint", "options", "message"),
    [
        ("tiny", ("fluid", "--precision", "int4"), "--precision int4: --layout fluid has fp16 and int8 only"),
        ("tiny", ("fluid", "--kv-cache", "rows", "--target", "macos15"), "leave out --target, --kv-cache"),
        ("tiny", ("fluid", "--preset", "phone", "--precision", "int8"), "leave out --preset"),
        ("tiny", ("fluid", "--max-length", "513"), "this checkpoint supports at most 512 positions"),
        ("second", ("fluid",), "--layout fluid holds VoxCPM 0.5B and 1.5, but this"),
        ("second", ("other",), "--layout other: expected one of bundle, fluid"),
    ],
)
def test_what_the_layout_lacks_is_refused(refusal, request, tmp_path, checkpoint, options, message):
    folder = request.getfixturevalue(f"{checkpoint}_checkpoint")
    assert message in refusal("convert", folder, "-o", tmp_path / "out", "--layout", *options)
    assert not list(tmp_path.iterdir())
