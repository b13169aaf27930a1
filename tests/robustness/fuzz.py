"""Fuzzes the readers of external input in a supervised process."""

import json
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from robustness.reader import Reader
from robustness.readers import bundles, programs, requests, texts, voices
from robustness.watched import FAILURES, Ended, ending

BATCH, TAKEN = "batch", "taken"
READERS: dict[str, Callable[[Path, Path], Reader]] = {
    maker.__name__: maker
    for maker in (
        bundles.manifest,
        bundles.npy,
        bundles.tokenizer,
        bundles.tokenizer_config,
        programs.lowering,
        programs.weights,
        voices.voice,
        texts.batch_lines,
        texts.recording,
        texts.text,
        requests.speech_json,
        requests.wyoming,
    )
}
"""What makes each reader from the folder of a bundle with int8 and an empty folder of its own."""


def made(name: str, bundle: Path) -> Reader:
    """A reader, with files of its own beside the bundle."""
    folder = Path(tempfile.mkdtemp(prefix=f"fuzz-{name}-", dir=bundle.parent))
    os.environ["VOXCPM_COREML_CACHE"] = str(folder / "cache")
    (folder / "own").mkdir()
    return READERS[name](bundle, folder / "own")


def outcome(reader: Reader, content: bytes) -> Ended:
    """The outcome of one input."""

    def read() -> Ended:
        refused = reader.read(content)
        return Ended(refused if isinstance(refused, str) else TAKEN)

    return ending(read)


def scene(bundle: str) -> Callable[[dict[str, Any]], Ended]:
    """What runs a case: the inputs of a "reader" with the seeds from "first" to "last", or one input: "content" (in
    hexadecimal), or "edit" of the first valid one; with neither, the inputs as they are.

    A case of one input ends as that input, any other as BATCH, with counts and failures as JSON.
    """
    readers: dict[str, Reader] = {}

    def changed(name: str, seed: int) -> bytes:
        chance = random.Random(f"{name} {seed}")
        return readers[name].changed(chance.choice(readers[name].valid), chance)

    def run(case: dict[str, Any]) -> Ended:
        name = case["reader"]
        if name not in readers:
            readers[name] = made(name, Path(bundle))
        reader = readers[name]
        if "content" in case:
            return outcome(reader, bytes.fromhex(case["content"]))
        if "edit" in case:
            return outcome(reader, edited(reader.valid[0], case["edit"]))
        if "first" not in case:
            return _batch(reader, enumerate(reader.valid))
        if case["first"] == case["last"]:
            return outcome(reader, changed(name, case["first"]))
        return _batch(
            reader, ((seed, changed(name, seed)) for seed in range(case["first"], case["last"] + 1))
        )

    return run


def edited(content: bytes, edit: dict[str, Any]) -> bytes:
    """A JSON document with `edit["value"]` in the place `edit["path"]`, the keys that lead there."""
    document = json.loads(content)
    *path, last = edit["path"]
    holder = document
    for key in path:
        holder = holder[key]
    holder[last] = edit["value"]
    return json.dumps(document).encode()


def _batch(reader: Reader, inputs: Any) -> Ended:
    """Counts and failures of several inputs, and the seconds of the slowest one."""
    counts: Counter[str] = Counter()
    wrong: list[tuple[int, str, str]] = []
    slowest = 0.0
    for number, content in inputs:
        began = time.process_time()
        ended = outcome(reader, content)
        slowest = max(slowest, time.process_time() - began)
        counts[ended.outcome] += 1
        if ended.outcome in FAILURES:
            wrong.append((number, ended.outcome, f"{ended.detail} {content[:2000].hex()}"))
    return Ended(BATCH, json.dumps({"counts": counts, "wrong": wrong[:20], "slowest": slowest}))
