"""Opening a bundle: the manifest, the files it lists, the constants and the tokenizer, in one precision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from voxcpm_constants.architecture import Architecture
from voxcpm_constants.arrays import load_constants
from voxcpm_constants.errors import BundleError, InputError, first_line, is_shortage
from voxcpm_constants.manifest import (
    CONSTANTS_FOLDER,
    MANIFEST_DIGEST_FILE,
    MANIFEST_FILE,
    TOKENIZER_FOLDER,
    VECTORS_FOLDER,
    Manifest,
    check_files,
)
from voxcpm_constants.step_models import BASE_LM_STEP, PRECISIONS, Precision, declare_step_models
from voxcpm_constants.user_folders import is_hub_id
from voxcpm_runtime.argument_types import path_argument, shown, whole_number, wrong_type
from voxcpm_runtime.bundle.verified_files import check_digests
from voxcpm_runtime.text.lexicon import Lexicon
from voxcpm_runtime.text.tokenizer import TextTokenizer

DEFAULT_BUNDLE = Path(__file__).parents[1] / "default_bundle"
"""The built-in voice in int8, part of this package; `make built-in-voice` converts it."""
DEFAULT_ORDER: tuple[Precision, ...] = ("int8", "int4", "fp16", "fp32")
"""The default precision is the first of these in the bundle."""


@dataclass(frozen=True)
class Bundle:
    """An open bundle, without its step models (see `backends.loading`)."""

    folder: Path
    manifest: Manifest
    precision: Precision
    constants: Mapping[str, npt.NDArray[np.floating]]
    """The arrays of `voxcpm_constants.arrays` by name; the embedding table is memory-mapped."""
    tokenizer: TextTokenizer
    lexicon: Lexicon = field(default_factory=dict)  # Pronunciations in all its speech

    def __repr__(self) -> str:
        a = self.architecture
        checkpoint = shown(self.manifest.source.checkpoint)
        return f"Bundle(checkpoint={checkpoint}, generation={a.generation!r}, precision={self.precision!r})"

    @cached_property
    def architecture(self) -> Architecture:
        """The architecture of the converted checkpoint, from the manifest."""
        return self.manifest.architecture

    def together(self, count: int | None) -> int:
        """How many utterances to speak at once; None: as many as the bundle can. Raises InputError if it cannot."""
        most = self.manifest.sizes.together
        count = most if count is None else whole_number(count, "together", 1, "utterances")
        if count > most:
            raise InputError(
                f"together: this bundle speaks {most} at once, not {count}; convert its checkpoint with --batch {count}"
            )
        return count

    @property
    def digest(self) -> str:
        """SHA-256 over the files of this precision and the speech profile: see `Manifest.digest`."""
        return self.manifest.digest(self.precision)


def open_bundle(path: str | Path | None, precision: str | None = None, *, verify: bool = False) -> Bundle:
    """Open a bundle from a folder or from the hub (`organisation/name`); None opens the built-in voice.

    The precision's files are compared with the manifest, and hashed unless they are unchanged since they were last
    verified. verify: hash all files of all precisions. Raises BundleError, naming the file, and InputError for a
    precision that is missing.
    """
    try:
        return _open_folder(locate_bundle(path, precision), precision, verify=verify)
    except BundleError as error:
        if path is not None or is_shortage(error):
            raise
        raise BundleError(
            f"the built-in voice of this installation is damaged ({error}); install voxcpm-coreml again, with "
            "pip install --force-reinstall --no-deps"
        ) from None


def _open_folder(folder: Path, precision: str | None, *, verify: bool) -> Bundle:
    manifest = Manifest.read(folder)
    _check_declaration(folder, manifest)
    chosen = choose_precision(folder, manifest, precision)
    if verify:
        check_files(folder, manifest.files, digests=True)
    else:
        files = manifest.files_of(chosen)
        check_files(folder, files, digests=False)
        check_digests(folder, files)
    manifest.check_no_extra_files(folder, manifest.precisions if verify else (chosen,))
    return Bundle(
        folder=folder,
        manifest=manifest,
        precision=chosen,
        constants=load_constants(folder / CONSTANTS_FOLDER, manifest.architecture),
        tokenizer=TextTokenizer.from_folder(folder / TOKENIZER_FOLDER),
    )


def choose_precision(folder: Path, manifest: Manifest, requested: str | None) -> Precision:
    """The requested precision, or the first of DEFAULT_ORDER in the bundle. Raises InputError if it is missing."""
    if requested is not None and (not isinstance(requested, str) or requested not in PRECISIONS):
        raise wrong_type(requested, "precision", f"one of {', '.join(PRECISIONS)}")
    for precision in DEFAULT_ORDER:
        if precision in manifest.precisions and requested in (None, precision):
            return precision
    present = ", ".join(manifest.precisions)
    if folder == DEFAULT_BUNDLE:
        raise InputError(
            f"the built-in voice is available in {present} only; for {requested}, convert its checkpoint "
            "(conversion/voxcpm_conversion/default_checkpoint in the source tree) and open that bundle"
        )
    raise InputError(f"{folder} has no {requested or 'known'} precision (it has {present}); convert again")


def locate_bundle(path: str | Path | None, precision: str | None = None) -> Path:
    """The folder of a bundle. A hub id is downloaded, in one precision; None is the built-in voice."""
    if path is None:
        return DEFAULT_BUNDLE
    folder = path_argument(path, "path")
    if folder.exists() or not is_hub_id(str(path)):
        return folder
    # The last one tells another layout.
    beginning = [MANIFEST_FILE, MANIFEST_DIGEST_FILE, f"*/{BASE_LM_STEP}.mlpackage/Manifest.json"]
    manifest = Manifest.read(_download(str(path), beginning), str(path))
    chosen = choose_precision(Path(str(path)), manifest, precision)
    folders = (CONSTANTS_FOLDER, TOKENIZER_FOLDER, VECTORS_FOLDER, chosen)
    return _download(str(path), [MANIFEST_FILE, MANIFEST_DIGEST_FILE, *(f"{name}/**" for name in folders)])


def _download(repository: str, patterns: list[str]) -> Path:
    # Slow to import, and only needed for bundles of the hub.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(repository, allow_patterns=patterns))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise BundleError(
            f"{repository}: no such folder, and no such bundle on the hub ({first_line(error)})"
        ) from None


def _check_declaration(folder: Path, manifest: Manifest) -> None:
    """Raises BundleError unless this release declares the same step models; later code does not check shapes."""
    fp32, stacked = manifest.audio_vae_fp32, manifest.kv_cache == "stacked"
    declared = declare_step_models(
        manifest.architecture, manifest.sizes, audio_vae_fp32=fp32, stacked=stacked
    )
    for name, model in declared.items():
        if manifest.step_models.get(name) != model:
            raise BundleError(
                f"{folder / MANIFEST_FILE}: inputs and outputs of {name} do not match this release; convert again"
            )
    if 1 not in (chunks := manifest.sizes.prefill_chunks):
        raise BundleError(f"{folder / MANIFEST_FILE}: prefill_chunks must contain 1, got {chunks}")
    manifest.check_complete(folder)
