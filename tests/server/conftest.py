from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from server_on_loopback import ServerOnLoopback
from voxcpm_runtime import VoxCPM

TEXT = "Hello there, this is a test of the server."


@pytest.fixture(scope="session")
def tts(speaking_bundle: Path) -> Iterator[VoxCPM]:
    """The built-in voice."""
    with VoxCPM.from_bundle(speaking_bundle, precision="int8") as opened:
        yield opened


@pytest.fixture
def serve(tts: VoxCPM, tmp_path: Path) -> Iterator[Callable[..., ServerOnLoopback]]:
    """serve(keys=(), **settings): a server that ends with the test; its voices are in a folder of the test."""
    with contextlib.ExitStack() as stack:

        def started(**given: Any) -> ServerOnLoopback:
            return stack.enter_context(ServerOnLoopback.of(tts, voices_folder=tmp_path / "voices", **given))

        yield started


@pytest.fixture(scope="module")
def server(tts: VoxCPM, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerOnLoopback]:
    """A server with default settings, for all tests of a file."""
    with ServerOnLoopback.of(tts, voices_folder=tmp_path_factory.mktemp("voices")) as running:
        yield running


@pytest.fixture
def client(server: ServerOnLoopback) -> openai.OpenAI:
    return server.client()


@pytest.fixture(scope="session")
def spoken(tts: VoxCPM) -> Any:
    """What the runtime itself says with seed 7: `TEXT`, as a Speech."""
    return tts.speak(TEXT, seed=7, retry_badcase=False)
