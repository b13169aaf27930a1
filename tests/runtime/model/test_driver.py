"""The loop compared with a plain one like upstream's `_inference`: whole sequences, no caches or chunks."""

import numpy as np
import pytest

from tiny_network import fake_encode
from voxcpm_constants.arrays import EMBED_TOKENS
from voxcpm_constants.errors import BundleError
from voxcpm_runtime.model.driver import Driver
from voxcpm_runtime.model.flow_matching import solve
from voxcpm_runtime.model.sequence import build_sequence
from voxcpm_runtime.options import GenerationOptions

SAMPLING = {"sway_sampling_coef": 0.3, "use_cfg_zero_star": False}
OPTIONS = GenerationOptions(inference_timesteps=4, cfg_value=1.5, temperature=0.6, **SAMPLING)
SHAPE = (2, 4)


@pytest.fixture
def driver(architecture, sizes, constants, models):
    return Driver(architecture, sizes, constants, models)


@pytest.fixture
def generated(driver):
    """A function that generates patches with the driver."""

    def run(sequence, seed, limit, options=OPTIONS, **given):
        rng = np.random.default_rng(seed)
        return list(driver.generate_patches(driver.prefill(sequence), options, rng, limit, **given))

    return run


@pytest.fixture
def loop(architecture, network, constants):
    """A function that generates patches, each step over the whole sequence so far."""

    def linear(name, rows):
        return rows @ constants[f"{name}_w"].T + constants[f"{name}_b"]

    second = architecture.generation == "voxcpm2"

    def run(sequence, count, seed):
        rng = np.random.default_rng(seed)
        text = constants[EMBED_TOKENS][sequence.tokens] * 12.0
        audio = np.zeros_like(text)
        audio[sequence.is_audio] = network.embed(sequence.patches)
        is_audio, last, made, stops = sequence.is_audio, sequence.last_patch, [], []
        embeddings = np.where(is_audio[:, None], audio, text)
        for index in range(count):
            raw = network.causal("base", embeddings)
            hidden = np.where(is_audio[:, None], network.fsq(raw), raw)
            masked = np.where(is_audio[:, None], embeddings, 0)
            if second:
                into_residual = linear("fusion_concat_proj", np.concatenate([hidden, masked], axis=1))
            else:
                into_residual = hidden + masked
            residual = network.causal("residual", into_residual)
            halves = linear("lm_to_dit_proj", hidden[-1]), linear("res_to_dit_proj", residual[-1])
            mu = np.concatenate(halves) if second else halves[0] + halves[1]
            noise = rng.standard_normal((1, 4, 2)).astype(np.float32)[0] * np.float32(0.6)
            patch = solve(
                lambda i: {"velocity": network.velocity(i)},
                noise,
                mu.astype(np.float32),
                last.T,
                steps=OPTIONS.inference_timesteps,
                cfg_value=OPTIONS.cfg_value,
                embedding_size=architecture.dit_config.hidden_dim,
                **SAMPLING,
            ).T
            made.append(patch)
            stops.append(index > OPTIONS.min_len and bool(network.stop_logits(hidden[-1]).argmax() == 1))
            last = patch
            embeddings = np.concatenate([embeddings, network.embed(last[np.newaxis])])
            is_audio = np.append(is_audio, True)
        return np.stack(made), stops

    return run


def sequences():
    rng = np.random.default_rng(3)
    prompt = rng.standard_normal((6, *SHAPE)).astype(np.float32)
    text = list(range(20, 37))
    return {
        "zero-shot": build_sequence(text, SHAPE),
        "one token": build_sequence([5], SHAPE),
        "continuation": build_sequence(text, SHAPE, prompt=prompt),
        "reference": build_sequence(text, SHAPE, reference=prompt[:3]),
        "reference and prompt": build_sequence(text, SHAPE, reference=prompt[:3], prompt=prompt[3:]),
    }


@pytest.mark.parametrize("kind", sequences())
def test_patches_equal_a_plain_loop(generated, loop, kind):
    sequence = sequences()[kind]
    patches = generated(sequence, 4, 7)
    expected, _ = loop(sequence, 7, 4)
    np.testing.assert_allclose([patch.latents for patch in patches], expected, atol=2e-4)
    assert [patch.index for patch in patches] == list(range(7))


@pytest.mark.parametrize("min_len", [0, 2, 3])
def test_stops_after_min_len_at_the_patch_whose_hidden_state_signals_it(generated, network, min_len):
    network.stop_bias = np.array([-1e3, 0], np.float32)
    options = GenerationOptions(inference_timesteps=4, min_len=min_len)
    patches = generated(sequences()["zero-shot"], 0, 9, options)
    # Upstream breaks at the first index above min_len.
    assert len(patches) == min_len + 2
    assert [patch.stops for patch in patches] == [False] * (min_len + 1) + [True]


def test_the_stop_head_reads_the_state_that_fed_the_patch(generated, network, loop):
    sequence = sequences()["continuation"]
    firsts = set()
    for bias in np.linspace(-1, 4, 26):
        network.stop_bias = np.array([bias, 0], np.float32)
        _, stops = loop(sequence, 20, 8)
        firsts.add(first := stops.index(True) if True in stops else 19)
        assert len(generated(sequence, 8, 20)) == first + 1
    assert len(firsts & set(range(4, 19))) > 1, (
        "the stop head never spoke late: this test cannot tell one index apart"
    )


@pytest.mark.parametrize("samples", [21, 100])
def test_a_prompt_is_padded_on_the_left_and_a_reference_on_the_right(driver, architecture, samples):
    audio = np.random.default_rng(0).standard_normal(samples).astype(np.float32)
    missing = -samples % 20  # 2 frames a patch, 2 * 5 samples a frame
    for padded, latents in (
        (np.pad(audio, (missing, 0)), driver.encode_prompt(audio)),
        (np.pad(audio, (0, missing)), driver.encode_reference(audio)),
    ):
        whole = fake_encode({}, padded, architecture)  # (latent_dim, frames)
        assert latents.shape == (len(padded) // 20, 2, 4)
        np.testing.assert_allclose(latents.reshape(-1, 4).T, whole, atol=1e-6)


def test_non_finite_patch_or_embedding_of_a_token_is_an_error(generated, driver, models, constants):
    """With a correct digest too: a conversion can write it."""
    models["locdit_step"].function = lambda inputs, _: {"velocity": inputs["x"] * np.float32(np.nan)}
    with pytest.raises(BundleError, match="patch 0 is not finite"):
        generated(sequences()["zero-shot"], 0, 3)
    for number in (np.nan, np.inf):
        constants[EMBED_TOKENS][25, -1] = number
        with pytest.raises(BundleError, match=r"^constants/embed_tokens\.npy: .*the row of a token"):
            driver.prefill(sequences()["zero-shot"])
