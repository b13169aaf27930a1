"""Sentences with spelled-out numbers, dates, amounts of money, times, addresses and letters."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

LETTERS = {
    "a": "ay", "b": "bee", "c": "see", "d": "dee", "e": "ee", "f": "eff", "g": "jee", "h": "aitch", "i": "eye",
    "j": "jay", "k": "kay", "l": "ell", "m": "em", "n": "en", "o": "oh", "p": "pee", "q": "cue", "r": "are", "s": "ess",
    "t": "tee", "u": "you", "v": "vee", "w": "double you", "x": "ex", "y": "why", "z": "zee",
}  # fmt: skip
"""The spelling of each letter's name."""
_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
_NAMES = (
    "Anna", "Peter", "Maria", "James", "Linda", "Robert", "Susan", "David", "Helen", "George", "Alice", "Henry",
    "Laura", "Thomas", "Emily", "Daniel", "Julia", "Frank", "Nancy", "Victor",
)  # fmt: skip
_SURNAMES = (
    "Smith", "Johnson", "Brown", "Miller", "Davis", "Wilson", "Moore", "Taylor", "Anderson", "Harris", "Martin",
    "Thompson", "Young", "Walker", "Carter", "Parker", "Cooper", "Bennett", "Foster", "Hughes",
)  # fmt: skip
_UNITS = (
    "kilometers", "kilograms", "meters", "centimeters", "miles", "degrees", "degrees celsius", "percent", "megabytes",
    "gigabytes", "seconds", "minutes", "hours", "litres", "grams", "volts", "watts", "feet", "inches", "pounds", "tons",
    "miles per hour", "kilometers per hour", "milligrams", "millimeters", "square meters", "kilobytes", "hertz",
    "megahertz", "gigahertz",
)  # fmt: skip
_SITES = (
    "example", "library", "garden", "weather", "museum", "travel", "music", "kitchen", "harbor", "school",
)  # fmt: skip
_ENDS = ("com", "org", "net", "edu", "com slash help", "org slash news")
_FRAMES = (
    "{}.", "The answer is {}.", "It was {}, as far as I know.", "Is it {}?", "They said it would be {}.",
    "We waited for {}, but nobody came.", "Not {}, but {}.", "First {}, then {}, and at last {}.", "Remember, {}!",
    "Between {} and {} there is a large difference.", "About {} of them were never found.",
)  # fmt: skip


def templates(count: int, rng: np.random.Generator, in_words: Callable[[str], str]) -> Iterator[str]:
    """Random sentences. in_words: spells out a number."""

    def one_of(choices: tuple[str, ...]) -> str:
        return str(choices[int(rng.integers(len(choices)))])

    def between(low: int, high: int) -> str:
        return in_words(str(rng.integers(low, high)))

    def number() -> str:
        kind = rng.integers(4)
        if kind == 0:
            return between(0, 100)
        if kind == 1:
            return in_words(f"{int(10 ** rng.uniform(1, 6)):,}")
        if kind == 2:
            return in_words(f"{rng.integers(200)}.{rng.integers(1, 100)}")
        return between(1100, 2060)

    def ordinal() -> str:
        n = int(rng.integers(1, 32))
        return in_words(f"{n}{'th' if 10 < n < 20 else {1: 'st', 2: 'nd', 3: 'rd'}.get(n % 10, 'th')}")

    def spelled() -> str:
        letters = rng.choice(sorted(LETTERS), int(rng.integers(2, 5)))
        return " ".join(LETTERS[str(letter)] for letter in letters)

    def time() -> str:
        minutes = int(rng.integers(60))
        past = f"{' oh ' if minutes < 10 else ' '}{in_words(str(minutes))}" if minutes else ""
        return f"{between(1, 24)}{past}{one_of(('', ' ay em', ' pee em'))}"

    makers: tuple[Callable[[], str], ...] = (
        number,
        lambda: f"{number()} {one_of(_UNITS)}",
        lambda: f"{one_of(_MONTHS)} {ordinal()}, {between(1800, 2030)}",
        lambda: f"the {ordinal()} of {one_of(_MONTHS)}",
        lambda: f"{between(1, 500)} dollars and {between(2, 100)} cents",
        lambda: f"{between(2, 900)} million {one_of(('dollars', 'euros', 'pounds', 'people'))}",
        time,
        lambda: (
            f"{one_of(_NAMES).lower()} dot {one_of(_SURNAMES).lower()} at {one_of(_SITES)} dot {one_of(_ENDS)}"
        ),
        lambda: f"double you double you double you dot {one_of(_SITES)} dot {one_of(_ENDS)}",
        lambda: f"the {spelled()}",
        spelled,
        lambda: f"version {between(1, 20)} point {between(0, 20)}",
        lambda: f"{one_of(('Mister', 'Missus', 'Doctor', 'Professor', 'Captain'))} {one_of(_SURNAMES)}",
        lambda: f"{one_of(_NAMES)} {one_of(_SURNAMES)}",
        lambda: " ".join(in_words(str(d)) for d in rng.integers(0, 10, int(rng.integers(3, 8)))),
        lambda: f"number {between(1, 120)}",
        lambda: f"{one_of(('chapter', 'page', 'section', 'figure'))} {between(1, 400)}",
    )
    for _ in range(count):
        frame = one_of(_FRAMES)
        filled = frame.format(*(makers[int(rng.integers(len(makers)))]() for _ in range(frame.count("{}"))))
        yield filled[:1].upper() + filled[1:]
