"""Prompts and natural lengths for the listening test, from the synthesizer of the training speech.

    python -m voxcpm_training.listening_material FOLDER --kokoro kokoro

Reads FOLDER/sentences.txt; writes a FLAC file per voice, and its entry in FOLDER/voices.json. Entries of other voices
are unchanged.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import soundfile

from voxcpm_training.architecture import HOP, SAMPLE_RATE
from voxcpm_training.voices import KokoroVoices, Speaker, Utterance, phonemes, recording

# Name, Kokoro's voice, transcript, and whether this voice was excluded from training.
PROMPTS = (
    ("heart", "af_heart",
     "The ferry leaves at noon, and it takes about an hour to reach the other side of the lake.", False),
    ("michael", "am_michael",
     "Nobody had told him that the shop was closed, so he waited at the door until it got dark.", False),
    ("nova", "af_nova",
     "We packed the books in boxes, and carried them down to the cellar one after another.", True),
    ("lewis", "bm_lewis",
     "If you follow the path behind the church, you will see the old mill on your left.", True),
)  # fmt: skip


def main() -> None:
    """Write the prompts and their entries in voices.json into the folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--kokoro", type=Path, required=True, help="folder of part-1.bin …, and of the voices' .bin files"
    )
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    folder: Path = options.folder
    kokoro = KokoroVoices(options.kokoro, options.device)
    sentences = (folder / "sentences.txt").read_text(encoding="utf-8").splitlines()
    catalogue = folder / "voices.json"
    entries = {entry["name"]: entry for entry in json.loads(catalogue.read_text(encoding="utf-8"))}
    for name, voice, transcript, unheard in PROMPTS:
        say = partial(speak, kokoro, Speaker((voice,)))
        soundfile.write(folder / f"{name}.flac", say(transcript), SAMPLE_RATE)
        lengths = [] if unheard else [round(len(say(s)) / SAMPLE_RATE, 2) for s in sentences if s]
        entries[name] = {
            "name": name, "audio": f"{name}.flac", "transcript": transcript, "natural_seconds": lengths,
            "continued": True, "unheard": unheard,
        }  # fmt: skip
    catalogue.write_text(json.dumps(list(entries.values()), indent=1) + "\n", encoding="utf-8")


def speak(kokoro: KokoroVoices, speaker: Speaker, text: str) -> npt.NDArray[np.int16]:
    """A recording of the text (samples,), at the teacher's own level and pace."""
    spoken = kokoro.speak([Utterance(phonemes(text), speaker, 1.0)], seed=0)[0]
    audio, _ = recording(spoken, speaker, gain=1.0, multiple=HOP)
    return audio


if __name__ == "__main__":
    main()
