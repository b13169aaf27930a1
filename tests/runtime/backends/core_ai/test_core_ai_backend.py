import subprocess
import sys

import numpy as np
import pytest

from voxcpm_constants.step_models import FEAT_ENCODER
from voxcpm_runtime.backends.loading import load_step_models
from voxcpm_runtime.bundle.opening import open_bundle
from voxcpm_runtime.voxcpm import VoxCPM

pytest.importorskip("coreai", exc_type=ImportError)

# Heads of random weights follow nothing.
GIVEN = {"seed": 3, "min_len": 4, "max_len": 4, "retry_badcase": False, "every_word": False}
TEXT = "one two three."


@pytest.fixture(scope="module", autouse=True)
def private_cache(shared_compiled_27):
    """Not the empty cache of other backends' tests."""
    return shared_compiled_27


@pytest.fixture(scope="module")
def tts(tiny_bundle_27):
    with VoxCPM.from_bundle(tiny_bundle_27, precision="fp32") as opened:
        yield opened


def test_speech_equals_its_stream(tts):
    """tests/validation/test_core_ai_parity.py compares speech with upstream's and with the portable backend's."""
    whole = tts.speak(TEXT, **GIVEN)
    streamed = np.concatenate(list(tts.generate_streaming(TEXT, chunk_patches=1, **GIVEN)))
    np.testing.assert_array_equal(whole.audio, streamed)
    assert np.abs(whole.audio).max() > 1e-3


def test_words_have_times_from_attention(tts):
    words = tts.speak(TEXT, **GIVEN).words
    assert [word.text for word in words] == TEXT.split()
    assert {word.method for word in words} == {"attention"}


def test_a_voice_is_saved_and_continued_from_its_cached_prefix(tts, tmp_path):
    prompt = np.random.default_rng(0).standard_normal(1600).astype(np.float32) * 0.1
    made = tts.create_voice((prompt, 16000), "the you and ", name="ada").save(tmp_path / "ada.voice")
    # The second speech reuses the language models' rows of the first one's prefill.
    first, second = (tts.speak(TEXT, voice=made, **GIVEN) for _ in "12")
    with VoxCPM.from_bundle(tts.bundle) as opened_again:
        resumed = opened_again.speak(TEXT, voice=tmp_path / "ada.voice", **GIVEN)
    np.testing.assert_array_equal(first.audio, second.audio)
    np.testing.assert_array_equal(first.audio, resumed.audio)
    assert np.abs(first.latents - tts.speak(TEXT, **GIVEN).latents).max() > 1e-2


def test_core_ai_prints_nothing_and_python_exits_cleanly(tiny_bundle_27, tmp_path, monkeypatch):
    """Without torch, Core AI's threads crashed a third of such processes. The first one compiles the program."""
    monkeypatch.setenv("VOXCPM_COREML_CACHE", str(tmp_path))
    program = f"""
import sys
sys.modules["torch"] = None
from voxcpm_runtime.bundle.opening import open_bundle
from voxcpm_runtime.backends.loading import load_step_models
import numpy as np
bundle = open_bundle({str(tiny_bundle_27)!r}, "fp32")
declared = bundle.manifest.step_models["feat_encoder"]
load_step_models(bundle, names=["feat_encoder"])["feat_encoder"](
    {{t.name: np.zeros(t.shape_at(0), np.float32) for t in declared.inputs}}
)
"""
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_damaged_compiled_program_is_rebuilt(tiny_bundle_27, tmp_path, monkeypatch):
    """Core AI aborts the process or computes wrong values for these."""
    monkeypatch.setenv("VOXCPM_COREML_CACHE", str(tmp_path))
    bundle = open_bundle(tiny_bundle_27, "fp32")
    declared, noise = (
        bundle.manifest.step_models[FEAT_ENCODER].at(0),
        np.random.default_rng(0).standard_normal,
    )
    inputs = {t.name: noise(t.shape_at(0)).astype(np.float32) for t in declared.inputs}
    expected = load_step_models(bundle, names=[FEAT_ENCODER])[FEAT_ENCODER](inputs)
    (code,) = tmp_path.glob("compiled/*.aimodelx/*.odix")
    content = code.read_bytes()
    damaged = content[:-1] + bytes([content[-1] ^ 1])
    code.write_bytes(damaged)
    model = load_step_models(bundle, names=[FEAT_ENCODER])[FEAT_ENCODER]
    assert code.read_bytes() != damaged
    for name, values in model(inputs).items():
        np.testing.assert_array_equal(values, expected[name])
