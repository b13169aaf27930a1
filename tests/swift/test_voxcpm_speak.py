"""The command line `voxcpm-speak`, and an app that adds the package by URL; on Linux with stand-ins for Core ML."""

import json
import re
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import soundfile

from swift.test_swift_package import BUILT, CONFIGURATION, REPOSITORY, SWIFT, compiled, frameworks
from voxcpm_runtime import VoxCPM

TEXT = "the river runs to the sea"
MARKED_UP = "[pause 0.5s]Nguyen runs to the sea.[pause 0.7s][voice emma]We sat by the fire.[/voice]"

pytestmark = [
    pytest.mark.swift,
    pytest.mark.skipif(SWIFT is None, reason="needs Swift: make test-swift"),
]

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """run(*arguments, status=0): the finished command."""
    compiled(REPOSITORY, BUILT, "--product", "voxcpm-speak", *CONFIGURATION)
    folder = tmp_path_factory.mktemp("pipes")

    def finished(*arguments, status=0):
        with frameworks(folder) as given:
            done = subprocess.run(
                [
                    str(SWIFT), "run", "--skip-build", "--build-path", BUILT, *CONFIGURATION, "voxcpm-speak",
                    *map(str, arguments),
                ],
                cwd=REPOSITORY, env=given, capture_output=True, text=True, check=False, timeout=600,
            )  # fmt: skip
        assert done.returncode == status, done.stdout[-2000:] + done.stderr[-4000:]
        return done

    return finished


@pytest.mark.parametrize("text", [TEXT, MARKED_UP])
def test_the_command_line_speaks_as_python(run, tmp_path, text):
    """Rounding changes later patches, so the loudness of each 20 ms is compared; other seeds have less than 0.7."""
    wav, lexicon, markup = tmp_path / "out.wav", tmp_path / "names.tsv", text == MARKED_UP
    lexicon.write_text("nguyen\tthe river\n")

    done = run("--text", text, "--seed", 1, "-o", wav, "--lexicon", lexicon, *["--markup"] * markup)

    found, rate = soundfile.read(wav, dtype="float32")
    with VoxCPM.from_bundle() as tts:
        speech = tts.speak(text, seed=1, lexicon=lexicon, markup=markup)
    expected = speech.audio
    assert "predicting a first patch" in done.stderr
    assert 0.8 < len(found) / len(expected) < 1.25
    count = min(len(found), len(expected)) * 50 // rate
    loudness = [
        np.log10(1e-3 + audio[: count * (rate // 50)].reshape(count, -1).std(axis=1))
        for audio in (found, expected)
    ]
    assert np.corrcoef(loudness)[0, 1] > 0.78


def test_the_step_models_agree_with_their_test_vectors(run):
    found = json.loads(run("--examine").stdout)

    assert {part["model"] for part in found} >= {"base_lm_step", "locdit_step", "audio_vae_decoder"}
    assert all(min(part["streams"].values()) >= part["floor"] for part in found)


def test_the_benchmark_is_json(run):
    found = json.loads(run("--benchmark", "--text", TEXT, "--seed", 1).stdout)

    assert 0 < found["firstAudioSeconds"] < found["audioSeconds"] * found["realTimeFactor"]
    assert found["patchesPerSecond"] > 0
    assert 1e7 < found["peakMemoryBytes"] < 1e11


@pytest.mark.skipif(sys.platform == "darwin", reason="a hosted Mac has no loudspeaker")
def test_speech_is_played_and_written(run, tmp_path):
    run("--text", TEXT, "--seed", 1, "--play", "-o", tmp_path / "played.wav")

    assert soundfile.info(tmp_path / "played.wav").duration > 1


def test_help_and_misuse(run):
    assert "--benchmark" in run("--help").stdout
    for arguments in (
        (),
        ("--text",),
        ("--texts", "a"),
        ("a", "b", "--text", "c"),
        ("--seed", "x", "--text", "a"),
    ):
        assert re.match("error: .+\nusage:", run(*arguments, status=2).stderr.split("\n\n")[0])


@pytest.mark.skipif(sys.platform == "darwin", reason="has Core ML")
def test_linux_without_the_stand_ins_is_an_error(run):
    run("--help")
    done = subprocess.run(
        [str(SWIFT), "run", "--skip-build", "--build-path", BUILT, *CONFIGURATION, "voxcpm-speak", "--text", "a"],
        cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 2
    assert "Linux has no Core ML" in done.stderr.splitlines()[-1]


APP = """
import VoxCPM
import VoxCPMBuiltInVoice
import VoxCPMCoreML

// Does not hide the package's.
struct Session {}
let session: VoxCPM.Session? = nil

let tts = TextToSpeech(.builtInVoice, Configuration(predictor: CoreMLPredictor()))
print("samples", try await tts.speak("Hello.", voice: .builtIn()).samples.count)
"""


def test_an_app_adds_the_package_by_url(tmp_path):
    """The URL is of a repository with the files of this tree that are not ignored."""
    repository, app = tmp_path / "voxcpm-coreml.git", tmp_path / "App"
    git = ["git", f"--git-dir={repository}", f"--work-tree={REPOSITORY}"]
    by = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
    for command in (
        ["git", "init", "-q", "--bare", "-b", "main", repository],
        [*git, "add", "-A"],
        [*git, *by, "commit", "-q", "-m", "The tree"],
    ):
        subprocess.run(command, cwd=REPOSITORY, check=True, timeout=300)
    (app / "Sources").mkdir(parents=True)
    (app / "Sources/main.swift").write_text(APP)
    (app / "Package.swift").write_text(
        f"""// swift-tools-version: 6.0
import PackageDescription

let package = Package(
    name: "App",
    platforms: [.macOS(.v14)],
    dependencies: [.package(url: "file://{repository}", branch: "main")],
    targets: [
        .executableTarget(
            name: "App",
            dependencies: [
                .product(name: "VoxCPM", package: "voxcpm-coreml"),
                .product(name: "VoxCPMBuiltInVoice", package: "voxcpm-coreml"),
            ],
            path: "Sources")
    ]
)
"""
    )

    with frameworks(tmp_path) as given:
        done = subprocess.run(
            [str(SWIFT), "run", "App"],
            cwd=app, env=given, capture_output=True, text=True, check=False, timeout=1200,
        )  # fmt: skip

    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert int(done.stdout.split("samples ")[1]) > 5000
