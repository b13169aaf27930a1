"""Checkpoints and bundles that tests share: each is made once a run, for all of its workers."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from voxcpm_constants.step_models import Precision, StepSizes
from voxcpm_constants.targets import CORE_AI, KVCache, Target


def made_once(
    factory: pytest.TempPathFactory, worker_id: str, name: str, make: Callable[[Path], object]
) -> Path:
    """A folder that `make(folder)` fills once for all workers of a test run."""
    base = factory.getbasetemp()
    shared = base if worker_id == "master" else base.parent
    with FileLock(shared / f"{name}.lock"):
        if not (shared / f"{name}.made").exists():
            make(shared / name)
            (shared / f"{name}.made").touch()
    return shared / name


@pytest.fixture(scope="session", params=["tiny", "tiny-kv", "tiny-2"])
def any_checkpoint(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, worker_id: str
) -> Path:
    """A synthetic checkpoint of each small configuration."""
    return made_once(tmp_path_factory, worker_id, f"checkpoint-{request.param}", _synthesize(request.param))


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    return made_once(tmp_path_factory, worker_id, "checkpoint-tiny", _synthesize("tiny"))


@pytest.fixture(scope="session")
def tiny_bundle(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """The "tiny" checkpoint in all three precisions, with a cache of 128 positions."""
    return made_once(
        tmp_path_factory, worker_id, "bundle-tiny", bundle_maker(tiny_checkpoint, StepSizes(kv_length=128))
    )


@pytest.fixture(scope="session")
def tiny_bundle_15(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """A bundle like `tiny_bundle`, for macOS 15, with int4 instead of fp32."""
    make = bundle_maker(tiny_checkpoint, StepSizes(kv_length=128), ("fp16", "int8", "int4"), "macOS15")
    return made_once(tmp_path_factory, worker_id, "bundle-tiny-15", make)


@pytest.fixture(scope="session")
def core_ai_conversion(
    tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory, worker_id: str
) -> Path:
    """A folder with `bundle` for macOS 27, which the command wrote, and `output.txt`, all that it printed; skips where
    Core AI's packages have no wheels.
    """
    pytest.importorskip("coreai_torch", exc_type=ImportError)

    def make(folder: Path) -> None:
        from voxcpm_runtime.commands import cli

        options = ("--target", "macos27", "--precision", "fp16", "--precision", "fp32")
        sizes = ("--max-length", "128", "--prefill-chunk", "16", "--solver-steps", "0")
        folder.mkdir()
        # Not in a process of its own, which would take five seconds to get ready.
        with _printed_to(folder / "output.txt"):
            code = cli.main(["convert", str(tiny_checkpoint), "-o", str(folder / "bundle"), *options, *sizes])
        assert code == 0, (folder / "output.txt").read_text()

    return made_once(tmp_path_factory, worker_id, "core-ai", make)


@contextmanager
def _printed_to(path: Path) -> Iterator[None]:
    """A context whose output, that of native code included, goes into a file."""
    with path.open("w") as file, redirect_stdout(file), redirect_stderr(file):
        kept = [(descriptor, os.dup(descriptor)) for descriptor in (1, 2)]
        try:
            for descriptor, _ in kept:
                os.dup2(file.fileno(), descriptor)
            yield
        finally:
            for descriptor, copy in kept:
                os.dup2(copy, descriptor)
                os.close(copy)


@pytest.fixture(scope="session")
def tiny_bundle_27(core_ai_conversion: Path) -> Path:
    """A bundle like `tiny_bundle`, for macOS 27 and without int8."""
    return core_ai_conversion / "bundle"


@pytest.fixture(scope="session")
def compiled_27(tiny_bundle_27: Path, tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """A user's cache directory with what Core AI's compiler makes of `tiny_bundle_27`, which takes seconds."""
    from voxcpm_runtime.backends.loading import load_step_models
    from voxcpm_runtime.bundle.opening import open_bundle

    def make(folder: Path) -> None:
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("VOXCPM_COREML_CACHE", str(folder))
            for precision in ("fp16", "fp32"):
                load_step_models(open_bundle(tiny_bundle_27, precision), "coreai")

    return made_once(tmp_path_factory, worker_id, "compiled-27", make)


@pytest.fixture
def own_compiled_27(compiled_27: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same directory for one test alone, "cache" in its folder. Files are links: to be removed, not written to."""
    shutil.copytree(compiled_27, tmp_path / "cache", copy_function=os.link)
    monkeypatch.setenv("VOXCPM_COREML_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def second_bundle_27(
    second_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory, worker_id: str
) -> Path:
    """The bundle of `second_checkpoint` in fp32, for macOS 27; skips where Core AI's packages have no wheels."""
    pytest.importorskip("coreai_torch", exc_type=ImportError)
    sizes = StepSizes(kv_length=128, prefill_chunks=(1, 16), encode_patches=(1,))
    make = bundle_maker(second_checkpoint, sizes, ("fp32",), "macOS27")
    return made_once(tmp_path_factory, worker_id, "bundle-tiny-2-27", make)


@pytest.fixture(scope="session")
def tiny_parts_bundle(
    tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory, worker_id: str
) -> Path:
    """A bundle like `tiny_bundle`, in every optional form: caches return rows, the base LM has two packages, and a
    seventh package takes all of four Euler steps.
    """
    sizes = StepSizes(kv_length=128, base_lm_parts=2, solver_steps=4)
    make = bundle_maker(tiny_checkpoint, sizes, ("fp16", "fp32"), kv_cache="rows")
    return made_once(tmp_path_factory, worker_id, "bundle-tiny-parts", make)


@pytest.fixture(scope="session")
def tiny_solver_bundle(
    tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory, worker_id: str
) -> Path:
    """A bundle like `tiny_bundle` whose seventh package takes all of four Euler steps, without fp32."""
    sizes = StepSizes(kv_length=128, solver_steps=4)
    make = bundle_maker(tiny_checkpoint, sizes, ("fp16", "int8"))
    return made_once(tmp_path_factory, worker_id, "bundle-tiny-solver", make)


@pytest.fixture(scope="session")
def second_solver_bundle(
    second_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory, worker_id: str
) -> Path:
    """The same of `second_checkpoint`, in fp16."""
    make = bundle_maker(second_checkpoint, StepSizes(kv_length=128, solver_steps=4), ("fp16",))
    return made_once(tmp_path_factory, worker_id, "bundle-tiny-2-solver", make)


@pytest.fixture(scope="session")
def batch_conversion(
    tiny_checkpoint: Path,
    tmp_path_factory: pytest.TempPathFactory,
    worker_id: str,
    command: Callable[..., Any],
) -> Path:
    """A folder with `bundle`, which the command wrote, and `output.txt`, all that it printed."""

    def make(folder: Path) -> None:
        sizes = ("--max-length", 128, "--batch", 3)
        precisions = (part for p in ("fp16", "int8", "fp32") for part in ("--precision", p))
        done = command("convert", tiny_checkpoint, "-o", folder / "bundle", *precisions, *sizes)
        assert done.returncode == 0, done.stderr
        (folder / "output.txt").write_text(done.stdout + done.stderr)

    return made_once(tmp_path_factory, worker_id, "batch", make)


@pytest.fixture(scope="session")
def tiny_batch_bundle(batch_conversion: Path) -> Path:
    """A bundle like `tiny_bundle`, for three utterances at the same time."""
    return batch_conversion / "bundle"


@pytest.fixture(scope="session")
def second_checkpoint(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """A synthetic checkpoint of VoxCPM2's structure."""
    return made_once(tmp_path_factory, worker_id, "checkpoint-tiny-2", _synthesize("tiny-2"))


@pytest.fixture(scope="session")
def second_bundle(second_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """The bundle of `second_checkpoint` in fp32."""
    make = bundle_maker(second_checkpoint, StepSizes(kv_length=128), ("fp32",))
    return made_once(tmp_path_factory, worker_id, "bundle-tiny-2", make)


@pytest.fixture(scope="session")
def some_packages(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Callable[..., Path]:
    """some_packages(name, preset, step_models, sizes, precisions=("fp16",), target="macOS14", kv_cache="scatter").

    A folder with those step models of a synthetic checkpoint alone, and a manifest of them: seconds, where all of a
    bundle would take half a minute. It cannot speak. The checkpoint is that of the other fixtures.
    """

    def made(name: str, preset: str, *given: Any, **options: Any) -> Path:
        checkpoint = made_once(tmp_path_factory, worker_id, f"checkpoint-{preset}", _synthesize(preset))
        make = _convert_some(checkpoint, *given, **options)
        return made_once(tmp_path_factory, worker_id, f"packages-{name}", make)

    return made


@pytest.fixture(scope="session")
def speaking_bundle(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """The built-in voice's checkpoint, converted in all three precisions."""
    from voxcpm_conversion.default_bundle import DEFAULT_CHECKPOINT, SIZES

    return made_once(tmp_path_factory, worker_id, "speaking", bundle_maker(DEFAULT_CHECKPOINT, SIZES))


def _synthesize(preset: str) -> Callable[[Path], object]:
    from voxcpm_conversion.synthetic import write_synthetic_checkpoint
    from voxcpm_conversion.synthetic_presets import presets, write_tokenizer

    def make(folder: Path) -> None:
        tokenizer = folder.with_name(f"{folder.name}-tokenizer")
        write_tokenizer(tokenizer)
        write_synthetic_checkpoint(folder, presets()[preset], seed=0, dtype="float32", tokenizer=tokenizer)

    return make


def bundle_maker(
    checkpoint: Path,
    sizes: StepSizes,
    precisions: tuple[Precision, ...] = ("fp16", "int8", "fp32"),
    target: Target = "macOS14",
    kv_cache: KVCache = "scatter",
) -> Callable[[Path], object]:
    """The function make(folder) that converts a checkpoint into a bundle."""
    from voxcpm_conversion.checkpoint import Checkpoint
    from voxcpm_conversion.convert import convert

    return lambda bundle: convert(
        Checkpoint.open(checkpoint),
        bundle,
        precisions=precisions,
        sizes=sizes,
        target=target,
        kv_cache=kv_cache,
    )


def _convert_some(
    checkpoint: Path,
    step_models: Iterable[str],
    sizes: StepSizes,
    precisions: tuple[Precision, ...] = ("fp16",),
    target: Target = "macOS14",
    kv_cache: KVCache = "scatter",
) -> Callable[[Path], object]:
    from voxcpm_constants.manifest import Manifest, record_folder, schema_version
    from voxcpm_constants.step_models import declare_step_models
    from voxcpm_conversion.checkpoint import Checkpoint
    from voxcpm_conversion.core_ai import packages as core_ai
    from voxcpm_conversion.core_ml import packages as core_ml
    from voxcpm_conversion.workspace import Workspace

    def make(folder: Path) -> None:
        opened = Checkpoint.open(checkpoint)
        declared = declare_step_models(opened.architecture, sizes)
        manifest = Manifest(
            schema_version=schema_version(target),
            architecture=opened.architecture,
            sizes=sizes,
            step_models={name: declared[name] for name in step_models},
            precisions=precisions,
            target=target,
            kv_cache=kv_cache,
            source=opened.source(),
            tools={},
            files={},
        )
        workspace = Workspace(folder, {})
        for name in manifest.step_models:
            for package in manifest.parts(name):
                form = manifest.form(package)
                maker = core_ai if target == CORE_AI else core_ml
                maker.add_packages(workspace, opened, package, form, sizes, precisions, target)
        files = {path: record for path, record in record_folder(workspace.folder).items() if "/" in path}
        manifest.model_copy(update={"files": files}).write(workspace.folder)
        workspace.publish()

    return make
