"""The readers of what comes from outside, each given changed inputs in the process that is watched.

`scene` returns what runs a batch of inputs of one reader, changed by seed or made by hypothesis; `guided.py` has those
that atheris makes.
"""

from __future__ import annotations

import json
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from robustness.cases import BY_SEED, INPUTS
from robustness.mutations import document_bytes
from robustness.reader import Maker, Reader
from robustness.readers import bundles, programs, requests, texts, voices
from robustness.watched import FAILURES, Ended, ending

BATCH, TAKEN = "batch", "taken"
READERS: dict[str, Maker] = {
    maker.__name__: maker
    for maker in (
        bundles.manifest,
        bundles.npy,
        bundles.tokenizer,
        bundles.tokenizer_config,
        programs.program,
        programs.lowering_of_a_transformer,
        programs.lowering_of_convolutions,
        programs.weights,
        voices.voice,
        voices.prefix,
        voices.segment,
        voices.saved_plan,
        texts.batch_lines,
        texts.recording,
        texts.text,
        requests.speech_json,
        requests.speech_form,
        requests.voice_upload,
        requests.wyoming,
    )
}
STRUCTURED = (
    "manifest",
    "npy",
    "tokenizer",
    "lowering_of_a_transformer",
    "lowering_of_convolutions",
    "voice",
    "prefix",
    "segment",
    "batch_lines",
    "recording",
    "text",
    "speech_json",
    "speech_form",
    "voice_upload",
)
"""The readers that hypothesis makes inputs for."""
GUIDED = (
    "manifest",
    "npy",
    "tokenizer",
    "tokenizer_config",
    "program",
    "weights",
    "voice",
    "prefix",
    "batch_lines",
    "recording",
    "text",
    "speech_json",
    "speech_form",
    "wyoming",
)
"""The readers whose bytes atheris changes. It sees the branches of Python alone, not those of C and Rust."""


def engines(name: str) -> tuple[str, ...]:
    """The engines that change a reader's inputs: "seeds" always, "hypothesis" and "atheris" where they serve."""
    serving = {"hypothesis": STRUCTURED, "atheris": GUIDED}
    return ("seeds", *(engine for engine, readers in serving.items() if name in readers))


def inputs(name: str, engine: str) -> int:
    """How many inputs of a reader are an engine's: few by seed beside hypothesis; otherwise all have equal parts."""
    all_engines = engines(name)
    if "hypothesis" not in all_engines:
        return INPUTS // len(all_engines)
    return BY_SEED if engine == "seeds" else (INPUTS - BY_SEED) // (len(all_engines) - 1)


def made(name: str, bundle: Path) -> Reader:
    """A reader, with files of its own beside the bundle. bundle: the folder of one with int8."""
    folder = Path(tempfile.mkdtemp(prefix=f"fuzz-{name}-", dir=bundle.parent))
    os.environ["VOXCPM_COREML_CACHE"] = str(folder / "cache")
    (folder / "own").mkdir()
    return READERS[name](bundle, folder / "own")


def outcome(reader: Reader, content: bytes) -> Ended:
    """How one input ends."""

    def read() -> Ended:
        refused = reader.read(content)
        return Ended(refused if isinstance(refused, str) else TAKEN)

    return ending(read)


def scene(bundle: str) -> Callable[[dict[str, Any]], Ended]:
    """What runs a case: {"reader", "engine", "first", "count"}. Two engines have one input: "given" has "content", in
    hexadecimal, and "edited" an "edit" of the first valid input.

    The other engines are "valid" (the inputs as they are), "seeds" and "hypothesis". A case of one input ends as that
    input; a longer one as BATCH, with the counts and failures as JSON.
    """
    readers: dict[str, Reader] = {}

    def run(case: dict[str, Any]) -> Ended:
        name = case["reader"]
        if name not in readers:
            readers[name] = made(name, Path(bundle))
        reader = readers[name]
        if case["engine"] == "given":
            return outcome(reader, bytes.fromhex(case["content"]))
        if case["engine"] == "edited":
            return outcome(reader, edited(reader.valid[0], case["edit"]))
        batch = _Batch(reader)
        if case["engine"] == "valid":
            for content in reader.valid:
                batch.add(0, content)
        elif case["engine"] == "hypothesis":
            _structured(batch, reader, case["first"], case["count"])
        else:
            for seed in range(case["first"], case["first"] + case["count"]):
                chance = random.Random(f"{name} {seed}")
                content = reader.changed(chance.choice(reader.valid), chance)
                if case["count"] == 1:
                    return outcome(reader, content)
                batch.add(seed, content)
        return batch.ended()

    return run


def edited(content: bytes, edit: dict[str, Any]) -> bytes:
    """A JSON document with `edit["value"]` in the place `edit["path"]`, the keys that lead there."""
    document = json.loads(content)
    *path, last = edit["path"]
    holder = document
    for key in path:
        holder = holder[key]
    holder[last] = edit["value"]
    return document_bytes(document)


class _Batch:
    """Counts and failures of several inputs."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self.counts: Counter[str] = Counter()
        self.wrong: list[tuple[int, str, str]] = []
        self.slowest = 0.0

    def add(self, number: int, content: bytes) -> Ended:
        began = time.process_time()
        ended = outcome(self._reader, content)
        self.slowest = max(self.slowest, time.process_time() - began)
        self.counts[ended.outcome] += 1
        if ended.outcome in FAILURES:
            self.wrong.append((number, ended.outcome, f"{ended.detail} {content[:2000].hex()}"))
        return ended

    def ended(self) -> Ended:
        return Ended(
            BATCH, json.dumps({"counts": self.counts, "wrong": self.wrong[:20], "slowest": self.slowest})
        )


def _structured(batch: _Batch, reader: Reader, seed: int, count: int) -> None:
    """Give the reader that many inputs of hypothesis. A failure is not made smaller: it comes with its bytes."""
    import hypothesis

    assert reader.structured is not None
    settings = hypothesis.settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )

    def each(content: bytes) -> None:
        batch.add(seed, content)

    hypothesis.seed(seed)(settings(hypothesis.given(reader.structured())(each)))()
