"""The plan of one call, as data: everything that is known about its speech before a step model runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from voxcpm_runtime.bundle.opening import Bundle
from voxcpm_runtime.options import GenerationOptions
from voxcpm_runtime.speech.request import CancelToken, Request
from voxcpm_runtime.speech.results import PlannedSegment
from voxcpm_runtime.text.lexicon import Lexicon
from voxcpm_runtime.voices.recordings import UnencodedVoice
from voxcpm_runtime.voices.voice import Voice

if TYPE_CHECKING:
    from voxcpm_runtime.speech.markup.parsing import Part


SPEAKING: ContextVar[Plan] = ContextVar("SPEAKING")
"""What this thread speaks, for those who show its warnings."""


@dataclass(frozen=True)
class Plan:
    """What to speak, and how; create one with `VoxCPM.plan`."""

    bundle: Bundle
    request: Request  # As the caller made it
    options: GenerationOptions  # Those of the request; of a part of a text with markup, at its speed
    voice: Voice | UnencodedVoice | None
    """The caller's voice; None to continue the voice of the first segments."""
    seed: int | None
    """The seed of the first attempt at the first segment; None if the caller passed an rng."""
    cancel: CancelToken
    lexicon: Lexicon
    """What is said differently than it is written: the call's entries, the voice's, the bundle's."""
    pronounced: Callable[[str], str]  # Says a text as the lexicon does
    read: Callable[[Plan], Iterator[PlannedSegment]]
    """Reads the whole text again, lazily: `planning.read_text`."""
    description: str = ""  # The control, without its parentheses
    text: str | None = None
    """The text without the marks of `clean`; None if it arrives later, as in a session."""
    text_start: int = 0  # Index in the text after the control that it begins with
    parts: tuple[Part, ...] = ()  # Those of a text with markup
    opening: tuple[PlannedSegment, ...] = ()
    """All segments, or only the first one of a long text."""

    @cached_property
    def segments(self) -> tuple[PlannedSegment, ...]:
        """The segments of the whole text, which is read to its end. Raises InputError, and Cancelled."""
        return self.opening if self.is_read else tuple(self.read(self))

    def each_segment(self) -> Iterable[PlannedSegment]:
        """The segments of the whole text; a long one is read lazily. Errors: see `segments`."""
        return self.opening if self.is_read else self.read(self)

    @property
    def digest(self) -> str:
        """What determines the speech, except for the seed."""
        return speech_digest(replace(self.request, seed=None), self.bundle, self.parts)

    @property
    def is_read(self) -> bool:
        """Whether `opening` has all segments."""
        return self.text is None or (bool(self.opening) and self.opening[-1].followed is False)

    @property
    def is_one_segment(self) -> bool:
        """Whether the whole text is one segment, so that nothing of it can be saved on the way."""
        return self.is_read and len(self.opening) == 1

    @property
    def follows_text(self) -> bool:
        """Whether the alignment heads are followed, so that every word is said once."""
        return self.options.every_word and bool(self.bundle.manifest.sizes.alignment)


def speech_digest(request: Request, bundle: Bundle, parts: Iterable[Part]) -> str:
    """What determines the speech: `Request.digest`, and those of voices that the parts of a text with markup name."""
    return request.digest(bundle) + "".join(part.voice.digest for part in parts if part.voice)
