"""Systems under test: upstream's PyTorch code, and a bundle in one precision."""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch

from voxcpm_constants.step_models import AUDIO_VAE_DECODER
from voxcpm_conversion.checkpoint import Checkpoint
from voxcpm_runtime.audio.reading import resample
from voxcpm_runtime.backends.loading import choose_backend
from voxcpm_runtime.backends.step_function import Floats
from voxcpm_runtime.bundle.opening import open_bundle
from voxcpm_runtime.model.audio_vae import patch_decoder
from voxcpm_runtime.options import GenerationOptions
from voxcpm_runtime.speech.plan import Plan
from voxcpm_runtime.speech.planning import plan
from voxcpm_runtime.speech.request import CancelToken, Request
from voxcpm_runtime.speech.results import PlannedSegment, Progress
from voxcpm_runtime.speech.seeds import noise
from voxcpm_runtime.text.normalization import spelled, spelled_transcript
from voxcpm_runtime.voices.recordings import Recordings
from voxcpm_runtime.voxcpm import VoxCPM
from voxcpm_validation.listening.hearing import Copier, Reading, ReadSegment, Speak
from voxcpm_validation.listening.material import PromptVoice, prompt_clip
from voxcpm_validation.upstream import build_prompt_cache, load_upstream, upstream_generate

_PAUSE = GenerationOptions().paragraph_pause


def bundle_speaker(bundle: str | Path | None, precision: str) -> Speak:
    """A speaker that uses a bundle on this machine's backend. Raises the same as opening a bundle."""
    # One thread: these step models are too small for more, and the recogniser runs at the same time.
    tts = VoxCPM.from_bundle(bundle, precision, threads=1 if choose_backend("auto") == "portable" else None)

    def speak(text: str, voice: PromptVoice | None, seed: int, seconds: float | None) -> Reading:
        stop = CancelToken()

        def on_progress(progress: Progress) -> None:
            if seconds is not None and progress.audio_seconds >= seconds:
                stop.cancel()

        planned = tts.plan(
            text,
            *_prompt(voice),
            zero_shot=True,
            seed=seed,
            progress=on_progress,
            cancel=stop,
            keep_partial=True,
        )
        with warnings.catch_warnings():
            # The result has the same information.
            warnings.simplefilter("ignore", UserWarning)
            speech = tts.speak_plan(planned)
        complete = speech.segments[:-1] if speech.cancelled and len(speech.segments) > 1 else speech.segments
        segments = [
            ReadSegment(
                spoken.text,
                _spoken_words(planned, segment),
                spoken.audio,
                _PAUSE if spoken.ends_paragraph else 0.0,
                spoken.attempts,
                suspicious=bool(spoken.reason),
            )
            for segment, spoken in zip(planned.segments, complete, strict=False)
        ]
        return Reading(segments, speech.sample_rate)

    return speak


def bundle_copier(bundle: str | Path | None, precision: str) -> Copier:
    """A bundle's AudioVAE on this machine's backend. Raises the same as opening a bundle."""
    driver = VoxCPM.from_bundle(bundle, precision).driver
    sizes = driver.architecture

    def copy(audio: Floats, rate: int) -> tuple[Floats, Floats, int]:
        patches = driver.encode_reference(resample(audio, rate, sizes.input_sample_rate))
        decode = patch_decoder(driver.models[AUDIO_VAE_DECODER])
        copied = np.concatenate([decode(patch) for patch in patches])
        return resample(audio, rate, sizes.output_sample_rate), copied, sizes.output_sample_rate

    return copy


def upstream_speaker(checkpoint: str | Path, bundle: str | Path) -> Speak:
    """A speaker that uses upstream's model in float32, with the noise that a bundle gets for the same seed.

    Upstream does not split long texts, so it speaks the segments that the runtime plans with this bundle, each as a
    continuation of the same prompt, or of its own first segments. One attempt each, and always to the end.
    """
    model = load_upstream(Checkpoint.open(checkpoint).folder)
    opened = open_bundle(bundle)

    def speak(text: str, voice: PromptVoice | None, seed: int, _: float | None) -> Reading:
        request = Request(
            text, Recordings(*_prompt(voice)), options=GenerationOptions(zero_shot=True), seed=seed
        )
        planned = plan(opened, request)
        cache = None if voice is None else _voice_cache(model, voice, planned)
        spoken = []
        for index, segment in enumerate(planned.segments):
            words = _spoken_words(planned, segment)
            rng = noise(planned.seed, index, 0)
            audio, latents = upstream_generate(model, words, rng=rng, prompt_cache=cache)
            if segment.anchors:
                transcript = _as_prompt(planned, segment.transcript)
                cache = model.merge_prompt_cache(cache, transcript, torch.from_numpy(latents))
            pause = _PAUSE if segment.ends_paragraph else 0.0
            spoken.append(ReadSegment(segment.text, words, audio, pause))
        return Reading(spoken, int(model.sample_rate))

    return speak


def _prompt(voice: PromptVoice | None) -> tuple[Any, str | None]:
    """A voice's prompt as the runtime's recording and transcript."""
    return (None, None) if voice is None else (prompt_clip(voice), voice.transcript)


def _voice_cache(model: Any, voice: PromptVoice, planned: Plan) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        wav = Path(folder) / "prompt.wav"
        soundfile.write(wav, *prompt_clip(voice), subtype="FLOAT")
        return build_prompt_cache(model, wav, _as_prompt(planned, voice.transcript))


def _spoken_words(planned: Plan, segment: PlannedSegment) -> str:
    """The words of a segment as given to the voice."""
    return spelled(segment.transcript.strip(), planned.bundle.tokenizer)


def _as_prompt(planned: Plan, transcript: str) -> str:
    spelled_out = spelled_transcript(transcript, planned.bundle.tokenizer)
    return spelled_out if spelled_out[-1:].isspace() else f"{spelled_out} "
