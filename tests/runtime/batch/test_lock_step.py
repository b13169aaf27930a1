"""Utterances in lock step have the samples of each one alone: voices, repairs, retries, stops, cancellation."""

import itertools
import threading
from typing import Any, cast

import numpy as np
import pytest

from voxcpm_constants.errors import BundleError, InputError
from voxcpm_constants.manifest import Manifest
from voxcpm_constants.step_models import BASE_LM_STEP, LOCDIT_STEP, RESIDUAL_LM_STEP
from voxcpm_runtime import Cancelled, CancelToken, Speech, VoxCPM
from voxcpm_runtime.commands import cli
from voxcpm_runtime.speech.saved_segments import SavedSegments

# Speech that is cut lacks words.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

LEFT_OUT = "It was the last day of the week. Nobody said a word about it."
UTTERANCES = {
    "repaired": {"text": LEFT_OUT, "voice": "liam", "seed": 1, "retry_badcase": False},
    "retried": {"text": "Snow fell all night. The roads are white.", "voice": "fenrir", "seed": 1},
    "another number of steps": {"text": "One.", "voice": "emma", "seed": 5, "inference_timesteps": 6},
    "without a voice": {"text": "Two, three.", "zero_shot": True, "seed": 6, "temperature": 0.8},
    "two segments": {"text": "Four, five, six. Seven, eight.", "segment_tokens": 24, "seed": 7},
    "as long as asked": {"text": "Nine.", "min_len": 5, "max_len": 5, "speed": 1.2, "seed": 8},
}


@pytest.fixture(scope="module", params=["fp16", "int8"])
def tts(request, together_bundle):
    return VoxCPM.from_bundle(together_bundle, request.param, backend="portable")


def assert_same(found, expected):
    np.testing.assert_array_equal(found.latents, expected.latents)
    np.testing.assert_array_equal(found.audio, expected.audio)
    for fact in ("attempts", "stopped", "words"):
        assert getattr(found, fact) == getattr(expected, fact)


def test_each_has_the_samples_that_it_has_alone(tts, monkeypatch):
    # The stop head is believed at once, so that the first attempt is cut.
    monkeypatch.setattr("voxcpm_runtime.words.coverage._PATIENCE", -100)
    alone = {name: tts.speak(**given) for name, given in UTTERANCES.items()}
    together = dict(zip(UTTERANCES, tts.batch(UTTERANCES.values()), strict=True))

    for name, expected in alone.items():
        assert_same(together[name], expected)
    not_repaired = tts.speak(**UTTERANCES["repaired"], every_word=False)
    assert len(not_repaired.latents) < len(alone["repaired"].latents)
    if tts.bundle.precision == "int8":  # in fp16 nothing is cut
        assert alone["retried"].attempts == 2
    assert len(alone["two segments"].segments) == 2


def test_calls_are_shared_and_who_is_finished_leaves(tts, monkeypatch):
    """Three utterances of 2, 4 and 7 patches: the last three patches are alone, and from the third on the DiT."""
    rows = {}

    def counted(models, kind):
        class Counted:
            def __init__(self, name):
                self.name, self.model = name, models[name]
                self.new_state, self.releases_gil = self.model.new_state, self.model.releases_gil

            def __call__(self, inputs, state=None):
                if self.name == LOCDIT_STEP or next(iter(inputs.values())).shape[1] == 1:
                    rows.setdefault(f"{kind} {self.name}", []).append(len(inputs))
                return self.model(inputs, state)

        return {name: Counted(name) for name in models}

    together = counted(tts.driver.together(), "together")
    monkeypatch.setattr(tts.driver, "together", lambda: together)
    monkeypatch.setattr(tts.driver, "models", counted(tts.driver.models, "alone"))
    given = {"text": "One, two.", "retry_badcase": False, "inference_timesteps": 3}
    speeches = tts.batch([given | {"min_len": n, "max_len": n, "seed": n} for n in (4, 2, 7)])

    assert [len(speech.latents) for speech in speeches] == [4, 2, 7]
    # CFG-zero* skips the first of three steps.
    assert len(rows[f"together {LOCDIT_STEP}"]) == 2 * 2
    assert len(rows[f"alone {LOCDIT_STEP}"]) == 2 * (2 * 2 + 3)
    # The last patch is not fed.
    assert len(rows[f"together {BASE_LM_STEP}"]) == len(rows[f"together {RESIDUAL_LM_STEP}"]) == 3


def test_one_is_cancelled_and_the_others_go_on(tts):
    given = {"min_len": 12, "max_len": 12, "retry_badcase": False, "every_word": False}
    texts = [{"text": f"{word}.", "seed": seed, **given} for seed, word in enumerate(("One", "Two", "Three"))]
    alone = [tts.speak(**each) for each in texts]
    token, partial = CancelToken(), CancelToken()

    def cancel(progress):
        if progress.patches == 3:
            token.cancel()

    def stop(progress):
        if progress.patches == 5:
            partial.cancel()

    watched = [
        texts[0] | {"cancel": token, "progress": cancel},
        texts[1] | {"cancel": partial, "progress": stop, "keep_partial": True},
        texts[2],
    ]
    spoken = dict(tts.speak_together([tts.plan(**each) for each in watched], 4))

    assert isinstance(spoken[0], Cancelled)
    assert isinstance(spoken[1], Speech)
    assert 5 <= len(spoken[1].latents) < 12
    np.testing.assert_array_equal(spoken[1].latents, alone[1].latents[: len(spoken[1].latents)])
    assert isinstance(spoken[2], Speech)
    assert_same(spoken[2], alone[2])


def test_an_error_ends_those_whose_call_it_was(tts, monkeypatch):
    class Failing:
        releases_gil = True

        def __call__(self, *_):
            raise BundleError("the step model failed")

    models = {**tts.driver.together(), LOCDIT_STEP: Failing()}
    monkeypatch.setattr(tts.driver, "together", lambda: models)
    before = threading.active_count()
    spoken = dict(tts.speak_together([tts.plan(text) for text in ("One.", "Two.", "Three.")], 4))

    assert [str(spoken[index]) for index in range(3)] == ["the step model failed"] * 3
    assert threading.active_count() == before
    with pytest.raises(BundleError, match="the step model failed"):
        tts.batch(["One.", "Two.", "Three."])


def test_sources_of_noise_are_used_in_order(tts):
    """Two utterances may share one."""
    given = {"max_len": 3, "retry_badcase": False}

    def spoken(together):
        rng = np.random.default_rng(0)
        texts = [
            {"text": "One, two, three.", "rng": rng},
            {"text": "Four.", "rng": rng},
        ]
        return tts.batch([{**each, **given} for each in (*texts, {"text": "Five.", "seed": 1})], together)

    for found, expected in zip(spoken(4), spoken(1), strict=True):
        assert_same(found, expected)


LONG = "Rain fell. The wind rose. Boats came home. Nets were full. Then the moon came. All slept."


@pytest.mark.parametrize("voice", [{"voice": "emma"}, {"zero_shot": True}])
def test_segments_of_one_text_at_once_are_those_of_one_by_one(tts, voice):
    """Without a voice, the first segments are that of the others."""
    given = {"segment_tokens": 12, "seed": 3, **voice}
    heard = []
    alone = tts.speak(LONG, **given)
    together = tts.speak(
        LONG, parallel_segments=4, on_words=lambda words: heard.append(words[0].text), **given
    )

    assert len(alone.segments) == len(heard) > 5
    assert_same(together, alone)
    assert heard == [segment.words[0].text for segment in alone.segments]


def test_cancelled_segments_are_saved_up_to_the_first_incomplete_one(tts, tmp_path, monkeypatch):
    given = {"segment_tokens": 12, "voice": "emma", "seed": 3}
    alone, token, calls = tts.speak(LONG, **given), CancelToken(), itertools.count()
    models = dict(tts.driver.together())
    velocity = models[LOCDIT_STEP]

    def cancelling(inputs, state=None):
        if next(calls) == 30:
            token.cancel()
        return velocity(inputs, state)

    models[LOCDIT_STEP] = cast("Any", cancelling)
    saved = SavedSegments(tmp_path / "speech.wav", "digest", 3, drawn=False)
    watched = {**given, "cancel": token, "keep_partial": True, "saved_segments": saved}
    with monkeypatch.context() as patched:
        patched.setattr(tts.driver, "together", lambda: models)
        partial = tts.speak(LONG, parallel_segments=4, **watched)
    assert token.cancelled
    assert saved.count < 4
    again = SavedSegments(tmp_path / "speech.wav", "digest", 3, drawn=False)
    whole = tts.speak(LONG, parallel_segments=4, saved_segments=again, **given)

    assert partial.cancelled
    np.testing.assert_array_equal(partial.latents, alone.latents[: len(partial.latents)])
    assert_same(whole, alone)


def test_a_bundle_that_cannot_says_how_to_convert_it(tts):
    with pytest.raises(InputError, match=r"speaks 1 at once, not 4; convert its checkpoint with --batch 4$"):
        VoxCPM.from_bundle().batch(["One."], together=4)
    with pytest.raises(InputError, match="speaks 4 at once, not 5"):
        tts.batch(["One."], together=5)
    with pytest.raises(InputError, match="together must be a whole number"):
        tts.batch(["One."], together=0)


def test_command_writes_the_files_of_one_by_one(together_bundle, tmp_path, capsys):
    (tmp_path / "lines.jsonl").write_text(
        '{"text": "One, two, three.", "max_len": 3}\n'
        '{"text": "One, two."}\n{"text": ""}\n{"text": "Three.", "voice": "emma"}\n{"text": "Four."}\n'
    )
    given = [str(together_bundle), str(tmp_path / "lines.jsonl"), "--seed", "3", "--backend", "portable"]
    outputs = {}
    for count in ("1", "4"):
        folder = tmp_path / count
        options = ["-o", str(folder), "--timestamps", "srt", "--together", count]
        assert cli.main(["batch", *given, *options]) == 1
        shown = capsys.readouterr().err
        assert "line 1: warning: segment 1: " in shown
        assert (shown.count("warning"), shown.count("failed: line 3: ")) == (1, 1)
        outputs[count] = {path.name: path.read_bytes() for path in folder.glob("output_*")}

    assert cli.main(["batch", *given, "-o", str(tmp_path / "5"), "--together", "5"]) == 2
    assert "convert its checkpoint with --batch 5" in capsys.readouterr().err
    assert outputs["1"].keys() == {
        f"output_00{n}.{ending}" for n in (1, 2, 4, 5) for ending in ("wav", "srt")
    }
    assert outputs["1"] == outputs["4"]


def test_functions_share_the_weights(together_bundle, speaking_bundle):
    """With the bundle for one utterance, whose packages have fewer functions."""
    names = ("feat_encoder", "locdit_step", *(BASE_LM_STEP, RESIDUAL_LM_STEP))
    for name in names:
        path = f"{Manifest.read(together_bundle).package_path('int8', name)}/Data/com.apple.CoreML/weights/weight.bin"
        ours, theirs = ((folder / path).stat().st_size for folder in (together_bundle, speaking_bundle))
        assert ours < 1.02 * theirs, name


def test_core_ml_runs_the_functions_for_several_utterances(together_bundle, core_ml, tmp_path, monkeypatch):
    """Prefilled caches are Core ML states; those of several utterances are inputs and outputs."""
    monkeypatch.setenv("VOXCPM_COREML_CACHE", str(tmp_path / "cache"))
    tts = VoxCPM.from_bundle(together_bundle, "fp16", backend="coreml")
    given = {"max_len": 3, "min_len": 3, "retry_badcase": False, "every_word": False}
    texts = [
        {"text": "One.", "seed": 1, **given},
        {"text": "Two, three.", "seed": 2, **given},
    ]
    alone = [tts.speak(**each) for each in texts]

    for found, expected in zip(tts.batch(texts), alone, strict=True):
        assert_same(found, expected)
    assert "together_4" in {event["function"] for event in core_ml.events("predict")}
