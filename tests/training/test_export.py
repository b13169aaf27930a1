import pytest
import torch

from voxcpm_conversion.checkpoint import Checkpoint
from voxcpm_conversion.modules.voxcpm import expected_shapes
from voxcpm_training import export
from voxcpm_training.architecture import CONFIG, HOP, LATENT, PATCH, SAMPLE_RATE
from voxcpm_training.audio_vae_modules import AudioVAE
from voxcpm_training.earlier_weights import language_model_weights
from voxcpm_training.language_model_modules import VoxCPM
from voxcpm_training.latents import load_audio_vae
from voxcpm_validation.upstream import load_upstream

# fc_mu with the normalisation folded in is rounded to fp16 once more; its 384 inputs do not have mean 0.
FOLDED = 1e-2


@pytest.fixture(scope="module")
def untrained(tmp_path_factory):
    """Networks with random weights and running statistics of noise, and the checkpoint that they are exported to."""
    folder = tmp_path_factory.mktemp("training")
    torch.manual_seed(0)
    vae, model = AudioVAE(CONFIG["audio_vae_config"]), VoxCPM(CONFIG)
    with torch.no_grad():
        for _ in range(3):
            vae.encode(0.1 * torch.randn(2, 1, 8 * HOP))  # the running mean and variance of the latents
    # What the files hold: fp16.
    for parameter in (*vae.parameters(), *model.parameters()):
        parameter.data = parameter.data.half().float()
    torch.save(vae.state_dict(), folder / "vae.pt")
    torch.save(model.state_dict(), folder / "lm.pt")
    export.write_checkpoint(folder / "vae.pt", folder / "lm.pt", folder / "checkpoint")
    return vae.eval(), model.eval(), folder / "checkpoint"


def test_exported_weights_match_the_architecture(untrained):
    checkpoint = Checkpoint.open(str(untrained[2]))
    assert checkpoint.shapes() == expected_shapes(checkpoint.architecture)


@torch.no_grad()
def test_upstream_reproduces_the_trained_model(untrained):
    vae, model, folder = untrained
    upstream = load_upstream(folder)
    audio = 0.1 * torch.randn(1, 1, 12 * HOP)
    latents = vae.encode(audio)
    torch.testing.assert_close(
        upstream.audio_vae.encode(audio[:, 0], SAMPLE_RATE), latents, atol=FOLDED, rtol=FOLDED
    )
    torch.testing.assert_close(upstream.audio_vae.decode(latents), vae.decoder(latents), atol=2e-3, rtol=2e-3)
    patches = torch.randn(3, PATCH, LATENT)
    embedded = model.enc_to_lm_proj(model.feat_encoder(patches))
    theirs = upstream.enc_to_lm_proj(upstream.feat_encoder(patches[None]))[0]
    torch.testing.assert_close(theirs, embedded, atol=1e-4, rtol=1e-4)
    x = torch.randn(2, 9, CONFIG["lm_config"]["hidden_size"])
    for name in ("base_lm", "residual_lm"):
        hidden, _ = getattr(upstream, name)(inputs_embeds=x, is_causal=True)
        torch.testing.assert_close(hidden, getattr(model, name)(x, causal=True), atol=1e-4, rtol=1e-4)
    t, mu = torch.rand(3), torch.randn(3, CONFIG["dit_config"]["hidden_dim"])
    velocity = model.feat_decoder.estimator(patches, mu, t, patches.flip(0))
    theirs = upstream.feat_decoder.estimator(patches.mT, mu, t, patches.flip(0).mT, torch.zeros(3)).mT
    torch.testing.assert_close(theirs, velocity, atol=1e-4, rtol=1e-4)


def test_training_starts_from_an_exported_checkpoint(untrained):
    vae, model, folder = untrained
    audio = 0.1 * torch.randn(1, 1, 8 * HOP)
    again = load_audio_vae(folder, torch.device("cpu"))
    weights = language_model_weights(folder, torch.device("cpu"))
    with torch.no_grad():
        latents = vae.encode(audio)
        torch.testing.assert_close(again.encode(audio), latents, rtol=0, atol=FOLDED)
        torch.testing.assert_close(again.decoder(latents), vae.decoder(latents), rtol=0, atol=1e-3)
    assert weights.keys() == model.state_dict().keys()
    assert all(torch.equal(weights[name], tensor) for name, tensor in model.state_dict().items())
