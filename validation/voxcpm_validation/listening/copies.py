"""Copy-synthesis: how an AudioVAE alone, without a language model, reproduces recordings; its gates."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from voxcpm_runtime.backends.step_function import Floats
from voxcpm_validation.listening.hearing import Copier
from voxcpm_validation.listening.material import prompt_clip, prompt_voices
from voxcpm_validation.listening.scores import CaseScores, column
from voxcpm_validation.listening.sound_quality import SoundJudge, envelope_error

MIN_CORRELATION, MAX_COMB, MAX_MOS_LOSS, MAX_ENVELOPE = 0.95, 0.35, 0.5, 3.5
"""Gates of an AudioVAE's copies: correlation of the pitch, comb share, loss of DistillMOS, `envelope_error` in dB."""


class CopyScores(CaseScores):
    """How the AudioVAE alone, without a language model, reproduces a recording."""

    recorded_mos: float = column("recorded MOS", "{:.2f}")
    """DistillMOS of the recording; `mos` is that of its copy."""
    mos: float = column("MOS", "{:.2f}")
    dnsmos: float = column("DNSMOS", "{:.2f}")
    recorded_pitch: float = column("recorded F0, Hz", "{:.0f}")
    pitch: float | None = column("F0, Hz", "{:.0f}")
    correlation: float = column("F0 correlation", "{:.2f}")
    within_50_cents: float = column("within 50 cents", "{:.0%}")
    comb: float = column("comb", "{:.0%}")
    envelope: float = column("envelope error, dB", "{:.1f}")


def passes(copies: Sequence[CopyScores]) -> bool:
    """Whether a language model is worth training on an AudioVAE with these scores, in the mean."""
    of_all = [(c.correlation, c.comb, c.recorded_mos - c.mos, c.envelope) for c in copies]
    correlation, comb, loss, envelope = np.mean(of_all, axis=0)
    sounds = comb <= MAX_COMB and loss <= MAX_MOS_LOSS
    return bool(sounds and correlation >= MIN_CORRELATION and envelope <= MAX_ENVELOPE)


def copy_scores(
    system: str, case: str, original: Floats, copy: Floats, rate: int, judge: SoundJudge
) -> CopyScores:
    """The scores of a copy of a recording; both (samples,) at `rate` Hz."""
    frames = min(len(original), len(copy))
    original, copy = original[:frames], copy[:frames]
    recorded, copied = judge.quality(original, rate), judge.quality(copy, rate)
    agreement = judge.agreement(original, copy, rate)
    return CopyScores(
        system=system, case=case, recorded_mos=recorded.mos, mos=copied.mos, dnsmos=copied.dnsmos,
        recorded_pitch=recorded.pitch, pitch=None if np.isnan(copied.pitch) else copied.pitch,
        correlation=agreement.correlation, within_50_cents=agreement.within_50_cents, comb=copied.comb,
        envelope=envelope_error(original, copy, rate),
    )  # fmt: skip


def copies(system: str, copy: Copier, judge: SoundJudge) -> tuple[CopyScores, ...]:
    """The scores of a system's copies of the test's prompts."""
    scores = []
    for voice in prompt_voices():
        original, copied, rate = copy(*prompt_clip(voice))
        scores.append(copy_scores(system, f"prompt, {voice.name}", original, copied, rate, judge))
    return tuple(scores)
