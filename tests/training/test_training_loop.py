import copy

import numpy as np
import pytest
import torch
from torch import nn

from voxcpm_training import audio_vae
from voxcpm_training.architecture import CONFIG
from voxcpm_training.audio_vae import prior_loss
from voxcpm_training.audio_vae_modules import AudioVAE, Normalisation
from voxcpm_training.discriminators import Discriminators, discriminator_loss, generator_losses
from voxcpm_training.language_model import LanguageModelTraining, parser
from voxcpm_training.latents import encode_shard, load_latents
from voxcpm_training.spectral_losses import SpectralLoss
from voxcpm_training.speech import finished_shards
from voxcpm_training.text import character_ids, encode
from voxcpm_training.training_loop import (
    CollapseCheck,
    Gradients,
    Schedule,
    bytes_to_weights,
    factored_moments,
    restore_moments,
    weights_to_bytes,
)


def test_the_decoder_alone_continues_from_the_whole_audio_vaes_state(tmp_path):
    def training(*arguments):
        options = audio_vae.parser().parse_args(
            [str(tmp_path), "-o", str(tmp_path), "--hours", "0", *arguments]
        )
        return audio_vae.AudioVAETraining(options, torch.device("cpu"))

    whole = training()
    for optimizer in (whole.optimizer, whole.judges_optimizer):
        for parameter in optimizer.param_groups[0]["params"]:
            optimizer.state[parameter] = {"step": torch.tensor(1.0), "exp_avg_sq": torch.ones_like(parameter)}
    last = whole.vae.decoder.model[-2].bias
    whole.optimizer.state[last]["exp_avg_sq"] *= 3
    whole.save(Schedule(1, None, 0.0))
    decoder = training("--decoder-only")
    decoder.start_from(tmp_path / "start.pt")
    moments = decoder.optimizer.state[decoder.vae.decoder.model[-2].bias]["exp_avg_sq"]
    torch.testing.assert_close(moments, torch.full_like(moments, 3.0))


@pytest.mark.parametrize("longest", [0.05, 1000.0])
def test_gradients_in_one_tensor_give_the_same_update_as_clip_grad_norm(longest):
    torch.manual_seed(0)
    ordinary = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))
    flat = copy.deepcopy(ordinary)
    gradients = Gradients(flat.parameters())
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (ordinary, flat)]
    for _ in range(3):
        x, y = torch.randn(16, 5), torch.randn(16, 3)
        optimizers[0].zero_grad()
        nn.functional.mse_loss(ordinary(x), y).backward()
        norm = nn.utils.clip_grad_norm_(ordinary.parameters(), longest)
        optimizers[0].step()
        gradients.flat.zero_()
        gradients.add(nn.functional.mse_loss(flat(x), y))
        torch.testing.assert_close(gradients.clip(longest), norm)
        optimizers[1].step()
        for a, b in zip(ordinary.parameters(), flat.parameters(), strict=True):
            torch.testing.assert_close(a, b)


def test_an_outlier_among_gradients_is_clipped_at_three_times_the_usual_norm():
    parameter = nn.Parameter(torch.zeros(4))
    gradients = Gradients([parameter])
    for norm in (*[1.0] * 150, 100.0):
        gradients.flat.copy_(torch.tensor([norm, 0, 0, 0]))
        gradients.clip_outliers()
    assert gradients.flat.norm().item() == pytest.approx(3.0, rel=0.01)
    gradients.flat.fill_(float("nan"))
    gradients.clip_outliers()
    assert torch.equal(gradients.flat, torch.zeros(4))


def test_latents_are_normalised_by_running_statistics_and_the_prior_pins_their_scale():
    torch.manual_seed(0)
    normalisation = Normalisation(3)
    scale, offset = torch.tensor([1.0, 5.0, 20.0])[:, None], torch.tensor([0.0, -3.0, 7.0])[:, None]
    for _ in range(300):
        normalisation(torch.randn(4, 3, 50) * scale + offset)
    quiet = 0.1 * torch.randn(2, 3, 40) * scale + offset
    trained = normalisation(quiet)
    # A quiet batch stays quiet, in training as in inference.
    torch.testing.assert_close(trained, normalisation.eval()(quiet), rtol=0.1, atol=0.05)
    assert trained.std() < 0.2
    standard = torch.randn(64, 3, 100)
    assert prior_loss(standard).item() == pytest.approx(0, abs=0.01)
    # Per dimension: mean² + variance - 1 - ln variance, with 2² + 9 - 1 - ln 9.
    assert prior_loss(3 * standard + 2).item() == pytest.approx(4 + 9 - 1 - 2.197, rel=0.02)


def test_losses_of_discriminators_are_sums():
    real, decoded = torch.tensor([[0.8, 0.4]]), torch.tensor([[0.5, 0.1]])
    layer = torch.cat((torch.ones(1, 4), torch.full((1, 4), 1.5)))
    judged = [[layer, torch.cat((real, decoded))]] * 3
    one = ((0.2**2 + 0.6**2) + (0.5**2 + 0.1**2)) / 2
    assert discriminator_loss(judged).item() == pytest.approx(3 * one)
    adversarial, features = generator_losses(judged)
    assert adversarial.item() == pytest.approx(3 * (0.5**2 + 0.9**2) / 2)
    assert features.item() == pytest.approx(3 * 0.5 / 1.25)
    assert len(Discriminators()(torch.randn(2, 5000))) == 8


def test_a_collapsed_training_ends():
    check = CollapseCheck()
    for distance in (0.72, 0.41, 0.55, 0.58):
        check(200, distance)
    with pytest.raises(SystemExit, match=r"by step 1200: .* was 0\.41 and is 1\.70"):
        check(1200, 1.7)


def test_the_spectral_loss_charges_for_pitch_and_hardly_for_near_silence():
    loss, time = SpectralLoss(24000), torch.arange(24000) / 24000

    def harmonics(hz):
        return sum(0.05 * torch.sin(2 * torch.pi * k * hz * time) for k in range(1, 20))[None]

    mel, linear, _ = loss(harmonics(204.0), harmonics(200.0))
    assert linear > 2 * loss(harmonics(200.0), harmonics(200.0) + 1e-3)[1] > 0
    assert mel > 0.05
    _, shifted, phase = loss(harmonics(200.0).roll(6), harmonics(200.0))  # 0.25 ms
    assert phase > 10 * shifted
    near_silence = loss(1e-5 * torch.randn(1, 24000), 1e-7 * torch.randn(1, 24000))
    assert max(map(float, near_silence)) < 0.05


def test_training_continues_in_parts():
    schedule = Schedule(steps=100, minutes=0.0)
    assert (schedule.ended(0), Schedule(100, None).ended(99), Schedule(100, None).ended(100)) == (
        True, False, True,
    )  # fmt: skip
    factors = [Schedule(100, None, cool_down=0.2).cooling(step) for step in (0, 79, 80, 85, 100)]
    assert factors == pytest.approx([1, 1, 1, 0.5, 0], abs=1e-6)
    torch.manual_seed(0)
    model = nn.Linear(6, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    scales = torch.tensor([1.0, 10, 100, 1000])[:, None]
    for _ in range(50):
        model.weight.grad = scales * torch.randn(4, 6)
        model.bias.grad = torch.randn(4)
        optimizer.step()
    other = torch.optim.AdamW(model.parameters())
    restore_moments(other, factored_moments(optimizer))
    for parameter in model.parameters():
        kept, restored = optimizer.state[parameter], other.state[parameter]
        assert restored["step"] == kept["step"]
        torch.testing.assert_close(restored["exp_avg_sq"], kept["exp_avg_sq"], rtol=0.8, atol=0)
    judges = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Linear(4, 5)).state_dict()
    for name, weight in bytes_to_weights(weights_to_bytes(judges)).items():
        assert (weight - judges[name]).abs().max() <= judges[name].abs().max() / 250


SAID = ("it rained all day.", "the dog ran home.", "two birds sang.")


def write_shard(path):
    ids = character_ids()
    texts = [encode(text, ids) for text in SAID]
    samples = np.array([3840 * (i + 1) for i in range(len(SAID))])
    np.savez(
        path,
        audio=np.zeros(samples.sum(), np.int16), samples=samples, phones=np.zeros(samples.sum() // 960, np.uint8),
        text=np.concatenate(texts), characters=np.array([len(t) for t in texts]), speaker=np.zeros(3, np.uint16),
    )  # fmt: skip


def test_the_language_model_is_trained_on_latents_and_continues_elsewhere(tmp_path):
    """start.pt is close to the weights, and has the step."""
    torch.manual_seed(0)
    shard, folder = tmp_path / "shard-00007.npz", tmp_path / "latents"
    write_shard(shard)
    vae = AudioVAE(CONFIG["audio_vae_config"]).eval()
    folder.mkdir()
    encode_shard(vae, shard, folder / shard.name, torch.device("cpu"))
    with np.load(shard) as file:
        first = torch.from_numpy(file["audio"][: file["samples"][0]]).float() / 32768
    expected = vae.encode(first[None, None])[0].T
    found = load_latents(finished_shards(folder), torch.device("cpu"))[: len(expected)]
    torch.testing.assert_close(found, expected, atol=1 / 48 + 1e-4, rtol=0)
    options = parser().parse_args([str(folder), "-o", str(tmp_path)])
    before = LanguageModelTraining(options, torch.device("cpu"))
    before.step = 70
    before.save(Schedule(100, None))
    after = LanguageModelTraining(options, torch.device("cpu"))
    after.start_from(tmp_path / "start.pt")
    assert after.step == 70
    for one, other in zip(before.model.parameters(), after.model.parameters(), strict=True):
        assert (one - other).norm() <= 0.02 * one.norm()
