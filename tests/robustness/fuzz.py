"""Fuzzes the readers of external input in a supervised process."""

import json
import os
import random
import tempfile
import time
from collections import Counter
from pathlib import Path

from robustness.readers import READERS
from robustness.watched import FAILURES, Ended, ending

BATCH, TAKEN = "batch", "taken"


def made(name, bundle):
    """A reader, with files of its own beside the bundle."""
    folder = Path(tempfile.mkdtemp(prefix=f"fuzz-{name}-", dir=bundle.parent))
    os.environ["VOXCPM_COREML_CACHE"] = str(folder / "cache")
    (folder / "own").mkdir()
    return READERS[name](bundle, folder / "own")


def outcome(reader, content):
    """The outcome of one input."""

    def read():
        refused = reader.read(content)
        return Ended(refused if isinstance(refused, str) else TAKEN)

    return ending(read)


def scene(bundle):
    """What runs a case: the inputs of a "reader" with the seeds from "first" to "last", or one input: "content" (in
    hexadecimal), or "edit" of the first valid one; with neither, the inputs as they are.

    A case of one input ends as that input, any other as BATCH, with counts and failures as JSON.
    """
    readers = {}

    def changed(name, seed):
        chance = random.Random(f"{name} {seed}")
        return readers[name].changed(chance.choice(readers[name].valid), chance)

    def run(case):
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


def edited(content, edit):
    """A JSON document with `edit["value"]` in the place `edit["path"]`, the keys that lead there."""
    document = json.loads(content)
    *path, last = edit["path"]
    holder = document
    for key in path:
        holder = holder[key]
    holder[last] = edit["value"]
    return json.dumps(document).encode()


def _batch(reader, inputs):
    """Counts and failures of several inputs, and the seconds of the slowest one."""
    counts = Counter()
    wrong = []
    slowest = 0.0
    for number, content in inputs:
        began = time.process_time()
        ended = outcome(reader, content)
        slowest = max(slowest, time.process_time() - began)
        counts[ended.outcome] += 1
        if ended.outcome in FAILURES:
            wrong.append((number, ended.outcome, f"{ended.detail} {content[:2000].hex()}"))
    return Ended(BATCH, json.dumps({"counts": counts, "wrong": wrong[:20], "slowest": slowest}))
