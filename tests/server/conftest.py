import contextlib
import functools
import inspect
import os
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx2
import pytest

from heard_words import SEED
from server_on_loopback import ServerOnLoopback
from voxcpm_constants.step_models import LOCDIT_STEP
from voxcpm_runtime import BundleError, VoxCPM
from voxcpm_runtime.bundle.opening import DEFAULT_BUNDLE
from voxcpm_server.application import create_app
from voxcpm_server.middleware.authentication import Keys
from voxcpm_server.rooms import AllSettings as Settings

PROGRAM = "import sys; from voxcpm_runtime.commands.cli import main; sys.exit(main())"
TEXT = "Hello there, this is a test of the server."


PATIENCE = 60
"""Timeout of any request in seconds."""


@pytest.fixture(scope="session", autouse=True)
def patient_httpx():
    """Raise httpx's default timeout of five seconds, as a busy machine may need more.

    And read the system's certificates once, not for each client (about 50 ms).
    """
    # This object is the default of all functions and classes.
    default = inspect.signature(httpx2.Client).parameters["timeout"].default
    with pytest.MonkeyPatch.context() as patched:
        for waiting in ("connect", "read", "write", "pool"):
            patched.setattr(default, waiting, PATIENCE)
        patched.setattr(ssl, "create_default_context", functools.cache(ssl.create_default_context))
        yield


def pytest_collection_modifyitems(items):
    """An unseeded voice may speak slowly, which no test of the server is about."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(
                pytest.mark.filterwarnings("ignore::voxcpm_runtime.SuspiciousWarning"), append=False
            )


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="session")
def tts():
    """The built-in voice."""
    with VoxCPM.from_bundle(DEFAULT_BUNDLE) as opened:
        yield opened


@pytest.fixture
def serve(tts, tmp_path):
    """serve(keys=(), **settings): a server for the test, with voices and jobs in its temporary folders."""
    with contextlib.ExitStack() as stack:

        def started(**given):
            folders = {"voices_folder": tmp_path / "voices", "jobs_folder": tmp_path / "jobs"}
            return stack.enter_context(ServerOnLoopback.of(tts, **{**folders, **given}))

        yield started


@pytest.fixture(scope="module")
def server(tts, tmp_path_factory):
    """A server with default settings, for all tests of a file."""
    folders = {f"{kind}_folder": tmp_path_factory.mktemp(kind) for kind in ("voices", "jobs")}
    with ServerOnLoopback.of(tts, **folders) as running:
        yield running


@pytest.fixture
def seeded(monkeypatch):
    """A fixed seed, for clients that cannot set one."""
    monkeypatch.setattr("secrets.randbits", lambda bits: SEED)


@pytest.fixture
def client(server):
    return server.client()


@pytest.fixture
def command_line(tmp_path):
    """command_line(*arguments, before=""): a process of a command, in the test's folder and until the test's end.

    before: Python that the process begins with.
    """
    with contextlib.ExitStack() as stack:

        def start(*arguments, before=""):
            process = subprocess.Popen(
                [sys.executable, "-c", before + PROGRAM, *map(str, arguments)],
                cwd=tmp_path,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, "VOXCPM_COREML_API_KEYS": "", "RAY_ADDRESS": ""},
            )
            stack.callback(process.communicate)
            stack.callback(process.kill)
            return process

        yield start


@pytest.fixture
def started(command_line, tmp_path):
    """started(*options, before=""): the process of a server that answers, and its URL; folders are the test's."""
    folders = ("--voices-folder", tmp_path / "voices", "--jobs-folder", tmp_path / "jobs")

    def start(*options, before=""):
        process = command_line("serve", "--port", "0", *folders, *options, before=before)
        line = process.stderr.readline()
        assert line.startswith("listening on http://127.0.0.1:"), line
        url = line.split()[2]
        # The socket listens already; connections wait in the backlog.
        assert httpx2.get(f"{url}/ready", timeout=30).status_code == 200
        return process, url

    return start


@pytest.fixture(scope="session")
def spoken(tts):
    """The runtime's Speech of `TEXT` with seed 7."""
    return tts.speak(TEXT, seed=7, retry_badcase=False)


def _absent():
    raise BundleError("there is no bundle")


@pytest.fixture
def without_bundle(tmp_path):
    """without_bundle(**settings): a server whose bundle cannot be loaded."""
    with contextlib.ExitStack() as stack:

        def started(**given):
            settings = Settings(**{"voices_folder": tmp_path / "voices", "max_jobs": 0, **given})
            running = ServerOnLoopback(create_app(_absent, settings, Keys(())), settings)
            stack.callback(running.stop)
            return running

        yield started


class Watched:
    """Counts the calls of a step model, delays each by `seconds`, and waits for `go` if set."""

    releases_gil = True

    def __init__(self, model):
        self._model = model
        self.calls = 0
        self.seconds = 0.0
        self.go: threading.Event | None = None

    def new_state(self):
        return self._model.new_state()

    def __call__(self, inputs, state=None):
        self.calls += 1
        time.sleep(self.seconds)
        if self.go is not None:
            self.go.wait(20)
        return self._model(inputs, state)


@pytest.fixture
def euler_steps(tts):
    """The model's DiT, instrumented."""
    models = tts.driver.models
    original = models[LOCDIT_STEP]
    models[LOCDIT_STEP] = watched = Watched(original)  # type: ignore[index]
    yield watched
    models[LOCDIT_STEP] = original  # type: ignore[index]
