from __future__ import annotations

import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Recorded speech, tokenizers and a small speaking checkpoint, kept beside the repository for their size."""
    folder = REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"needs the recordings and checkpoints of ../{folder.relative_to(REPOSITORY.parent)}")
    return folder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if sys.platform == "darwin":
        return
    for item in items:
        if item.get_closest_marker("coreml"):
            item.add_marker(pytest.mark.skip(reason="Core ML runs on a Mac only"))
