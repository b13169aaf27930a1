"""Synthesise the training speech: `python -m voxcpm_training.data corpus.txt.gz -o data`.

The corpus is cut into shards, one .npz file each. A shard appears only when it is complete, and an existing one is not
made again. The speaker of a phrase depends only on the seed and the phrase's position in the corpus.
"""

from __future__ import annotations

import argparse
import gzip
import json
import multiprocessing
import sys
import time
from functools import cache, partial
from pathlib import Path

import numpy as np

from voxcpm_training.architecture import HOP, PATCH
from voxcpm_training.text import character_ids, encode
from voxcpm_training.voices import SPEAKERS, Synthesizer, recording, synthesizer

SHARD = 512
"""Utterances in a shard."""


def shard_path(folder: Path, number: int) -> Path:
    """Path of a shard's file."""
    return folder / f"shard-{number:04d}.npz"


@cache
def _synthesizer(voice: str) -> Synthesizer:
    """The synthesizer of a voice, loaded once in each process: loading takes longer than a sentence."""
    return synthesizer(voice)


def synthesise(number: int, phrases: list[str], folder: Path, seed: int) -> float:
    """Write shard `number` of the corpus. Returns the seconds of new speech, 0 if the shard exists already."""
    path = shard_path(folder, number)
    if path.exists():
        return 0.0
    ids, shares = character_ids(), np.array([speaker.share for speaker in SPEAKERS])
    audio, phones, text, speakers = [], [], [], []
    for place, phrase in enumerate(phrases):
        rng = np.random.default_rng((seed, number, place))
        index = int(rng.choice(len(SPEAKERS), p=shares / shares.sum()))
        speaker = SPEAKERS[index]
        samples, labels = recording(
            _synthesizer(speaker.voice), speaker, phrase,
            speed=float(rng.uniform(0.94, 1.08)),
            # Each speaker has its own level, within 3 dB, so that the model continues a prompt at the prompt's level.
            gain=10 ** ((index * 7 % 13 - 6) / 40),
            hop=HOP, multiple=HOP * PATCH, seed=int(rng.integers(2**31)),
        )  # fmt: skip
        audio.append(samples)
        phones.append(labels)
        text.append(encode(phrase, ids))
        speakers.append(index)
    part = path.with_suffix(".part.npz")
    np.savez(
        part,
        audio=np.concatenate(audio), samples=np.array([len(a) for a in audio]), phones=np.concatenate(phones),
        text=np.concatenate(text), characters=np.array([len(t) for t in text]), speaker=np.array(speakers, np.uint8),
    )  # fmt: skip
    part.rename(path)
    return sum(len(a) for a in audio) / 16_000


def main() -> None:
    """Synthesise the shards of a corpus in parallel, and print progress as JSON lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path, help="gzip file with one phrase in each line")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder of shards")
    parser.add_argument("--shards", type=int, help=f"number of shards of {SHARD} phrases; default: all")
    parser.add_argument("--shard-size", type=int, default=SHARD)
    parser.add_argument("--processes", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    phrases = gzip.decompress(options.corpus.read_bytes()).decode().splitlines()
    shards = [phrases[i : i + options.shard_size] for i in range(0, len(phrases), options.shard_size)]
    shards = shards[: options.shards]
    options.output.mkdir(parents=True, exist_ok=True)
    started, seconds = time.monotonic(), 0.0
    make = partial(_synthesise_numbered, folder=options.output, seed=options.seed)
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        for done, spoken in enumerate(pool.imap(make, enumerate(shards)), 1):
            seconds += spoken
            record = {
                "shards": done,
                "hours": round(seconds / 3600, 3),
                "seconds": round(time.monotonic() - started, 1),
            }
            sys.stdout.write(json.dumps(record) + "\n")
            sys.stdout.flush()


def _synthesise_numbered(numbered: tuple[int, list[str]], *, folder: Path, seed: int) -> float:
    return synthesise(*numbered, folder=folder, seed=seed)


if __name__ == "__main__":
    main()
