"""Files of earlier releases open, are rejected in one line, or are regenerated; see docs/reliability.md."""

import numpy as np
import pytest
from safetensors.numpy import save

from edited_manifest import edit_manifest
from voxcpm_constants.errors import BundleError
from voxcpm_runtime.bundle.opening import open_bundle
from voxcpm_runtime.speech.results import SpokenSegment
from voxcpm_runtime.speech.saved_segments import SavedSegments
from voxcpm_runtime.storage.sealed_tensors import load_tensors


def test_bundle_of_an_earlier_release_without_new_fields_opens(bundle_folder):
    """Every field with a default came after the first release; a bundle of that one has none of them."""

    def as_the_first(document):
        document["schema_version"] = 1
        for name in ("speech", "target", "kv_cache"):
            document.pop(name)

    edit_manifest(bundle_folder, as_the_first)

    manifest = open_bundle(bundle_folder).manifest
    assert (manifest.schema_version, manifest.target, manifest.kv_cache) == (1, "macOS14", "scatter")


def test_bundle_of_a_release_with_batched_calls(bundle_folder):
    edit_manifest(bundle_folder, lambda document: document["sizes"].update(batch=1))
    assert open_bundle(bundle_folder).manifest.sizes.kv_length

    edit_manifest(bundle_folder, lambda document: document["sizes"].update(batch=4))
    with pytest.raises(BundleError, match="sizes: Value error, expected batch 1, found 4; convert again"):
        open_bundle(bundle_folder)


def test_missing_required_field_is_named(bundle_folder):
    edit_manifest(bundle_folder, lambda document: document.pop("architecture"))

    with pytest.raises(
        BundleError, match="not a bundle manifest: architecture: Field required; convert again"
    ):
        open_bundle(bundle_folder)


def test_saved_segments_of_an_earlier_release_are_regenerated(tmp_path):
    """They had neither a digest nor a position; their plan file is the same."""
    segment = SpokenSegment(
        "hi.", np.zeros(20, np.float32), np.zeros((1, 2, 4), np.float32), seed=3, attempts=1, stopped=True
    )
    saved = SavedSegments(tmp_path / "a.wav", "digest", 3, drawn=False)
    saved.put(0, segment)
    (file,) = saved.folder.glob("*.segment")
    tensors, metadata, _ = load_tensors(file.read_bytes())
    assert saved.get(0) is not None

    file.write_bytes(save(tensors, metadata))
    assert saved.get(0) is None
    file.write_bytes(save(tensors, {"segment": metadata["segment"]}))
    assert saved.get(0) is None
    saved.discard()
