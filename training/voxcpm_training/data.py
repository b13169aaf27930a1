"""Synthesise the training speech: `python -m voxcpm_training.data corpus.txt.gz --kokoro kokoro -o data`.

The corpus is cut into shards, one .npz file each. A shard appears only when it is complete, and an existing one is not
made again. The speaker of a text depends only on the seed and the text's position in the corpus. With `--hibari`, the
end of the corpus is spoken by hibari on processors, which may run at the same time.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import multiprocessing
import sys
import time
import traceback
from functools import cache, partial
from pathlib import Path

import numpy as np

from voxcpm_training.architecture import HOP, PATCH, SAMPLE_RATE
from voxcpm_training.text import character_ids, encode
from voxcpm_training.voices import (
    HIBARI_VOICE,
    SPEAKERS,
    Hibari,
    KokoroVoices,
    Synthesizer,
    phonemes,
    recording,
)

SHARD = 256
"""Utterances in a shard."""
_LONGEST_SECONDS = 22.0
_SHORT, _SHORT_SHARE = 70, 0.35


def shard_path(folder: Path, number: int) -> Path:
    """Path of a shard's file."""
    return folder / f"shard-{number:05d}.npz"


@cache
def _synthesizer(kokoro: Path | None, device: str) -> Synthesizer:
    """The synthesizer, loaded once in each process: loading takes longer than a sentence."""
    return Hibari() if kokoro is None else KokoroVoices(kokoro, device)


def synthesise(
    numbered: tuple[int, list[str]], *, folder: Path, seed: int, kokoro: Path | None, devices: list[str]
) -> float:
    """Write a numbered shard of the corpus. Returns the seconds of new speech, 0 if the shard exists already."""
    number, texts = numbered
    path = shard_path(folder, number)
    if path.exists():
        return 0.0
    identity = multiprocessing.current_process()._identity  # noqa: SLF001
    synthesizer = _synthesizer(kokoro, devices[(identity[0] if identity else 0) % len(devices)])
    ids = character_ids()
    shares = np.array([s.share * (kokoro is not None or s.voices == (HIBARI_VOICE,)) for s in SPEAKERS])
    audio, phones, text, speakers = [], [], [], []
    for place, written in enumerate(texts):
        rng = np.random.default_rng((seed, number, place))
        index = int(rng.choice(len(SPEAKERS), p=shares / shares.sum()))
        try:
            samples, labels = recording(
                synthesizer, SPEAKERS[index], phonemes(written),
                jitter=float(rng.uniform(0.98, 1.02)),
                # Each speaker has its own level, within 3 dB: the model learns to continue at the prompt's level.
                gain=10 ** ((index * 7 % 13 - 6) / 40),
                hop=HOP, multiple=HOP * PATCH, seed=int(rng.integers(2**31)),
            )  # fmt: skip
        except (ValueError, IndexError, RuntimeError):
            # A text without a phoneme, or with more than Kokoro takes, must not end the synthesis.
            traceback.print_exc()
            continue
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
        text=np.concatenate(text), characters=np.array([len(t) for t in text]), speaker=np.array(speakers, np.uint8),
    )  # fmt: skip
    part.rename(path)
    return sum(len(a) for a in audio) / SAMPLE_RATE


def main() -> None:
    """Synthesise the shards of a corpus in parallel, and print progress as JSON lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path, help="gzip file with one text in each line")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder of shards")
    parser.add_argument("--kokoro", type=Path, help="folder of part-1.bin …, and of the voices' .bin files")
    parser.add_argument("--devices", nargs="+", default=["cuda:0"], help="where Kokoro runs")
    parser.add_argument(
        "--hibari", action="store_true", help="speak the second part with hibari, on processors"
    )
    parser.add_argument("--split", type=float, default=0.4, help="share of the corpus in Kokoro's part")
    parser.add_argument("--shards", type=int, help=f"most shards of {SHARD} texts; default: all of the part")
    parser.add_argument("--shard-size", type=int, default=SHARD)
    parser.add_argument("--processes", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--minutes", type=float, help="end after this time")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if not options.hibari and options.kokoro is None:
        parser.error("give --kokoro or --hibari")
    texts = gzip.decompress(options.corpus.read_bytes()).decode().splitlines()
    # A short text takes a GPU about as long as a long one, so Kokoro's part has fewer short ones.
    chance = np.random.default_rng(options.seed).random(len(texts))
    rank = np.array([len(text) < _SHORT and p > _SHORT_SHARE for text, p in zip(texts, chance, strict=True)])
    order = np.argsort(rank, kind="stable")
    cut = round(len(texts) * options.split) // options.shard_size * options.shard_size
    order[cut:] = np.random.default_rng(options.seed).permutation(order[cut:])
    shards = [
        [texts[int(place)] for place in order[i : i + options.shard_size]]
        for i in range(0, len(texts), options.shard_size)
    ]
    cut //= options.shard_size
    numbered = list(enumerate(shards))[cut:] if options.hibari else list(enumerate(shards))[:cut]
    options.output.mkdir(parents=True, exist_ok=True)
    started, seconds = time.monotonic(), 0.0
    make = partial(
        synthesise, folder=options.output, seed=options.seed, devices=options.devices,
        kokoro=None if options.hibari else options.kokoro,
    )  # fmt: skip
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        spoken = pool.imap_unordered(make, itertools.islice(numbered, options.shards))
        for done, new in enumerate(spoken, 1):
            seconds += new
            passed = time.monotonic() - started
            record = {"shards": done, "hours": round(seconds / 3600, 3), "seconds": round(passed, 1)}
            sys.stdout.write(json.dumps(record) + "\n")
            sys.stdout.flush()
            if options.minutes and passed > 60 * options.minutes:
                break


if __name__ == "__main__":
    main()
