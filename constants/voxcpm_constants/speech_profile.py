"""`speech.json`: the utterance lengths that a checkpoint was trained for, an optional file next to `config.json`.

It is part of a bundle's manifest, for the runtime and apps to split texts and check lengths by. Without it upstream's
rules apply.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, ValidationError, model_validator

from voxcpm_constants.errors import CheckpointError, first_wrong_field
from voxcpm_constants.json_files import Record, checkpoint_json

SPEECH_FILE = "speech.json"
_MIN_TOKENS = 8


class SpeechProfile(Record, allow_inf_nan=False):
    """The contents of `speech.json`. Unknown fields are rejected."""

    longest_seconds: float = Field(gt=0, le=600)
    """Seconds of the longest reliable utterance; a text that is expected to take longer is spoken in segments."""
    longest_tokens: int = Field(ge=_MIN_TOKENS, le=100_000)
    """Text tokens of the longest reliable utterance; a longer text is spoken in segments."""
    seconds_per_letter: float = Field(gt=0, le=10)
    """Seconds of speech per letter or digit, measured on good speech of this checkpoint."""
    seconds_beside: float = Field(default=0.0, ge=0, le=10)
    """Seconds of an utterance that do not depend on its text, such as silence at both ends."""
    voice: str | None = None
    """The built-in voice that speaks where a call names none; None for another one with each seed."""
    language: str | None = None  # Language of the texts, as an ISO 639 code such as "en"
    licence: str = ""  # Licence of the weights, as an SPDX identifier; empty if unknown
    figures: dict[str, str] = Field(default_factory=dict)  # Measured figures by name, for the model card

    @model_validator(mode="after")
    def _check_duration(self) -> SpeechProfile:
        if self.expected_seconds(_MIN_TOKENS) > self.longest_seconds:
            raise ValueError(
                f"longest_seconds is {self.longest_seconds:g}, but by the other fields {_MIN_TOKENS} letters take "
                f"{self.expected_seconds(_MIN_TOKENS):g} seconds"
            )
        return self

    @classmethod
    def from_checkpoint(cls, checkpoint: Path) -> SpeechProfile | None:
        """The `speech.json` in a checkpoint's folder; None without one. Raises CheckpointError."""
        path = checkpoint / SPEECH_FILE
        if not path.exists():
            return None
        document = checkpoint_json(path)
        try:
            return cls.model_validate(document)
        except ValidationError as error:
            raise CheckpointError(
                f"{path}: not a speech.json: {first_wrong_field(error)}; correct it, or remove the file"
            ) from None

    def expected_seconds(self, letters: int) -> float:
        """Expected seconds of a text with this many letters and digits."""
        return self.seconds_beside + self.seconds_per_letter * letters
