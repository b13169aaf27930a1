"""Digests of bundle files, computed once: a second start trusts a file whose size, time and inode are unchanged.

Each bundle has one record in the user's cache folder (`voxcpm_constants.user_folders`).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from voxcpm_constants.json_files import read_json
from voxcpm_constants.manifest import FileRecord, check_files
from voxcpm_constants.user_folders import cache_folder
from voxcpm_runtime.storage.whole_file import whole_file


def check_digests(bundle: Path, expected: Mapping[str, FileRecord]) -> None:
    """Hash the files that changed since they were last verified. Raises BundleError, naming the first wrong one."""
    record = _record_path(bundle)
    known = _read(record)
    unknown = {name: file for name, file in expected.items() if known.get(name) != _mark(bundle / name, file)}
    if not unknown:
        return
    check_files(bundle, unknown, digests=True)
    fresh = {name: _mark(bundle / name, file) for name, file in unknown.items()}
    # A cache that cannot be written costs time at the next start, nothing else.
    with contextlib.suppress(OSError):
        _write(record, {**known, **fresh})


def _mark(path: Path, file: FileRecord) -> list[int | str]:
    stat = path.stat()
    return [file.sha256, stat.st_size, stat.st_mtime_ns, stat.st_ino]


def _record_path(bundle: Path) -> Path:
    name = hashlib.sha256(str(bundle.resolve()).encode()).hexdigest()
    return cache_folder("verified") / f"{name}.json"


def _read(record: Path) -> dict[str, list[int | str]]:
    try:
        document = read_json(record)
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def _write(record: Path, marks: Mapping[str, list[int | str]]) -> None:
    record.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(record) as file:
        file.write(json.dumps(marks).encode())
