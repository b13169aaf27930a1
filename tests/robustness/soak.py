"""Sixteen threads on one loaded voice: sessions, batches, streams and cancellations, until the time is over."""

from __future__ import annotations

import gc
import os
import random
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from voxcpm_runtime import CancelToken, VoxCPM, pcm16
from voxcpm_runtime.speech.cancellation import Cancelled

THREADS = 16
HANGING = 120.0
"""Seconds in which each thread has to come to the end of what it does."""
ENDING = 5.0
"""Seconds in which the system has to take away a thread that has ended."""
OPTIONS = {"inference_timesteps": 2, "retry_badcase": False}
TEXTS = ("Yes.", "No, sir.", "One two.", "Come in. Go out.", "Good morning. It is late.", "Who is there?")


@dataclass
class Sample:
    """What the process has at one time."""

    second: float
    megabytes: float
    descriptors: int
    threads: int


@dataclass
class Soak:
    """What a run came to."""

    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    rest: threading.Barrier = field(default_factory=lambda: threading.Barrier(THREADS + 1))
    """Where all threads meet while a sample is taken, so that it does not depend on what they are doing."""
    resting: threading.Event = field(default_factory=threading.Event)

    def count(self, outcome: str, problem: str = "") -> None:
        with self.lock:
            self.outcomes[outcome] += 1
            if problem:
                self.wrong.append(problem)


def soaked(bundle: Path, seconds: float, seed: int, samples: int) -> Soak:
    """Run for that long, with that many samples. Raises threading.BrokenBarrierError if a thread hangs."""
    soak, ends = Soak(), threading.Event()
    with VoxCPM.from_bundle(bundle, precision="int8", threads=1) as tts:
        alone = {(text, 3): pcm16(tts.generate(text, seed=3, **OPTIONS)) for text in TEXTS}
        threads = [
            threading.Thread(target=_work, args=(tts, alone, soak, ends, random.Random(f"{seed} {number}")))
            for number in range(THREADS)
        ]
        began = time.monotonic()
        for thread in threads:
            thread.start()
        for number in range(samples):
            time.sleep(max(0.0, began + seconds * (number + 1) / samples - time.monotonic()))
            soak.resting.set()
            soak.rest.wait(HANGING)
            soak.samples.append(_sample(time.monotonic() - began))
            if number + 1 == samples:
                ends.set()
            soak.resting.clear()
            soak.rest.wait(HANGING)
        for thread in threads:
            thread.join(HANGING)
        if any(thread.is_alive() for thread in threads):
            soak.count("hung", "a thread has not ended at the end")
    return soak


def _work(
    tts: VoxCPM, alone: dict[Any, Any], soak: Soak, ends: threading.Event, chance: random.Random
) -> None:
    while not ends.is_set():
        if soak.resting.is_set():
            soak.rest.wait(HANGING)
            soak.rest.wait(HANGING)
            continue
        way = chance.choice((_whole, _streamed, _in_session, _in_batch, _cancelled, _left_session))
        text = chance.choice(TEXTS)
        try:
            got = way(tts, text, chance)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is counted
            soak.count("failed", f"{way.__name__}: {error!r}")
            continue
        if got is None or all(np.array_equal(audio, alone[said, 3]) for said, audio in got):
            soak.count(way.__name__.strip("_").replace("_", " "))
        else:
            soak.count("differs", f"{way.__name__}: {text!r} differs from its single run")


def _whole(tts: VoxCPM, text: str, _: random.Random) -> Any:
    return [(text, pcm16(tts.generate(text, seed=3, **OPTIONS)))]


def _streamed(tts: VoxCPM, text: str, _: random.Random) -> Any:
    return [(text, pcm16(np.concatenate(list(tts.generate_streaming(text, seed=3, **OPTIONS)))))]


def _in_session(tts: VoxCPM, text: str, chance: random.Random) -> Any:
    """A session speaks sentence by sentence, so only a text of one is what it is alone."""
    text = chance.choice([one for one in TEXTS if one.count(".") + one.count("?") == 1])
    with tts.session(seed=3, **OPTIONS) as session:
        cut = chance.randrange(len(text))
        session.push_text(text[:cut])
        session.push_text(text[cut:])
        session.flush()
        return [(text, np.concatenate([chunk.pcm for chunk in session]))]


def _in_batch(tts: VoxCPM, text: str, chance: random.Random) -> Any:
    texts = [text, chance.choice(TEXTS)]
    speeches = tts.batch([{"text": one, "seed": 3, **OPTIONS} for one in texts])
    return [(one, pcm16(speech.audio)) for one, speech in zip(texts, speeches, strict=True)]


def _cancelled(tts: VoxCPM, text: str, chance: random.Random) -> None:
    token = CancelToken()
    timer = threading.Timer(chance.uniform(0, 0.5), token.cancel)
    timer.start()
    try:
        tts.generate(text * 5, seed=3, cancel=token, **OPTIONS)
    except Cancelled:
        pass
    finally:
        timer.cancel()
        timer.join()


def _left_session(tts: VoxCPM, text: str, chance: random.Random) -> None:
    """Closed while it speaks, or cancelled first, or before anything was read."""
    with tts.session(seed=3, **OPTIONS) as session:
        session.push_text(text * 3)
        for _ in range(chance.randrange(3)):
            session.next_audio_chunk(timeout=0.2)
        if chance.random() < 0.5:
            session.cancel()


def _sample(second: float) -> Sample:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return Sample(
        second=round(second, 1),
        megabytes=round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1),
        descriptors=len(os.listdir("/proc/self/fd")),  # noqa: PTH208 - no paths are wanted
        threads=_threads(),
    )


def _threads() -> int:
    """The process's threads, Python's and others.

    Python's `join` returns when a thread has no more to do with Python. The system lists it until it has run to
    its end, which takes milliseconds where others want the same cores.
    """
    until = time.monotonic() + ENDING
    while True:
        threads = len(os.listdir("/proc/self/task"))  # noqa: PTH208
        if threads <= threading.active_count() or time.monotonic() > until:
            return threads
        time.sleep(0.01)


def main() -> None:
    """Print a run as JSON: BUNDLE SECONDS SAMPLES SEED."""
    import json
    import sys
    from dataclasses import asdict

    bundle, seconds, samples, seed = sys.argv[1:]
    soak = soaked(Path(bundle), float(seconds), int(seed), int(samples))
    sys.stdout.write(
        json.dumps(
            {
                "outcomes": soak.outcomes,
                "wrong": soak.wrong[:20],
                "samples": [asdict(sample) for sample in soak.samples],
            }
        )
    )


if __name__ == "__main__":
    main()
