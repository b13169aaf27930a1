"""Each argument of each public call, with values of every type: it is taken, or refused in one line."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import voxcpm_runtime
from voxcpm_constants.errors import InputError, VoxCPMError
from voxcpm_runtime import (
    CancelToken,
    GenerationOptions,
    SavedSegments,
    Session,
    Voice,
    VoiceStore,
    VoxCPM,
    decode_audio,
    pcm16,
    voxcpm,
)
from voxcpm_runtime.audio.files import write_audio
from voxcpm_runtime.backends.choice import check_engine
from voxcpm_runtime.backends.loading import Placed
from voxcpm_runtime.bundle import opening
from voxcpm_runtime.options import UPSTREAM_ORDER
from voxcpm_runtime.speech.arguments import Keywords

VALUES: dict[str, Any] = {
    "None": None,
    "True": True,
    "5": 5,
    "-1": -1,
    "1.5": 1.5,
    "nan": math.nan,
    "inf": math.inf,
    "10**400": 10**400,
    # Too long for Python to write it as text.
    "10**5000": 10**5000,
    "'x'": "x",
    "''": "",
    "a null character": "\0",
    "half a pair of surrogates": "\ud800",
    "a home of nobody": "~no-such-user/x",
    "b'x'": b"x",
    "[]": [],
    "[5]": [5],
    "()": (),
    "{}": {},
    "{5: 5}": {5: 5},
    "object()": object(),
    "an array": np.zeros((3, 2)),
    "a path": Path("none"),
}
LONGEST_MESSAGE = 700
NEVER_TAKEN = ("b'x'", "[5]", "{5: 5}", "object()")
TAKEN = {("pcm16", "audio", "[5]")}
"""What a call takes of these all the same."""
NO_OPS = ("load_denoiser", "zipenhancer_model_id", "optimize")
"""Upstream's arguments that change nothing, whatever they are."""
# Results, which callers read and do not make, and errors. `Plan` is one: its methods are those of the rooms that speak.
READ_ONLY = {"Audio", "AudioChunk", "Plan", "Progress", "Speech", "SpokenSegment"}
MADE_BY_THE_VOICE = {Session, Voice}
"""Classes whose constructor is not for callers."""


class Scene:
    """What public calls are made on."""

    def __init__(self, tts: VoxCPM, folder: Path) -> None:
        self.tts = tts
        self.folder = folder
        self.recording = (np.random.default_rng(0).uniform(-0.5, 0.5, 60), 1000)
        write_audio(folder / "recording.wav", *self.recording)
        self.wav = (folder / "recording.wav").read_bytes()
        self.voice = tts.create_voice(self.recording, "so", name="ada")
        self.speech = tts.speak("hi.", seed=1)
        self.store = VoiceStore(folder / "voices")
        self.count = 0

    def saved(self) -> SavedSegments:
        self.count += 1
        return SavedSegments(self.folder / f"{self.count}.wav", "digest", 5, drawn=False)

    def session(self) -> Session:
        """One in which nobody waits."""
        session = self.tts.session()
        session.push_text("hi.")
        session.flush()
        return session


def heard(session: Session) -> None:
    with session:
        session.push_text("hi.")
        session.flush()
        for _ in session:
            pass


def each(results: Iterator[tuple[int, Any]]) -> None:
    for _, result in results:
        if isinstance(result, VoxCPMError):
            raise result


Call = Callable[..., Any]
"""A public call, to its end."""
CALLS: dict[str, tuple[Callable[[Scene], Call], Callable[[Scene], Mapping[str, Any]]]] = {
    "VoxCPM": (lambda _: VoxCPM, lambda s: {"bundle": s.tts.bundle, "driver": s.tts.driver}),
    "VoxCPM.from_bundle": (lambda _: VoxCPM.from_bundle, lambda s: {"path": s.tts.bundle.folder}),
    "VoxCPM.from_pretrained": (
        lambda _: VoxCPM.from_pretrained,
        lambda s: {"hf_model_id": str(s.tts.bundle.folder)},
    ),
    "VoxCPM.close": (lambda s: VoxCPM(s.tts.bundle, s.tts.driver).close, lambda _: {}),
    "VoxCPM.generate": (lambda s: s.tts.generate, lambda _: {"text": "hi."}),
    "VoxCPM.speak": (lambda s: s.tts.speak, lambda _: {"text": "hi."}),
    "VoxCPM.plan": (lambda s: s.tts.plan, lambda _: {"text": "hi."}),
    "VoxCPM.speak_plan": (lambda s: s.tts.speak_plan, lambda s: {"plan": s.tts.plan("hi.")}),
    "VoxCPM.batch": (lambda s: s.tts.batch, lambda _: {}),
    "VoxCPM.speak_each": (lambda s: lambda **given: each(s.tts.speak_each(**given)), lambda _: {}),
    "VoxCPM.generate_streaming": (
        lambda s: lambda *a, **given: list(s.tts.generate_streaming(*a, **given)),
        lambda _: {"text": "hi."},
    ),
    "VoxCPM.stream_plan": (
        lambda s: lambda *a, **given: list(s.tts.stream_plan(*a, **given)),
        lambda s: {"plan": s.tts.plan("hi.")},
    ),
    "VoxCPM.session": (lambda s: lambda **given: heard(s.tts.session(**given)), lambda _: {}),
    "VoxCPM.create_voice": (
        lambda s: s.tts.create_voice,
        lambda s: {"audio": s.recording, "transcript": "so", "name": "ada"},
    ),
    "VoxCPM.load_lora": (lambda s: s.tts.load_lora, lambda _: {}),
    "VoxCPM.unload_lora": (lambda s: s.tts.unload_lora, lambda _: {}),
    "VoxCPM.set_lora_enabled": (lambda s: s.tts.set_lora_enabled, lambda _: {}),
    "VoxCPM.get_lora_state_dict": (lambda s: s.tts.get_lora_state_dict, lambda _: {}),
    "Session.push_text": (lambda s: s.session().push_text, lambda _: {}),
    "Session.flush": (lambda s: s.session().flush, lambda _: {}),
    "Session.next_audio_chunk": (lambda s: s.session().next_audio_chunk, lambda _: {}),
    "Session.cancel": (lambda s: s.session().cancel, lambda _: {}),
    "Session.close": (lambda s: s.session().close, lambda _: {}),
    "CancelToken": (lambda _: lambda *, parents: CancelToken(parents), lambda _: {}),
    "CancelToken.cancel": (lambda _: CancelToken().cancel, lambda _: {}),
    "CancelToken.check": (lambda _: CancelToken().check, lambda _: {}),
    "GenerationOptions": (lambda _: GenerationOptions, lambda _: {}),
    "GenerationOptions.changed": (lambda _: GenerationOptions().changed, lambda _: {}),
    "SavedSegments": (
        lambda _: SavedSegments,
        lambda s: {"output": s.folder / "a.wav", "digest": "0", "seed": 5, "drawn": True},
    ),
    "SavedSegments.get": (lambda s: s.saved().get, lambda _: {}),
    "SavedSegments.put": (lambda s: s.saved().put, lambda s: {"index": 0, "segment": s.speech.segments[0]}),
    "SavedSegments.discard": (lambda s: s.saved().discard, lambda _: {}),
    "SavedSegments.release": (lambda s: s.saved().release, lambda _: {}),
    "Voice.extended": (lambda s: s.voice.extended, lambda s: {"text": "so. ", "latents": s.speech.latents}),
    "Voice.check": (lambda s: s.voice.check, lambda _: {}),
    "Voice.save": (lambda s: s.voice.save, lambda s: {"path": s.folder / "saved.voice"}),
    "Voice.load": (lambda _: Voice.load, lambda _: {}),
    "VoiceStore": (lambda _: lambda folder: VoiceStore(folder).names(), lambda _: {}),
    "VoiceStore.names": (lambda s: s.store.names, lambda _: {}),
    "VoiceStore.add": (lambda s: s.store.add, lambda s: {"voice": s.voice}),
    "VoiceStore.free_path": (lambda s: s.store.free_path, lambda _: {"name": "ada"}),
    "VoiceStore.load": (lambda s: s.store.load, lambda _: {}),
    "VoiceStore.located": (lambda s: s.store.located, lambda _: {}),
    "VoiceStore.remove": (lambda s: s.store.remove, lambda _: {}),
    "VoiceStore.path": (lambda s: s.store.path, lambda _: {}),
    "decode_audio": (lambda _: decode_audio, lambda s: {"content": s.wav, "name": "x"}),
    "pcm16": (lambda _: pcm16, lambda _: {}),
}


KEYWORDS: dict[str, Iterable[str]] = {
    "VoxCPM": ("voxcpm_model_path", "device"),
    "VoxCPM.from_pretrained": inspect.signature(VoxCPM.from_bundle).parameters.keys()
    - {"path", "precision", "device"},
}
"""What a call takes behind `**`, unless these are the keywords of a speech."""


def public_calls() -> dict[str, Any]:
    """Every function and method of `voxcpm_runtime`, and the constructors that are for callers."""
    found: dict[str, Any] = {}
    for name in voxcpm_runtime.__all__:
        thing = getattr(voxcpm_runtime, name)
        if name in READ_ONLY or (isinstance(thing, type) and issubclass(thing, Exception)):
            continue
        if not isinstance(thing, type):
            found[name] = thing
            continue
        if thing not in MADE_BY_THE_VOICE:
            found[name] = thing
        for method in dir(thing):
            if not method.startswith("_") and callable(member := getattr(thing, method)):
                found[f"{name}.{method}"] = member
    return found


def arguments(name: str, function: Any) -> list[str]:
    """The names of a call's arguments, those behind `*` and `**` included."""
    names: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            names += KEYWORDS.get(name, Keywords.__annotations__)
        elif parameter.kind is inspect.Parameter.VAR_POSITIONAL and parameter.name in (
            "options",
            "of_upstream",
        ):
            assert set(UPSTREAM_ORDER) <= set(Keywords.__annotations__)
        elif parameter.name != "self":
            names.append(parameter.name)
    return names


@pytest.fixture
def scene(
    tts: VoxCPM,
    models: dict[str, Any],
    network: Any,
    bundle_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Scene:
    placed = {name: Placed(model, "portable") for name, model in models.items()}

    def place(bundle: Any, backend: Any, *, threads: Any, device: Any, compute_units: Any, **_: Any) -> Any:
        check_engine(backend, threads, compute_units, bundle, device=device)
        return placed

    monkeypatch.setattr(voxcpm, "place_step_models", place)
    monkeypatch.setattr(opening, "DEFAULT_BUNDLE", bundle_folder)
    monkeypatch.chdir(tmp_path)
    network.stop_bias = np.array([-1e3, 0], np.float32)
    return Scene(tts, tmp_path)


def test_every_public_call_is_here() -> None:
    assert set(public_calls()) == set(CALLS)
    assert {name for name in READ_ONLY if name not in voxcpm_runtime.__all__} == set()


def defect_of(call: Call) -> str | None:
    """What is wrong with how a call ends: "" for one line of an error, None if it takes what it was given."""
    try:
        call()
    except VoxCPMError as error:
        return "" if "\n" not in str(error) and len(str(error)) <= LONGEST_MESSAGE else f"long: {error}"
    except Exception as error:  # noqa: BLE001 - any other is a defect
        return f"{type(error).__name__}: {error}"
    return None


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("architecture", ["voxcpm2"], indirect=True)
@pytest.mark.parametrize("name", CALLS)
def test_a_value_of_any_type_is_taken_or_refused_in_one_line(name: str, scene: Scene) -> None:
    make, base = CALLS[name]
    if base(scene):
        make(scene)(**base(scene))
    wrong = []
    for argument in arguments(name, public_calls()[name]):
        for label, value in VALUES.items():
            defect = defect_of(partial(make(scene), **{**base(scene), argument: value}))
            takes = argument in NO_OPS or (name, argument, label) in TAKEN
            if defect or (defect is None and label in NEVER_TAKEN and not takes):
                wrong.append(f"{argument}={label}: {defect or 'taken without a word'}")

    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("architecture", ["voxcpm2"], indirect=True)
@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("Session.next_audio_chunk", {"timeout": 10**400}, "timeout must be a number of seconds from 0, or "),
        (
            "VoxCPM.session",
            {"buffer_seconds": 10**400},
            "buffer_seconds must be a number from one sample to ",
        ),
        ("VoxCPM.speak_each", {"utterances": [5]}, "an utterance must be a text or a mapping .*, got 5"),
        ("VoxCPM.speak_each", {"utterances": "hi."}, "utterances must be a list of texts, .*, got 'hi.'"),
        ("VoxCPM.batch", {"utterances": [{"seed": 5}]}, "utterance 1: an utterance has no text; expected "),
        *(
            (call, {"utterances": [{"text": "hi.", **entry}]}, message)
            for call in ("VoxCPM.batch", "VoxCPM.speak_each")
            for entry, message in (
                ({"cancel": 5}, "cancel must be a CancelToken, got 5"),
                ({"voice": 5}, "voice must be a Voice, its name, or the path of its file, got 5"),
                ({"control": 5}, "control must be a str, got 5"),
                ({"prompt_wav_path": b"x", "prompt_text": 5}, "prompt_text must be a str, got 5"),
            )
        ),
        ("VoxCPM.generate", {"cancel": 5}, "cancel must be a CancelToken, got 5"),
        ("VoxCPM.generate", {"control": 5}, "control must be a str, got 5"),
        ("VoxCPM.generate", {"text": None}, "the text is no text but NoneType; expected a str"),
        ("VoxCPM.generate", {"text": 5}, "the text is no text but int; expected a str"),
        *(
            (
                "VoxCPM.from_bundle",
                {"threads": threads},
                r"threads must be a whole number from 1 to \d+ .*, got ",
            )
            for threads in (1.5, math.nan, "x")
        ),
        ("VoxCPM.from_bundle", {"path": 5}, "path must be a path, got 5"),
    ],
)
def test_the_line_says_what_was_expected_and_what_came(
    name: str, given: Mapping[str, Any], message: str, scene: Scene
) -> None:
    make, base = CALLS[name]

    with pytest.raises(InputError, match=message):
        make(scene)(**{**base(scene), **given})
