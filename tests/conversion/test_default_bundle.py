"""The built-in voice's bundle, which is in the tree, and the checkpoint that it is converted from."""

from __future__ import annotations

from pathlib import Path

from voxcpm_constants.manifest import Manifest
from voxcpm_constants.speech_profile import SpeechProfile
from voxcpm_conversion.default_bundle import DEFAULT_CHECKPOINT
from voxcpm_runtime.bundle.opening import DEFAULT_BUNDLE, open_bundle
from voxcpm_validation.golden.key import content_digest


def test_the_bundle_in_the_tree_is_what_conversion_makes_of_the_checkpoint(speaking_bundle: Path) -> None:
    """Weights, programs, constants and tokenizer are equal; only dates and random identifiers differ."""
    in_tree, converted = (
        open_bundle(folder, "int8", verify=True) for folder in (DEFAULT_BUNDLE, speaking_bundle)
    )

    digests = {
        bundle.folder: content_digest(bundle.folder, bundle.manifest.files_of("int8"))
        for bundle in (in_tree, converted)
    }
    assert len(set(digests.values())) == 1, (
        "run `make built-in-voice`, and commit the bundle that it converts"
    )
    of_the_conversion = {"files", "precisions", "tools"}
    assert in_tree.manifest.model_dump(exclude=of_the_conversion) == converted.manifest.model_dump(
        exclude=of_the_conversion
    )
    assert in_tree.manifest.precisions == ("int8",)
    assert Manifest.read(DEFAULT_BUNDLE).speech == SpeechProfile.beside(DEFAULT_CHECKPOINT)
