"""A bundle whose manifest says something else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def edit_manifest(bundle: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a bundle's manifest, which then is as one of an earlier release: without a digest of its own."""
    path = bundle / "manifest.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    change(document)
    path.write_text(json.dumps(document), encoding="utf-8")
    (bundle / "manifest.sha256").unlink(missing_ok=True)
