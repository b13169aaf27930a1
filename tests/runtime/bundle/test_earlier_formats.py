"""What earlier releases wrote opens, is refused in one line, or is made again; docs/reliability.md says which."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from edited_manifest import edit_manifest
from voxcpm_constants.errors import BundleError
from voxcpm_runtime.bundle.opening import open_bundle
from voxcpm_runtime.speech.results import SpokenSegment
from voxcpm_runtime.speech.saved_segments import SavedSegments
from voxcpm_runtime.storage.sealed_tensors import unsealed

REPOSITORY = Path(__file__).resolve().parents[3]
TABLE = re.compile(r"^\| .* \| `(tests/[\w/]+\.py)`: `(test_\w+)` \|$", re.MULTILINE)


def test_each_row_of_the_table_names_a_test_that_is_there() -> None:
    text = (REPOSITORY / "docs" / "reliability.md").read_text(encoding="utf-8")
    section = text.partition("\n## Earlier formats\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][1:]
    named = TABLE.findall(section)

    assert len(rows) == len(named) > 10
    for file, name in named:
        functions = ast.walk(ast.parse((REPOSITORY / file).read_text(encoding="utf-8")))
        assert name in [node.name for node in functions if isinstance(node, ast.FunctionDef)], name


def test_a_bundle_without_a_field_that_its_release_did_not_have_yet_opens(bundle_folder: Path) -> None:
    """Every field with a default came after the first release; a bundle of that one has none of them."""

    def as_the_first(document: dict[str, Any]) -> None:
        document["schema_version"] = 1
        for name in ("speech", "target", "kv_cache"):
            document.pop(name)

    edit_manifest(bundle_folder, as_the_first)

    manifest = open_bundle(bundle_folder).manifest
    assert (manifest.schema_version, manifest.target, manifest.kv_cache) == (1, "macOS14", "scatter")


def test_a_bundle_of_a_release_that_spoke_several_utterances_in_one_call(bundle_folder: Path) -> None:
    edit_manifest(bundle_folder, lambda document: document["sizes"].update(batch=1))
    assert open_bundle(bundle_folder).manifest.sizes.kv_length

    edit_manifest(bundle_folder, lambda document: document["sizes"].update(batch=4))
    with pytest.raises(BundleError, match="sizes: Value error, expected batch 1, found 4; convert again"):
        open_bundle(bundle_folder)


def test_a_bundle_without_a_field_that_it_needs_is_refused_by_its_name(bundle_folder: Path) -> None:
    edit_manifest(bundle_folder, lambda document: document.pop("architecture"))

    with pytest.raises(
        BundleError, match="not a bundle manifest: architecture: Field required; convert again"
    ):
        open_bundle(bundle_folder)


def test_saved_segments_of_an_earlier_release_are_spoken_again(tmp_path: Path) -> None:
    """They had neither a digest nor their place; the plan beside them is the same."""
    segment = SpokenSegment(
        "hi.", np.zeros(20, np.float32), np.zeros((1, 2, 4), np.float32), seed=3, attempts=1, stopped=True
    )
    saved = SavedSegments(tmp_path / "a.wav", "digest", 3, drawn=False)
    saved.put(0, segment)
    (file,) = saved.folder.glob("*.segment")
    tensors, metadata, _ = unsealed(file.read_bytes())
    assert saved.get(0) is not None

    file.write_bytes(save(tensors, metadata))
    assert saved.get(0) is None
    file.write_bytes(save(tensors, {"segment": metadata["segment"]}))
    assert saved.get(0) is None
    saved.discard()


def test_a_record_of_verified_files_in_another_form_only_costs_time(
    bundle_folder: Path, tmp_path: Path
) -> None:
    open_bundle(bundle_folder)
    (record,) = (tmp_path / "cache" / "verified").iterdir()
    written = json.loads(record.read_text())
    without_change_time = {name: [*mark[:3], mark[4]] for name, mark in written.items()}
    record.write_text(json.dumps(without_change_time))

    open_bundle(bundle_folder)

    assert json.loads(record.read_text()) == written
