"""Filter utterances with a recogniser: `python -m voxcpm_training.recogniser_filter data --weights whisper.npz`.

For each finished shard-….npz it writes shard-….keep.npy, a bool per utterance for the language model's training, and
prints one JSON line. Shards with a result are skipped. Without `--watch` it makes one pass; with it, it polls for new
shards until the file `done` exists in the folder and every shard is judged.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from voxcpm_training.recogniser import Audio, Recogniser
from voxcpm_training.speech import finished_shards, keep_path
from voxcpm_training.text import SPACE, character_ids

# The synthesis runs on the same GPU.
_GPU_BYTES = 8e9
# Attempts at an unreadable shard after `done` has appeared.
_TRIES = 5


class UnreadableShardError(Exception):
    """A shard is broken, incomplete or inconsistent."""


def edit_distance(one: Sequence[str], other: Sequence[str]) -> int:
    """Levenshtein distance of two sequences: Myers' bit-parallel algorithm on Python integers."""
    if not one or not other:
        return len(one) + len(other)
    places: dict[str, int] = {}
    for index, symbol in enumerate(one):
        places[symbol] = places.get(symbol, 0) | 1 << index
    mask, top, distance = (1 << len(one)) - 1, 1 << (len(one) - 1), len(one)
    up, down = mask, 0
    for symbol in other:
        match = places.get(symbol, 0)
        vertical = match | down
        horizontal = (((match & up) + up) ^ up) | match
        plus, minus = down | ~(horizontal | up), up & horizontal
        distance += bool(plus & top) - bool(minus & top)
        plus, minus = plus << 1 | 1, minus << 1
        up, down = (minus | ~(vertical | plus)) & mask, plus & vertical & mask
    return distance


def read_shard(path: Path) -> tuple[list[Audio], list[str]]:
    """The signals and texts of a shard. Raises UnreadableShardError for a broken or inconsistent file."""
    try:
        # np.load leaks the handle of a broken file that it opens itself.
        with path.open("rb") as file, np.load(file) as shard:
            audio, samples, text, counts = (shard[key] for key in ("audio", "samples", "text", "characters"))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise UnreadableShardError(f"{type(error).__name__}: {error}") from error
    complete = samples.sum() == len(audio) and counts.sum() == len(text) and len(samples) == len(counts) > 0
    if audio.dtype != np.int16 or not complete:
        raise UnreadableShardError("lengths do not add up, the shard is empty, or the audio is not int16")
    characters = {index: " " if c == SPACE else c for c, index in character_ids().items()}
    if unknown := set(text.tolist()) - characters.keys():
        raise UnreadableShardError(f"unknown tokens {sorted(unknown)}")
    texts = np.split(text, np.cumsum(counts)[:-1])
    written = ["".join(characters[i] for i in ids.tolist()).strip() for ids in texts]
    return np.split(audio, np.cumsum(samples)[:-1]), written


class Filter:
    """Judges shards. listen: transcribes 24 kHz signals. maximum: maximum character error rate."""

    def __init__(self, listen: Callable[[list[Audio]], list[str]], maximum: float, batch: int) -> None:
        from transformers.models.whisper.english_normalizer import EnglishTextNormalizer

        self._listen, self._maximum, self._batch = listen, maximum, batch
        self._normalise = EnglishTextNormalizer({})

    def judge(self, path: Path) -> None:
        """Write and print the result of a shard. Raises UnreadableShardError."""
        began = time.monotonic()
        signals, texts = read_shard(path)
        rates, wrong, words = np.zeros(len(signals)), 0, 0
        # A batch takes as long as its longest utterance.
        order = sorted(range(len(signals)), key=lambda i: len(signals[i]))
        for start in range(0, len(order), self._batch):
            chosen = order[start : start + self._batch]
            for i, heard in zip(chosen, self._listen([signals[i] for i in chosen]), strict=True):
                text, transcript = (self._normalise(t).strip() for t in (texts[i], heard))
                rates[i] = edit_distance(text, transcript) / max(len(text), 1)
                wrong += edit_distance(text.split(), transcript.split())
                words += len(text.split())
        keep = rates <= self._maximum
        _write(keep_path(path), keep)
        p50, p90, p99 = (round(float(q), 4) for q in np.quantile(rates, [0.5, 0.9, 0.99]))
        _print_json(
            shard=path.stem, utterances=len(keep), kept=int(keep.sum()), mean_cer=round(float(rates.mean()), 4),
            words_wrong=round(wrong / max(words, 1), 4), cer_p50=p50, cer_p90=p90, cer_p99=p99,
            seconds=round(time.monotonic() - began, 2),
        )  # fmt: skip


def watch(folder: Path, judge: Callable[[Path], None], seconds: float | None) -> int:
    """Judge shards as they appear, or only existing ones if `seconds` is None.

    Returns the number of unreadable shards.
    """
    failures: dict[Path, int] = {}  # failed attempts since `done` was seen
    while True:
        done = seconds is None or (folder / "done").exists()  # before the listing, so that no shard is missed
        for path in _waiting(folder):
            if failures.get(path, 0) >= _TRIES:
                continue
            try:
                judge(path)
            except (UnreadableShardError, torch.OutOfMemoryError) as error:
                _print_json(shard=path.name, retry=True, error=f"{type(error).__name__}: {error}"[:300])
                if torch.cuda.is_available():
                    torch.cuda.empty_cache()
                if done:
                    failures[path] = failures.get(path, 0) + 1
        left = _waiting(folder)
        if seconds is None or (done and all(failures.get(path, 0) >= _TRIES for path in left)):
            return len(left)
        time.sleep(seconds)


def _waiting(folder: Path) -> list[Path]:
    return [path for path in finished_shards(folder) if not keep_path(path).exists()]


def _write(path: Path, keep: npt.NDArray[np.bool_]) -> None:
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        np.save(file, keep)
    part.rename(path)


def _print_json(**line: Any) -> None:
    print(json.dumps(line, ensure_ascii=False), flush=True)  # noqa: T201


def main() -> int:
    """Judge a folder of shards. Exits with 1 if some shards are unreadable."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="folder of shards")
    parser.add_argument("--weights", type=Path, required=True, help="the output of `whisper_weights`")
    parser.add_argument("--device", default="cuda:0" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--watch", type=float, metavar="SECONDS", help="interval to poll for new shards")
    parser.add_argument("--max-wrong", type=float, default=0.25, help="maximum character error rate")
    parser.add_argument("--batch", type=int, default=256)
    options = parser.parse_args()
    if not options.data.is_dir():
        parser.error(f"{options.data}: expected a folder of shards")
    device = torch.device(options.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
        share = _GPU_BYTES / torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, share), device)
    torch.backends.cudnn.allow_tf32 = False  # the resampling is a convolution in fp32
    recogniser = Recogniser(options.weights, options.weights.with_name("tokenizer.json"), device)
    judge = Filter(recogniser.transcribe, options.max_wrong, options.batch).judge
    return 1 if watch(options.data, judge, options.watch) else 0


if __name__ == "__main__":
    sys.exit(main())
