import json
import os
import time

import pytest

from edited_manifest import edit_manifest
from voxcpm_constants import manifest as manifests
from voxcpm_constants.errors import BundleError, InputError
from voxcpm_constants.step_models import declare_step_models
from voxcpm_runtime.bundle.opening import locate_bundle, open_bundle


@pytest.fixture
def hashed(monkeypatch):
    """A list that gets the name of each file that is hashed."""
    names = []
    record = manifests.record_file
    monkeypatch.setattr(manifests, "record_file", lambda path: names.append(path.name) or record(path))
    return names


def test_int8_is_preferred_and_any_precision_can_be_asked_for(bundle_folder):
    assert open_bundle(bundle_folder).precision == "int8"
    assert open_bundle(str(bundle_folder), "fp16").precision == "fp16"
    edit_manifest(bundle_folder, lambda document: document.update(precisions=["fp16"]))
    assert open_bundle(bundle_folder).precision == "fp16"


@pytest.mark.parametrize(
    ("asked", "message"), [("fp32", "it has fp16, int8"), ("int2", "must be one of fp16, int8, int4, fp32")]
)
def test_an_absent_precision_is_refused_with_those_present(bundle_folder, asked, message):
    with pytest.raises(InputError, match=message):
        open_bundle(bundle_folder, asked)


def test_constants_and_tokeniser_are_open(bundle_folder, constants, architecture):
    bundle = open_bundle(bundle_folder)

    assert set(bundle.constants) == set(constants)
    assert bundle.tokenizer("ab") == [3, 4, 5]
    assert bundle.architecture == architecture


def test_no_bundle(tmp_path):
    with pytest.raises(BundleError, match="no bundle here"):
        open_bundle(tmp_path)
    with pytest.raises(BundleError, match="no bundle here"):
        open_bundle(tmp_path / "nowhere")


def test_a_newer_schema(bundle_folder):
    edit_manifest(bundle_folder, lambda document: document.update(schema_version=99))

    with pytest.raises(BundleError, match="schema version 99 is newer"):
        open_bundle(bundle_folder)


def test_a_schema_version_is_a_number(bundle_folder):
    edit_manifest(bundle_folder, lambda document: document.update(schema_version=True))

    with pytest.raises(BundleError, match=r"schema_version: Input should be a valid integer.*convert again"):
        open_bundle(bundle_folder)


def test_a_manifest_from_before_speech_profiles_is_read_and_a_new_one_says_that_it_has_one(bundle_folder):
    assert json.loads((bundle_folder / "manifest.json").read_text())["schema_version"] == 3

    def of_schema_2(document):
        document["schema_version"] = 2
        document.pop("speech")

    edit_manifest(bundle_folder, of_schema_2)

    assert open_bundle(bundle_folder).manifest.speech is None


def test_a_manifest_from_before_batches_is_of_one_utterance(bundle_folder):
    def without_batch(document):
        assert document["sizes"].pop("batch") == 1

    edit_manifest(bundle_folder, without_batch)

    assert open_bundle(bundle_folder).manifest.sizes.batch == 1


def test_a_bundle_for_several_utterances(bundle_folder):
    manifest = open_bundle(bundle_folder).manifest
    sizes = manifest.sizes.model_copy(update={"batch": 3, "encode_patches": (1, 3, 16)})
    models = declare_step_models(manifest.architecture, sizes)
    manifest.model_copy(update={"sizes": sizes, "step_models": models}).write(bundle_folder)

    reopened = open_bundle(bundle_folder).manifest
    assert reopened.sizes == sizes
    assert reopened.step_models["locdit_step"].inputs[0].shape[0] == 6


def test_a_batch_that_the_step_models_do_not_have(bundle_folder):
    edit_manifest(bundle_folder, lambda document: document["sizes"].update(batch=3))

    with pytest.raises(BundleError, match=r"inputs and outputs of .* are not those"):
        open_bundle(bundle_folder)


def test_a_missing_a_truncated_and_an_altered_file_are_named(bundle_folder):
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


def test_another_precisions_files_are_looked_at_on_request_only(bundle_folder):
    (bundle_folder / "fp16" / "locdit_step.mlpackage" / "Manifest.json").write_text("damaged")

    open_bundle(bundle_folder, "int8")
    with pytest.raises(BundleError, match="fp16"):
        open_bundle(bundle_folder, "int8", verify=True)


def test_a_second_start_hashes_nothing(bundle_folder, hashed):
    open_bundle(bundle_folder)
    assert len(hashed) > 6
    hashed.clear()

    open_bundle(bundle_folder)
    assert not hashed

    open_bundle(bundle_folder, verify=True)
    assert "tokenizer.json" in hashed


def test_a_file_that_was_touched_is_hashed_again_and_found_altered(bundle_folder, hashed):
    open_bundle(bundle_folder)
    path = bundle_folder / "tokenizer" / "tokenizer.json"
    hashed.clear()

    os.utime(path, ns=(time.time_ns(), time.time_ns() + 1))
    open_bundle(bundle_folder)
    assert hashed == ["tokenizer.json"]

    path.write_bytes(path.read_bytes()[:-1] + b" ")
    with pytest.raises(BundleError, match="content differs"):
        open_bundle(bundle_folder)


@pytest.mark.parametrize("damage", ["{", "[]", '{"tokenizer/tokenizer.json": 1}'])
def test_a_damaged_record_of_digests_only_costs_time(bundle_folder, hashed, damage, tmp_path):
    open_bundle(bundle_folder)
    (record,) = (tmp_path / "cache" / "verified").iterdir()
    record.write_text(damage)
    hashed.clear()

    open_bundle(bundle_folder)

    assert "tokenizer.json" in hashed


def test_a_cache_that_cannot_be_written_is_no_error(bundle_folder, monkeypatch):
    # No user, not even root, can create a folder below a file.
    (bundle_folder.parent / "file").write_text("")
    monkeypatch.setenv("VOXCPM_COREML_CACHE", str(bundle_folder.parent / "file" / "cache"))

    open_bundle(bundle_folder)


def test_step_models_of_another_declaration_are_refused(bundle_folder):
    def rename(document):
        document["step_models"]["feat_encoder"]["inputs"][0]["name"] = "feats"

    edit_manifest(bundle_folder, rename)

    with pytest.raises(BundleError, match="inputs and outputs of feat_encoder"):
        open_bundle(bundle_folder)


def test_a_hub_id_is_downloaded_in_one_precision(bundle_folder, monkeypatch):
    import huggingface_hub

    asked = []

    def snapshot_download(repository, *, allow_patterns):
        asked.append((repository, allow_patterns))
        return str(bundle_folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)

    assert locate_bundle("someone/voice", "fp16") == bundle_folder
    assert asked[0] == ("someone/voice", ["manifest.json", "manifest.sha256"])
    assert {"fp16/**", "vectors/**"} <= set(asked[1][1])
    assert "int8/**" not in asked[1][1]


def test_a_hub_id_that_cannot_be_had_is_one_line(monkeypatch):
    import huggingface_hub

    def snapshot_download(*_, **__):
        raise ConnectionError("no route\nto anywhere")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)

    with pytest.raises(
        BundleError, match=r"someone/voice: no such folder, and no such bundle on the hub \(no route\)"
    ):
        locate_bundle("someone/voice")
