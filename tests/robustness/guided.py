"""Inputs that atheris makes for one reader: it keeps those that reach code that no earlier one did.

Run as a program: READER BUNDLE COUNT SEED. It prints counts of outcomes as JSON, or ends with the error of the reader
and the input in hexadecimal. The code of this project, and of the parser of forms, is instrumented as it is imported.
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path

import atheris

INSTRUMENTED = ["voxcpm_constants", "voxcpm_runtime", "voxcpm_server", "python_multipart"]


def main(name: str, bundle: Path, count: int, seed: str) -> None:
    """Give the reader that many inputs, each for 20 seconds at most."""
    warnings.simplefilter("ignore")
    with atheris.instrument_imports(include=INSTRUMENTED):
        from robustness.fuzz import made, outcome
        from robustness.watched import FAILURES

        reader = made(name, bundle)
        for content in reader.valid:
            reader.read(content)
    counts: Counter[str] = Counter()
    corpus = tempfile.mkdtemp(prefix="corpus-", dir=bundle.parent)
    for number, content in enumerate(reader.valid):
        Path(corpus, str(number)).write_bytes(content)

    def each(content: bytes) -> None:
        ended = outcome(reader, content)
        counts[ended.outcome] += 1
        if ended.outcome in FAILURES:
            raise AssertionError(f"{ended.outcome}: {ended.detail} {content[:2000].hex()}")
        # libFuzzer ends the process, so the counts are told at the last input.
        if counts.total() == count:
            print(json.dumps(counts), flush=True)

    longest = min(1 << 20, max(4096, *(2 * len(content) for content in reader.valid)))
    flags = (f"-runs={count}", f"-seed={seed}", "-timeout=20", "-rss_limit_mb=4096", "-verbosity=0")
    atheris.Setup([sys.argv[0], *flags, f"-max_len={longest}", f"-artifact_prefix={corpus}/", corpus], each)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
