import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from coreml_stand_in.installation import install
from voxcpm_constants import macos
from voxcpm_constants.errors import VoxCPMError
from voxcpm_runtime.backends import machine

pytest_plugins = ["shared_bundles", "hub_stand_in"]

REPOSITORY = Path(__file__).resolve().parents[1]

# Folders whose every test needs coremltools or torch.
CONVERTING_FOLDERS = ("conversion/", "runtime/backends/portable/", "training/", "validation/")


GROUPS = {
    *("clients", "core_ai", "listening", "long", "page", "ray", "robustness", "slow", "soak"),
    *("swift", "torture", "wheel"),
}
"""Markers of what has a command of its own; tests with none of them are marked `default`."""
GROUP_OF_PATH = {"cluster": "ray", "core_ai": "core_ai", "robustness": "robustness", "swift": "swift"}
"""Groups whose files are known by a part of their path: other commands need not import them."""
NEVER_SKIPPED = ("clients", "page", "ray", "swift")
GROUP_OF_BUNDLE = {
    "tiny_bundle_27": "core_ai",
    "second_bundle_27": "core_ai",
    "tiny_parts_bundle": "long",
    "second_solver_bundle": "long",
    "mixed_bundle": "long",
}
"""Bundles that `make test` does not convert. A test has one as a fixture, or its name as a parameter."""


def pytest_configure():
    """A worker a core already: with threads of its own, each torch would wait for the others' cores."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session", autouse=True)
def one_core(tmp_path_factory):
    """A thread for each step model of this process, as in a container with one core: the samples are the same.

    ONNX Runtime would pin a thread to each core of the machine, in each worker.
    """
    folder = tmp_path_factory.mktemp("control_group")
    (folder / "own").write_text("0::/\n")
    (folder / "cpu.max").write_text("100000 100000\n")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(machine, "_OWN_CGROUP", folder / "own")
        patched.setattr(machine, "_CGROUPS", folder)
        yield


@pytest.fixture(scope="session", autouse=True)
def one_line():
    """Every error that a user can cause has a message of one line, in every test that meets one."""
    begin = VoxCPMError.__init__

    def checked(error, message=""):
        assert "\n" not in message, message
        begin(error, message)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(VoxCPMError, "__init__", checked)
        yield


MODULES = pytest.StashKey[int]()
NO_CORE_ML = Path(__file__).with_name("no_core_ml")
SYSTEM_VERSION_FILE = macos.SYSTEM_VERSION_FILE


def pytest_runtest_setup(item):
    """On a Mac, run what is not marked `coreml` as on Linux: on the portable executor, in child processes, too.

    And keep the garbage collector from looking through modules that stay loaded. coremltools collects with every
    conversion, however small: half a second for torch and all that comes with it.
    """
    on_core_ml = item.get_closest_marker("coreml") is not None
    if SYSTEM_VERSION_FILE.exists():
        hidden = NO_CORE_ML / SYSTEM_VERSION_FILE.name
        macos.SYSTEM_VERSION_FILE = SYSTEM_VERSION_FILE if on_core_ml else hidden
        others = [
            p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p not in ("", str(NO_CORE_ML))
        ]
        os.environ["PYTHONPATH"] = os.pathsep.join(others if on_core_ml else [str(NO_CORE_ML), *others])
    if item.config.stash.get(MODULES, 0) != len(sys.modules):
        item.config.stash[MODULES] = len(sys.modules)
        gc.collect()
        gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """In continuous integration (`CI` is set) fail tests of groups with a job of their own instead of skipping them."""
    report = yield
    if report.skipped and os.environ.get("CI") and any(map(item.get_closest_marker, NEVER_SKIPPED)):
        report.outcome = "failed"
        report.longrepr = f"skipped, which is a failure in continuous integration: {report.longrepr}"
    return report


@pytest.fixture(scope="session")
def shared_data():
    """Folder of recorded speech, published configurations and vocabularies, beside the repository."""
    folder = REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"needs the recordings and configurations of ../{folder.relative_to(REPOSITORY.parent)}")
    return folder


@pytest.fixture(scope="session")
def command():
    """command(*arguments): the command line in a process of its own, with every warning shown."""
    return _command


def _command(*arguments):
    program = "import sys; from voxcpm_runtime.commands.cli import main; sys.exit(main())"
    given = [sys.executable, "-W", "default", "-c", program, *map(str, arguments)]
    return subprocess.run(given, capture_output=True, text=True, check=False)


@pytest.fixture
def refusal(capsys):
    """refusal(*arguments): the one line on stderr of a command that exits with code 2 and writes nothing to stdout."""
    from voxcpm_runtime.commands import cli

    def refused(*arguments):
        assert cli.main([str(argument) for argument in arguments]) == 2
        out, err = capsys.readouterr()
        (line,) = err.splitlines()
        assert out == ""
        assert line.startswith("error: ")
        return line

    return refused


@pytest.fixture(scope="module")
def shared_compiled_27(compiled_27):
    """The user's cache of a file's tests, with the programs of `compiled_27`, instead of an empty one for each."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("VOXCPM_COREML_CACHE", str(compiled_27))
        yield compiled_27


@pytest.fixture
def core_ml(monkeypatch, tmp_path):
    """Core ML's stand-in on the portable executor (tests/coreml_stand_in), in this process and in its children.

    The test fails if an input of a prediction was owned by Core ML alone, which crashes on a Mac.
    """
    from coreml_stand_in.inputs import release_all

    stand_in = install(monkeypatch, tmp_path / "core_ml")
    yield stand_in
    release_all()
    assert not stand_in.events("crash")


@pytest.fixture(scope="session")
def write_lora():
    """The function write_lora(folder, checkpoint, form="safetensors", seed=0, **config).

    It writes a LoRA for the checkpoint in the form of upstream's training, with random A and B that change the speech.
    """
    from random_lora import write_lora

    return write_lora


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark the group, and what converts; skip what needs a Mac; and put files that convert first: no worker has a long
    conversion left at the end. A test that asks for its bundle by name while it runs carries the mark itself.
    """
    for item in items:
        item.add_marker(_group(item))
        if _converts(item):
            item.add_marker(pytest.mark.converts)
        if item.get_closest_marker("coreml") and sys.platform != "darwin":
            item.add_marker(pytest.mark.skip(reason="Core ML runs on a Mac only"))
    # Only what -m has left is to be put in order.
    yield
    bundles: dict[Path, set[str]] = {}
    for item in items:
        bundles.setdefault(item.path, set()).update(name for name in _fixtures(item) if "_bundle" in name)
    order = _order({item.path: bundles[item.path] for item in items if _makes_bundles(item)})
    items.sort(key=lambda item: order.get(item.path, len(order)))


def _order(bundles):
    """The place of each file that converts: first those with no bundle in common, for which no worker waits."""
    seen: set[str] = set()
    first = []
    for path, names in bundles.items():
        if names and names.isdisjoint(seen):
            first.append(path)
            seen |= names
    return {path: place for place, path in enumerate(dict.fromkeys([*first, *bundles]))}


def pytest_ignore_collect(collection_path, config):
    """Leave out other groups' files, which import slowly, from `make test` and from commands without -m."""
    chosen = config.getoption("markexpr").split()
    return True if chosen[:1] == ["default"] and _group_of_path(collection_path) else None


def _group_of_path(path):
    inside = path.relative_to(REPOSITORY).as_posix()
    return next((group for part, group in GROUP_OF_PATH.items() if part in inside), None)


def _group(item):
    """The group of a test: that of its mark, of its folder or file, of the bundle that it needs, or `default`."""
    marks = GROUPS & {mark.name for mark in item.iter_markers()}
    if marks:
        return min(marks)
    if (group := _group_of_path(item.path)) is not None:
        return group
    given = item.callspec.params.values() if hasattr(item, "callspec") else ()
    named = [each for value in given for each in (value if isinstance(value, tuple) else (value,))]
    strings = {each for each in named if isinstance(each, str)}
    needed = strings.union(_fixtures(item)) & GROUP_OF_BUNDLE.keys()
    return min((GROUP_OF_BUNDLE[name] for name in needed), default="default")


def _converts(item):
    path = item.path.relative_to(REPOSITORY / "tests").as_posix()
    return path.startswith(CONVERTING_FOLDERS) or _makes_bundles(item)


def _makes_bundles(item):
    return "conversion" in _fixtures(item) or item.get_closest_marker("converts") is not None


def _fixtures(item):
    return getattr(item, "fixturenames", ())
