"""The key of a golden record: everything that 16-bit samples depend on besides text, prompt and seed."""

from __future__ import annotations

import hashlib
import importlib
import json
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path, PurePosixPath

from pydantic import BaseModel, ConfigDict

from voxcpm_constants.macos import macos
from voxcpm_constants.manifest import FileRecord
from voxcpm_constants.step_models import Precision
from voxcpm_runtime.backends.choice import Backend, Chosen, choose_backend
from voxcpm_runtime.backends.portable.package import read_specification
from voxcpm_runtime.bundle.opening import Bundle

_MACHINES = {"AMD64": "x86_64", "aarch64": "arm64"}

# Linux's names of the instruction sets by which ONNX Runtime (mlas/lib/platform.cpp) and numpy's OpenBLAS choose their
# kernels.
_INSTRUCTION_SETS = (
    "avx2", "avx_vnni", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "avx_vnni_int8", "amx_int8",
    "asimd", "asimddp", "i8mm", "sve", "svei8mm", "sme",
)  # fmt: skip

# The same instruction sets by their names on macOS, which does not list those that all of its machines have.
_ON_MACOS = {
    "hw.optional.avx2_0": "avx2",
    "hw.optional.avx512f": "avx512f",
    "hw.optional.avx512bw": "avx512bw",
    "hw.optional.arm.AdvSIMD": "asimd",
    "hw.optional.arm.FEAT_DotProd": "asimddp",
    "hw.optional.arm.FEAT_I8MM": "i8mm",
    "hw.optional.arm.FEAT_SME": "sme",
}


_WEIGHT = re.compile(r"\bresource_\d+")
"""The name of a weight in a Core AI program."""
_WEIGHTS = "\n{-#\n"
"""What begins the list of weights in a Core AI program's text."""


class GoldenKey(BaseModel):
    """Backend, machine, software and model files. Hashes are compared only between equal keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    backend: Chosen
    machine: str
    """x86_64 or arm64."""
    processor: str
    """Portable and Core AI: the instruction sets by which kernels are chosen. Core ML: the chip."""
    engine: str
    """ONNX Runtime, coreai-core or macOS, and numpy, with their versions."""
    precision: Precision
    content: str
    """The result of `content_digest`."""

    def likeness(self, other: GoldenKey) -> int:
        """The number of equal fields."""
        return sum(getattr(self, name) == getattr(other, name) for name in GoldenKey.model_fields)

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
    numpy = f"numpy {_minor(version('numpy'))}"
    if chosen == "coreml":
        processor = _sysctl("-n", "machdep.cpu.brand_string").strip()
        engine = f"macOS {_minor(str(macos()).split()[-1])}, {numpy}"
    elif chosen == "coreai":
        processor = "+".join(_instruction_sets()) or "unknown"
        engine = f"coreai-core {version('coreai-core')}, {numpy}"
    else:
        processor = "+".join(_instruction_sets()) or "unknown"
        engine = f"onnxruntime {_minor(version('onnxruntime'))}, {numpy}"
    return GoldenKey(
        backend=chosen,
        machine=_MACHINES.get(platform.machine(), platform.machine()),
        processor=processor,
        engine=engine,
        precision=bundle.precision,
        content=content_digest(bundle.folder, bundle.manifest.files_of(bundle.precision)),
    )


def content_digest(folder: Path, files: Mapping[str, FileRecord]) -> str:
    """SHA-256 over the parts of a bundle's files that are the same in every conversion with the same tools.

    Whole files differ between conversions: packages contain random identifiers (Manifest.json); programs contain a
    date, and maps in any order. Core AI's programs name their weights at random; next to them are a date
    (metadata.json) and the program's own digest (main.hash).
    """
    digests = {}
    for name, record in files.items():
        path = PurePosixPath(name)
        if path.suffix == ".mlmodel":
            digests[name] = _program_digest(folder / name)
        elif path.match("*.aimodel/*"):
            if path.suffix == ".mlirb":
                digests[name] = _core_ai_digest(folder / path.parent)
        elif not path.match("*.mlpackage/Manifest.json") and ".mlmodelc/" not in name:
            digests[name] = record.sha256
    return hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()


def linux_instruction_sets(cpuinfo: str) -> tuple[str, ...]:
    """The instruction sets in the text of /proc/cpuinfo by which kernels are chosen."""
    line = re.search(r"^(?:flags|Features)\s*:(.*)$", cpuinfo, re.MULTILINE)
    return _known(line[1].split() if line else ())


def macos_instruction_sets(sysctl: str) -> tuple[str, ...]:
    """The instruction sets in the output of `sysctl hw.optional` by which kernels are chosen, by Linux's names."""
    given = re.findall(r"^([\w.]+): 1$", sysctl, re.MULTILINE)
    return _known(_ON_MACOS[name] for name in given if name in _ON_MACOS)


def _known(names: Iterable[str]) -> tuple[str, ...]:
    found = set(names)
    return tuple(name for name in _INSTRUCTION_SETS if name in found)


def _instruction_sets() -> tuple[str, ...]:
    if sys.platform == "darwin":
        return macos_instruction_sets(_sysctl("hw.optional"))
    cpuinfo = Path("/proc/cpuinfo")
    return linux_instruction_sets(cpuinfo.read_text(encoding="utf-8") if cpuinfo.exists() else "")


def _sysctl(*names: str) -> str:
    finished = subprocess.run(  # noqa: S603 - names are constants
        ["/usr/sbin/sysctl", *names], capture_output=True, text=True, check=True
    )
    return finished.stdout


def _program_digest(path: Path) -> str:
    model = read_specification(path.parents[2])
    model.description.ClearField("metadata")
    return hashlib.sha256(model.SerializeToString(deterministic=True)).hexdigest()


def _core_ai_digest(path: Path) -> str:
    """SHA-256 of a Core AI program's text, in which each weight is named by its first use."""
    asset = importlib.import_module("coreai.authoring").AIModelAsset.load(path)
    # There is no public way from an asset to its text.
    text = asset.program._module.as_string()  # noqa: SLF001
    functions, _, weights = text.partition(_WEIGHTS)
    numbers = {name: f"weight {n}" for n, name in enumerate(dict.fromkeys(_WEIGHT.findall(functions)))}

    def numbered(line: str) -> str:
        return _WEIGHT.sub(lambda found: numbers.get(found[0], found[0]), line)

    # The weights are listed in the order of their names, and all but the last have a comma.
    listed = sorted(numbered(line).strip(" ,") for line in weights.splitlines())
    digest = hashlib.sha256(numbered(functions).encode())
    for line in listed:
        digest.update(line.encode())
    return digest.hexdigest()


def _minor(release: str) -> str:
    return ".".join(release.split(".")[:2])
