import pytest

from edited_manifest import edit_manifest
from voxcpm_constants import manifest as manifests
from voxcpm_constants.errors import BundleError
from voxcpm_runtime.bundle.opening import locate_bundle, open_bundle


@pytest.fixture
def hashed(monkeypatch):
    """A list that collects the names of hashed files."""
    names = []
    record = manifests.record_file
    monkeypatch.setattr(manifests, "record_file", lambda path: names.append(path.name) or record(path))
    return names


def test_int8_is_preferred_precision_is_selectable_and_no_cache_is_needed(bundle_folder, monkeypatch):
    # No user, not even root, can create a folder below a file.
    (bundle_folder.parent / "file").write_text("")
    monkeypatch.setenv("VOXCPM_COREML_CACHE", str(bundle_folder.parent / "file" / "cache"))
    assert open_bundle(bundle_folder).precision == "int8"
    assert open_bundle(str(bundle_folder), "fp16").precision == "fp16"
    edit_manifest(bundle_folder, lambda document: document.update(precisions=["fp16"]))
    assert open_bundle(bundle_folder).precision == "fp16"


def test_missing_truncated_and_altered_files_are_named(bundle_folder):
    path = bundle_folder / "int8" / "locdit_step.mlpackage" / "Manifest.json"
    content = path.read_bytes()
    for damage, message in (
        (content[:-1], "expected .* bytes, found"),
        (content[:-1] + b"?", "content differs"),
    ):
        path.write_bytes(damage)
        with pytest.raises(BundleError, match=message) as caught:
            open_bundle(bundle_folder)
        assert str(path) in str(caught.value)
    path.unlink()
    with pytest.raises(BundleError, match="missing from the bundle"):
        open_bundle(bundle_folder)


def test_second_start_does_not_hash(bundle_folder, hashed, tmp_path):
    open_bundle(bundle_folder)
    assert len(hashed) > 6
    hashed.clear()
    open_bundle(bundle_folder)
    assert not hashed
    open_bundle(bundle_folder, verify=True)
    assert "tokenizer.json" in hashed
    # A damaged record of digests only costs time.
    (record,) = (tmp_path / "cache" / "verified").iterdir()
    record.write_text("[]")
    hashed.clear()
    open_bundle(bundle_folder)
    assert "tokenizer.json" in hashed


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m["step_models"]["feat_encoder"]["inputs"][0].update(name="x"), "outputs of feat_encoder"),
        (lambda m: m.update(schema_version=99), "expected schema version 1, found 99; convert again"),
        (lambda m: m.pop("architecture"), "architecture: Field required; convert again"),
    ],
)
def test_another_manifest_is_rejected(bundle_folder, change, message):
    edit_manifest(bundle_folder, change)
    with pytest.raises(BundleError, match=message):
        open_bundle(bundle_folder)


def test_a_hub_id_is_downloaded_in_one_precision_or_a_one_line_error(bundle_folder, monkeypatch):
    asked = []

    def snapshot_download(repository, *, allow_patterns):
        if repository == "no/route":
            raise ConnectionError("no route\nto anywhere")
        asked.append(allow_patterns)
        return str(bundle_folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    assert locate_bundle("someone/voice", "fp16") == bundle_folder
    assert asked[0][:2] == ["manifest.json", "manifest.sha256"]
    assert not [pattern for pattern in asked[0] if "weight" in pattern or pattern.endswith("**")]
    assert {"fp16/**", "vectors/**"} <= set(asked[1])
    assert "int8/**" not in asked[1]
    with pytest.raises(BundleError, match=r"no/route: .*on the hub \(no route\)"):
        locate_bundle("no/route")
