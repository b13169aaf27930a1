"""Build the text corpus, from single words to 20 seconds: `python -m voxcpm_training.corpus`.

Most of it is prose (the Brown corpus, speeches), in utterances of one or several sentences. Definitions, examples,
sayings and computing dictionaries add vocabulary, exchanges add sequences of short sentences, word lists cover the
whole lexicon, and templates add text that must be spelled out: numbers, dates, amounts of money, addresses, acronyms.
Every word must be in hibari's pronunciation lexicon, so that no pronunciation is guessed. A text that equals a held-out
sentence, or shares five consecutive words with one, is dropped.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from importlib import resources
from pathlib import Path

import numpy as np
from num2words import num2words

from voxcpm_training.templates import templates
from voxcpm_training.text import is_speakable, words

MIN_LENGTH, MAX_LENGTH = 40, 290
"""Characters per utterance of several sentences; the maximum is about 20 seconds."""
_SHARED_WORDS = 5
# The files of Debian's fortunes with English sentences; the others contain art, code, names or other languages.
_FORTUNES = (
    "computers", "cookie", "definitions", "education", "food", "fortunes", "humorists", "kids", "law", "literature",
    "love", "medicine", "men-women", "miscellaneous", "news", "people", "pets", "platitudes", "politics", "science",
    "songs-poems", "sports", "startrek", "tao", "wisdom", "work",
)  # fmt: skip
_EXPANDED = {
    "Mr.": "Mister", "Mrs.": "Missus", "Dr.": "Doctor", "St.": "Saint", "etc.": "et cetera", "vs.": "versus",
    "e.g.": "for example", "i.e.": "that is", "Jr.": "junior", "Gen.": "General", "Gov.": "Governor",
    "Sen.": "Senator", "Rep.": "Representative", "U.S.": "you ess", "U.N.": "you en", "D.C.": "dee see",
    "A.M.": "ay em", "P.M.": "pee em", "a.m.": "ay em", "p.m.": "pee em", "esp.": "especially",
    "approx.": "approximately", "&": "and", "%": "percent", "+": "plus", "=": "equals",
}  # fmt: skip
_NUMBER = re.compile(r"\$?\d[\d,]*(?:\.\d+|st|nd|rd|th)?\b")
_DIGITS = 12  # longer numbers are not spelled out
_NOT_SPOKEN = re.compile(r"[^A-Za-z' ,.?!-]")
_CAPITALS = re.compile(r"[A-Z]\w*[A-Z]")  # abbreviations, which may be spelled or not
# Single letters, and fragments of abbreviations and split contractions.
_FRAGMENTS = frozenset("bcdefghjklmnpqrstuvwxyz") | frozenset(
    ("st", "mr", "mrs", "ms", "dr", "co", "vs", "etc", "ft", "th", "nd", "rd", "jr")
)


def wordnet(folder: Path) -> Iterator[str]:
    """WordNet's definitions, with the defined words, and its quoted examples."""
    for part in ("noun", "verb", "adj", "adv"):
        for line in (folder / f"data.{part}").read_text(encoding="utf-8", errors="replace").splitlines():
            head, bar, gloss = line.partition("|")
            if not bar or not line[:1].isdigit():
                continue
            word = head.split()[4].partition("(")[0].replace("_", " ")
            definition = gloss.split(";")[0].strip(" .")
            if part == "noun" and not definition.startswith("("):
                yield f"{word[:1].upper()}{word[1:]}, {definition}."
            for example in re.findall(r'"([^"]+)"', gloss):
                yield example if example[-1:] in ".?!" else f"{example}."


def brown(folder: Path) -> Iterator[list[str]]:
    """The documents of the Brown corpus as lists of sentences. Each line is a sentence of word/tag pairs."""
    for path in sorted(folder.glob("c[a-r][0-9][0-9]")):
        sentences = []
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            if pairs := line.split():
                joined = " ".join(pair.rsplit("/", 1)[0] for pair in pairs)
                sentences.append(re.sub(r"([.?!]) ;(?= |$)|([.?!]) [.?!](?= |$)", r"\1\2", joined))
        yield sentences


def speeches(folder: Path) -> Iterator[list[str]]:
    """Plain-text files of prose as lists of sentences."""
    for path in sorted(folder.glob("*.txt")):
        plain = " ".join(path.read_text(encoding="utf-8", errors="replace").split())
        yield re.split(r"(?<=[.!?])\s+(?=[A-Z])", plain)


def sayings(folder: Path) -> Iterator[list[str]]:
    """Debian's fortunes as lists of sentences, without authors."""
    for name in _FORTUNES:
        path = folder / name
        if path.exists():
            for fortune in path.read_text(encoding="utf-8", errors="replace").split("\n%\n"):
                yield re.split(r"(?<=[.!?])\s+", " ".join(fortune.split("\n\t\t-- ")[0].split()))


def dictionary(path: Path) -> Iterator[list[str]]:
    """Paragraphs of a dictionary in dictd's compressed format, as lists of sentences."""
    text = gzip.decompress(path.read_bytes()).decode("utf-8", errors="replace")
    for paragraph in re.split(r"\n\s*\n", text):
        plain = " ".join(
            re.sub(r"[{}_]|<[^>]*>|^\s*(\d+\.|\[[^]]*\]|v[it]\.|n\.|adj\.)+", "", paragraph).split()
        )
        yield re.split(r"(?<=[.!?])\s+(?=[A-Z])", plain)


def spell_out(sentence: str) -> str | None:
    """Spell out a sentence: numbers in words, and only supported punctuation. None if that is impossible."""
    for short, long in _EXPANDED.items():
        if short in sentence:
            sentence = re.sub(rf"(?<!\w){re.escape(short)}(?!\w)", long, sentence)
    plain = sentence.replace("``", "").replace("''", "").replace("’", "'")
    plain = re.sub('["“”]', "", plain)
    plain = _NUMBER.sub(lambda found: in_words(found[0]) if len(found[0]) < _DIGITS else found[0], plain)
    plain = re.sub(r"\s*(?:[;:()—–]|--+|\.\.\.+)\s*", ", ", plain)
    plain = re.sub(r"(?<!\w)'|'(?![\w])", "", plain) if "s'" not in plain else plain
    plain = re.sub(r"\s+([,.?!])", r"\1", re.sub(r"\s+", " ", plain)).strip(" ,-")
    plain = re.sub(r",+(?=[,.?!])|(?<=[.?!])[,.]+", "", plain)
    if (
        not plain
        or _NOT_SPOKEN.search(plain)
        or re.search(r"[.?!].*\w.*[.?!].*[.?!]{2}|(?<!\w)-|-(?!\w)", plain)
    ):
        return None
    if re.search(r"[.?!](?=\S)|,(?=\S)|\.(?=.)", plain.rstrip(".?!")):
        return None
    return plain if plain[-1] in ".?!" else f"{plain}."


def in_words(number: str) -> str:
    """A number in words: 1100 to 1999 and 2010 to 2099 as years, unless they have a comma or a fraction."""
    digits = number.lstrip("$").replace(",", "")
    if digits[-1].isalpha():
        text = _plain(digits[:-2], "ordinal")
    elif re.fullmatch(r"1[1-9]\d\d|20[1-9]\d", number):
        text = f"{_plain(number[:2])} {_half_of_year(number[2:])}"
    elif "." in digits:
        whole, fraction = digits.split(".")
        text = f"{_plain(whole)} point {' '.join(map(_plain, fraction))}"
    else:
        text = _plain(digits)
    return f"{text} dollars" if number[0] == "$" else text


def _half_of_year(digits: str) -> str:
    if digits == "00":
        return "hundred"
    return f"oh {_plain(digits)}" if digits[0] == "0" else _plain(digits)


def _plain(digits: str, to: str = "cardinal") -> str:
    """An integer in American English words: no commas, and no "and" after the hundreds."""
    return str(num2words(int(digits), to=to)).replace(",", "").replace(" and ", " ")


def utterances(
    documents: Iterable[list[str]], rng: np.random.Generator, known: frozenset[str]
) -> Iterator[str]:
    """Consecutive speakable sentences, joined to utterances of random length."""
    for document in documents:
        joined, target = "", 0.0
        for sentence in [*document, None]:
            said = None if sentence is None else spell_out(sentence)
            if said is not None and not all(is_known(word, known) for word in words(said.lower())):
                said = None
            if joined and (said is None or len(joined) + len(said) + 1 > target):
                yield joined
                joined = ""
            if said is None or not 2 <= len(said) <= MAX_LENGTH:
                continue
            if not joined:
                target = 0 if rng.random() < 0.3 else rng.uniform(MIN_LENGTH, MAX_LENGTH)
            joined = f"{joined} {said}".strip()


def exchanges(sentences: list[str], count: int, rng: np.random.Generator) -> Iterator[str]:
    """Unrelated short sentences, joined to at most MAX_LENGTH; half of them are questions or exclamations."""
    lively = [s for s in sentences if s[-1] in "?!"]
    for _ in range(count):
        target, joined = rng.uniform(MIN_LENGTH, MAX_LENGTH - 60), ""
        while len(joined) < target:
            choices = lively if rng.random() < 0.5 else sentences
            joined = f"{joined} {choices[int(rng.integers(len(choices)))]}".strip()
        yield joined


def lists_of_words(known: Iterable[str], count: int, rng: np.random.Generator) -> Iterator[str]:
    """Lists of two to eight words that cover the lexicon."""
    plain = sorted(
        word for word in known if re.fullmatch(r"[a-z]{3,14}", word) and re.search("[aeiouy]", word)
    )
    order: list[str] = []
    for _ in range(count):
        size = int(rng.integers(2, 9))
        if len(order) < size:
            order += rng.permutation(plain).tolist()
        chosen, order = order[:size], order[size:]
        yield f"{', '.join(chosen)}."


def short_texts(frequent: list[str], count: int, rng: np.random.Generator) -> Iterator[str]:
    """Texts of one or two words, ending in each of the three sentence marks."""
    for _ in range(count):
        chosen = rng.choice(frequent, int(rng.integers(1, 3)))
        yield f"{' '.join(chosen).capitalize()}{rng.choice(['.', '.', '!', '?'])}"


def lexicon() -> frozenset[str]:
    """Lower-case words with a pronunciation in hibari."""
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
    stems = [word, *(word[: -len(e)] for e in ("'s", "s'", "s", "es", "ed", "d", "ing") if word.endswith(e))]
    return any(stem in known for stem in stems)


def filter_texts(candidates: Iterable[str], held_out: list[str], known: frozenset[str]) -> Iterator[str]:
    """Drop duplicates, texts with unknown words, and texts that overlap with the held-out ones."""
    held_out_ngrams = {ngram for text in held_out for ngram in _ngrams(text)} | {
        words(s.lower()) for s in held_out if len(words(s)) > 2
    }
    seen: set[str] = set()
    for text in candidates:
        said = words(text.lower())
        if text in seen or not is_speakable(text.lower()) or len(text) > MAX_LENGTH or _CAPITALS.search(text):
            continue
        seen.add(text)
        if said in held_out_ngrams or any(ngram in held_out_ngrams for ngram in _ngrams(text)):
            continue
        if said and all(is_known(word, known) for word in said):
            yield text


def _ngrams(text: str) -> list[tuple[str, ...]]:
    said = words(text.lower())
    return [said[i : i + _SHARED_WORDS] for i in range(len(said) - _SHARED_WORDS + 1)]


def main() -> None:
    """Write the shuffled corpus as a gzip file with one text per line, spelled for a reader."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wordnet", type=Path, required=True, help="folder of data.noun, data.verb, …")
    parser.add_argument("--brown", type=Path, required=True, help="folder of ca01, ca02, …")
    parser.add_argument("--fortunes", type=Path, required=True, help="folder of Debian's fortunes")
    parser.add_argument("--speeches", type=Path, required=True, help="folder of plain-text files")
    parser.add_argument(
        "--dictionaries", type=Path, nargs="*", default=[], help="dictd files: foldoc.dict.dz, …"
    )
    parser.add_argument(
        "--held-out", type=Path, nargs="+", required=True, help="text files to exclude from training"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, required=True, help="corpus.txt.gz, one text per line")
    options = parser.parse_args()
    held_out = [
        line for path in options.held_out for line in path.read_text(encoding="utf-8").splitlines() if line
    ]
    known, rng = lexicon(), np.random.default_rng(options.seed)
    prose = list(utterances(brown(options.brown), rng, known))
    tally = Counter(word for text in prose for word in words(text.lower()))
    frequent = sorted(
        (word for word in tally if tally[word] >= 15 and is_known(word, known)), key=lambda w: -tally[w]
    )
    short = list(short_texts(frequent, 5_000, rng))
    fortunes = list(utterances(sayings(options.fortunes), rng, known))
    brief = [t for t in [*prose, *fortunes, *short[:700]] if len(t) < 60 and not re.search(r"[.?!] ", t)]
    parts = {
        "prose": prose,
        "speeches": list(utterances(speeches(options.speeches), rng, known)),
        "exchanges": list(exchanges(brief, 12_000, rng)),
        "sayings": fortunes,
        "dictionaries": [
            t for path in options.dictionaries for t in utterances(dictionary(path), rng, known)
        ],
        "wordnet": [said for text in wordnet(options.wordnet) if (said := spell_out(text)) is not None],
        "lists": list(lists_of_words(known, 14_000, rng)),
        "short": short,
        "templates": list(templates(12_000, rng, in_words)),
    }
    corpus: list[str] = []
    for name, texts in parts.items():
        chosen = list(filter_texts(texts, held_out, known))
        maximum = {"wordnet": 20_000, "dictionaries": 16_000}.get(name, len(chosen))
        chosen = [chosen[i] for i in rng.permutation(len(chosen))[:maximum]]
        print(name, len(chosen), sum(map(len, chosen)), "characters")  # noqa: T201
        corpus += chosen
    corpus = [corpus[i] for i in rng.permutation(len(corpus))]
    with options.output.open("wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", mtime=0) as file:
        file.write("".join(f"{text}\n" for text in corpus).encode())


if __name__ == "__main__":
    main()
