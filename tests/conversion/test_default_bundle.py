import hashlib

from voxcpm_constants.manifest import Manifest
from voxcpm_constants.speech_profile import SpeechProfile
from voxcpm_conversion.default_bundle import DEFAULT_CHECKPOINT, SIZES
from voxcpm_runtime.backends.portable.package import read_specification
from voxcpm_runtime.bundle.opening import DEFAULT_BUNDLE, open_bundle


def _content(bundle):
    """Digests of the reproducible content: without packages' random identifiers and programs' dates."""
    digests = {}
    for name, record in bundle.manifest.files_of("int8").items():
        if name.endswith(".mlmodel"):
            model = read_specification((bundle.folder / name).parents[2])
            model.description.ClearField("metadata")
            digests[name] = hashlib.sha256(model.SerializeToString(deterministic=True)).hexdigest()
        elif not name.endswith(".mlpackage/Manifest.json"):
            digests[name] = record.sha256
    return digests


def test_built_in_bundle_is_reproducible(speaking_bundle):
    """Weights, programs, constants and tokenizer are equal; only dates and random identifiers differ."""
    in_tree, converted = (
        open_bundle(folder, "int8", verify=True) for folder in (DEFAULT_BUNDLE, speaking_bundle)
    )
    assert _content(in_tree) == _content(converted), (
        "run `make built-in-voice`, and commit the bundle that it converts"
    )
    # Another machine's rounding may move the shift of a head by some milliseconds.
    of_the_conversion = {"files": True, "precisions": True, "tools": True, "sizes": {"alignment"}}
    assert in_tree.manifest.model_dump(exclude=of_the_conversion) == converted.manifest.model_dump(
        exclude=of_the_conversion
    )
    assert [h[:2] for h in in_tree.manifest.sizes.alignment] == [h[:2] for h in SIZES.alignment]
    assert in_tree.manifest.precisions == ("int8",)
    assert Manifest.read(DEFAULT_BUNDLE).speech == SpeechProfile.from_checkpoint(DEFAULT_CHECKPOINT)
