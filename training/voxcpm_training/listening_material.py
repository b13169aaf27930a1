"""Prompts and natural lengths for the listening test, spoken by the synthesizers that the training speech is from.

    python -m voxcpm_training.listening_material FOLDER

Reads FOLDER/sentences.txt; writes FOLDER/voices.json and a WAV file for each voice.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import soundfile

from voxcpm_training.architecture import HOP
from voxcpm_training.voices import SAMPLE_RATE, Speaker, Synthesizer, recording, synthesizer

# Name, the synthesizer's voice, transcript, and whether the test continues the prompt.
PROMPTS = (
    ("female", "hibari", "my sister bought a new pair of shoes for the party.", True),
    ("male", "rms", "they went in opposite directions after the second meeting.", True),
    ("female_2", "slt", "nobody knew the way back to the station.", False),
    ("male_2", "awb", "the weather was colder than we had expected.", False),
)


def main() -> None:
    """Write the prompts and voices.json into the folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    sentences = (folder / "sentences.txt").read_text(encoding="utf-8").split("\n")
    voices = []
    for name, voice, transcript, continued in PROMPTS:
        speak = partial(_speak, synthesizer(voice), Speaker(voice, 1.0, 1.0))
        soundfile.write(folder / f"{name}.wav", speak(transcript), SAMPLE_RATE)
        voices.append(
            {
                "name": name,
                "audio": f"{name}.wav",
                "transcript": transcript,
                "natural_seconds": [round(len(speak(s)) / SAMPLE_RATE, 2) for s in sentences if s],
                "continued": continued,
            }
        )
    (folder / "voices.json").write_text(json.dumps(voices, indent=1) + "\n", encoding="utf-8")


def _speak(synthesis: Synthesizer, speaker: Speaker, text: str) -> npt.NDArray[np.int16]:
    audio, _ = recording(synthesis, speaker, text, speed=1.0, gain=1.0, hop=HOP, multiple=HOP, seed=0)
    return audio


if __name__ == "__main__":
    main()
