"""Encode the built-in voices for a new AudioVAE: `python -m voxcpm_training.built_in_voices FOLDER --kokoro kokoro`.

FOLDER gets a recording (FLAC) of each voice's transcript by the speaker of its provenance; recordings that it has
already are used as they are. The voices' files in the runtime are replaced; run this after `make built-in-voice`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import soundfile

from voxcpm_runtime import VoxCPM
from voxcpm_runtime.voices.store import BUILT_IN, built_in_voices
from voxcpm_training.architecture import SAMPLE_RATE
from voxcpm_training.listening_material import speak
from voxcpm_training.voices import KokoroVoices, Speaker


def main() -> None:
    """Replace the files of all built-in voices."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="of the recordings")
    parser.add_argument(
        "--kokoro", type=Path, required=True, help="folder of part-1.bin …, and of the voices' .bin files"
    )
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    missing = [name for name in built_in_voices() if not (options.folder / f"{name}.flac").exists()]
    kokoro = KokoroVoices(options.kokoro, options.device) if missing else None
    tts = VoxCPM.from_bundle()
    for name, voice in built_in_voices().items():
        path, known = options.folder / f"{name}.flac", voice.header.provenance
        if kokoro is not None and name in missing:
            speaker = Speaker((known["speaker"].split()[0],))
            soundfile.write(path, speak(kokoro, speaker, voice.transcript), SAMPLE_RATE)
        kept = {key: known[key] for key in ("speaker", "licence", "sound")}
        encoded = tts.create_voice(path, voice.transcript, name=name, provenance=kept)
        encoded.save(BUILT_IN / f"{name}.voice", overwrite=True)


if __name__ == "__main__":
    main()
