import gc
import os
import sys
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest

from voxcpm_runtime.voxcpm import VoxCPM

TEXTS = [f"{word} speaks." for word in ("Ada", "Bob", "Carl", "Dora", "Eve", "Fred", "Gail", "Hal")]


# Heads of random weights follow nothing.
@pytest.mark.filterwarnings("ignore:segment")
def test_eight_concurrent_threads_equal_sequential_speech(tiny_bundle_15):
    """In a bundle for macOS 15, functions by length load at their first call."""
    options = {"max_len": 12, "min_len": 12, "retry_badcase": False}
    with VoxCPM.from_bundle(tiny_bundle_15, precision="int8") as tts:
        alone = [tts.generate(text, seed=seed, **options) for seed, text in enumerate(TEXTS)]
    together: list[np.ndarray | None] = [None] * len(TEXTS)
    with VoxCPM.from_bundle(tiny_bundle_15, precision="int8") as tts:
        begin = threading.Barrier(len(TEXTS))

        def speak(seed):
            begin.wait(60)
            together[seed] = tts.generate(TEXTS[seed], seed=seed, **options)

        threads = [threading.Thread(target=speak, args=(seed,)) for seed in range(len(TEXTS))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_closing_frees_step_models_and_memory(tiny_bundle):
    """The test leaves 100 MB of freed memory in the allocator, which closing must return."""

    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    tts = VoxCPM.from_bundle(tiny_bundle, precision="int8")
    tts.generate("the you and", seed=1, max_len=4)
    models = [weakref.ref(model) for model in tts.driver.models.values()]
    assert all(model() is not None for model in models)
    # The allocator does not return these pieces when they are freed, because they are too small to be mapped alone.
    pieces = [np.ones(10_000, np.uint8) for _ in range(10_000)]
    last = np.ones(10_000, np.uint8)
    del pieces
    held = resident()
    tts.close()
    assert held - resident() > 50e6
    assert last.all()
    gc.collect()
    assert not [model for model in models if model() is not None]
