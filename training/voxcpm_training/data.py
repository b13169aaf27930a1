"""Synthesise the training speech: `python -m voxcpm_training.data corpus.txt.gz --kokoro kokoro -o data`.

The corpus is split into shards, one .npz file each. Shards are written atomically, and existing ones are skipped. The
speaker of a text depends only on the seed and the text's position in the corpus.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import math
import multiprocessing
import sys
import time
from functools import cache, partial
from pathlib import Path

import numpy as np

from voxcpm_training.architecture import HOP, PATCH, SAMPLE_RATE
from voxcpm_training.text import character_ids, encode
from voxcpm_training.voices import SPEAKERS, KokoroVoices, Utterance, phonemes, recording

SHARD = 512
"""Utterances per shard."""
_LONGEST_SECONDS = 22.0
_SHORT, _SHORT_SHARE = 70, 0.35


@cache
def _kokoro(folder: Path, device: str) -> KokoroVoices:
    """The voices, loaded once per process."""
    return KokoroVoices(folder, device)


def synthesise(
    numbered: tuple[int, list[str]],
    *,
    folder: Path,
    seed: int,
    kokoro: Path,
    devices: list[str],
    until: float,
) -> float:
    """Write one shard of the corpus. Returns the seconds of new speech.

    Writes nothing and returns 0 if the shard exists already, or after the time `until`, in seconds since the epoch.
    """
    number, texts = numbered
    path = folder / f"shard-{number:05d}.npz"
    if path.exists() or time.time() > until:
        return 0.0
    identity = multiprocessing.current_process()._identity  # noqa: SLF001
    voices = _kokoro(kokoro, devices[(identity[0] if identity else 0) % len(devices)])
    rng, ids = np.random.default_rng((seed, number)), character_ids()
    chosen = rng.choice(len(SPEAKERS), len(texts), p=np.array([s.share for s in SPEAKERS]))
    requests = [
        (written, int(index), Utterance(said, SPEAKERS[index], pace))
        for written, index, pace in zip(texts, chosen, rng.uniform(0.98, 1.02, len(texts)), strict=True)
        # A text without a phoneme cannot be spoken.
        if (said := phonemes(written))
    ]
    audio, phones, text, speakers = [], [], [], []
    for (written, index, _), spoken in zip(
        requests, voices.speak([u for *_, u in requests], seed + number), strict=True
    ):
        samples, labels = recording(
            spoken, SPEAKERS[index],
            # Each speaker has its own level, within 3 dB: the model learns to continue at the prompt's level.
            gain=10 ** ((index * 7 % 13 - 6) / 40), multiple=HOP * PATCH,
        )  # fmt: skip
        if not HOP * PATCH <= len(samples) <= _LONGEST_SECONDS * SAMPLE_RATE:
            continue
        audio.append(samples)
        phones.append(labels)
        text.append(encode(written.lower(), ids))
        speakers.append(index)
    part = path.with_suffix(".part.npz")
    np.savez(
        part,
        audio=np.concatenate(audio), samples=np.array([len(a) for a in audio]), phones=np.concatenate(phones),
        text=np.concatenate(text), characters=np.array([len(t) for t in text]), speaker=np.array(speakers, np.uint16),
    )  # fmt: skip
    part.rename(path)
    return sum(len(a) for a in audio) / SAMPLE_RATE


def main() -> None:
    """Synthesise the shards of a corpus in parallel, printing progress as JSON lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path, help="gzip file with one text per line")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder of shards")
    parser.add_argument(
        "--kokoro", type=Path, required=True, help="folder of part-1.bin …, and of the voices' .bin files"
    )
    parser.add_argument("--devices", nargs="+", default=["cuda:0"], help="where Kokoro runs")
    parser.add_argument("--shards", type=int, help="maximum number of shards; default: the whole corpus")
    parser.add_argument("--shard-size", type=int, default=SHARD)
    parser.add_argument("--processes", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--minutes", type=float, help="start no shard after this time")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    texts = gzip.decompress(options.corpus.read_bytes()).decode().splitlines()
    # Most short texts come last, as synthesis may stop before the end of the corpus.
    chance = np.random.default_rng(options.seed).random(len(texts))
    late = [len(text) < _SHORT and p > _SHORT_SHARE for text, p in zip(texts, chance, strict=True)]
    texts = [texts[place] for place in np.argsort(late, kind="stable")]
    shards = [texts[i : i + options.shard_size] for i in range(0, len(texts), options.shard_size)]
    options.output.mkdir(parents=True, exist_ok=True)
    started, seconds = time.monotonic(), 0.0
    make = partial(
        synthesise, folder=options.output, seed=options.seed, devices=options.devices, kokoro=options.kokoro,
        until=time.time() + 60 * options.minutes if options.minutes is not None else math.inf,
    )  # fmt: skip
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        spoken = pool.imap_unordered(make, itertools.islice(enumerate(shards), options.shards))
        for done, new in enumerate(spoken, 1):
            seconds += new
            passed = time.monotonic() - started
            record = {"shards": done, "hours": round(seconds / 3600, 3), "seconds": round(passed, 1)}
            sys.stdout.write(json.dumps(record) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
