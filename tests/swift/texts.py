"""Texts as Python cuts, tokenises and spells them: cases for swift/Tests/VoxCPMTests/TextTests.swift."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

from voxcpm_constants.errors import InputError
from voxcpm_runtime.text.normalization import said_text, spelled
from voxcpm_runtime.text.segments import each_segment
from voxcpm_runtime.text.sentences import sentences
from voxcpm_runtime.text.tokenizer import TextTokenizer

LISTENING = Path(__file__).parents[2] / "validation" / "voxcpm_validation" / "listening_test"
COUNT = 500
TARGETS = (12, 40, 200)

WRITTEN = (
    "Dr. Smith arrived at 5 p.m. on Oak St. He left.", "No. 5 is alive. Fig. 3 shows it, cf. p. 12.",
    "“Who are you?” she asked. “I am Ann.” (It was late.) Yes!", "3.14 and example.com. Then U.S. troops left.",
    "1. First item\n2. Second item\n- a dash\n# Heading\nText after it.", "a text. without capitals. and more",
    "你好，世界。今天天气很好！我们去公园吧？好的。", "我在北京大学学习 machine learning，每天 8 小时。", "こんにちは。元気ですか？はい、元気です。",
    "Привет, мир. Как дела? Хорошо.", "مرحبا بالعالم؟ نعم۔", "हम यहाँ हैं। आप कहाँ हैं?",
    "Emoji 😀 in the middle. 👩‍👩‍👧‍👦 Family! 🎉🎉 Done 👍🏽.", "caf\u00e9 and cafe\u0301, na\u00efve and nai\u0308ve.",
    "One blank line.\n\nAnother paragraph.\n\n\n* * *\n\nThe last one.", "   \n  leading and trailing   \n\n",
    "He said: \"Stop!\" and left… Then... nothing?! 5\" wide, 6' tall.", "I'm, it's, don't; rock 'n' roll — dash – en-dash.",
    "word " * 300, "no_spaces" * 80, "，" * 30 + "。", "ﬁ ﬂ ½ ² ™ ® © № ①", "\u200bzero\u200dwidth\ufeff mark",
    "<|audio_start|> is special, <unk> too, </s>.", "x = y + 2; a[3] {k: v} :( :) /path/to/file", "ＦＵＬＬ　ＷＩＤＴＨ　ｔｅｘｔ。",
    "I have 3 cats and 42 dogs; 1,234 people came.", "It was 1984, then 2005, 1900 and 2024.", "3.14 is pi, 0.5 is half, 5% of 100%.",
    "He came 1st, 2nd, 3rd, 21st and 112th.", "It costs $5, $4.20 or $1,200.", "At 3:30, at 10:00 and at 7:05.",
    "Mr. Jones & Mrs. Brown met Dr. Who.", "room 007", "-5 degrees, 2 + 2 = 4",
)  # fmt: skip


def prose() -> list[str]:
    """Paragraphs and sentences of the listening test, and parts of them put together at random."""
    files = sorted(LISTENING.rglob("*.txt"))
    paragraphs = [p for file in files for p in re.split(r"\n\n+", file.read_text(encoding="utf-8")) if p.strip()]
    rng = random.Random(0)
    found = [*WRITTEN, *paragraphs]
    while len(found) < COUNT:
        parts = rng.sample([*WRITTEN, *paragraphs], rng.randint(1, 4))
        found.append(rng.choice([" ", "\n", "\n\n", ""]).join(part[: rng.randint(1, 400)] for part in parts))
    return found[:COUNT]


def _said(text: str, tokenizer: TextTokenizer) -> str | None:
    try:
        return spelled(said_text(text), tokenizer)
    except InputError:
        return None


def record(folder: Path, tokenizers: dict[str, Path]) -> None:
    """Tokens, sentences, segments and spelling of all texts, with each tokenizer."""
    for name, path in tokenizers.items():
        tokenizer = TextTokenizer.from_folder(path)
        cases: list[dict[str, Any]] = []
        for text in prose():
            segments = {
                str(target): [
                    [segment.text, segment.ends_paragraph]
                    for segment in each_segment(text, lambda part: len(tokenizer(part)), target)
                ]
                for target in TARGETS
            }
            cases.append({
                "text": text,
                "tokens": tokenizer(said_text(text)),
                "unknown": tokenizer.unknown_characters(text),
                "sentences": [[sentence.text, sentence.ends_paragraph] for sentence in sentences(text)],
                "segments": segments,
                "spelled": _said(text, tokenizer),
            })  # fmt: skip
        (folder / name).mkdir(parents=True)
        document = {"tokenizer": str(path), "texts": cases}
        (folder / name / "case.json").write_text(json.dumps(document))
