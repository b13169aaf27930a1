"""Inputs that Core ML keeps after a prediction, and releases about a second later without the GIL.

If that was the last reference to an array, Python's allocator runs without the GIL, and the process may crash.
"""

import threading
import time
import weakref

from coreml_stand_in.faults import crash

KEPT_SECONDS = 1.0
_kept = {}
_lock = threading.Lock()


def keep(inputs, what):
    """Keep references to the inputs of a prediction for a while."""
    with _lock:
        if not _kept:
            threading.Thread(target=_release_later, daemon=True).start()
        _kept.update({id(array): (array, time.monotonic(), f"{what}: {n}") for n, array in inputs.items()})


def release_all():
    """Release all inputs now: at the end of the process, and of a test."""
    with _lock:
        _release(0.0)


def _release_later():
    while True:
        time.sleep(KEPT_SECONDS / 10)
        with _lock:
            _release(KEPT_SECONDS)
            if not _kept:
                return


def _release(after):
    for key in [key for key, (_, used, _) in _kept.items() if time.monotonic() - used >= after]:
        array, _, what = _kept.pop(key)
        alive = weakref.ref(array)
        del array
        if alive() is None:
            crash(f"{what} was owned by Core ML alone")
