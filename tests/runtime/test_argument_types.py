"""Arguments of public calls, with values of many types: each is taken, or refused in one line."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from voxcpm_constants.errors import InputError, VoxCPMError
from voxcpm_runtime import Voice, VoiceStore, VoxCPM, decode_audio, pcm16, voxcpm
from voxcpm_runtime.backends.choice import check_engine
from voxcpm_runtime.backends.loading import Placed
from voxcpm_runtime.bundle import opening
from voxcpm_runtime.speech.arguments import Keywords

VALUES: tuple[Any, ...] = (
    None, True, -1, 1.5, math.nan, 10**400, 10**5000, "", "\0", "\ud800", b"x", [5], {5: 5}, object(), np.zeros((3, 2)),
)  # fmt: skip
LONGEST_MESSAGE = 700
NEVER_TAKEN = (b"x", {5: 5})

Call = Callable[..., Any]
RECORDING = (np.random.default_rng(0).uniform(-0.5, 0.5, 60), 1000)


def heard(tts: VoxCPM, timeout: Any = None, **given: Any) -> None:
    with tts.session(**given) as session:
        session.push_text("hi.")
        session.flush()
        while session.next_audio_chunk(timeout):
            pass


def speak_each(tts: VoxCPM, utterances: Any) -> None:
    for _, result in tts.speak_each(utterances):
        if isinstance(result, VoxCPMError):
            raise result


# A call, what it needs, and the names of the arguments that are given.
CALLS: dict[str, tuple[Callable[[VoxCPM], Call], Mapping[str, Any], tuple[str, ...]]] = {
    "generate": (
        lambda tts: tts.generate,
        {"text": "hi."},
        ("text", "prompt_wav_path", "prompt_text", "reference_wav_path", *Keywords.__annotations__),
    ),
    "stream": (
        lambda tts: lambda **given: list(tts.generate_streaming("hi.", **given)),
        {},
        ("chunk_patches", "first_chunk_patches"),
    ),
    "batch": (lambda tts: tts.batch, {}, ("utterances",)),
    "speak_each": (lambda tts: partial(speak_each, tts), {}, ("utterances",)),
    "session": (lambda tts: partial(heard, tts), {}, ("buffer_seconds", "turn", "timeout")),
    "create_voice": (
        lambda tts: tts.create_voice,
        {"audio": RECORDING, "transcript": "so", "name": "ada"},
        ("audio", "transcript", "name", "reference", "trim_silence_vad", "provenance"),
    ),
    "from_bundle": (
        lambda tts: partial(VoxCPM.from_bundle, tts.bundle.folder),
        {},
        ("precision", "backend", "threads", "verify", "compute_units", "device", "on_first_use"),
    ),
    "Voice.load": (lambda _: Voice.load, {}, ("path",)),
    "VoiceStore.load": (lambda _: VoiceStore(Path("voices")).load, {}, ("name",)),
    "decode_audio": (lambda _: decode_audio, {"content": b"RIFF", "name": "x"}, ("content",)),
    "pcm16": (lambda _: pcm16, {}, ("audio",)),
}
TAKEN = {"pcm16"}


@pytest.fixture
def opened(
    tts: VoxCPM,
    models: dict[str, Any],
    network: Any,
    bundle_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> VoxCPM:
    def place(bundle: Any, backend: Any, *, threads: Any, device: Any, compute_units: Any, **_: Any) -> Any:
        check_engine(backend, threads, compute_units, bundle, device=device)
        return {name: Placed(model, "portable") for name, model in models.items()}

    monkeypatch.setattr(voxcpm, "place_step_models", place)
    monkeypatch.setattr(opening, "DEFAULT_BUNDLE", bundle_folder)
    monkeypatch.chdir(tmp_path)
    network.stop_bias = np.array([-1e3, 0], np.float32)
    return tts


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("architecture", ["voxcpm2"], indirect=True)
@pytest.mark.parametrize("name", CALLS)
def test_a_value_of_any_type_is_taken_or_refused_in_one_line(name: str, opened: VoxCPM) -> None:
    make, needed, arguments = CALLS[name]
    wrong = []
    for argument in arguments:
        for value in VALUES:
            try:
                make(opened)(**{**needed, argument: value})
            except VoxCPMError as error:  # noqa: PERF203
                if "\n" in str(error) or len(str(error)) > LONGEST_MESSAGE:
                    wrong.append(f"{argument}: long: {error}")
            except Exception as error:  # noqa: BLE001 - any other is a defect
                wrong.append(f"{argument}={value!r:.40}: {type(error).__name__}: {error}")
            else:
                if name not in TAKEN and any(value is never for never in NEVER_TAKEN):
                    wrong.append(f"{argument}={value!r}: taken without a word")

    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("architecture", ["voxcpm2"], indirect=True)
@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("session", {"timeout": 10**400}, "timeout must be a number of seconds from 0, or "),
        ("session", {"buffer_seconds": 10**400}, "buffer_seconds must be a number from one sample to "),
        ("speak_each", {"utterances": [5]}, "an utterance must be a text or a mapping .*, got 5"),
        ("speak_each", {"utterances": "hi."}, "utterances must be a list of texts, .*, got 'hi.'"),
        ("batch", {"utterances": [{"seed": 5}]}, "utterance 1: the text must be a str, got NoneType"),
        ("batch", {"utterances": [{"text": "hi.", "cancel": 5}]}, "cancel must be a CancelToken, got 5"),
        ("generate", {"voice": 5}, "voice must be a Voice, its name, or the path of its file, got 5"),
        ("generate", {"control": 5}, "control must be a str, got 5"),
        ("generate", {"text": None}, "the text must be a str, got NoneType"),
        ("from_bundle", {"threads": 1.5}, r"threads must be a whole number from 1 to \d+ .*, got 1.5"),
    ],
)
def test_the_line_says_what_was_expected_and_what_came(
    name: str, given: Mapping[str, Any], message: str, opened: VoxCPM
) -> None:
    make, needed, _ = CALLS[name]

    with pytest.raises(InputError, match=message):
        make(opened)(**{**needed, **given})
