"""Readers of what people write and record: texts, the lines of a batch, recordings."""

import io
import json
import random
from pathlib import Path

import numpy as np

from robustness.mutations import mutated_bytes, mutated_json, mutated_text
from robustness.reader import Reader

TEXTS = (
    "Dr. Smith paid $4.20 at 12:30 on 3/4/2021; see https://a.org/b?c=1#d. NASA said: “No!” He left... Why?",
    "Chapter III.\n\nIt was 1984 – 5 km/h, 10^3 m², No. 7, e.g. a@b.co, v2.0.1, 1,234,567.89 and 1/2.\n\nYes. No! So?",
    "你好,世界。今天是2024年。(Yes) <b>bold</b> [1] {x} *a* _b_ `c` #tag @me 😀 it's the dogs' U.S. 50% +1 (555) 123",
)

_LINE = {"text": "Yes.", "output": "a.wav", "seed": 3, "cfg_value": 2.0, "inference_timesteps": 4}


def batch_lines(bundle: Path, folder: Path) -> Reader:  # noqa: ARG001
    """A JSONL file. Each invalid line is reported in one line; the others are read."""
    from voxcpm_runtime.commands.batch_lines import Failure, read_lines
    from voxcpm_runtime.speech.request import Request

    def read(content: bytes) -> str | None:
        (folder / "lines.jsonl").write_bytes(content)
        refused = 0
        for line in read_lines(str(folder / "lines.jsonl"), Request()):
            if isinstance(line, Failure):
                refused += 1
                assert len(str(line).splitlines()) == 1, line
        return f"{min(refused, 3)} lines refused" if refused else None

    return Reader((json.dumps(_LINE).encode(),), read, mutated_json)


def recordings() -> tuple[bytes, ...]:
    """A quarter of a second in each format."""
    import soundfile

    samples = (np.sin(np.arange(4000) / 9) / 3).astype(np.float32)
    made = []
    for kind, subtype in (
        ("WAV", "PCM_16"), ("WAV", "FLOAT"), ("WAV", "IMA_ADPCM"), ("FLAC", "PCM_16"), ("OGG", "VORBIS"),
        ("OGG", "OPUS"), ("MP3", "MPEG_LAYER_III"), ("AIFF", "PCM_24"), ("W64", "PCM_16"), ("CAF", "PCM_16"), ("AU", "ULAW"),  # noqa: E501
    ):  # fmt: skip
        file = io.BytesIO()
        soundfile.write(file, samples, 16_000, format=kind, subtype=subtype)
        made.append(file.getvalue())
    return tuple(made)


def recording(bundle: Path, folder: Path) -> Reader:  # noqa: ARG001
    from voxcpm_runtime.audio.reading import decode_audio

    def read(content: bytes) -> None:
        decode_audio(content, "me.wav")

    def changed(content: bytes, chance: random.Random) -> bytes:
        # Readers decide mostly by the beginning.
        start = chance.choice((64, 256, len(content)))
        return mutated_bytes(content[:start], chance) + content[start:]

    return Reader(recordings(), read, changed)


def text(bundle: Path, folder: Path) -> Reader:  # noqa: ARG001
    """Sentences and segments of a text, each as it is read aloud and spelled."""
    from voxcpm_runtime.argument_types import checked_text
    from voxcpm_runtime.english.reading import read_aloud
    from voxcpm_runtime.text.normalization import said_text, spelled
    from voxcpm_runtime.text.segments import each_segment
    from voxcpm_runtime.text.sentences import each_sentence
    from voxcpm_runtime.text.tokenizer import TextTokenizer

    tokenizer = TextTokenizer.from_folder(bundle / "tokenizer")

    def read(content: bytes) -> None:
        try:
            written = content.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            # A text is one already when it gets here: any bytes are characters of some.
            written = content.decode("latin-1")
        given = checked_text(written, "text")
        found = "".join(sentence.text for sentence in each_sentence(given))
        # Sentence boundaries neither lose nor repeat text.
        assert "".join(found.split()) == "".join(given.split()), "other characters than the text"
        limit = (3, 20, 200)[len(content) % 3]
        for segment in each_segment(given, lambda part: len(tokenizer(part)), limit):
            said = said_text(segment.text)
            read_aloud(said)
            spelled(said, tokenizer)

    def changed(content: bytes, chance: random.Random) -> bytes:
        return mutated_text(content.decode(), chance).encode("utf-8", "surrogatepass")

    return Reader(tuple(text.encode() for text in TEXTS[:2]), read, changed)
