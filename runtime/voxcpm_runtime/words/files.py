"""Files with the times of words: JSON, and subtitles as SRT and WebVTT."""

from __future__ import annotations

import html
import json
import unicodedata
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, pairwise

from voxcpm_runtime.text.sentences import each_sentence
from voxcpm_runtime.words.words import Word, missed_words

TIMESTAMP_ENDINGS = (".json", ".srt", ".vtt")
_MAX_COLUMNS, _MAX_LINES = 42, 2  # Of a cue, as broadcasters have them


def timestamps_file(words: Sequence[Word], ending: str, text: str = "") -> bytes:
    """The content of a file of that ending, in UTF-8. Cues are cut at sentences and have at most 2 lines of 42 columns.

    JSON has an object of `method`, `words`, each an object of `word`, `start` and `end` in seconds, and the words that
    are `unsaid` or `repeated` (`missed_words`). Words that are not said have no times. text: that of all words; its
    paragraphs and list items end cues, too.
    """
    missed = missed_words(words)
    words = [word for word in words if word.said]
    if ending == ".json":
        listed = [{"word": word.text, "start": word.start, "end": word.end} for word in words]
        document = {"method": words[0].method if words else None, "words": listed, **missed}
        return (json.dumps(document, ensure_ascii=False, indent=1) + "\n").encode()
    mark, parts = (",", []) if ending == ".srt" else (".", ["WEBVTT\n"])
    for number, (cue, lines) in enumerate(_cues(words, text), start=1):
        times = " --> ".join(_clock(seconds, mark) for seconds in (cue[0].start, cue[-1].end))
        text = "\n".join(lines)
        parts.append(f"{number}\n{times}\n{text if mark == ',' else html.escape(text, quote=False)}\n")
    return "\n".join(parts).encode()


def _cues(words: Sequence[Word], text: str) -> Iterator[tuple[list[Word], list[str]]]:
    """The words of each cue, and its lines."""
    texts = [word.text for word in words]
    gaps = ["" if _columns(a[-1]) == _columns(b[0]) == 2 else " " for a, b in pairwise([" ", *texts])]
    between = (text[a.place + len(a.text) : b.place] for a, b in pairwise(words))
    breaks = ["" for _ in words[:1]] + ["\n" * gap.count("\n") for gap in between]
    written = "".join(chain.from_iterable(zip(gaps, breaks, texts, strict=True)))
    ends = {len(written[:end].rstrip()) for end in accumulate(len(s.text) for s in each_sentence(written))}
    reached = accumulate(map(len, map("".join, zip(gaps, breaks, texts, strict=True))))
    cue: list[Word] = []
    lines = [""]
    for word, gap, end in zip(words, gaps, reached, strict=True):
        line = f"{lines[-1]}{gap}{word.text}" if cue else word.text
        if _columns(line) <= _MAX_COLUMNS or not cue:
            lines[-1] = line
        elif len(lines) < _MAX_LINES:
            lines.append(word.text)
        else:
            yield cue, lines
            cue, lines = [], [word.text]
        cue.append(word)
        if end in ends:
            yield cue, lines
            cue, lines = [], [""]


def _columns(text: str) -> int:
    """Width of a text; Chinese and Japanese characters are two columns wide."""
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def _clock(seconds: float, mark: str) -> str:
    whole = round(1000 * seconds)
    return f"{whole // 3_600_000:02}:{whole // 60_000 % 60:02}:{whole // 1000 % 60:02}{mark}{whole % 1000:03}"
