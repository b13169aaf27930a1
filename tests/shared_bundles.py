"""Checkpoints and bundles that tests share, cached across runs (conversion_cache.py)."""

import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from conversion_cache import ConversionCache
from voxcpm_constants.step_models import AlignmentHead, Precision, StepSizes
from voxcpm_constants.targets import CORE_AI, KVCache, Target

ALIGNMENT = (AlignmentHead(0, 1, 0.0, 0.9), AlignmentHead(1, 0, 0.0, 0.9))
"""Any two heads, one in each half of the base LM."""
ALL_PRECISIONS: tuple[Precision, ...] = ("fp16", "int8", "fp32")


def make_once(
    factory: pytest.TempPathFactory, worker_id: str, name: str, make: Callable[[Path], object]
) -> Path:
    """A folder that `make(folder)` fills once for all workers of a run."""
    base = factory.getbasetemp()
    shared = base if worker_id == "master" else base.parent
    with FileLock(shared / f"{name}.lock"):
        if not (shared / f"{name}.made").exists():
            make(shared / name)
            (shared / f"{name}.made").touch()
    return shared / name


@pytest.fixture(scope="session")
def conversion(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Callable[..., Path]:
    """conversion(name, make, *arguments): a folder that `make(folder, *arguments)` fills, cached across runs."""
    cache = ConversionCache()

    def converted(name: str, make: Callable[..., object], *arguments: Any) -> Path:
        # A checkpoint's folder changes with each run; its name identifies the content.
        keys = [argument.name if isinstance(argument, Path) else argument for argument in arguments]

        def copy(folder: Path) -> None:
            cache.copy(name, keys, lambda to: make(to, *arguments), folder)

        return make_once(tmp_path_factory, worker_id, name, copy)

    return converted


@pytest.fixture(scope="session", params=["tiny", "tiny-kv", "tiny-2"])
def any_checkpoint(request: pytest.FixtureRequest, conversion: Callable[..., Path]) -> Path:
    """A synthetic checkpoint of each small configuration."""
    return conversion(f"checkpoint-{request.param}", synthesize, request.param)


@pytest.fixture(scope="session")
def tiny_checkpoint(conversion: Callable[..., Path]) -> Path:
    return conversion("checkpoint-tiny", synthesize, "tiny")


@pytest.fixture(scope="session")
def second_checkpoint(conversion: Callable[..., Path]) -> Path:
    """A synthetic checkpoint of VoxCPM2's structure."""
    return conversion("checkpoint-tiny-2", synthesize, "tiny-2")


@pytest.fixture(scope="session")
def tiny_bundle(tiny_checkpoint: Path, conversion: Callable[..., Path], command: Callable[..., Any]) -> Path:
    """The "tiny" checkpoint in all three precisions, with a KV cache of 128 positions.

    Converted by the command, whose output is in `output.txt` in the same folder.
    """

    def make(folder: Path, checkpoint: Path, *options: str) -> None:
        given = (checkpoint, "--max-length", "128", "--no-measure", *options)
        done = command("convert", *given, "-o", folder / "bundle")
        assert done.returncode == 0, done.stderr
        (folder / "output.txt").write_text(done.stdout + done.stderr)

    precisions = (word for precision in ALL_PRECISIONS for word in ("--precision", precision))
    return conversion("tiny", make, tiny_checkpoint, *precisions) / "bundle"


@pytest.fixture(scope="session")
def tiny_bundle_15(tiny_checkpoint: Path, conversion: Callable[..., Path]) -> Path:
    """A bundle like `tiny_bundle`, for macOS 15, with int4 instead of fp32, prefill of 16 positions only, and attention
    as an output.
    """
    sizes = StepSizes(kv_length=128, prefill_chunks=(1, 16), alignment=ALIGNMENT)
    return conversion(
        "bundle-tiny-15", write_bundle, tiny_checkpoint, sizes, ("fp16", "int8", "int4"), "macOS15"
    )


@pytest.fixture(scope="session")
def tiny_parts_bundle(tiny_checkpoint: Path, conversion: Callable[..., Path]) -> Path:
    """A bundle like `tiny_bundle`, in every optional form: caches return rows, the base LM has two packages, both with
    attention as an output, and a solver package runs all four Euler steps.
    """
    sizes = StepSizes(kv_length=128, base_lm_parts=2, solver_steps=4, alignment=ALIGNMENT)
    given = (sizes, ("fp16", "fp32"), "macOS14", "rows")
    return conversion("bundle-tiny-parts", write_bundle, tiny_checkpoint, *given)


@pytest.fixture(scope="session")
def second_bundle(second_checkpoint: Path, conversion: Callable[..., Path]) -> Path:
    """The bundle of `second_checkpoint` in fp32."""
    given = (StepSizes(kv_length=128), ("fp32",))
    return conversion("bundle-tiny-2", write_bundle, second_checkpoint, *given)


@pytest.fixture(scope="session")
def second_solver_bundle(second_checkpoint: Path, conversion: Callable[..., Path]) -> Path:
    """The bundle of `second_checkpoint` in fp16, with a solver package for all four Euler steps."""
    given = (StepSizes(kv_length=128, solver_steps=4), ("fp16",))
    return conversion("bundle-tiny-2-solver", write_bundle, second_checkpoint, *given)


@pytest.fixture(scope="session")
def speaking_bundle(conversion: Callable[..., Path]) -> Path:
    """The built-in voice's checkpoint, converted in all three precisions."""
    from voxcpm_conversion.default_bundle import DEFAULT_CHECKPOINT, SIZES

    return conversion("speaking", write_bundle, DEFAULT_CHECKPOINT, SIZES)


@pytest.fixture(scope="session")
def phone_bundle(conversion: Callable[..., Path]) -> Path:
    """The built-in voice's checkpoint in the form for phones, with 256 positions and a solver of four steps. The base
    LM has two packages with a stack of three layers each, and the residual LM one of two.
    """
    from voxcpm_conversion.default_bundle import DEFAULT_CHECKPOINT, SIZES

    small = {"kv_length": 256, "prefill_chunks": (1, 16), "base_lm_parts": 2, "solver_steps": 4}
    given = (SIZES.model_copy(update=small), ("fp16", "int8"), "macOS15", "stacked")
    return conversion("phone", write_bundle, DEFAULT_CHECKPOINT, *given)


@pytest.fixture(scope="session")
def together_bundle(conversion: Callable[..., Path]) -> Path:
    """The built-in voice's checkpoint for macOS 15, for four utterances at once."""
    from voxcpm_conversion.default_bundle import DEFAULT_CHECKPOINT, SIZES

    sizes = SIZES.model_copy(update={"together": 4})
    given = (DEFAULT_CHECKPOINT, sizes, ("fp16", "int8"), "macOS15")
    return conversion("bundle-together", write_bundle, *given)


@pytest.fixture(scope="session")
def tiny_bundle_27(tiny_checkpoint: Path, conversion: Callable[..., Path]) -> Path:
    """A bundle like `tiny_bundle`, for macOS 27, without int8 and with attention as an output; skips where Core AI's
    packages have no wheels.
    """
    pytest.importorskip("coreai_torch", exc_type=ImportError)
    given = (
        StepSizes(kv_length=128, prefill_chunks=(1, 16), alignment=ALIGNMENT),
        ("fp16", "fp32"),
        "macOS27",
    )
    return conversion("bundle-tiny-27", write_bundle, tiny_checkpoint, *given)


@pytest.fixture(scope="session")
def second_bundle_27(second_checkpoint: Path, conversion: Callable[..., Path]) -> Path:
    """The bundle of `second_checkpoint` in fp32, for macOS 27; skips where Core AI's packages have no wheels."""
    pytest.importorskip("coreai_torch", exc_type=ImportError)
    sizes = StepSizes(kv_length=128, prefill_chunks=(1, 16), encode_patches=(1,))
    return conversion("bundle-tiny-2-27", write_bundle, second_checkpoint, sizes, ("fp32",), "macOS27")


@pytest.fixture(scope="session")
def compiled_27(tiny_bundle_27: Path, tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """A user's cache directory with Core AI's compiled programs of `tiny_bundle_27`, which take seconds to make."""
    from voxcpm_runtime.backends.loading import load_step_models
    from voxcpm_runtime.bundle.opening import open_bundle

    def make(folder: Path) -> None:
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("VOXCPM_COREML_CACHE", str(folder))
            for precision in ("fp16", "fp32"):
                load_step_models(open_bundle(tiny_bundle_27, precision), "coreai")

    return make_once(tmp_path_factory, worker_id, "compiled-27", make)


@pytest.fixture
def own_compiled_27(compiled_27: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy for one test, `cache` in its folder. Files are hard links: remove them, never write to them."""
    shutil.copytree(compiled_27, tmp_path / "cache", copy_function=os.link)
    monkeypatch.setenv("VOXCPM_COREML_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def some_packages(conversion: Callable[..., Path]) -> Callable[..., Path]:
    """some_packages(name, preset, step_models, sizes, precisions, kv_cache="scatter").

    A folder for macOS 27 with only those step models of a synthetic checkpoint, and their manifest, as a whole bundle
    would take half a minute. It cannot speak.
    """

    def made(name: str, preset: str, *given: Any) -> Path:
        checkpoint = conversion(f"checkpoint-{preset}", synthesize, preset)
        return conversion(f"packages-{name}", _write_packages, checkpoint, *given)

    return made


def synthesize(folder: Path, preset: str, likeness: Any = "random") -> None:
    from voxcpm_conversion.synthetic import write_synthetic_checkpoint
    from voxcpm_conversion.synthetic_presets import presets, write_tokenizer

    tokenizer = folder.with_name("tokenizer")
    write_tokenizer(tokenizer)
    write_synthetic_checkpoint(
        folder, presets()[preset], seed=0, dtype="float32", likeness=likeness, tokenizer=tokenizer
    )


def write_bundle(
    bundle: Path,
    checkpoint: Path,
    sizes: StepSizes,
    precisions: tuple[Precision, ...] = ALL_PRECISIONS,
    target: Target = "macOS14",
    kv_cache: KVCache = "scatter",
) -> None:
    from voxcpm_conversion.checkpoint import Checkpoint
    from voxcpm_conversion.convert import convert

    opened = Checkpoint.open(checkpoint)
    convert(opened, bundle, precisions=precisions, sizes=sizes, target=target, kv_cache=kv_cache)


def _write_packages(
    folder: Path,
    checkpoint: Path,
    step_models: Iterable[str],
    sizes: StepSizes,
    precisions: tuple[Precision, ...],
    kv_cache: KVCache = "scatter",
) -> None:
    from voxcpm_constants.manifest import Manifest
    from voxcpm_constants.step_models import declare_step_models
    from voxcpm_conversion.checkpoint import Checkpoint
    from voxcpm_conversion.core_ai.packages import add_packages
    from voxcpm_conversion.workspace import Workspace

    opened = Checkpoint.open(checkpoint)
    declared = declare_step_models(opened.architecture, sizes)
    manifest = Manifest(
        architecture=opened.architecture,
        sizes=sizes,
        step_models={name: declared[name] for name in step_models},
        precisions=precisions,
        target=CORE_AI,
        kv_cache=kv_cache,
        source=opened.source(),
        tools={},
        files={},
    )
    workspace = Workspace(folder, {})
    for name in manifest.step_models:
        for package in manifest.parts(name):
            add_packages(workspace, opened, manifest, package, precisions)
    manifest.model_copy(update={"files": workspace.files()}).write(workspace.folder)
    workspace.publish()
