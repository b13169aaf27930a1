"""Editing a bundle's manifest."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def edit_manifest(bundle: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Edit a bundle's manifest and delete its digest, as who edits it by hand."""
    path = bundle / "manifest.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    change(document)
    path.write_text(json.dumps(document), encoding="utf-8")
    (bundle / "manifest.sha256").unlink(missing_ok=True)
