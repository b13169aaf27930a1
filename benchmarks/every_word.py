"""Words that speech loses or repeats, heard by Whisper tiny.en: sentence pairs, short texts, texts that repeat words.

    python benchmarks/every_word.py BUNDLE|- heard.jsonl --groups pairs texts --modes stream whole off
    python benchmarks/every_word.py --read heard.jsonl      # the table

`-` is the built-in bundle. `off` is a stream with `every_word=False`. A run can be ended and started again: what the
file has is not spoken twice. Lost and repeated mean at least three words in a row.
"""

from __future__ import annotations

import argparse
import itertools
import json
import warnings
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from voxcpm_runtime import VoxCPM
from voxcpm_runtime.speech.results import WordsWarning
from voxcpm_runtime.voices.store import built_in_voices
from voxcpm_validation.listening.recognition import (
    Recogniser,
    is_repeated,
    longest_lost_run,
    word_errors,
)

PAIRS = (
    "Hello there, my friend. How are you today?", "It is raining again. Please close the window.",
    "The train is late. We will miss the show.", "Dinner is ready. Come and sit down with us.",
    "I found your keys. They were under the chair.",
)  # fmt: skip
TEXTS = (
    "Good morning. Did you sleep well? The coffee is still hot.",
    "The door was open. Nobody was inside.",
    "She smiled at him. He did not smile back.",
    "Turn left at the bridge. Then go straight on. You cannot miss it.",
    "The meeting starts at nine. Bring your notes. Do not be late.",
    "It was a cold night. The stars were bright.",
    "I called you twice. You did not answer. Is everything all right?",
    "The soup needs salt. Pass it to me, please.",
    "He opened the letter. His hands were shaking. It was good news.",
    "We walked along the beach. The sand was warm. The children ran ahead.",
    "The cat sat by the fire. It was fast asleep.",
    "Where did you put the hammer? I need it now.",
    "The bus stopped at the corner. Two women got in. One of them was singing.",
    "Thank you for the flowers. They are beautiful.",
    "The old clock struck ten. Everyone went to bed. The house was quiet.",
    "You should see a doctor. That cough sounds bad.",
    "My brother lives in the city. He drives a taxi. He knows every street.",
    "The lake was frozen. We could skate to the other side.",
    "Wait for me! I forgot my coat. It is on the chair.",
    "The price has gone up. We cannot afford it.",
    "She reads every evening. Last week it was a novel. Now it is poetry.",
    "The garden is full of weeds. We must pull them out.",
    "He is a good teacher. His students like him. So do their parents.",
    "The lights went out. Someone screamed. Then we heard laughter.",
    "I would like a window seat. Is there one left?",
    "The river rose in the night. By morning the road was gone.",
    "Put the milk in the fridge. Take out the butter. Close the door.",
    "They played until dark. Neither side could win.",
    "The shop is closed on Monday. Come back on Tuesday.",
    "A bird flew into the room. It hit the glass. We let it out again.",
    "My phone is broken. Can I use yours?",
    "The judge entered the court. All rose. Nobody spoke.",
    "We planted a tree last spring. It is taller than me now.",
    "The wind turned north. The sails went slack. We took up the oars.",
    "He tells the same joke every year. We laugh every time.",
    "The bread is in the oven. It will be done in ten minutes. Set the table.",
    "Do you hear the music? It comes from the square.",
    "The painting was sold. The new owner never looked at it.",
    "I lost my ticket. The guard was kind. He let me through.",
    "The war was over. Soldiers came home. Some of them could not sleep.",
)
# Texts that provoke repetition: each pattern with each of the words.
PATTERNS = (
    "No, no, {a}, no.", "The {a} and the {b}, the {b} and the {a}.", "{a}, {a}, {a}, and nothing but {a}.",
    "Very, very, very good {a}.", "First the {a}, then the {b}, then the {a} again.",
    "The {a} is here. The {a} is here.", "Again and again and again I saw the {a}.",
    "Five five five, one two one two, the {a}.", "Ha ha ha, said the {a}. Ha ha ha, said the {b}.",
    "It was a day of {a}, it was a day of {b}, it was a day of {a}.",
)  # fmt: skip
NOUNS = (
    "rain", "wind", "horse", "river", "garden", "letter", "doctor", "king", "stone", "window", "mother", "soldier",
    "table", "summer", "train", "money", "teacher", "island", "bottle", "winter",
)  # fmt: skip
VOICES = tuple(built_in_voices())


def cases(group: str) -> Iterator[tuple[str, str, int]]:
    """Text, voice and seed of each utterance of a group."""
    if group == "pairs":
        yield from itertools.product(PAIRS, VOICES, range(12))
    elif group == "texts":
        yield from ((text, voice, seed) for seed in range(2) for text in TEXTS for voice in VOICES[::5])
    else:
        for place, pattern in enumerate(PATTERNS):
            for number, noun in enumerate(NOUNS):
                text = pattern.format(a=noun, b=NOUNS[(number + place + 1) % len(NOUNS)])
                yield from ((text[0].upper() + text[1:], voice, number) for voice in ("heart", "michael"))


def spoken(tts: VoxCPM, text: str, voice: str, seed: int, mode: str) -> tuple[Any, bool]:
    """Audio (samples,), and whether lost or repeated words were reported."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        options: dict[str, Any] = {"voice": voice, "seed": seed, "every_word": mode != "off"}
        if mode == "whole":
            audio = tts.generate(text, **options)
        else:
            audio = np.concatenate(list(tts.generate_streaming(text, **options)))
    return audio, any(issubclass(w.category, WordsWarning) for w in caught)


def speak(options: argparse.Namespace) -> None:
    """Speak and hear what the file does not have yet, one line each."""
    tts = VoxCPM.from_bundle(None if options.bundle == "-" else options.bundle)
    recogniser, file = Recogniser(), Path(options.heard)
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    known = {(r["mode"], r["text"], r["voice"], r["seed"]) for r in map(json.loads, lines)}
    with file.open("a", encoding="utf-8") as out:
        for mode, group in itertools.product(options.modes, options.groups):
            for text, voice, seed in list(cases(group))[:: options.every]:
                if (mode, text, voice, seed) in known:
                    continue
                audio, reported = spoken(tts, text, voice, seed, mode)
                heard = recogniser.transcribe(audio, tts.sample_rate)
                record = {
                    "group": group, "mode": mode, "text": text, "voice": voice, "seed": seed, "heard": heard,
                    "reported": reported, "seconds": round(len(audio) / tts.sample_rate, 2),
                    "lost": longest_lost_run(text, heard) >= 3, "twice": is_repeated(text, heard),
                }  # fmt: skip
                out.write(json.dumps(record) + "\n")
                out.flush()


def table(file: Path) -> None:
    """Print a line for each group and mode."""
    groups = defaultdict(list)
    for line in file.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        groups[record["group"], record["mode"]].append(record)
    for (group, mode), records in groups.items():
        lost, twice, reported = (sum(r[key] for r in records) for key in ("lost", "twice", "reported"))
        errors = word_errors([r["text"] for r in records], [r["heard"] for r in records])
        silent = sum((r["lost"] or r["twice"]) and not r["reported"] for r in records)
        print(
            f"{group:10} {mode:7} {len(records):5} utterances: lost {lost}, twice {twice}, reported {reported}, "
            f"lost or twice without a report {silent}, WER {errors.rate:.1%}"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle", nargs="?", default="-", help="a bundle, or - for the built-in one")
    parser.add_argument("heard", nargs="?", help="file of results, one JSON object a line")
    parser.add_argument("--groups", nargs="+", default=["pairs"], choices=["pairs", "texts", "repetitive"])
    parser.add_argument("--modes", nargs="+", default=["stream"], choices=["stream", "whole", "off"])
    parser.add_argument("--every", type=int, default=1, help="speak only every such utterance")
    parser.add_argument("--read", type=Path, help="print the table of a file of results")
    chosen = parser.parse_args()
    if chosen.read:
        table(chosen.read)
    elif chosen.heard:
        speak(chosen)
    else:
        parser.error("expected a file for the results")
