"""The comparable contents of a run's folder, and the system calls made there."""

import functools
import hashlib
import json
import re


def files(folder):
    """Digests of all files and empty folders below a folder, by relative path."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_dir():
            if not any(path.iterdir()):
                found[f"{name}/"] = ""
        elif not _is_a_probe(path):
            status = path.stat()
            found[name] = _digest(path, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
            if path.name == "manifest.sha256":
                found[name] = hashlib.sha256(_checked_digest(path)).hexdigest()
    return found


@functools.cache
def _digest(path, *_state):
    """The cached digest of a file's current state, as a case reads its folder several times."""
    return hashlib.sha256(_comparable(path)).hexdigest()


def _is_a_probe(path):
    """Whether a file is what Python tries a temporary folder with, which a kill at that very moment leaves there."""
    is_named_so = path.parent.name == "temporary" and re.fullmatch(r"[a-z0-9_]{8}", path.name)
    return bool(is_named_so) and path.stat().st_size <= len(b"blat")


def _comparable(path):
    """The content of a file without what no two conversions have in common: coremltools names the items of a package by
    chance, and a bundle's manifest has their digest.
    """
    content = path.read_bytes()
    try:
        if path.name == "Manifest.json":
            items = json.loads(content)["itemInfoEntries"].values()
            return json.dumps(sorted(json.dumps(item) for item in items)).encode()
        if path.name == "manifest.json":
            document = json.loads(content)
            for name in list(document["files"]):
                if name.endswith(".mlpackage/Manifest.json"):
                    del document["files"][name]
            return json.dumps(document).encode()
    except (ValueError, KeyError):
        pass
    return content


def _checked_digest(path):
    """A manifest's digest, for which only counts whether it is that of the manifest."""
    content, written = path.read_bytes(), (path.parent / "manifest.json").read_bytes()
    return b"as it must be" if hashlib.sha256(written).hexdigest().encode() in content else content


def calls(log, folder):
    """The kind and relative path of each system call on a file in a run's folder."""
    lines = (line.split(" ", 1) for line in log.read_text().splitlines())
    return [(kind, path.removeprefix(f"{folder}/")) for kind, path in lines]
