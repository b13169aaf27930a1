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
HANGS = 20
"""Seconds for one input."""
LONGEST = 1 << 20
"""Bytes of an input."""


def main() -> None:
    """Give the reader that many inputs."""
    name, bundle, count, seed = sys.argv[1:]
    warnings.simplefilter("ignore")
    with atheris.instrument_imports(include=INSTRUMENTED):
        from robustness.fuzz import made, outcome
        from robustness.watched import FAILURES

        reader = made(name, Path(bundle))
        for content in reader.valid:
            reader.read(content)
    counts: Counter[str] = Counter()
    corpus = Path(tempfile.mkdtemp(prefix="corpus-", dir=Path(bundle).parent))
    for number, content in enumerate(reader.valid):
        (corpus / str(number)).write_bytes(content)

    def each(content: bytes) -> None:
        ended = outcome(reader, content)
        counts[ended.outcome] += 1
        if ended.outcome in FAILURES:
            raise AssertionError(f"{ended.outcome}: {ended.detail} {content[:2000].hex()}")
        # libFuzzer ends the process, so the counts are told at the last input.
        if sum(counts.values()) == int(count):
            sys.stdout.write(f"{json.dumps(counts)}\n")
            sys.stdout.flush()

    flags = (f"-runs={count}", f"-seed={seed}", f"-timeout={HANGS}", "-rss_limit_mb=4096", "-verbosity=0")
    longest = min(LONGEST, max(4096, *(2 * len(content) for content in reader.valid)))
    atheris.Setup(
        [sys.argv[0], *flags, f"-max_len={longest}", f"-artifact_prefix={corpus}/", str(corpus)], each
    )
    atheris.Fuzz()


if __name__ == "__main__":
    main()
