"""`manifest.json`: a bundle's architecture, step models and source, and the digests of its files.

bundle/
  manifest.json
  manifest.sha256    the manifest's digest, in the format of `sha256sum -c`; whoever edits the manifest deletes it
  README.md          the model card; has no digest, so it may be edited
  constants/         config.json and the arrays of `voxcpm_constants.arrays`
  tokenizer/         tokenizer.json, tokenizer_config.json
  fp16/              <step model>.mlpackage (and .mlmodelc where Apple's compiler was present), for macOS 27
                     <step model>.aimodel; int8/, int4/ and fp32/ likewise
  vectors/           test vectors of the step models (`voxcpm_constants.vectors`)
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from pydantic import Field, ValidationError, field_validator

from voxcpm_constants.architecture import Architecture
from voxcpm_constants.arrays import constant_shapes
from voxcpm_constants.errors import BundleError, first_wrong_field
from voxcpm_constants.json_files import Record, json_content, parsed_json
from voxcpm_constants.speech_profile import SpeechProfile
from voxcpm_constants.step_models import (
    AUDIO_VAE_DECODER,
    BASE_LM_STEP,
    PRECISIONS,
    Precision,
    StepModel,
    StepSizes,
    parts,
)
from voxcpm_constants.targets import PACKAGE_SUFFIXES, KVCache, PackageForm, Target, package_form

SCHEMA_VERSION = 1
MANIFEST_FILE = "manifest.json"
MANIFEST_DIGEST_FILE = "manifest.sha256"
MODEL_CARD_FILE = "README.md"
CONSTANTS_FOLDER = "constants"
CONFIG_PATH = "constants/config.json"
TOKENIZER_FOLDER = "tokenizer"
TOKENIZER_PATH = "tokenizer/tokenizer.json"
TOKENIZER_CONFIG_PATH = "tokenizer/tokenizer_config.json"
VECTORS_FOLDER = "vectors"
_SYSTEM_FILES = re.compile(r"\.DS_Store|Thumbs\.db|desktop\.ini|\._.*")


class FileRecord(Record):
    """Size in bytes and SHA-256 of one file."""

    bytes: int = Field(ge=0)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class MergedLora(Record):
    """A LoRA that was merged into the weights: each changed weight is W + alpha / r · B A."""

    name: str  # Name of its folder or weight file
    sha256: str  # SHA-256 of its weight file
    r: int
    alpha: int
    weights: int  # Number of the checkpoint's weights that it changed
    modules: tuple[str, ...]
    """Kinds of changed weights: base_lm.q_proj stands for the q_proj of any layer of the base LM."""


class Source(Record):
    """The origin of a bundle's weights."""

    checkpoint: str  # Folder name or hub id
    revision: str | None = None
    sha256: str  # SHA-256 over the contents of the checkpoint's weight files, in name order
    lora: MergedLora | None = None
    licence: str = ""
    """Licence of the weights, as an SPDX identifier or a hub's name for it; empty if the checkpoint names none."""


class Manifest(Record):
    """The contents of `manifest.json`."""

    schema_version: int = Field(default=SCHEMA_VERSION, strict=True)
    architecture: Architecture
    sizes: StepSizes
    step_models: dict[str, StepModel]
    precisions: tuple[Precision, ...]
    target: Target = "macOS14"
    kv_cache: KVCache = "scatter"
    source: Source
    speech: SpeechProfile | None = None  # The checkpoint's `speech.json`; None if it has none
    tools: dict[str, str]  # Versions of the packages that made the bundle
    files: dict[str, FileRecord]
    """Every file in a folder of the bundle, by POSIX path relative to the bundle; files at its root are not listed."""
    utterances: int = Field(default=1, exclude=True)
    """The utterances of a call of the step models to open, which only `for_several` changes."""

    @field_validator("files")
    @classmethod
    def _check_paths(cls, files: dict[str, FileRecord]) -> dict[str, FileRecord]:
        for name in files:
            path = PurePosixPath(name)
            plain = name == path.as_posix() and name.isprintable() and "\\" not in name and ":" not in name
            if not plain or path.is_absolute() or ".." in path.parts or len(path.parts) < 2:
                raise ValueError(f"expected paths of files in folders of the bundle, got {name!r}")
        return files

    def write(self, bundle: Path) -> None:
        """Write `manifest.json` and its digest."""
        content = f"{self.model_dump_json(indent=1, by_alias=True)}\n".encode()
        (bundle / MANIFEST_FILE).write_bytes(content)
        (bundle / MANIFEST_DIGEST_FILE).write_bytes(_digest_line(content))

    @classmethod
    def read(cls, bundle: Path, name: str | None = None) -> Manifest:
        """Read a bundle's manifest. name: the bundle's in errors, its path by default. Raises BundleError."""
        path = bundle / MANIFEST_FILE
        if not path.is_file():
            if has_other_layout(bundle):
                raise BundleError(
                    f"{name or bundle}: has packages but no {MANIFEST_FILE}, as in the layout of FluidInference's "
                    "bundle, which is for other programs; for a bundle, run: voxcpm-coreml convert CHECKPOINT -o BUNDLE"
                )
            raise BundleError(
                f"{name or bundle}: not a bundle (expected a folder with {MANIFEST_FILE}; create one with `convert`)"
            )
        try:
            content = json_content(path)
            document: Any = parsed_json(content)
            version = document.get("schema_version") if isinstance(document, dict) else None
            if isinstance(version, int) and version != SCHEMA_VERSION:
                raise BundleError(
                    f"{path}: expected schema version {SCHEMA_VERSION}, found {version}; convert again, or use the "
                    "release that made this bundle"
                )
            manifest = cls.model_validate(document)
        except ValidationError as error:
            raise BundleError(
                f"{path}: not a bundle manifest: {first_wrong_field(error)}; convert again"
            ) from None
        except (OSError, ValueError) as error:
            raise BundleError(
                f"{path}: expected JSON, but it cannot be read ({error}); convert again"
            ) from None
        _check_own_digest(bundle, content)
        return manifest

    @property
    def audio_vae_fp32(self) -> bool:
        """Whether the AudioVAE computes in float32 in every precision."""
        decoder = self.step_models.get(AUDIO_VAE_DECODER)
        return decoder is not None and decoder.precision_in("fp16") == "fp32"

    def parts(self, step_model: str) -> tuple[StepModel, ...]:
        """The declarations of a step model's packages, usually just its own."""
        return parts(self.step_models[step_model], self.sizes)

    @property
    def packages(self) -> tuple[StepModel, ...]:
        """The declarations of all packages."""
        return tuple(package for step_model in self.step_models for package in self.parts(step_model))

    def for_several(self) -> Manifest:
        """This manifest, to open the functions for `sizes.together` utterances instead of those for one."""
        shared = {name: model for name, model in self.step_models.items() if model.is_shared}
        return self.model_copy(update={"utterances": self.sizes.together, "step_models": shared})

    def form(self, package: StepModel) -> PackageForm:
        """The form of a package in this bundle."""
        return package_form(package, self.target, self.kv_cache, self.sizes.together)

    def package_path(self, precision: Precision, package: str) -> PurePosixPath:
        """Path of a package of this bundle."""
        return package_path(precision, package, self.target)

    def package_folders(self, precisions: Collection[Precision]) -> list[str]:
        """Paths of the packages of some precisions, relative to the bundle."""
        return [
            str(self.package_path(precision, package.name))
            for precision in precisions
            for package in self.packages
        ]

    def check_complete(self, bundle: Path) -> None:
        """Raises BundleError if a file that speech needs is not listed, so that it would not be verified."""
        needed = [TOKENIZER_PATH, TOKENIZER_CONFIG_PATH]
        needed += [f"{CONSTANTS_FOLDER}/{stem}.npy" for stem in constant_shapes(self.architecture)]
        folders = {"/".join(PurePosixPath(name).parts[:2]) for name in self.files}
        for name in (*needed, *self.package_folders(self.precisions)):
            if name not in folders:
                raise BundleError(
                    f"{bundle / MANIFEST_FILE}: {name} is missing from its list of files; convert again"
                )

    def check_no_extra_files(self, bundle: Path, precisions: Collection[Precision]) -> None:
        """Raises BundleError for an unlisted file or link in the folders that speech needs, except the system's own."""
        for folder in (CONSTANTS_FOLDER, TOKENIZER_FOLDER, *self.package_folders(precisions)):
            for path in sorted((bundle / folder).rglob("*")):
                listed = path.relative_to(bundle).as_posix() in self.files
                is_folder = path.is_dir() and not path.is_symlink()
                if not (listed or is_folder or _SYSTEM_FILES.fullmatch(path.name)):
                    raise BundleError(
                        f"{path}: not listed in the manifest, so it cannot be verified; remove it, copy the "
                        "bundle again or convert again"
                    )

    def files_of(self, precision: Precision) -> dict[str, FileRecord]:
        """The files of one precision by path: constants, tokenizer and step models, without the test vectors."""
        others = (*(f"{other}/" for other in self.precisions if other != precision), f"{VECTORS_FOLDER}/")
        return {path: record for path, record in self.files.items() if not path.startswith(others)}

    def vector_files(self) -> dict[str, FileRecord]:
        """The files of the test vectors by path."""
        return {path: record for path, record in self.files.items() if path.startswith(f"{VECTORS_FOLDER}/")}

    def digest(self, precision: Precision) -> str:
        """SHA-256 over everything that determines the sound: the digests of the precision's files, and `speech`."""
        files = {path: record.sha256 for path, record in self.files_of(precision).items()}
        if self.speech is not None:
            files["speech"] = self.speech.model_dump_json()
        return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()

    def package_key(self, precision: Precision, package: str) -> str:
        """SHA-256 over the digests of one package, as a cache key."""
        prefix = f"{self.package_path(precision, package)}/"
        records = sorted(
            (path, record.sha256) for path, record in self.files.items() if path.startswith(prefix)
        )
        return hashlib.sha256(json.dumps(records).encode()).hexdigest()


def package_path(precision: str, package: str, target: Target = "macOS14") -> PurePosixPath:
    """Path of a package, relative to a bundle. package: name of a step model, or of a part of one."""
    return PurePosixPath(precision) / f"{package}{PACKAGE_SUFFIXES[target]}"


def has_other_layout(folder: Path) -> bool:
    """Whether a folder without a manifest has packages, as `convert --layout` writes them for other programs."""
    return any((folder / package_path(precision, BASE_LM_STEP)).is_dir() for precision in PRECISIONS)


def _digest_line(content: bytes) -> bytes:
    return f"{hashlib.sha256(content).hexdigest()}  {MANIFEST_FILE}\n".encode()


def _check_own_digest(bundle: Path, content: bytes) -> None:
    path = bundle / MANIFEST_DIGEST_FILE
    expected = _digest_line(content)
    if not path.exists():
        return
    with path.open("rb") as file:
        found = file.read(len(expected) + 1)
    if found != expected:
        raise BundleError(
            f"{bundle / MANIFEST_FILE}: content differs from the digest in {MANIFEST_DIGEST_FILE}; copy both again or "
            f"convert again (or delete {MANIFEST_DIGEST_FILE}, if you changed the manifest yourself)"
        )


def record_file(path: Path) -> FileRecord:
    """Size and digest of a file."""
    with path.open("rb") as file:
        return record_open_file(file)


def record_open_file(file: BinaryIO) -> FileRecord:
    """Size and digest of a file that is open for reading, whose position is then its end."""
    digest = hashlib.sha256()
    file.seek(0)
    while block := file.read(1 << 20):
        digest.update(block)
    return FileRecord(bytes=file.tell(), sha256=digest.hexdigest())


def record_folder(folder: Path) -> dict[str, FileRecord]:
    """Records of all files below a folder except a manifest and its digest, by POSIX path relative to the folder."""
    own = (folder / MANIFEST_FILE, folder / MANIFEST_DIGEST_FILE)
    return {
        path.relative_to(folder).as_posix(): record_file(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path not in own
    }


def check_files(bundle: Path, expected: dict[str, FileRecord], *, digests: bool) -> None:
    """Compare the sizes of files with their records, and with `digests` also their contents.

    Raises BundleError, naming the first wrong file, also for a link to outside the bundle.
    """
    allowed = bundle.resolve()
    if allowed.parent.name == "snapshots" and (allowed.parents[1] / "blobs").is_dir():
        # In the hub's cache, the files of a snapshot are links to blobs next to it.
        allowed = allowed.parents[1]
    for name, record in expected.items():
        path = bundle / name
        if not path.resolve().is_relative_to(allowed):
            raise BundleError(
                f"{path}: a link to outside the bundle; replace it by the file, or convert again"
            )
        if not path.is_file():
            raise BundleError(
                f"{path}: missing from the bundle (the manifest lists it); copy it again or convert again"
            )
        if (size := path.stat().st_size) != record.bytes:
            raise BundleError(
                f"{path}: expected {record.bytes} bytes, found {size}; copy it again or convert again"
            )
        if digests and record_file(path).sha256 != record.sha256:
            raise BundleError(
                f"{path}: content differs from the manifest's digest; copy it again or convert again"
            )
