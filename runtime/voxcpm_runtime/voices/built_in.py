"""The voices that come with the built-in voice: recordings of speakers that its checkpoint was trained with."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

from voxcpm_constants.architecture import Architecture
from voxcpm_runtime.voices.voice import SUFFIX, Voice, latent_space

FOLDER = Path(__file__).with_name("built_in_voices")


@functools.cache
def built_in_voices() -> dict[str, Voice]:
    """All of them by name, sorted; without paths, so that no prefixes are cached in the package."""
    return {path.stem: replace(Voice.load(path), path=None) for path in sorted(FOLDER.glob(f"*{SUFFIX}"))}


def built_in_voices_for(a: Architecture) -> dict[str, Voice]:
    """Those that fit a bundle of this architecture, by name: all, or none for another AudioVAE."""
    return {
        name: voice
        for name, voice in built_in_voices().items()
        if voice.header.latent_space == latent_space(a)
    }
