"""Flags of upstream's command line that this one does not have, and why, for the message that refuses them."""

from __future__ import annotations

_SPEAKING = ("design", "clone", "batch")
_OF_A_LORA = "what a LoRA changes is read from lora_config.json beside its weights: leave it out"
_OF_TRAINING = "upstream's validate is about data for training, this one is about bundles"

_FLAGS = {
    **dict.fromkeys(
        (
            "--lora-r",
            "--lora-alpha",
            "--lora-dropout",
            "--lora-disable-lm",
            "--lora-disable-dit",
            "--lora-enable-proj",
        ),
        (_SPEAKING, _OF_A_LORA),
    ),
    **dict.fromkeys(
        ("--manifest", "-m", "--sample-rate", "--max-samples", "--verbose", "-v"),
        (("validate",), _OF_TRAINING),
    ),
}
"""Flag → the commands that have it upstream, and why they lack it here."""


def why_not_offered(flag: str, command: str) -> str | None:
    """A line about a flag of upstream's that the command does not have; None if upstream has none of this name either.

    command: the first word of the command line; a flag itself in upstream's form without a command.
    """
    # `-od` is told as `-o`, `--text=a` as `--text`.
    if flag and command.startswith(flag):
        named = command.partition("=")[0]
        before = f"expected {', '.join(_SPEAKING)} or another command before it"
        return f"{named} is an option of a command: {before}"
    commands, reason = _FLAGS.get(flag, ((), ""))
    return f"{flag} is not offered: {reason}" if command in commands else None
