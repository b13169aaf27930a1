"""Checksums verified once: later starts skip files whose size, times and inode are unchanged."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from voxcpm_constants.errors import BundleError, first_line
from voxcpm_constants.json_files import read_json
from voxcpm_constants.manifest import FileRecord, check_files, record_folder
from voxcpm_constants.user_folders import cache_folder
from voxcpm_runtime.storage.atomic_file import atomic_file

RECORDS_FILE = "files.json"  # Sizes and digests of all other files in the folder


def record_files(folder: Path) -> None:
    """Write sizes and digests of a folder's files into it, for `check_recorded`. Raises OSError."""
    records = {name: record.model_dump() for name, record in record_folder(folder).items()}
    (folder / RECORDS_FILE).write_text(json.dumps(records), encoding="utf-8")


def check_recorded(folder: Path) -> None:
    """Compare a folder's files with their records. Raises BundleError, naming the first wrong one."""
    path = folder / RECORDS_FILE
    try:
        records = TypeAdapter(dict[str, FileRecord]).validate_python(read_json(path))
        found = {each.relative_to(folder).as_posix() for each in folder.rglob("*") if not each.is_dir()}
        if unknown := found - {RECORDS_FILE} - records.keys():
            raise ValueError(f"{min(unknown)} is not in it")  # noqa: TRY301
        check_digests(folder, records)
    except (OSError, ValueError) as error:
        raise BundleError(f"{path}: {first_line(error)}") from None


def check_digests(bundle: Path, expected: Mapping[str, FileRecord]) -> None:
    """Hash the files that changed since they were last verified. Raises BundleError, naming the first wrong one."""
    record = cache_folder("verified") / f"{hashlib.sha256(str(bundle.resolve()).encode()).hexdigest()}.json"
    known: Any = {}
    with contextlib.suppress(OSError, ValueError):
        known = read_json(record)
    known = known if isinstance(known, dict) else {}
    unknown = {name: file for name, file in expected.items() if known.get(name) != _key(bundle / name, file)}
    if not unknown:
        return
    check_files(bundle, unknown, digests=True)
    fresh = {name: _key(bundle / name, file) for name, file in unknown.items()}
    # If the cache cannot be written, the next start only takes longer.
    with contextlib.suppress(OSError):
        record.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(record) as written:
            written.write(json.dumps({**known, **fresh}).encode())


def _key(path: Path, file: FileRecord) -> list[int | str]:
    stat = path.stat()
    # Programs can set the modification time, as `touch -r` does, but not the change time.
    return [file.sha256, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]
