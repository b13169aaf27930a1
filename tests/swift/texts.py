# ruff: noqa: E501 - texts as they are written
"""Records Python's results for texts, for the Swift package: tokens, sentences, segments, spelled text."""

import contextlib
import json
import random
import re
import unicodedata
from pathlib import Path

from voxcpm_constants.errors import InputError
from voxcpm_runtime.speech.markup.parsing import spoken_parts
from voxcpm_runtime.text import normalization
from voxcpm_runtime.text.control import ControlledCutter, described, leading_control, without_control
from voxcpm_runtime.text.english import conventions, numbers, reading, words
from voxcpm_runtime.text.languages import may_be_english
from voxcpm_runtime.text.lexicon import pronounced
from voxcpm_runtime.text.normalization import (
    continued_transcript,
    spelled,
    spelled_and_foreign,
    spelled_transcript,
)
from voxcpm_runtime.text.segments import each_segment, one_segment
from voxcpm_runtime.text.sentences import each_sentence
from voxcpm_runtime.text.tokenizer import TextTokenizer
from voxcpm_runtime.words.written import said_spans

ROOT = Path(__file__).parents[2]
DATA = ROOT.parent.parent / "shared/data"
LETTERS = ROOT / "runtime/voxcpm_runtime/default_bundle/tokenizer"
LEXICON = json.loads((ROOT / "tests/marked_up_texts.json").read_text(encoding="utf-8"))["lexicon"]
TARGETS = (8, 40, 200)
FOREIGN = ("Say 中 please.", "Привет, мир!", "He said Ελλάδα.", "The 北京 opera.", "A б and a д.")
"""Letters that a vocabulary of letters lacks; no sign of a unit, which only Python reads."""

_WRITTEN = """
The river runs to the sea.|Hello!|Is it? Yes, it is.|Mr. Smith went to Washington, D.C. on Monday. He came back.
"Stop!" she cried. "Not here."|He said “no.” Then he left.|I live in the U.S. now. It is large.|See Fig. 3 and No. 7.
1. Buy milk. 2. Sell it.|- one\n- two\n- three\n|# A heading\n\nThe text under it.\n\n\nAnd more.|a\n\nb\n\nc
今天天气很好。我们去公园吧！你说呢？|他说：“你好。”然后走了。|我用Python写代码，it is fun。|价格是25元，涨了3.5%。|「はい。」と言った。
中文和 English 混排, with commas，and 3.14 numbers。|नमस्ते। आप कैसे हैं?|مرحبا؟ نعم۔|Привет, мир! Как дела?|안녕하세요. 반갑습니다.
Great 👍🏽! Thanks 👩‍👩‍👧‍👦 all.|🎉🎉🎉|Wow…🎉 Then what?|☃ snow ☃. More.|:( sad. :) happy.|5" wide. And 6" long.
café crème, naïve façade|café crème, naïve façade|Ångström Å Å|ﬁne ﬂow ½ ² ™|ÀÉÎÕÜ|İstanbul ıssız
|   |\n\n\n|...|. . .|!!!|?!|—|a|Z|""|()|«Oui.» « Non. » Si.|The dogs' bowls, 'tis true. 'Twas.|Wait... what?|Well...|e.g. this, i.e. that.
AAAA BBBB|iPhone users. iPad too.|p.m. and a.m. times|Ph.D. students, J. R. R. Tolkien wrote.|<s> and </s> and <unk>|<|audio_start|> x <|audio_end|>
tab\tand\x1cseparator\x85next\u2028line\u3000wide|zero\u200bwidth\u200djoin\ufeffbom|\u202eright to left\u202c|a\u0301\u0327\u0308b|\U00020000\U0002a6df|\U0001f468\u200d\U0001f469
▁word▁ ▁▁|  leading and  double  spaces  |trailing \n|中|中国|人工智能技术|北京大学的学生们|龘靐齉|〇二三|々|①②③ ⅷ|Ⅳ世|٣٤٥|१२३
(warm, slow) Hello.|  (An old man. He is calm.)Come in. Sit down.|(温柔。慢) 你好。|(a|(warm)  |(Warm.) Hello (you). There.|Say {3 ni3} in 2 ways.|{HH AH0}|（温柔）你好|((a) b) c|(a)(b) c|(|a)|()|(a|( warm )|He paid $5. She paid $4.20.|It grew 3.5% in 2023.|At 14:30 we left; at 5 pm we came.|The 21st of May 1999.|1,234,567 people|0.5 or 10
3 apples and 12 pears.|Chapter 4|In 1984 he wrote it.|the 1st, 2nd, 3rd and 4th|He is 42 years old.|100 percent sure.|£20 and €1.50
"""


def texts():
    """At least 500 different texts: fixed ones, pieces of the documentation, and seeded random ones."""
    found = [
        text for line in _WRITTEN.strip("\n").split("\n") for text in line.encode().decode("utf-8").split("|")
    ]
    found = [text.replace("\\n", "\n") for text in found]
    found += [unicodedata.normalize(form, text) for text in found for form in ("NFC", "NFD")]
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    for page in pages[:6]:
        written = page.read_text(encoding="utf-8")
        found += written.split("\n\n")[:40]
        found.append(written[:9000])
    rng = random.Random(5)
    pieces = [*_WRITTEN.replace("|", " ").split(" "), *" \n\n.。!?,，\"'”’«»()（）「」…—-"]
    for _ in range(200):
        found.append(
            "".join(
                rng.choice(pieces) + rng.choice(("", " ", " ", "\n")) for _ in range(rng.randrange(1, 60))
            )
        )
    for _ in range(120):  # any scalar of Unicode
        ranges = (
            (32, 127),
            (0x80, 0x250),
            (0x300, 0x370),
            (0x2000, 0x2BFF),
            (0x3000, 0x9FFF),
            (0x1F300, 0x1F9FF),
            (0, 0x10FFFF),
        )
        chars = (chr(rng.randrange(*rng.choice(ranges))) for _ in range(rng.randrange(1, 200)))
        found.append("".join(char for char in chars if _is_old(char)))
    found += [_with_numbers(rng) for _ in range(200)]
    found += [
        "word " * 3000,
        "字" * 9000,
        "x" * 9000,
        "a, " * 3000,
        "Yes. " * 2000,
        "（" * 500,
        "．." * 400,
        "\u0301" * 300,
    ]
    return list(dict.fromkeys(found))


def _is_old(char):
    """Whether Python and Swift know the character, whatever their releases of Unicode; it is no surrogate."""
    return unicodedata.category(char) not in ("Cn", "Cs")


def _with_numbers(rng):
    """An English sentence with numbers in common notations."""
    n, small, cents = rng.randrange(1, 10 ** rng.randrange(1, 9)), rng.randrange(1, 13), rng.randrange(100)
    year, day, minute, hour = (
        rng.randrange(1100, 2099),
        rng.randrange(1, 29),
        rng.randrange(60),
        rng.randrange(1, 13),
    )
    ending = {1: "st", 2: "nd", 3: "rd"}.get(n % 10 if n % 100 not in (11, 12, 13) else 0, "th")
    return rng.choice((
        f"They counted {n:,} people and {small} dogs.", f"It cost ${n}.{cents:02} in {year}.", f"About {n}.{cents}% of it is left.",
        f"She was the {n}{ending} to arrive.", f"We met at {hour}:{minute:02} on May {day}, {year}.", f"The price fell from €{small} to £{n}.",
        f"Come at {hour} pm, or at {hour}:{minute:02} a.m. tomorrow.", f"The {day}th of March {year} was cold: -{small}°C.",
        f"He ran {small}.{cents} km in {minute + 1} min.", f"In the {year // 10 * 10}s nobody had {n} of them.", f"Mr. Jones paid {n} USD; Dr. Smith, {small}/{small + 3} of it.",
        f"From {year} to {year + 7}, {small}-{small + 4} boxes a day.", f"A ${small} million plan, {n:,}.{cents} in all.", f"Call 555-{n % 9000 + 1000} or {small}x{day}.",
    ))  # fmt: skip


_OWN_UNITS = re.compile(
    r"(?:%|°[CF]?|[kcm]?m|[km]?g|m?l|ft|mph|mi|lbs?|oz|[kMG]?Hz|min|hr?s?|m?s|[kKMGT]B|kWh?)"
)


def reads_more(text, *, spelled=True):
    """Whether a rule of English that the Swift package lacks changes the text, or a word is read as in a heading."""
    lacking = {pattern.pattern for pattern, _ in (*words.addresses(spelled), *words.ROMAN_NUMERALS)}
    lacking |= {pattern.pattern for pattern, _ in conventions.conventions(spelled)}
    lacking |= {
        pattern.pattern for pattern, _ in words.abbreviations(spelled) if not _is_kept(pattern.pattern)
    }
    lacking |= {
        pattern.pattern
        for pattern, said in (
            *numbers.quantities(spelled),
            *numbers.numbers(spelled),
            *numbers.dates(spelled),
        )
        if said in (numbers._height, numbers._days)
        or any(
            part in pattern.pattern
            for part in (
                numbers._COUNTED,
                numbers._PER,
                numbers._FRACTION_UNIT,
                "[a-z.] ",
                "ISBN",
                "inch",
                r"in\.",
                "0\\d{2,4}",
            )
        )
        or numbers._CALLED_IN_PAIRS in pattern.pattern
        or "[A-Z]{2} )" in pattern.pattern
    }
    if re.search("[\u2160-\u217f]", text):  # signs of Roman numerals
        return True
    for sentence in each_sentence(text):
        said = reading._plain_characters(sentence.text, spelled)
        if any(char in reading._GREEK for char in said):
            return True
        for pattern, replacement in reading._rules(spelled):
            before, said = said, pattern.sub(replacement, said)
            if before != said and pattern.pattern in lacking:
                return True
            units = [found["unit"] for found in pattern.finditer(before) if "unit" in pattern.groupindex]
            if before != said and not all(unit is None or _OWN_UNITS.fullmatch(unit) for unit in units):
                return True
        said_words = re.findall("[A-Za-z]{2,}", said)
        capitals = list(filter(str.isupper, said_words))
        heading = len(capitals) > 1 and 2 * len(capitals) >= len(said_words)
        if spelled and (heading or reading._SHOUTED.search(said)):
            return True
    return False


def _is_kept(pattern):
    """Whether a rule of abbreviations is in the Swift package: No., St., Dr. and titles."""
    kept = (r"\bno\.", r"(?<=\w\s)No\s", r"(?<=[a-z]\s)St\.", r"(?<=[a-z]\s)Dr\.")
    return (
        pattern.startswith(kept) or pattern == rf"\b({words.any_of(words._TITLES)})\b(?:\.|(?=\s[A-Z][a-z]))"
    )


_MARKS = """
[pause 1s]|[pause .5s]|[pause 2]|[voice emma]|[voice liam]|[/voice]|[spell]|[/spell]|[laugh]|\\[|\\]|<break/>|<break time='300ms'/>|[rate 1.5]|[/rate]
<break strength='weak'/>|<p>|</p>|<s>|</s>|<sub alias='be &lt;ta'>|</sub>|<voice name='emma'>|</voice>|<voice name='default'>
<say-as interpret-as='cardinal'>|<say-as interpret-as='characters'>|</say-as>|a&amp;b|c&#233;d|<!-- a > [b] -->|<![CDATA[c > <d> [e]]]>
<prosody rate='x-slow'>|<prosody rate='+40%'>|</prosody>|[rate -10%]|[rate 9]|<x/>|<speak>|</speak>|<p xml:lang='en'>|<s a='b'>|e&nbsp;
"""


def marked_up_texts():
    """Random texts with markup, each with its parts, or Python's error: mostly of one kind of marks, which fit."""
    rng = random.Random(6)
    words = ["one", "Two.", " ", "\n", "”", ", ", "…", "é", "🙂", "3", "名", " and ", "?", "  "]
    marks = [mark for line in _MARKS.strip().split("\n") for mark in line.split("|")]
    few = [mark for mark in marks if mark[1:2] in "pvbr\\!s" and "speak" not in mark and "2]" not in mark]
    for _ in range(3000):
        chosen = rng.choice((marks, few, few, few))
        parts = [rng.choice(words if rng.random() < 0.6 else chosen) for _ in range(rng.randrange(1, 12))]
        for index in range(len(parts)):
            if rng.random() < 0.8 and (
                name := re.fullmatch(r"<(p|s|sub|voice|prosody|say-as)\b[^>]*>", parts[index])
            ):
                parts.insert(rng.randrange(index + 1, len(parts) + 1), f"</{name[1]}>")
        text = "".join(parts)
        try:
            found = spoken_parts(text, 0.6)
        except InputError as error:
            yield text, str(error)
        else:
            ways = [(0, None), (1, None), (0, -1), (2, 4)]
            yield text, [
                [p.said, [p.written(*slice(*way).indices(len(p.said))[:2]) for way in ways],
                 p.voice and p.voice.name, p.pause, p.after, p.rate]
                for p in found
            ]  # fmt: skip


def record(folder):
    """Write texts.json."""
    tokenizers = {"words": DATA / "tokenizer", "letters": LETTERS}
    opened = {name: TextTokenizer.from_folder(path) for name, path in tokenizers.items() if path.exists()}
    cases = [case for text in texts() for case in _case(text, opened)]
    target = folder / "texts"
    target.mkdir(parents=True, exist_ok=True)
    document = {
        "folders": {name: str(tokenizers[name]) for name in opened},
        "targets": TARGETS,
        "cases": cases,
        "marked_up": list(marked_up_texts()),
        "pronounced": [[text, pronounced(text, LEXICON)] for text in (case["text"] for case in cases)],
        "foreign": {text: spelled_and_foreign(text, opened["letters"]) for text in FOREIGN},
    }
    (target / "case.json").write_text(json.dumps(document), encoding="utf-8")


def _case(text, tokenizers):
    case = {
        "text": text,
        "sentences": [list(sentence) for sentence in each_sentence(text)],
        "one": [list(segment) for segment in one_segment(text)],
        "spoken": without_control(text),
    }
    try:
        case["control"] = described(text)
    except InputError:
        case["control"] = None
    with contextlib.suppress(InputError):
        control, start = leading_control(text)
        case["leading"] = [control, text[start:]]
    cutter = ControlledCutter()
    case["controlled"] = [
        list(sentence) for part in (*map(cutter.push, text), cutter.flush()) for sentence in part
    ]
    if not re.search("[\u4e00-\u9fff]", text):
        plain = normalization.substituted(re.sub(r"\s+", " ", text), normalization._MARKUP).strip()
        with contextlib.suppress(InputError):
            case["normalized"] = None
            case["normalized"] = normalization.said_text(text, normalize=True)
        # The Swift package takes every text for English.
        case["reads_more_written"] = reads_more(plain, spelled=False) or not may_be_english(plain)
    for name, tokenizer in tokenizers.items():
        count = lambda part, of=tokenizer: len(of(part))  # noqa: E731
        targets = TARGETS if len(text) < 3000 else TARGETS[-1:]
        case[name] = {
            "tokens": tokenizer(text),
            "places": [place for _, place in tokenizer.placed(text)],
            "unknown": tokenizer.unknown_characters(text),
            "continued": continued_transcript(text, tokenizer),
            "segments": {
                str(target): [list(part) for part in each_segment(text, count, target)] for target in targets
            },
        }
        if name == "letters":
            try:
                case["spelled"] = spelled(text, tokenizer, strict=True)
                case["transcript"] = spelled_transcript(text, tokenizer, strict=True)
                if len(text) < 3000:
                    case["spans"] = said_spans(text, case["spelled"])
            except InputError:
                case["spelled"], case["transcript"] = None, None if text else ""
            case["reads_more"] = reads_more(text)
    yield case
