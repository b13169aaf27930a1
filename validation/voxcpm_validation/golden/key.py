"""The key of a golden record: everything that 16-bit samples depend on besides text, prompt and seed."""

from __future__ import annotations

import hashlib
import json
import platform
import re
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path, PurePosixPath

from pydantic import BaseModel, ConfigDict

from voxcpm_constants.macos import macos
from voxcpm_constants.manifest import FileRecord
from voxcpm_constants.step_models import Precision
from voxcpm_runtime.backends.choice import Backend, Chosen, choose_backend
from voxcpm_runtime.backends.machine import chip
from voxcpm_runtime.backends.portable.package import read_specification
from voxcpm_runtime.bundle.opening import Bundle

_CPU_INFO = Path("/proc/cpuinfo")
_MACHINES = {"AMD64": "x86_64", "aarch64": "arm64"}

# Linux's names of the instruction sets by which ONNX Runtime (mlas/lib/platform.cpp) and numpy's OpenBLAS choose their
# kernels.
_INSTRUCTION_SETS = (
    "avx2", "avx_vnni", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "avx_vnni_int8", "amx_int8",
    "asimd", "asimddp", "i8mm", "sve", "svei8mm", "sme",
)  # fmt: skip


class GoldenKey(BaseModel):
    """Backend, machine, software and model files. Hashes are compared only between equal keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    backend: Chosen
    machine: str
    """x86_64 or arm64."""
    processor: str
    """See `processor`."""
    engine: str
    """ONNX Runtime, coreai-core or macOS, and numpy, with their versions."""
    precision: Precision
    content: str
    """The result of `content_digest`."""

    @property
    def title(self) -> str:
        """All fields but the content, for messages."""
        return f"{self.backend}, {self.machine}, {self.processor}, {self.engine}, {self.precision}"

    @property
    def file_name(self) -> str:
        """The file name of the record with this key."""
        return re.sub(r"[^\w.]+", "-", self.title) + ".json"


def golden_key(bundle: Bundle, backend: Backend) -> GoldenKey:
    """The key of an open bundle on this machine. Raises InputError for a backend that the machine lacks."""
    chosen = choose_backend(backend, bundle)
    engines = {
        "coreml": lambda: f"macOS {_minor(str(macos()).split()[-1])}",
        "coreai": lambda: f"coreai-core {version('coreai-core')}",
        "portable": lambda: f"onnxruntime {_minor(version('onnxruntime'))}",
    }
    return GoldenKey(
        backend=chosen,
        machine=_MACHINES.get(platform.machine(), platform.machine()),
        processor=processor(),
        engine=f"{engines[chosen]()}, numpy {_minor(version('numpy'))}",
        precision=bundle.precision,
        content=content_digest(bundle.folder, bundle.manifest.files_of(bundle.precision)),
    )


def content_digest(folder: Path, files: Mapping[str, FileRecord]) -> str:
    """SHA-256 over the parts of a bundle's files that are the same in every conversion with the same tools.

    Packages contain random identifiers (Manifest.json); Core ML programs a date, and maps in any order. Core AI's
    programs name their weights at random: their digest is of this conversion alone.
    """
    digests = {}
    for name, record in files.items():
        if name.endswith(".mlmodel"):
            model = read_specification((folder / name).parents[2])
            model.description.ClearField("metadata")
            digests[name] = hashlib.sha256(model.SerializeToString(deterministic=True)).hexdigest()
        elif not PurePosixPath(name).match("*.mlpackage/Manifest.json") and ".mlmodelc/" not in name:
            digests[name] = record.sha256
    return hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()


def processor() -> str:
    """The instruction sets by which kernels are chosen, from /proc/cpuinfo; the chip's name where there is none."""
    try:
        flags = re.search(
            r"^(?:flags|Features)\s*:(.*)$", _CPU_INFO.read_text(encoding="utf-8"), re.MULTILINE
        )
    except OSError:
        flags = None
    found = set(flags[1].split()) if flags else set()
    return "+".join(name for name in _INSTRUCTION_SETS if name in found) or chip()


def _minor(release: str) -> str:
    return ".".join(release.split(".")[:2])
