"""weight.bin, the weights of a Core ML package: a header, and for each weight a record and its data, each aligned."""

from __future__ import annotations

import struct
from pathlib import Path

WEIGHT_FILE = Path("Data/com.apple.CoreML/weights/weight.bin")
"""Its path in a package; a package with only small weights has none."""

# The number of weights, and a version.
_HEADER = struct.Struct("<II")
BLOB_RECORD = struct.Struct("<IIQQ")
"""Sentinel, element type, size in bytes, offset of the data from the start of the file."""
BLOB_SENTINEL = 0xDEADBEEF
_ALIGNMENT = 64


def is_whole(path: Path) -> bool:
    """Whether a weight.bin has as many weights as its header says, and ends with the data of the last one.

    coremltools updates the header with each weight, and does not notice if the last write fails. Raises OSError for a
    file that cannot be read.
    """
    end = path.stat().st_size
    with path.open("rb") as file:
        header = file.read(_HEADER.size)
        found, place = 0, _ALIGNMENT
        while place < end:
            file.seek(place)
            record = file.read(BLOB_RECORD.size)
            if len(record) < BLOB_RECORD.size:
                return False
            sentinel, _, size, offset = BLOB_RECORD.unpack(record)
            if sentinel != BLOB_SENTINEL or offset < place or offset + size > end:
                return False
            found, place = found + 1, -(-(offset + size) // _ALIGNMENT) * _ALIGNMENT
    return len(header) == _HEADER.size and _HEADER.unpack(header)[0] == found
