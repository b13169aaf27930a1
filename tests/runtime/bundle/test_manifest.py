import os

import pytest

from edited_manifest import edit_manifest
from voxcpm_constants import manifest as manifests
from voxcpm_constants.errors import BundleError
from voxcpm_runtime.bundle.opening import open_bundle

WEIGHTS = "int8/locdit_step.mlpackage/Manifest.json"


@pytest.mark.parametrize(
    "needed", ["tokenizer/tokenizer_config.json", "constants/res_to_dit_proj_b.npy", WEIGHTS]
)
@pytest.mark.parametrize(
    "added", ["/etc/passwd", "constants/../../a", "constants\\a\\b", "constants/\u202ea"]
)
def test_files_of_speech_must_be_listed_and_no_path_outside_the_bundle(bundle_folder, needed, added):
    edit_manifest(bundle_folder, lambda m: m["files"].update({added: m["files"][WEIGHTS]}))
    with pytest.raises(BundleError, match="expected paths of files in folders of the bundle, got "):
        open_bundle(bundle_folder)
    edit_manifest(bundle_folder, lambda m: (m["files"].pop(added), m["files"].pop(needed)))
    with pytest.raises(BundleError, match="is missing from its list of files"):
        open_bundle(bundle_folder)


@pytest.fixture
def spoken_with(bundle_folder, tmp_path):
    """Opens the bundle in int8 with an unlisted file or link, and without a digest of the manifest."""

    def opened(extra, *, linked=False, verify=False):
        edit_manifest(bundle_folder, lambda _: None)
        path = bundle_folder / extra
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(tmp_path / "elsewhere") if linked else path.write_bytes(b"x")
        return open_bundle(bundle_folder, "int8", verify=verify)

    return opened


@pytest.mark.parametrize(
    ("extra", "given"),
    [
        ("int8/locdit_step.mlpackage/Data/com.apple.CoreML/weights/weight.bin", {}),
        ("constants/other.npy", {"linked": True}),
        ("tokenizer/added_tokens.json", {"verify": True}),
    ],
)
def test_unlisted_file_or_link_is_rejected(spoken_with, extra, given):
    """Nothing verifies it, although code that reads the folder might read it."""
    with pytest.raises(BundleError, match=f"{extra}.* not listed in the manifest"):
        spoken_with(extra, **given)


# Files of the operating system and of other precisions; the last is shipped by an app, or made on the Mac.
UNUSED = (
    "constants/.DS_Store",
    "int8/notes.txt",
    "fp16/locdit_step.mlpackage/n",
    "int8/locdit_step.mlmodelc/m.mil",
)


@pytest.mark.parametrize("extra", UNUSED)
def test_unused_file_is_ignored(spoken_with, extra):
    assert spoken_with(extra).precision == "int8"


def test_altered_file_with_its_old_mtime_is_rehashed(bundle_folder):
    open_bundle(bundle_folder, "int8")
    path = bundle_folder / WEIGHTS
    before = path.stat()
    path.write_text(path.read_text().swapcase())
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    with pytest.raises(BundleError, match=r"Manifest\.json: content differs from the manifest's digest"):
        open_bundle(bundle_folder, "int8")


def test_altered_manifest_is_rejected(bundle_folder):
    """Its new value is one that nothing else checks."""
    path = bundle_folder / "manifest.json"
    content = path.read_bytes()
    path.write_bytes(content.replace(b'"revision": null', b'"revision": "v"'))
    assert path.read_bytes() != content
    with pytest.raises(BundleError, match=r"differs from the digest in manifest\.sha256"):
        open_bundle(bundle_folder)


def test_link_out_of_the_bundle_is_rejected_despite_a_matching_digest(bundle_folder, tmp_path):
    for moved in (WEIGHTS, "tokenizer"):
        outside = (bundle_folder / moved).rename(tmp_path / "outside")
        (bundle_folder / moved).symlink_to(outside)
        with pytest.raises(BundleError, match="a link to outside the bundle"):
            open_bundle(bundle_folder)
        (bundle_folder / moved).unlink()
        outside.rename(bundle_folder / moved)
    # Links within the bundle and to the bundle are allowed.
    (bundle_folder / WEIGHTS).rename(bundle_folder / "int8" / "weights")
    (bundle_folder / WEIGHTS).symlink_to(bundle_folder / "int8" / "weights")
    (tmp_path / "linked").symlink_to(bundle_folder)
    assert open_bundle(tmp_path / "linked").precision == "int8"


def test_hub_cache_links_to_blobs_are_allowed(bundle_folder, tmp_path):
    repository = tmp_path / "models--a--b"
    (repository / "blobs").mkdir(parents=True)
    (repository / "snapshots").mkdir()
    snapshot = bundle_folder.rename(repository / "snapshots" / "0123")
    (snapshot / WEIGHTS).rename(repository / "blobs" / "4567")
    (snapshot / WEIGHTS).symlink_to("../../../../blobs/4567")
    assert open_bundle(snapshot).precision == "int8"
    (repository / "blobs" / "4567").rename(tmp_path / "4567")
    (snapshot / WEIGHTS).unlink()
    (snapshot / WEIGHTS).symlink_to(tmp_path / "4567")
    with pytest.raises(BundleError, match="a link to outside the bundle"):
        open_bundle(snapshot)


def npy(shape, descr="<f4", version=b"\x01\x00", data=b""):
    header = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY" + version + len(header).to_bytes(2, "little") + header.encode() + data


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("embed_tokens", npy("(120, 8)", "|O", data=b"cposix\nsystem\n."), "cannot be read"),
        ("embed_tokens", npy("(120, 8)", "<i4", data=bytes(120 * 8 * 4)), r"got int32 of \(120, 8\)"),
        ("embed_tokens", npy("(100000000000, 100000000000)"), "cannot be read"),
        ("lm_to_dit_proj_b", npy("(6,)", data=b"\xff" * 24), r"lm_to_dit_proj_b\.npy: expected finite"),
    ],
)
def test_malformed_constant_is_a_one_line_error(bundle_folder, name, content, message):
    """Even if digests match, as in a forged bundle."""
    (bundle_folder / "constants" / f"{name}.npy").write_bytes(content)
    recorded = {name: record.model_dump() for name, record in manifests.record_folder(bundle_folder).items()}
    edit_manifest(bundle_folder, lambda m: m["files"].update(recorded))
    with pytest.raises(BundleError, match=message):
        open_bundle(bundle_folder)
