"""The whole loop compared with upstream, with the same text, prompt and noise: free-running and teacher-forced."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from pydantic import BaseModel

from voxcpm_constants.step_models import Precision
from voxcpm_runtime.backends.step_function import Floats
from voxcpm_runtime.options import SEGMENT_TOKENS
from voxcpm_runtime.speech.spine import prepared
from voxcpm_runtime.text.control import with_control
from voxcpm_runtime.voices.recordings import encoded
from voxcpm_runtime.voxcpm import VoxCPM
from voxcpm_validation.measures import Agreement, agreement
from voxcpm_validation.upstream import traits_of, upstream_generate

_CONTROL = "a calm voice, slow"


@dataclass(frozen=True)
class Case:
    """One utterance. patches: the exact number to generate; None leaves it to the stop head."""

    name: str
    text: str
    seed: int
    prompt_wav: Path | None = None
    prompt_text: str | None = None
    patches: int | None = None
    reference_wav: Path | None = None

    @property
    def min_len(self) -> int:
        """Minimum number of patches."""
        return 2 if self.patches is None else self.patches

    @property
    def max_len(self) -> int:
        """Maximum number of patches."""
        return 2000 if self.patches is None else self.patches


@dataclass(frozen=True)
class SpokenCase:
    """The speech of a case: audio (samples,) at the model's output rate, and latents (patches, frames, latent_dim)."""

    audio: Floats
    latents: Floats


class EndToEnd(BaseModel, extra="forbid", frozen=True):
    """A bundle compared with upstream in one case. Free-running values are compared over the patches that both have."""

    case: str
    precision: Precision
    patches: int
    upstream_patches: int
    free_running_latents: Agreement
    waveform: Agreement
    teacher_forced_worst: float
    """Lowest correlation of any patch when all patches before it are upstream's."""
    teacher_forced_median: float
    """Median correlation of these patches."""


@contextmanager
def cases(
    model: Any,
    text: str,
    *,
    patches: int,
    seed: int,
    prompt_wav: Path | None = None,
    prompt_text: str | None = None,
    speak: Callable[[Case], SpokenCase] | None = None,
) -> Iterator[list[Case]]:
    """Yield the cases that the model's generation supports, each of `patches` patches.

    Always zero-shot and continuation. Without `prompt_wav`, the prompt is upstream's own zero-shot speech of `text`,
    from `speak` if given; its transcript is `prompt_text`, or else `text`. VoxCPM2 adds voice design, a reference voice
    with and without a style, and a reference voice with a prompt; the prompt's audio is the reference.
    """
    zero_shot = Case("zero-shot", text, seed, patches=patches)
    with tempfile.TemporaryDirectory() as folder:
        if prompt_wav is None:
            prompt_wav, prompt_text = Path(folder) / "prompt.wav", prompt_text or text
            prompt = speak(zero_shot) if speak else speak_upstream(model, zero_shot)
            soundfile.write(prompt_wav, prompt.audio, int(model.sample_rate), subtype="FLOAT")
        supported = [zero_shot, Case("continuation", text, seed + 1, prompt_wav, prompt_text, patches)]
        if traits_of(model).takes_reference:
            reference: dict[str, Any] = {"patches": patches, "reference_wav": prompt_wav}
            styled = with_control(text, _CONTROL)
            supported += [
                Case("reference", text, seed + 2, **reference),
                Case("reference and continuation", text, seed + 3, prompt_wav, prompt_text, **reference),
                Case("voice design", styled, seed + 4, patches=patches),
                Case("style control", styled, seed + 5, **reference),
            ]
        # If the caller drops upstream's model, this context must not keep it alive.
        del model, speak
        yield supported


def speak_upstream(model: Any, case: Case) -> SpokenCase:
    """Speak a case with upstream's model and the noise of the case's seed."""
    arguments: dict[str, Any] = {
        name: getattr(case, name)
        for name in ("prompt_wav", "prompt_text", "reference_wav", "min_len", "max_len")
    }
    rng = np.random.default_rng(case.seed)
    return SpokenCase(*upstream_generate(model, case.text, rng=rng, **arguments))


def compare_speech(tts: VoxCPM, case: Case, upstream: SpokenCase) -> EndToEnd:
    """Speak a case with upstream's noise, first free-running, then teacher-forced with upstream's patches."""
    arguments: dict[str, Any] = {
        "prompt_wav_path": case.prompt_wav,
        "prompt_text": case.prompt_text,
        "reference_wav_path": case.reference_wav,
        "retry_badcase": False,
        "every_word": False,
        "zero_shot": True,
        "min_len": case.min_len,
        "max_len": None if case.patches is None else case.max_len,
        # As a single utterance, like upstream.
        "segment_tokens": SEGMENT_TOKENS,
    }
    speech = tts.speak(case.text, rng=np.random.default_rng(case.seed), **arguments)
    shared = min(len(speech.latents), len(upstream.latents))
    samples = min(len(speech.audio), len(upstream.audio))
    plan, driver = tts.plan(case.text, **arguments), tts.driver
    planned = prepared(plan, 0, plan.segments[0], encoded(plan.voice, driver))
    forced = driver.generate_patches(
        driver.prefill(planned.sequence),
        plan.options,
        np.random.default_rng(case.seed),
        planned.limit,
        teacher=list(upstream.latents),
    )
    pairs = zip((patch.latents for patch in forced), upstream.latents, strict=False)
    correlations = [agreement(*pair).correlation for pair in pairs]
    return EndToEnd(
        case=case.name,
        precision=tts.bundle.precision,
        patches=len(speech.latents),
        upstream_patches=len(upstream.latents),
        free_running_latents=agreement(speech.latents[:shared], upstream.latents[:shared]),
        waveform=agreement(speech.audio[:samples], upstream.audio[:samples]),
        teacher_forced_worst=min(correlations),
        teacher_forced_median=float(np.median(correlations)),
    )
