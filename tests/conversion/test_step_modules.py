"""The step modules in fp32, compared with upstream's modules with the same weights, for each generation."""

import numpy as np
import pytest
import torch

from voxcpm_constants import step_models as names
from voxcpm_constants.step_models import StepSizes, declare_step_models
from voxcpm_conversion.checkpoint import Checkpoint
from voxcpm_conversion.modules.minicpm4 import RMSNorm
from voxcpm_conversion.step_modules import build_step, example_inputs, loaded_modules
from voxcpm_validation.upstream import load_upstream

SIZES = StepSizes(kv_length=64)
# float32 through a dozen layers; the values compared are of order 1.
TOLERANCE = 5e-5


class Pair:
    """Upstream's model and the step modules of one checkpoint."""

    def __init__(self, folder):
        self.checkpoint = Checkpoint.open(folder)
        self.architecture = self.checkpoint.architecture
        self.upstream = load_upstream(folder)
        self.generator = torch.Generator().manual_seed(1)

    def noise(self, *shape):
        return torch.randn(*shape, generator=self.generator)

    def step(self, name, *, stacked=False):
        declared = declare_step_models(self.architecture, SIZES, stacked=stacked)[name]
        modules = loaded_modules(self.checkpoint, declared, SIZES)
        return build_step(declared, modules, self.architecture, SIZES)

    def stream(self, name, inputs, outputs, *, stacked=False):
        """Outputs of successive calls; the state passes from one to the next."""
        declared = declare_step_models(self.architecture, SIZES, stacked=stacked)[name]
        step = self.step(name, stacked=stacked)
        state = example_inputs(declared.state, 0)
        results = []
        for call in inputs:
            result = step(*call, *state)
            results.append(result[:outputs])
            state = result[outputs:]
        return results


@pytest.fixture(scope="module")
def pair(any_checkpoint):
    return Pair(any_checkpoint)


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.inference_mode():
        yield


def _assert_close(ours, upstream):
    torch.testing.assert_close(ours, upstream, rtol=0, atol=TOLERANCE)


def test_chunked_audio_vae_equals_upstream(pair):
    a, vae = pair.architecture, pair.upstream.audio_vae
    audio, latents = (
        0.2 * pair.noise(1, 1, 6 * a.patch_input_samples),
        pair.noise(1, a.feat_dim, 6 * a.patch_size),
    )
    for name, given, lengths, expected in (
        (names.AUDIO_VAE_ENCODER, audio, [n * a.patch_input_samples for n in (1, 3, 2)],
         vae.encode(audio, a.input_sample_rate)),
        (names.AUDIO_VAE_DECODER, latents, a.patch_size, vae.decode(latents)),
    ):  # fmt: skip
        results = pair.stream(name, [(chunk,) for chunk in given.split(lengths, dim=-1)], 1)
        _assert_close(torch.cat([result[0] for result in results], dim=-1), expected)


def test_feat_encoder(pair):
    patches = pair.noise(1, 5, pair.architecture.patch_size, pair.architecture.feat_dim)
    expected = pair.upstream.enc_to_lm_proj(pair.upstream.feat_encoder(patches))
    _assert_close(pair.step(names.FEAT_ENCODER)(patches), expected)


def _in_chunks(embeddings):
    position, calls = 0, []
    for chunk in embeddings.split([16, 1, 1, 2], dim=1):
        calls.append((chunk, torch.tensor([position], dtype=torch.int32)))
        position += chunk.size(1)
    return calls


@pytest.mark.parametrize("stacked", [False, True])
def test_base_lm_with_a_filled_cache_equals_one_upstream_pass(pair, *, stacked):
    model = pair.upstream
    embeddings = pair.noise(1, 20, pair.architecture.base_lm.hidden_size)
    results = pair.stream(names.BASE_LM_STEP, _in_chunks(embeddings), 3, stacked=stacked)
    hidden, quantized, stop = (torch.cat(parts, dim=1) for parts in zip(*results, strict=True))
    expected, _ = model.base_lm(inputs_embeds=embeddings, is_causal=True)
    _assert_close(hidden, expected)
    # Quantised levels are 1/9 apart: if rounding changed a level, the error would be far above the tolerance.
    _assert_close(quantized, model.fsq_layer(expected))
    _assert_close(stop, model.stop_head(model.stop_actn(model.stop_proj(model.fsq_layer(expected)))))


def test_padding_after_a_chunk_is_overwritten_before_it_is_attended(pair):
    embeddings = pair.noise(1, 6, pair.architecture.residual_lm.hidden_size)
    rubbish = torch.full((1, 4, embeddings.size(2)), 7.0)
    calls = [
        (torch.cat((embeddings[:, :4], rubbish), dim=1), torch.tensor([0], dtype=torch.int32)),
        (embeddings[:, 4:5], torch.tensor([4], dtype=torch.int32)),
        (embeddings[:, 5:6], torch.tensor([5], dtype=torch.int32)),
    ]
    results = pair.stream(names.RESIDUAL_LM_STEP, calls, 1)
    expected, _ = pair.upstream.residual_lm(inputs_embeds=embeddings, is_causal=True)
    _assert_close(torch.cat([results[0][0][:, :4], results[1][0], results[2][0]], dim=1), expected)


@pytest.mark.parametrize(
    ("scale", "dtype", "tolerance"),
    [*((scale, torch.float32, 2e-5) for scale in (1e-5, 1.0, 3e4)), (1e4, torch.float16, 3e-3)],
)
def test_norm_at_any_scale_equals_the_definition(scale, dtype, tolerance):
    """Also of fp16 values whose squares overflow."""
    x = scale * torch.randn(4, 256, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x, weight, norm = x.to(dtype), torch.linspace(0.5, 2.0, 256), RMSNorm(256, 1e-5)
    norm.load_state_dict({"weight": weight})
    expected = x.double() / torch.sqrt((x.double() ** 2).mean(-1, keepdim=True) + 1e-5) * weight
    found = norm.to(dtype)(x).float().detach().numpy()
    np.testing.assert_allclose(
        found, expected.numpy(), rtol=tolerance, atol=1e-7 if dtype == torch.float32 else 1e-3
    )
