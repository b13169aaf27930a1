"""Phrases to speak, from WordNet's examples, Brown and fortunes: `python -m voxcpm_training.corpus`.

Every word must be in hibari's pronunciation lexicon, so that no voice guesses a pronunciation. A phrase that equals an
evaluation sentence, or shares five consecutive words with one, is dropped.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
from collections.abc import Iterable, Iterator
from importlib import resources
from pathlib import Path

import numpy as np

from voxcpm_training.text import is_speakable, words

SHORTEST, LONGEST = 3, 14
"""Smallest and largest number of words in a phrase."""
_SHARED_WORDS = 5
# The files of Debian's fortunes with English sentences; the others contain art, code, names or other languages.
_FORTUNES = (
    "cookie", "education", "food", "fortunes", "humorists", "kids", "law", "literature", "love", "medicine",
    "men-women", "miscellaneous", "people", "pets", "platitudes", "politics", "science", "songs-poems", "sports",
    "startrek", "tao", "wisdom", "work",
)  # fmt: skip
_NOT_WORDS = re.compile(r"[^a-z' ,]")
# Single letters, and fragments of abbreviations and split contractions.
_FRAGMENTS = frozenset("bcdefghjklmnopqrstuvwxyz") | {
    "st", "mr", "mrs", "ms", "dr", "co", "vs", "etc", "ft", "th", "nd", "rd",
}  # fmt: skip


def wordnet_examples(folder: Path) -> Iterator[str]:
    """Quoted examples in the glosses of WordNet's data files."""
    for part in ("noun", "verb", "adj", "adv"):
        for line in (folder / f"data.{part}").read_text(encoding="utf-8", errors="replace").splitlines():
            if "|" in line:
                yield from re.findall(r'"([^"]+)"', line.split("|", 1)[1])


def brown_sentences(folder: Path) -> Iterator[str]:
    """Sentences of the Brown corpus, which has a line of word/tag pairs for each."""
    for path in sorted(folder.glob("c[a-r][0-9][0-9]")):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            pairs = line.split()
            if pairs:
                yield " ".join(pair.rsplit("/", 1)[0] for pair in pairs)


def fortune_sentences(folder: Path) -> Iterator[str]:
    """Sentences of Debian's fortunes, without the names of their authors."""
    for name in _FORTUNES:
        path = folder / name
        if path.exists():
            for fortune in path.read_text(encoding="utf-8", errors="replace").split("\n%\n"):
                yield from re.split(r"(?<=[.!?])\s+", " ".join(fortune.split("\n\t\t-- ")[0].split()))


def phrases(sentence: str) -> Iterator[str]:
    """The speakable phrases of a sentence: the whole sentence if it is short, otherwise its clauses."""
    plain = sentence.lower().replace("``", "").replace("''", "").replace("’", "'").strip(" .!?;:-")
    if not SHORTEST <= len(plain.split()) <= LONGEST or re.search(r"[;:]|--", plain):
        parts = re.split(r"\s*(?:[,;:]|--)\s*", plain)
    else:
        parts = [plain]
    for part in parts:
        phrase = re.sub(r"\s*,\s*", ", ", part).strip(" ,.'!?\"-")
        phrase = re.sub(r"\s+", " ", phrase)
        if not _NOT_WORDS.search(phrase) and SHORTEST <= len(phrase.split()) <= LONGEST:
            yield phrase + "."


def lexicon() -> frozenset[str]:
    """The words, in lower case, for which hibari has a pronunciation."""
    assets = resources.files("hibari").joinpath("assets")
    known: set[str] = set()
    for name in ("lexicon_us_gold.json.gz", "lexicon_us_silver.json.gz"):
        with gzip.open(str(assets.joinpath(name)), "rt", encoding="utf-8") as file:
            known.update(word.lower() for word in json.load(file))
    return frozenset(known)


def is_known(word: str, known: frozenset[str]) -> bool:
    """Whether the word, or the word without a regular ending, is in the lexicon."""
    if word in _FRAGMENTS or word.startswith("'"):
        return False
    stems = [
        word,
        *(word[: -len(ending)] for ending in ("'s", "s", "es", "ed", "d", "ing") if word.endswith(ending)),
    ]
    return any(stem in known for stem in stems)


def kept(candidates: Iterable[str], held_out: list[str], known: frozenset[str]) -> Iterator[str]:
    """The phrases to train on, without duplicates, unknown words and overlap with the held-out sentences."""
    spans = {span for sentence in held_out for span in _spans(sentence)} | {words(s) for s in held_out}
    seen: set[tuple[str, ...]] = set()
    for phrase in candidates:
        spoken = words(phrase)
        if spoken in seen or not is_speakable(phrase):
            continue
        seen.add(spoken)
        if spoken in spans or any(span in spans for span in _spans(phrase)):
            continue
        if all(is_known(word, known) for word in spoken):
            yield phrase


def _spans(text: str) -> list[tuple[str, ...]]:
    spoken = words(text)
    return [spoken[i : i + _SHARED_WORDS] for i in range(len(spoken) - _SHARED_WORDS + 1)]


def main() -> None:
    """Write the corpus, shuffled, as a gzip file with one phrase in each line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wordnet", type=Path, required=True, help="folder of data.noun, data.verb, …")
    parser.add_argument("--brown", type=Path, required=True, help="folder of ca01, ca02, …")
    parser.add_argument("--fortunes", type=Path, required=True, help="folder of Debian's fortunes")
    parser.add_argument(
        "--held-out", type=Path, nargs="+", required=True, help="text files that are never trained on"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, required=True, help="corpus.txt.gz, one phrase in each line")
    options = parser.parse_args()
    held_out = [
        line for path in options.held_out for line in path.read_text(encoding="utf-8").splitlines() if line
    ]
    known = lexicon()
    chosen: list[str] = []
    for source in (
        wordnet_examples(options.wordnet), fortune_sentences(options.fortunes), brown_sentences(options.brown),
    ):  # fmt: skip
        chosen += (phrase for sentence in source for phrase in phrases(sentence))
    corpus = sorted(kept(chosen, held_out, known))
    np.random.default_rng(options.seed).shuffle(corpus)
    with options.output.open("wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", mtime=0) as file:
        file.write("".join(f"{phrase}\n" for phrase in corpus).encode())


if __name__ == "__main__":
    main()
