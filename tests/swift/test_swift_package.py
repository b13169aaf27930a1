"""The Swift package, built on Linux against stand-ins for Apple's frameworks, does what Python does.

Python records cases, which the package's own tests (swift/Tests) read. `make test-swift` gives a compiler.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from swift import driver, hub, speech, texts
from swift.driver import write_case

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE = REPOSITORY / "swift"
SWIFT = os.environ.get("SWIFT") or shutil.which("swift")
DRIVEN = (
    "tiny_bundle", "tiny_bundle_15", "second_bundle", "tiny_parts_bundle", "second_solver_bundle", "tiny_bundle_27",
)  # fmt: skip

SPOKEN = ("tiny_bundle", "tiny_bundle_15", "second_bundle", "tiny_parts_bundle")

pytestmark = [
    pytest.mark.swift,
    pytest.mark.skipif(
        SWIFT is None or sys.platform == "darwin", reason="needs Swift on Linux: make test-swift"
    ),
]


@pytest.fixture(scope="module")
def tested(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """tested(filter, recorded): what `swift test` says of the tests that match, which read the folder `recorded`."""
    built = REPOSITORY / "build" / "swift" / "package"
    folder = tmp_path_factory.mktemp("pipes")

    def run(pattern: str, recorded: Path) -> str:
        requests, answers = folder / "requests", folder / "answers"
        for pipe in (requests, answers):
            pipe.unlink(missing_ok=True)
            os.mkfifo(pipe)
        given = {"STAND_IN_REQUESTS": requests, "STAND_IN_ANSWERS": answers, "VOXCPM_RECORDED": recorded}
        # A namespace whose mounts, of small disks, end with it.
        mounting = ["unshare", "--mount"] if os.geteuid() == 0 and shutil.which("unshare") else []
        if mounting:
            given["VOXCPM_MAY_MOUNT"] = "yes"
        server = subprocess.Popen(
            [
                sys.executable,
                Path(__file__).with_name("stand_in.py"),
                requests,
                answers,
                folder / "loaded.jsonl",
            ],
            stderr=subprocess.DEVNULL,
        )
        try:
            done = subprocess.run(
                [*mounting, str(SWIFT), "test", "--build-path", built, "--filter", pattern],
                cwd=PACKAGE, env={**os.environ, **{name: str(value) for name, value in given.items()}},
                capture_output=True, text=True, check=False, timeout=900,
            )  # fmt: skip
        finally:
            server.kill()
            server.wait()
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
        assert " 0 tests" not in done.stdout.partition("Executed")[2].partition("\n")[0]
        return done.stdout

    return run


def test_all_forms_speak_as_python(
    tested: Callable[..., str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    driver.record(tmp_path / "driver", [request.getfixturevalue(name) for name in DRIVEN])

    tested("DriverTests|FilesTests", tmp_path)


@pytest.mark.filterwarnings("ignore")  # Lengths that no user would ask for
def test_speech_voices_and_sessions_are_those_of_python(
    tested: Callable[..., str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Also streams, retries, several segments, and what is refused, altered or cancelled."""
    speech.record(tmp_path, [request.getfixturevalue(name) for name in SPOKEN])

    tested("SpeechTests|LengthTests|VoiceTests|ActorTests|FuzzTests", tmp_path)


def test_texts_are_cut_tokenised_and_spelled_as_in_python(tested: Callable[..., str], tmp_path: Path) -> None:
    texts.record(tmp_path)

    tested("TextTests|AlteredTokenizerTests", tmp_path)


def test_a_bundle_is_downloaded(tested: Callable[..., str], tmp_path: Path, tiny_bundle: Path) -> None:
    altered = "constants/embed_tokens.npy"
    with hub.served(tiny_bundle) as whole, hub.served(tiny_bundle, altered=altered) as other:
        write_case(tmp_path / "hub" / "whole", {"endpoint": whole}, {})
        write_case(tmp_path / "hub" / "altered", {"endpoint": other, "altered": altered}, {})

        tested("DownloadTests", tmp_path)


def test_the_app_of_the_example_compiles() -> None:
    done = subprocess.run(
        [str(SWIFT), "build", "--build-path", REPOSITORY / "build" / "swift" / "app"],
        cwd=REPOSITORY / "examples" / "swift" / "Speak", capture_output=True, text=True, check=False, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:]
