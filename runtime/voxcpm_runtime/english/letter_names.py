"""The names of letters, written as they sound: the voices of letters are trained on these spellings."""

from __future__ import annotations

from voxcpm_runtime.english.number_words import plural

LETTER_NAMES = {
    "a": "ay", "b": "bee", "c": "see", "d": "dee", "e": "ee", "f": "eff", "g": "jee", "h": "aitch", "i": "eye",
    "j": "jay", "k": "kay", "l": "ell", "m": "em", "n": "en", "o": "oh", "p": "pee", "q": "cue", "r": "are",
    "s": "ess", "t": "tee", "u": "you", "v": "vee", "w": "double you", "x": "ex", "y": "why", "z": "zee",
}  # fmt: skip


def letter_by_letter(letters: str, ending: str = "") -> str:
    """The names of ASCII letters, with spaces: "eff bee eye". ending: "", "s" for a plural, or "'s"."""
    names = " ".join(LETTER_NAMES[letter] for letter in letters.lower())
    return plural(names) if ending == "s" else names + ending
