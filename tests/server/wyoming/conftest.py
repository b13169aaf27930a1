from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from server_on_loopback import ServerOnLoopback
from voxcpm_runtime import VoxCPM


@pytest.fixture
def serve(serve: Callable[..., ServerOnLoopback]) -> Callable[..., ServerOnLoopback]:
    """The same, with Wyoming."""
    return partial(serve, wyoming=0)


@pytest.fixture(scope="module")
def server(tts: VoxCPM, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerOnLoopback]:
    """A server with default settings and Wyoming, for all tests of a file."""
    given: dict[str, Any] = {"voices_folder": tmp_path_factory.mktemp("voices"), "wyoming": 0}
    with ServerOnLoopback.of(tts, **given) as running:
        yield running
