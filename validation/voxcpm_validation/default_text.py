"""The text that is spoken where none is given."""

DEFAULT_TEXT = "By listening a few minutes a day, you will hear the difference between two voices."
