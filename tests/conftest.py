from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from filelock import FileLock

from never_skipped import pytest_runtest_makereport  # noqa: F401 - a hook, which pytest finds by its name
from voxcpm_constants.step_models import Precision, StepSizes
from voxcpm_constants.targets import CORE_AI, KVCache, Target

if TYPE_CHECKING:
    from coreml_stand_in.installation import StandIn

REPOSITORY = Path(__file__).resolve().parents[1]

# Fixtures that everything needing a conversion comes from, and folders whose every test needs coremltools or torch.
CONVERSIONS = {
    "any_checkpoint",
    "tiny_checkpoint",
    "second_checkpoint",
    "speaking_bundle",
    "default_cache",
    "some_packages",
}
CONVERTING_FOLDERS = {"conversion", "portable", "training", "validation"}


def pytest_configure() -> None:
    """A worker a core already: with threads of its own, each torch would wait for the others' cores.

    ONNX Runtime does not read this, so that recorded samples are what they are outside the tests.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")


MODULES = pytest.StashKey[int]()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Keep the garbage collector from looking through modules that stay loaded.

    coremltools collects with every conversion, however small: half a second for torch and all that comes with it.
    """
    if item.config.stash.get(MODULES, 0) != len(sys.modules):
        item.config.stash[MODULES] = len(sys.modules)
        gc.collect()
        gc.freeze()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of recorded speech, published configurations and vocabularies, beside the repository."""
    folder = REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"needs the recordings and configurations of ../{folder.relative_to(REPOSITORY.parent)}")
    return folder


def _once(factory: pytest.TempPathFactory, worker_id: str, name: str, make: Callable[[Path], object]) -> Path:
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
    return _once(tmp_path_factory, worker_id, f"checkpoint-{request.param}", _synthesize(request.param))


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    return _once(tmp_path_factory, worker_id, "checkpoint-tiny", _synthesize("tiny"))


@pytest.fixture(scope="session")
def tiny_bundle(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """The "tiny" checkpoint in all three precisions, with a cache of 128 positions."""
    return _once(
        tmp_path_factory, worker_id, "bundle-tiny", _convert(tiny_checkpoint, StepSizes(kv_length=128))
    )


@pytest.fixture(scope="session")
def tiny_bundle_15(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """A bundle like `tiny_bundle`, for macOS 15, with int4 instead of fp32."""
    make = _convert(tiny_checkpoint, StepSizes(kv_length=128), ("fp16", "int8", "int4"), "macOS15")
    return _once(tmp_path_factory, worker_id, "bundle-tiny-15", make)


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
        sizes = ("--max-length", "128", "--prefill-chunk", "16")
        folder.mkdir()
        # Not in a process of its own, which would take five seconds to get ready.
        with _printed_to(folder / "output.txt"):
            code = cli.main(["convert", str(tiny_checkpoint), "-o", str(folder / "bundle"), *options, *sizes])
        assert code == 0, (folder / "output.txt").read_text()

    return _once(tmp_path_factory, worker_id, "core-ai", make)


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

    return _once(tmp_path_factory, worker_id, "compiled-27", make)


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
    make = _convert(second_checkpoint, sizes, ("fp32",), "macOS27")
    return _once(tmp_path_factory, worker_id, "bundle-tiny-2-27", make)


@pytest.fixture(scope="session")
def tiny_parts_bundle(
    tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory, worker_id: str
) -> Path:
    """A bundle like `tiny_bundle`, in every optional form: caches return rows, the base LM has two packages, and a
    seventh package takes all of four Euler steps.
    """
    sizes = StepSizes(kv_length=128, base_lm_parts=2, solver_steps=4)
    make = _convert(tiny_checkpoint, sizes, ("fp16", "fp32"), kv_cache="rows")
    return _once(tmp_path_factory, worker_id, "bundle-tiny-parts", make)


@pytest.fixture(scope="session")
def tiny_solver_bundle(
    tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory, worker_id: str
) -> Path:
    """A bundle like `tiny_bundle` whose seventh package takes all of four Euler steps, without fp32."""
    sizes = StepSizes(kv_length=128, solver_steps=4)
    make = _convert(tiny_checkpoint, sizes, ("fp16", "int8"))
    return _once(tmp_path_factory, worker_id, "bundle-tiny-solver", make)


@pytest.fixture(scope="session")
def second_solver_bundle(
    second_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory, worker_id: str
) -> Path:
    """The same of `second_checkpoint`, in fp16."""
    make = _convert(second_checkpoint, StepSizes(kv_length=128, solver_steps=4), ("fp16",))
    return _once(tmp_path_factory, worker_id, "bundle-tiny-2-solver", make)


@pytest.fixture(scope="session")
def command() -> Callable[..., subprocess.CompletedProcess[str]]:
    """command(*arguments): the command line in a process of its own, with every warning shown."""
    return _command


def _command(*arguments: object) -> subprocess.CompletedProcess[str]:
    program = "import sys; from voxcpm_runtime.commands.cli import main; sys.exit(main())"
    given = [sys.executable, "-W", "default", "-c", program, *map(str, arguments)]
    return subprocess.run(given, capture_output=True, text=True, check=False)


@pytest.fixture(scope="session")
def batch_conversion(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """A folder with `bundle`, which the command wrote, and `output.txt`, all that it printed."""

    def make(folder: Path) -> None:
        sizes = ("--max-length", 128, "--batch", 3)
        precisions = (part for p in ("fp16", "int8", "fp32") for part in ("--precision", p))
        done = _command("convert", tiny_checkpoint, "-o", folder / "bundle", *precisions, *sizes)
        assert done.returncode == 0, done.stderr
        (folder / "output.txt").write_text(done.stdout + done.stderr)

    return _once(tmp_path_factory, worker_id, "batch", make)


@pytest.fixture(scope="session")
def tiny_batch_bundle(batch_conversion: Path) -> Path:
    """A bundle like `tiny_bundle`, for three utterances at the same time."""
    return batch_conversion / "bundle"


@pytest.fixture(scope="session")
def second_checkpoint(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """A synthetic checkpoint of VoxCPM2's structure."""
    return _once(tmp_path_factory, worker_id, "checkpoint-tiny-2", _synthesize("tiny-2"))


@pytest.fixture(scope="session")
def second_bundle(second_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """The bundle of `second_checkpoint` in fp32."""
    make = _convert(second_checkpoint, StepSizes(kv_length=128), ("fp32",))
    return _once(tmp_path_factory, worker_id, "bundle-tiny-2", make)


@pytest.fixture(scope="session")
def some_packages(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Callable[..., Path]:
    """some_packages(name, preset, step_models, sizes, precisions=("fp16",), target="macOS14", kv_cache="scatter").

    A folder with those step models of a synthetic checkpoint alone, and a manifest of them: seconds, where all of a
    bundle would take half a minute. It cannot speak. The checkpoint is that of the other fixtures.
    """

    def made(name: str, preset: str, *given: Any, **options: Any) -> Path:
        checkpoint = _once(tmp_path_factory, worker_id, f"checkpoint-{preset}", _synthesize(preset))
        make = _convert_some(checkpoint, *given, **options)
        return _once(tmp_path_factory, worker_id, f"packages-{name}", make)

    return made


@pytest.fixture(scope="session")
def default_cache(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """A user's cache directory that holds the built-in voice's bundle, in fp32 too."""
    from voxcpm_conversion.default_bundle import make_default_bundle
    from voxcpm_runtime.bundle.default import cached_folder, maker

    def make(folder: Path) -> None:
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("VOXCPM_COREML_CACHE", str(folder))
            make_default_bundle(cached_folder(maker()), ("fp16", "int8", "fp32"))

    return _once(tmp_path_factory, worker_id, "cache", make)


@pytest.fixture(scope="session")
def speaking_bundle(default_cache: Path) -> Path:
    """The small speaking checkpoint of the tree in all three precisions."""
    (manifest,) = default_cache.glob("bundles/*/manifest.json")
    return manifest.parent


@pytest.fixture
def core_ml(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> StandIn:
    """Core ML's stand-in on the portable executor (tests/coreml_stand_in), in this process and in its children."""
    from coreml_stand_in.installation import install

    return install(monkeypatch, tmp_path / "core_ml")


@pytest.fixture(scope="session")
def write_lora() -> Callable[..., Path]:
    """The function write_lora(folder, checkpoint, form="safetensors", seed=0, **config).

    It writes a LoRA for the checkpoint in the form of upstream's training, with random A and B that change the speech.
    """
    from random_lora import write_lora

    return write_lora


def _synthesize(preset: str) -> Callable[[Path], object]:
    from voxcpm_conversion.synthetic import write_synthetic_checkpoint
    from voxcpm_conversion.synthetic_presets import presets, write_tokenizer

    def make(folder: Path) -> None:
        tokenizer = folder.with_name(f"{folder.name}-tokenizer")
        write_tokenizer(tokenizer)
        write_synthetic_checkpoint(folder, presets()[preset], seed=0, dtype="float32", tokenizer=tokenizer)

    return make


def _convert(
    checkpoint: Path,
    sizes: StepSizes,
    precisions: tuple[Precision, ...] = ("fp16", "int8", "fp32"),
    target: Target = "macOS14",
    kv_cache: KVCache = "scatter",
) -> Callable[[Path], object]:
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
    from voxcpm_constants.manifest import Manifest, record_folder
    from voxcpm_constants.step_models import declare_step_models
    from voxcpm_conversion.checkpoint import Checkpoint
    from voxcpm_conversion.core_ai import packages as core_ai
    from voxcpm_conversion.core_ml import packages as core_ml
    from voxcpm_conversion.workspace import Workspace

    def make(folder: Path) -> None:
        opened = Checkpoint.open(checkpoint)
        declared = declare_step_models(opened.architecture, sizes)
        manifest = Manifest(
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


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what converts, skip what needs a Mac, and put files that convert first: no worker has a long conversion
    left at the end. A test that asks for its bundle by name while it runs carries the mark itself.
    """
    converting = {item.path for item in items if _makes_bundles(item)}
    for item in items:
        if _converts(item):
            item.add_marker(pytest.mark.converts)
        if item.get_closest_marker("coreml") and sys.platform != "darwin":
            item.add_marker(pytest.mark.skip(reason="Core ML runs on a Mac only"))
    items.sort(key=lambda item: item.path not in converting)


def _converts(item: pytest.Item) -> bool:
    folder = item.path.relative_to(REPOSITORY / "tests").parts[0]
    return folder in CONVERTING_FOLDERS or _makes_bundles(item)


def _makes_bundles(item: pytest.Item) -> bool:
    return bool(CONVERSIONS & set(_fixtures(item))) or item.get_closest_marker("converts") is not None


def _fixtures(item: pytest.Item) -> Iterable[str]:
    return getattr(item, "fixturenames", ())
