"""A call carried out: all of its segments whole, one after another or several at once, or streamed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

import numpy as np

from voxcpm_runtime.audio.files import Audio
from voxcpm_runtime.model.batch_slots import run_jobs
from voxcpm_runtime.model.driver import Driver
from voxcpm_runtime.speech.call import Call
from voxcpm_runtime.speech.cancellation import Cancelled
from voxcpm_runtime.speech.narrator import Narrator, Piece
from voxcpm_runtime.speech.progress import Telling
from voxcpm_runtime.speech.results import Speech, SpokenSegment
from voxcpm_runtime.text.segments import Segment


def speak_call(call: Call, narrator: Narrator, driver: Driver, at_once: int = 1) -> Speech:
    """at_once: segments at a time, over `driver`, that of the whole batch. Raises Cancelled."""
    telling = Telling(call.progress, call.segments, driver.architecture.patch_seconds)
    spoken: dict[int, SpokenSegment] = {}
    kept = call.kept if len(call.segments) > 1 else None

    def speak(index: int, narrator: Narrator = narrator) -> None:
        segment = None if kept is None else kept.get(index)
        # A release may cut the same text elsewhere.
        if segment is None or segment.text != call.segments[index].text:
            segment = narrator.speak(call.segments[index], index, telling.spoken)
            if kept is not None:
                kept.put(index, segment)
        else:
            narrator.anchor(segment)
        spoken[index] = segment
        telling.finished(index)

    def speak_in_slot(index: int, slot: Driver) -> None:
        speak(index, narrator.over(slot))

    rest = list(range(len(call.segments)))
    cancelled = False
    try:
        # Without a voice, the first segment is the voice of the others.
        while rest and (at_once == 1 or narrator.voice is None):
            speak(rest.pop(0))
        run_jobs(driver, [partial(speak_in_slot, index) for index in rest], at_once)
    except Cancelled:
        cancelled = True
    if cancelled:
        # Raised here, without the frames in which it came up: they hold the caches.
        if not call.keep_partial:
            call.cancel.check()
        whole = next(index for index in range(len(call.segments)) if index not in spoken)
        spoken = {index: spoken[index] for index in range(whole)}
        if (present := telling.present(whole)) is not None:
            spoken[whole] = narrator.spoken(call.segments[whole], whole, present)
    return _speech(
        call,
        narrator,
        driver,
        [spoken[index] for index in sorted(spoken)],
        telling.elapsed,
        cancelled=cancelled,
    )


def stream_call(
    call: Call, narrator: Narrator, segments: Iterable[Segment], patch_seconds: float
) -> Iterator[Piece]:
    """The segments as they are being spoken. Raises Cancelled, or ends, as the caller chose.

    Of segments that are not the call's own, as a session's, no progress is told: there may be any number.
    """
    telling = Telling(call.progress, call.segments, patch_seconds) if call.segments else None
    cancelled = False
    try:
        for piece in narrator.stream(segments):
            if telling is not None:
                telling.heard(piece)
            yield piece
    except Cancelled:
        cancelled = True
    if cancelled and not call.keep_partial:
        call.cancel.check()


def _speech(
    call: Call,
    narrator: Narrator,
    driver: Driver,
    spoken: list[SpokenSegment],
    seconds: float,
    *,
    cancelled: bool,
) -> Speech:
    a = driver.architecture
    audio: list[Audio] = [np.zeros(0, np.float32)]
    for index, segment in enumerate(spoken):
        audio.append(segment.audio)
        if segment.ends_paragraph and index + 1 < len(spoken):
            audio.append(narrator.pause())
    nothing = np.zeros((0, a.patch_size, a.feat_dim), np.float32)
    return Speech(
        audio=np.concatenate(audio),
        sample_rate=a.output_sample_rate,
        latents=np.concatenate([nothing, *(segment.latents for segment in spoken)]),
        seed=spoken[0].seed if len(call.segments) == 1 and spoken else call.randomness.seed,
        attempts=max((segment.attempts for segment in spoken), default=0),
        stopped=not cancelled and all(segment.stopped for segment in spoken),
        too_long=any(segment.too_long for segment in spoken),
        elapsed_seconds=seconds,
        segments=tuple(spoken),
        cancelled=cancelled,
    )
