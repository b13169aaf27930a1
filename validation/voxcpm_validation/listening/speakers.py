"""The speakers of a listening test: upstream's PyTorch code, and a bundle in one precision."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import soundfile

from voxcpm_runtime.voxcpm import VoxCPM
from voxcpm_validation.listening.material import Clip, PromptVoice, prompt_clip
from voxcpm_validation.listening.scores import Speak
from voxcpm_validation.upstream import load_upstream, upstream_generate


def bundle_speaker(bundle: str | Path | None, precision: str) -> Speak:
    """A speaker from a bundle on this machine's backend, without retries. Raises what opening a bundle raises."""
    tts = VoxCPM.from_bundle(bundle, precision)

    def speak(text: str, voice: PromptVoice | None, seed: int) -> Clip:
        prompt = (None, None) if voice is None else (tuple(prompt_clip(voice)), voice.transcript)
        return Clip(tts.generate(text, *prompt, seed=seed, retry_badcase=False), tts.sample_rate)

    return speak


def upstream_speaker(checkpoint: str | Path) -> Speak:
    """A speaker from upstream's model in float32, with the noise that a bundle gets for the same seed."""
    model = load_upstream(checkpoint)

    def speak(text: str, voice: PromptVoice | None, seed: int) -> Clip:
        with tempfile.TemporaryDirectory() as folder:
            wav = transcript = None
            if voice is not None:
                wav, transcript = Path(folder) / "prompt.wav", f"{voice.transcript} "
                soundfile.write(wav, *prompt_clip(voice), subtype="FLOAT")
            rng = np.random.default_rng(seed)
            audio, _ = upstream_generate(model, text, rng=rng, prompt_wav=wav, prompt_text=transcript)
        return Clip(audio, int(model.sample_rate))

    return speak
