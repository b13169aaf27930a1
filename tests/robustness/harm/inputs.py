"""Voices, recordings, names and texts that were made to do harm."""

from __future__ import annotations

import contextlib
import json
import struct
from collections.abc import Callable
from functools import partial

from robustness.harm.place import LARGE, Act, Place


def voice_header(place: Place) -> Act:
    from voxcpm_runtime import Voice

    path = place.inside / "a.voice"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", LARGE) + b'{"__metadata__":{"voice":"' + b"x" * LARGE + b'"}}')
    return lambda: Voice.load(path) and None


def wav(chunk: bytes, size: int, file_size: int) -> Callable[[Place], Act]:
    def make(place: Place) -> Act:
        from voxcpm_runtime.audio.reading import read_audio

        path = place.inside / "a.wav"
        with path.open("wb") as file:
            start = struct.pack(
                "<4sI4s4sIHHIIHH", b"RIFF", 2**32 - 1, b"WAVE", b"fmt ", 16, 1, 1, 16000, 32000, 2, 16
            )
            file.write(start + struct.pack("<4sI", chunk, size))
            file.truncate(file_size)
        return lambda: read_audio(path, 16000) is None or None

    return make


def voice_named(name: str) -> Callable[[Place], Act]:
    """A voice's name, as a server's client or `voices` gives it."""

    def make(place: Place) -> Act:
        from voxcpm_runtime.voices.store import VoiceStore
        from voxcpm_server.errors import ApiError
        from voxcpm_server.speech.stored_voices import StoredVoices

        (place.outside / "a.voice").write_bytes(b"x")
        store = VoiceStore(place.inside / "voices")
        given = name.format(outside=place.outside)

        def act() -> object:
            served = StoredVoices(store, {})
            looked_up = (partial(call, built_in={}) for call in (served.named, served.shown, served.remove))
            for call in (*looked_up, lambda each: served.check_new(each, 9)):
                try:
                    assert call(given) is None, "a voice elsewhere was found"
                except ApiError:  # noqa: PERF203
                    continue
            store.path(given)
            return None

        return act

    return make


def output_named(name: str) -> Callable[[Place], Act]:
    """An output of a batch's line."""

    def make(place: Place) -> Act:
        from voxcpm_constants.manifest import Manifest
        from voxcpm_runtime.commands.batch_lines import BatchLine, Defaults, Lines
        from voxcpm_runtime.options import GenerationOptions
        from voxcpm_runtime.voices.recordings import Recordings

        defaults = Defaults(
            Manifest.read(place.bundle()).architecture, Recordings(), None, None, GenerationOptions()
        )
        lines = place.inside / "lines.jsonl"
        lines.write_text(json.dumps({"text": "Yes.", "output": name.format(outside=place.outside)}))

        def act() -> object:
            with contextlib.closing(Lines(str(lines), defaults)) as read:
                (line,) = read
            if isinstance(line, BatchLine):
                assert (place.inside / line.output).resolve().is_relative_to(place.inside), line.output
                return None
            return "refused"

        return act

    return make


def text(piece: str) -> Callable[[Place], Act]:
    """A text that makes a regular expression try everything, at every length that is read at once."""

    def make(place: Place) -> Act:  # noqa: ARG001
        from voxcpm_runtime.english.reading import read_aloud
        from voxcpm_runtime.text.normalization import one_line
        from voxcpm_runtime.text.sentences import each_sentence

        def act() -> object:
            for text in (piece * (4000 // len(piece)), "a " + piece * (4000 // len(piece)) + "\u20ac!"):
                for sentence in each_sentence(text * 5):
                    read_aloud(one_line(sentence.text))
            return None

        return act

    return make
