"""`speech.json`: the utterances that a checkpoint was made for, optional beside its `config.json`.

A bundle's manifest carries it, so that the runtime and an app cut texts, and judge speech, by the checkpoint's own
figures. A checkpoint without one gets upstream's rules.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from voxcpm_constants.errors import CheckpointError, first_wrong_field
from voxcpm_constants.json_files import read_json

SPEECH_FILE = "speech.json"
_MIN_TOKENS = 8


class SpeechProfile(BaseModel):
    """The contents of `speech.json`. Unknown fields are refused: nothing would read them."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    longest_seconds: float = Field(gt=0, le=600)
    """Seconds of the longest utterance that is reliable; a text that should take longer is spoken in segments."""
    longest_tokens: int = Field(ge=_MIN_TOKENS, le=100_000)
    """Text tokens of the longest utterance that is reliable; a longer text is spoken in segments."""
    seconds_per_letter: float = Field(gt=0, le=10)
    """Seconds of speech that a letter or digit of the text takes, measured on this checkpoint's own good speech."""
    seconds_beside: float = Field(default=0.0, ge=0, le=10)
    """Seconds of an utterance that do not depend on its text, such as silence at its ends."""
    language: str | None = None
    """Language of the texts, as a code of ISO 639 such as "en"."""
    licence: str = ""
    """Licence of the weights, as an SPDX identifier; empty if it is not named here."""
    figures: dict[str, str] = {}
    """Measured figures by name, for the model card."""

    @model_validator(mode="after")
    def _a_word_fits(self) -> SpeechProfile:
        if self.expected_seconds(_MIN_TOKENS) > self.longest_seconds:
            raise ValueError(
                f"longest_seconds is {self.longest_seconds:g}, but by the other figures {_MIN_TOKENS} letters take "
                f"{self.expected_seconds(_MIN_TOKENS):g} seconds"
            )
        return self

    @classmethod
    def beside(cls, checkpoint: Path) -> SpeechProfile | None:
        """The `speech.json` of a checkpoint's folder; None if there is none.

        Raises CheckpointError, one line that names the first wrong field.
        """
        path = checkpoint / SPEECH_FILE
        if not path.exists():
            return None
        try:
            document = read_json(path)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path}: expected JSON, but it cannot be read ({error})") from None
        try:
            return cls.model_validate(document)
        except ValidationError as error:
            raise CheckpointError(
                f"{path}: not a speech.json: {first_wrong_field(error)}; correct it, or remove the file"
            ) from None

    def expected_seconds(self, letters: int) -> float:
        """Seconds that a text of so many letters and digits is expected to take."""
        return self.seconds_beside + self.seconds_per_letter * letters
