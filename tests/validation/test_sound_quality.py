import numpy as np
import pytest

from voxcpm_conversion.gate import flatness
from voxcpm_validation.listening.copies import copy_scores, passes
from voxcpm_validation.listening.material import prompt_clip, prompt_voices
from voxcpm_validation.listening.sound_quality import SoundJudge, comb_share, envelope_error, sibilance

RATE = 24000
HEART, _ = prompt_clip(next(voice for voice in prompt_voices() if voice.name == "heart"))


@pytest.fixture(scope="module")
def judge():
    return SoundJudge()


def voice(hz):
    """Harmonics of a fundamental frequency (samples,), with the levels of a vowel."""
    phase = 2 * np.pi * np.cumsum(hz) / RATE
    return np.float32(0.1) * sum(np.sin(k * phase) / k for k in range(1, 40)).astype(np.float32)


def buzzing(audio):
    """Speech whose harmonics are replaced by lines 50 Hz apart."""
    pulses = np.zeros(len(audio), np.float32)
    pulses[:: RATE // 50] = 3.0
    level = np.sqrt(np.convolve(audio**2, np.full(480, 1 / 480), "same"))
    return (level * np.convolve(pulses, np.exp(-np.arange(60) / 8), "same")).astype(np.float32)


def test_comb_share_is_that_of_chance_in_speech_and_high_in_a_buzz():
    glide = voice(np.linspace(110, 233, 3 * RATE))
    assert comb_share(glide, RATE) == pytest.approx(0.24, abs=0.08)
    assert comb_share(voice(np.full(RATE, 150.0)), RATE) > 0.95
    # Silence has no harmonics, and is not a division by zero.
    assert comb_share(np.zeros(100, np.float32), RATE) == 0


def test_a_metallic_sibilant_is_less_flat_and_a_muffled_one_has_less_power_above_4_khz():
    hiss = np.random.default_rng(0).standard_normal(RATE).astype(np.float32)
    tone = 3 * np.sin(2 * np.pi * 6000 / RATE * np.arange(RATE)).astype(np.float32)
    # The mean of exponentially distributed powers over their geometric mean: exp(-0.577) = 0.56.
    assert flatness(hiss, RATE) == pytest.approx(0.56, abs=0.04)
    assert flatness(hiss + tone, RATE) < 0.2
    assert sibilance(hiss, RATE) == pytest.approx(-4.8, abs=0.2)
    assert sibilance(np.convolve(hiss, np.ones(8) / 8), RATE) < -8
    assert sibilance(np.zeros(100, np.float32), RATE) == pytest.approx(-100)


def test_pitch_of_a_copy_is_compared_where_both_are_voiced(judge):
    hz = 150 + 40 * np.sin(np.arange(2 * RATE) / RATE * 2 * np.pi)
    original, silence = voice(hz), np.zeros(RATE, np.float32)
    near = judge.agreement(original, voice(hz * 2 ** (30 / 1200)), RATE)
    far = judge.agreement(original, voice(hz * 2 ** (80 / 1200)), RATE)
    assert near.correlation > 0.99
    assert (near.within_50_cents > 0.95, far.within_50_cents < 0.05) == (True, True)
    assert judge.agreement(original, silence, RATE) == (0.0, 0.0)
    assert judge.quality(original, RATE).pitch == pytest.approx(150, rel=0.1)
    assert np.isnan(judge.quality(silence, RATE).pitch)


def test_a_buzz_fails_every_gate_and_a_recording_passes(judge):
    copy = copy_scores("system", "case", HEART, buzzing(HEART), RATE, judge)
    itself = copy_scores("system", "case", HEART, HEART, RATE, judge)
    assert (copy.mos < 2.5, copy.comb > 0.6, copy.correlation < 0.8) == (True, True, True)
    # Published ratings of good synthetic speech are about 3.4; the network's raw score of this one is above 4.
    assert copy.dnsmos < 3 < itself.dnsmos < 3.8
    assert itself.mos == itself.recorded_mos > 3.8
    assert passes([itself])
    assert not passes([copy])
    # Each figure alone.
    for wrong in ({"mos": itself.recorded_mos - 0.6}, {"comb": 0.4}, {"correlation": 0.9}, {"envelope": 3.6}):
        assert not passes([itself.model_copy(update=wrong)])


def test_an_envelope_error_is_of_what_is_audible_and_above_1_khz():
    noise = np.random.default_rng(0).standard_normal(RATE).astype(np.float32) * 0.1
    noise[RATE // 2 :] *= 1e-4  # silence
    low = np.sin(2 * np.pi * 300 * np.arange(RATE) / RATE).astype(np.float32)
    assert envelope_error(noise, noise, RATE) == 0
    assert envelope_error(noise, noise * np.float32(10 ** (-6 / 20)), RATE) == pytest.approx(6, abs=0.1)
    assert envelope_error(noise, noise + 1e-4 * low, RATE) < 0.1
