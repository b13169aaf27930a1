"""The Swift package, built on Linux against stand-ins for Apple's frameworks, does what Python does.

Python records cases, which the package's own tests (swift/Tests) read. `make test-swift` gives a compiler.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from swift import driver, hub, speech, texts
from swift.driver import write_case
from voxcpm_runtime import VoxCPM

REPOSITORY = Path(__file__).resolve().parents[2]
BUILT = REPOSITORY / "build" / "swift" / "package"
SWIFT = os.environ.get("SWIFT") or shutil.which("swift")
MINUTES = os.environ.get("VOXCPM_MINUTES")
"""Minutes of speech in the test of memory, in a release build: a debug build would take longer than they last."""
CONFIGURATION = ("-c", "release", "-Xswiftc", "-enable-testing") if MINUTES else ()
DRIVEN = (
    "tiny_bundle", "tiny_bundle_15", "second_bundle", "tiny_parts_bundle", "second_solver_bundle", "tiny_bundle_27",
    "phone_bundle",
)  # fmt: skip

SPOKEN = ("tiny_bundle", "tiny_bundle_15", "second_bundle", "tiny_parts_bundle")

pytestmark = [
    pytest.mark.swift,
    pytest.mark.skipif(SWIFT is None, reason="needs Swift: make test-swift"),
]


def compiled(package, built, *options):
    """Build a package."""
    done = subprocess.run(
        [str(SWIFT), "build", "--build-path", built, *options],
        cwd=package, capture_output=True, text=True, check=False, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


@contextmanager
def frameworks(folder):
    """The environment in which the stand-ins for Apple's frameworks find Python; on a Mac they are Apple's."""
    if sys.platform == "darwin":
        yield dict(os.environ)
        return
    requests, answers = folder / "requests", folder / "answers"
    for pipe in (requests, answers):
        pipe.unlink(missing_ok=True)
        os.mkfifo(pipe)
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
        yield {**os.environ, "STAND_IN_REQUESTS": str(requests), "STAND_IN_ANSWERS": str(answers)}
    finally:
        server.kill()
        server.wait()


@pytest.fixture(scope="module")
def tested(tmp_path_factory):
    """tested(filter, recorded): output of `swift test` for matching tests, which read the folder `recorded`."""
    if sys.platform == "darwin":
        pytest.skip("compared on Linux, with the same numbers")
    compiled(REPOSITORY, BUILT, "--build-tests", *CONFIGURATION)
    folder = tmp_path_factory.mktemp("pipes")

    def run(pattern, recorded):
        # A mount namespace for small disks, which ends with the process.
        mounting = ["unshare", "--mount"] if os.geteuid() == 0 and shutil.which("unshare") else []
        allowed = {"VOXCPM_MAY_MOUNT": "yes"} if mounting else {}
        with frameworks(folder) as given:
            done = subprocess.run(
                [
                    *mounting, str(SWIFT), "test", "--skip-build", "--build-path", BUILT, "--filter", pattern,
                    *CONFIGURATION,
                ],
                cwd=REPOSITORY, env=given | allowed | {"VOXCPM_RECORDED": str(recorded)},
                capture_output=True, text=True, check=False, timeout=900 + 120 * float(MINUTES or 0),
            )  # fmt: skip
        failed = [line for line in done.stdout.splitlines() if "error:" in line]
        assert done.returncode == 0, "\n".join(failed)[:6000] + done.stdout[-2000:] + done.stderr[-2000:]
        assert " 0 tests" not in done.stdout.partition("Executed")[2].partition("\n")[0]
        return done.stdout

    return run


@pytest.mark.parametrize("bundle", DRIVEN)
def test_speech_in_all_forms_equals_python(tested, tmp_path, request, bundle):
    driver.record(tmp_path / "driver", request.getfixturevalue(bundle))

    tested("DriverTests", tmp_path)


@pytest.mark.filterwarnings("ignore")  # Unrealistic lengths
def test_speech_voices_and_sessions_equal_python(tested, tmp_path, request):
    """Also streams, retries, several segments, and minutes in flat memory."""
    speech.record(tmp_path, [request.getfixturevalue(name) for name in SPOKEN])

    tested("SpeechTests|LengthTests|VoiceTests|WordTests", tmp_path)


# Needs the release build. Not a skip, which is an error in continuous integration.
if MINUTES:

    def test_the_loop_takes_less_time_than_pythons(tested, tmp_path):
        """The time of a patch with step models that do nothing."""
        seconds = []
        with VoxCPM.from_bundle() as tts:
            for name, declared in tts.bundle.manifest.step_models.items():
                tts.driver.models[name] = Idle(declared)  # type: ignore[index]
            for _ in range(5):
                given = {"min_len": 200, "max_len": 200, "retry_badcase": False, "seed": 1}
                speech = tts.speak("the river runs to the sea", **given)
                seconds.append(speech.elapsed_seconds / len(speech.latents))
        printed = re.search(r"^loop (\S+)$", tested("ActorTests/testTimeOfTheLoop", tmp_path), re.MULTILINE)
        assert printed
        print("seconds of a patch: Python", np.median(seconds), "Swift", printed[1])  # noqa: T201 - of TRIALS.md
        assert float(printed[1]) < np.median(seconds)

    class Idle:
        """A step model that returns the outputs of FakePredictor.swift."""

        releases_gil = True

        def __init__(self, declared):
            self._declared = declared

        def new_state(self):
            return object()

        def __call__(
            self,
            inputs,
            state=None,  # noqa: ARG002 - of the protocol
        ):
            tensor, axis = self._declared.chunk_axis
            index = self._declared.chunk_lengths.index(inputs[tensor.name].shape[axis])
            return {
                output.name: np.full(output.shape_at(index), 0.01, np.float32)
                for output in self._declared.outputs
            }


def test_invalid_altered_and_cancelled_inputs_give_errors(tested, tmp_path):
    tested("ActorTests|FuzzTests|FilesTests|PlaybackTests", tmp_path)


def test_texts_are_segmented_tokenised_and_spelled_as_in_python(tested, tmp_path):
    texts.record(tmp_path)

    tested("TextTests|AlteredTokenizerTests|MarkupTests", tmp_path)


def test_a_bundle_is_downloaded(tested, tmp_path, tiny_bundle):
    altered = "constants/embed_tokens.npy"
    with (
        hub.served(tiny_bundle) as whole,
        hub.served(tiny_bundle, altered=altered) as other,
        hub.served(tiny_bundle, only_for="Bearer secret") as private,
    ):
        write_case(tmp_path / "hub" / "whole", {"endpoint": whole}, {})
        write_case(tmp_path / "hub" / "altered", {"endpoint": other, "altered": altered}, {})
        write_case(tmp_path / "hub" / "private", {"endpoint": private}, {})

        tested("DownloadTests", tmp_path)


@pytest.mark.usefixtures("tested")
def test_public_declarations_are_documented():
    """DocC renders these comments; enumeration cases may go without."""
    done = subprocess.run(
        [str(SWIFT), "package", "--build-path", BUILT, "dump-symbol-graph", "--skip-synthesized-members"],
        cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]

    graphs = [json.loads(path.read_text()) for path in BUILT.glob("*/symbolgraph/VoxCPM*.symbols.json")]
    symbols = [symbol for graph in graphs for symbol in graph["symbols"]]
    assert len(symbols) > 100
    assert [
        ".".join(symbol["pathComponents"])
        for symbol in symbols
        if "docComment" not in symbol and symbol["kind"]["identifier"] != "swift.enum.case"
    ] == []
    page = (REPOSITORY / "swift" / "Sources" / "VoxCPM" / "VoxCPM.docc" / "VoxCPM.md").read_text()
    names = {
        "VoxCPM",
        *(".".join(symbol["pathComponents"]) for symbol in symbols),
    }  # The module, and what it has
    assert {name.split("/")[-1] for name in re.findall("``(.+?)``", page)} <= names


def test_example_app_compiles():
    compiled(REPOSITORY / "examples" / "swift" / "Speak", REPOSITORY / "build" / "swift" / "app")


@pytest.mark.usefixtures("tested")
def test_plain_swift_test_passes():
    """Without Python's results, as in Xcode: tests that need them are skipped."""
    skipping = "DownloadTests|SpeechTests|DriverTests|LengthTests|TextTests|WordTests"
    done = subprocess.run(
        [str(SWIFT), "test", "--skip-build", "--build-path", BUILT, "--filter", skipping, *CONFIGURATION],
        cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]
    assert "tests skipped and 0 failures" in done.stdout


def test_core_ai_is_not_needed_to_compile():
    """The Simulator's SDK has none."""
    source = REPOSITORY / "swift/Sources/VoxCPMCoreAI/CoreAIPredictor.swift"
    done = subprocess.run(
        [str(SWIFT), "-frontend", "-typecheck", source],
        cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
