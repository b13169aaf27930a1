"""The Swift example, compiled against stand-ins for Apple's frameworks, speaks as the runtime does.

This needs a Swift compiler, which a Linux machine may have (GitHub's have one), and no Mac.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile

from voxcpm_runtime import VoxCPM

REPOSITORY = Path(__file__).resolve().parents[1]
STAND_IN = REPOSITORY / "tests" / "swift_stand_in"
EXAMPLE = REPOSITORY / "examples" / "swift" / "VoxCPMSpeech.swift"
MODULES = ("Accelerate", "AVFoundation", "CoreML", "CryptoKit")
PATCHES = 6
TRANSCRIPT = "we walked home "

pytestmark = pytest.mark.skipif(
    shutil.which("swiftc") is None or sys.platform == "darwin",
    reason="needs swiftc on a machine without Apple's own frameworks",
)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example and a main program, compiled."""
    folder = tmp_path_factory.mktemp("swift")

    def swiftc(*arguments: object, mode: int = 5) -> None:
        given = ["swiftc", "-swift-version", str(mode), "-O", *map(str, arguments)]
        done = subprocess.run(given, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    for module in MODULES:
        swiftc(
            "-emit-module", "-emit-library", "-static", "-parse-as-library", "-module-name", module,
            STAND_IN / f"{module}.swift", "-o", f"lib{module}.a",
        )  # fmt: skip
    for mode in (5, 6):
        swiftc("-typecheck", "-warnings-as-errors", "-I", ".", EXAMPLE, mode=mode)
    linked = [f"-l{module}" for module in MODULES]
    swiftc("-I", ".", "-L", ".", EXAMPLE, STAND_IN / "main.swift", *linked, "-o", "speak")
    return folder / "speak"


class RecordedNoise:
    """Standard normal noise that is written down."""

    def __init__(self, seed: int) -> None:
        self.generator, self.drawn = np.random.default_rng(seed), []

    def standard_normal(self, size: tuple[int, ...]) -> np.ndarray:
        self.drawn.append(self.generator.standard_normal(size).astype(np.float32))
        return self.drawn[-1]


@pytest.fixture
def spoken_in_swift(program: Path, tmp_path: Path) -> Callable[..., np.ndarray]:
    """spoken(bundle, precision): samples of the job in the folder, where `loaded.jsonl` lists the loaded models."""

    def spoken(bundle: Path, precision: str) -> np.ndarray:
        requests, answers = tmp_path / "requests", tmp_path / "answers"
        os.mkfifo(requests)
        os.mkfifo(answers)
        log = tmp_path / "loaded.jsonl"
        server = subprocess.Popen([sys.executable, STAND_IN / "server.py", requests, answers, log])
        try:
            pipes = {"STAND_IN_REQUESTS": str(requests), "STAND_IN_ANSWERS": str(answers)}
            done = subprocess.run(
                [program, bundle, precision, tmp_path], env={**os.environ, **pipes},
                capture_output=True, text=True, timeout=120, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            server.wait(30)
        finally:
            server.kill()
            server.wait()
        return np.fromfile(tmp_path / "samples.f32", np.float32)

    return spoken


@pytest.mark.parametrize("continued", [False, True], ids=["zero-shot", "continuation"])
@pytest.mark.parametrize(
    ("bundle", "precision"),
    [("tiny_bundle", "fp32"), ("tiny_bundle", "fp16"), ("tiny_bundle_15", "fp16"), ("second_bundle", "fp32")],
)
def test_swift_speaks_as_python_does(
    bundle: str,
    precision: str,
    continued: bool,
    request: pytest.FixtureRequest,
    spoken_in_swift: Callable[..., np.ndarray],
    tmp_path: Path,
) -> None:
    folder: Path = request.getfixturevalue(bundle)
    text, noise = "the river runs\n  to the  sea", RecordedNoise(7)
    with VoxCPM.from_bundle(folder, precision=precision) as tts:
        a = tts.bundle.architecture
        prompt = np.random.default_rng(3).standard_normal(9 * a.patch_input_samples + 17) / 10
        prompt = prompt.astype(np.float32)
        recording = ((prompt, a.input_sample_rate), TRANSCRIPT) if continued else ()
        expected = tts.speak(text, *recording, rng=noise, max_len=PATCHES, retry_badcase=False).audio
    job = {"text": text, "transcript": TRANSCRIPT if continued else None, "patches": PATCHES}
    (tmp_path / "job.json").write_text(json.dumps(job))
    np.concatenate(noise.drawn, axis=None).tofile(tmp_path / "noise.f32")
    # In stereo: the mean of twice the samples and none.
    np.stack([2 * prompt, 0 * prompt], axis=1).tofile(tmp_path / "prompt.f32")

    found = spoken_in_swift(folder, precision)

    assert found.shape == expected.shape
    assert np.corrcoef(found, expected)[0, 1] > (0.9999999 if precision == "fp32" else 0.99999)
    written, rate = soundfile.read(tmp_path / "out.wav")
    assert rate == a.output_sample_rate
    np.testing.assert_allclose(written, np.clip(found, -1, 1), atol=1e-4)
    loaded = [json.loads(line) for line in (tmp_path / "loaded.jsonl").read_text().splitlines()]
    functions = {function for name, function, _ in loaded if name == "base_lm_step"}
    assert functions == ({"decode", "prefill_16", "prefill_64"} if bundle == "tiny_bundle_15" else {""})
    assert {unit for name, _, unit in loaded if name.startswith("audio_vae")} == {"cpuOnly"}
