"""Readers of what comes from outside, each with valid inputs that are changed by seed.

A target is made in the process that is watched: `scene` returns what runs a batch of seeds of one.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from robustness.damage import resealed
from robustness.mutations import document_bytes, mutated_bytes, mutated_document, mutated_text
from robustness.watched import FAILURES, Ended, ending

BATCH, TAKEN = "batch", "taken"
_TEXTS = (
    "Dr. Smith paid $4.20 at 12:30 on 3/4/2021; see https://a.org/b?c=1#d. NASA said: “No!” He left... Why?",
    "Chapter III.\n\nIt was 1984 – 5 km/h, 10^3 m², No. 7, e.g. a@b.co, v2.0.1, 1,234,567.89 and 1/2.\n\nYes. No! So?",
    "你好,世界。今天是2024年。(Yes) <b>bold</b> [1] {x} *a* _b_ `c` #tag @me 😀 it's the dogs' U.S. 50% +1 (555) 123",
)

Feed = Callable[[random.Random], object]
"""Makes one input and gives it to the reader. Raises what the reader raises."""


def scene(bundle: str, package: str = "feat_encoder") -> Callable[[dict[str, Any]], Ended]:
    """What runs a case: the seeds of one target, {"target", "first", "count"}. bundle: the folder of one with int8.

    A case of one seed ends as that seed; a longer one as BATCH, with the counts and failures as JSON.
    """
    folder = Path(tempfile.mkdtemp(prefix="fuzz-", dir=Path(bundle).parent))
    os.environ["VOXCPM_COREML_CACHE"] = str(folder / "cache")
    made: dict[str, Feed] = {}

    def run(case: dict[str, Any]) -> Ended:
        target = case["target"]
        if target not in made:
            (folder / target).mkdir()
            made[target] = TARGETS[target](Path(bundle), folder / target, package)
        counts: Counter[str] = Counter()
        wrong, slowest = [], (0.0, 0)
        for seed in range(case["first"], case["first"] + case["count"]):
            chance = random.Random(f"{target} {seed}")
            began = time.process_time()
            ended = ending(lambda chance=chance: _fed(made[target], chance))
            slowest = max(slowest, (time.process_time() - began, seed))
            if case["count"] == 1:
                return ended
            counts[ended.outcome] += 1
            if ended.outcome in FAILURES:
                wrong.append((seed, *ended))
        return Ended(BATCH, json.dumps({"counts": counts, "wrong": wrong, "slowest": slowest}))

    return run


def _fed(feed: Feed, chance: random.Random) -> Ended:
    refused = feed(chance)
    return Ended(refused if isinstance(refused, str) else TAKEN)


def _manifest(bundle: Path, folder: Path, _: str) -> Feed:
    from voxcpm_constants.manifest import Manifest
    from voxcpm_runtime.bundle.opening import _check_declaration, choose_precision

    content = (bundle / "manifest.json").read_bytes()
    document = json.loads(content)

    def feed(chance: random.Random) -> object:
        changed = (
            document_bytes(mutated_document(document, chance))
            if chance.random() < 0.8
            else mutated_bytes(content, chance)
        )
        (folder / "manifest.json").write_bytes(changed)
        manifest = Manifest.read(folder)
        _check_declaration(folder, manifest)
        return manifest.digest(choose_precision(folder, manifest, None)) and None

    return feed


def _package(bundle: Path, folder: Path, name: str) -> Feed:
    """The program's protobuf message, parsed; one in ten is lowered too, which takes longer."""
    from voxcpm_runtime.backends.portable.lowering import lower
    from voxcpm_runtime.backends.portable.package import MODEL_FILE, read_package, read_specification

    package = folder / "x.mlpackage"
    shutil.copytree(bundle / f"int8/{name}.mlpackage", package)
    content = (package / MODEL_FILE).read_bytes()
    specification = read_specification(package)

    def feed(chance: random.Random) -> object:
        if chance.random() < 0.8:
            changed = type(specification)()
            changed.CopyFrom(specification)
            for _ in range(chance.randint(1, 3)):
                _mutate_message(changed, chance)
            (package / MODEL_FILE).write_bytes(changed.SerializePartialToString())
        else:
            (package / MODEL_FILE).write_bytes(mutated_bytes(content, chance))
        read_package(package)
        if chance.random() < 0.1:
            lower(package, signed_products=True)
        return None

    return feed


def _mutate_message(message: Any, chance: random.Random) -> None:
    """Change one field, somewhere below a protobuf message."""
    while True:
        fields = message.ListFields()
        if not fields:
            return
        field, value = chance.choice(fields)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            key = chance.choice(sorted(value))
            if chance.random() < 0.1 or not hasattr(value[key], "ListFields"):
                del value[key]
                return
            message = value[key]
        elif not isinstance(value, int | float | str | bytes | bool) and hasattr(value, "ListFields"):
            if chance.random() < 0.05:
                message.ClearField(field.name)
                return
            message = value
        elif not isinstance(value, int | float | str | bytes | bool):
            index = chance.randrange(len(value))
            if chance.random() < 0.15:
                del value[index]
                return
            if hasattr(value[index], "ListFields"):
                message = value[index]
                continue
            value[index] = _odd_scalar(value[index], chance)
            return
        else:
            try:
                setattr(message, field.name, _odd_scalar(value, chance))
            except (ValueError, TypeError):
                message.ClearField(field.name)
            return


def _odd_scalar(value: Any, chance: random.Random) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return chance.choice((0, 1, value + 1, 2**31 - 1))
    if isinstance(value, float):
        return chance.choice((0.0, -1.0, float("nan"), 3e38))
    if isinstance(value, str):
        return chance.choice(("", "x", "../../x", value[::-1]))
    return mutated_bytes(value, chance)


def _weights(bundle: Path, folder: Path, name: str) -> Feed:
    """weight.bin: the records before the weights, and its length."""
    from voxcpm_runtime.backends.portable.package import BLOB_RECORD, BLOB_SENTINEL, WEIGHT_FILE, read_package

    package = folder / "x.mlpackage"
    shutil.copytree(bundle / f"int8/{name}.mlpackage", package)
    content = (package / WEIGHT_FILE).read_bytes()
    sentinel = BLOB_SENTINEL.to_bytes(4, "little")
    records = [at for at in range(0, len(content) - BLOB_RECORD.size, 64) if content[at : at + 4] == sentinel]

    def feed(chance: random.Random) -> None:
        changed = bytearray(content)
        at = chance.choice(records)
        record = mutated_bytes(content[at : at + BLOB_RECORD.size], chance)
        changed[at : at + BLOB_RECORD.size] = record[: BLOB_RECORD.size].ljust(BLOB_RECORD.size, b"\0")
        if chance.random() < 0.2:
            del changed[chance.randrange(len(changed)) :]
        part = folder / "weight.bin"
        part.write_bytes(changed)
        part.replace(package / WEIGHT_FILE)
        read_package(package)

    return feed


def _npy(bundle: Path, folder: Path, _: str) -> Feed:
    from voxcpm_constants.arrays import load_constants
    from voxcpm_constants.manifest import Manifest

    architecture = Manifest.read(bundle).architecture
    shutil.copytree(bundle / "constants", folder / "constants")
    files = sorted((folder / "constants").glob("*.npy"), key=lambda path: path.stat().st_size)
    contents = [path.read_bytes() for path in files]

    def feed(chance: random.Random) -> None:
        index = 0 if chance.random() < 0.8 else chance.randrange(len(files))
        start, rest = contents[index][:128], contents[index][128:]
        changed = (
            mutated_bytes(start, chance) + rest
            if chance.random() < 0.8
            else mutated_bytes(contents[index], chance)
        )
        files[index].unlink()
        files[index].write_bytes(changed)
        try:
            load_constants(folder / "constants", architecture)
        finally:
            files[index].unlink()
            files[index].write_bytes(contents[index])

    return feed


def _tokenizer(bundle: Path, folder: Path, _: str) -> Feed:
    from voxcpm_runtime.text.tokenizer import TextTokenizer

    names = ("tokenizer.json", "tokenizer_config.json")
    before = {name: (bundle / "tokenizer" / name).read_bytes() for name in names}

    def feed(chance: random.Random) -> None:
        for name, content in before.items():
            (folder / name).write_bytes(content)
        name = chance.choice(names)
        document = json.loads(before[name])
        is_document = chance.random() < 0.85
        changed = (
            document_bytes(mutated_document(document, chance))
            if is_document
            else mutated_bytes(before[name], chance)
        )
        (folder / name).write_bytes(changed)
        tokenizer = TextTokenizer.from_folder(folder)
        text = chance.choice(_TEXTS)
        tokenizer(text)
        tokenizer.unknown_characters(text)

    return feed


def _tensors(bundle: Path, folder: Path, _: str) -> tuple[bytes, bytes, bytes]:
    """A voice, a prefix and a segment as they are saved."""
    import numpy as np

    from voxcpm_constants.manifest import Manifest
    from voxcpm_runtime import Voice
    from voxcpm_runtime.speech.results import SpokenSegment
    from voxcpm_runtime.storage.sealed_tensors import sealed
    from voxcpm_runtime.voices.voice import Turn, VoiceHeader, latent_space

    a = Manifest.read(bundle).architecture
    prompt = np.ones((3, a.patch_size, a.feat_dim), np.float32)
    header = VoiceHeader(
        name="ada", generation=a.generation, latent_space=latent_space(a), sample_rate=a.input_sample_rate,
        turns=(Turn(text="so", patches=3),),
    )  # fmt: skip
    Voice(header, prompt).save(folder / "a.voice")
    rows = {
        f"{part}.{kind}": np.ones((2, 1, 5, 4), np.float16)
        for part in ("base", "residual")
        for kind in ("k", "v")
    }
    prefix = sealed({**rows, "prompt_embeddings": prompt[:, 0]})
    fields = {field: 1 for field in SpokenSegment.__dataclass_fields__ if field not in ("audio", "latents")}
    segment = sealed({"audio": prompt[0, 0], "latents": prompt}, {"segment": json.dumps(fields)})
    return (folder / "a.voice").read_bytes(), prefix, segment


def _changed_tensors(content: bytes, chance: random.Random) -> bytes:
    if chance.random() < 0.5:
        return resealed(content, chance)
    length = 8 + int.from_bytes(content[:8], "little")
    return (
        mutated_bytes(content[:length], chance) + content[length:]
        if chance.random() < 0.8
        else mutated_bytes(content, chance)
    )


def _voice(bundle: Path, folder: Path, name: str) -> Feed:
    from voxcpm_constants.manifest import Manifest
    from voxcpm_runtime import Voice

    content, _, _ = _tensors(bundle, folder, name)
    architecture = Manifest.read(bundle).architecture

    def feed(chance: random.Random) -> None:
        (folder / "b.voice").write_bytes(_changed_tensors(content, chance))
        Voice.load(folder / "b.voice").check(architecture)

    return feed


def _prefix(bundle: Path, folder: Path, name: str) -> Feed:
    from voxcpm_runtime.voices.prefix_cache import _read

    _, content, _ = _tensors(bundle, folder, name)

    def feed(chance: random.Random) -> str | None:
        (folder / "b.prefix").write_bytes(_changed_tensors(content, chance))
        return "computed again" if _read(folder / "b.prefix") is None else None

    return feed


def _segment(bundle: Path, folder: Path, name: str) -> Feed:
    from voxcpm_runtime.speech.saved_segments import SavedSegments
    from voxcpm_runtime.storage.whole_file import hidden_beside

    _, _, content = _tensors(bundle, folder, name)
    plan = {"digest": "d", "seed": 1}
    output = folder / "book.wav"
    saved = hidden_beside(output, "segments")
    saved.mkdir()

    def feed(chance: random.Random) -> str | None:
        changes_plan = chance.random() < 0.3
        (saved / "plan.json").write_bytes(
            document_bytes(mutated_document(plan, chance) if changes_plan else plan)
        )
        (saved / "00000.segment").write_bytes(content if changes_plan else _changed_tensors(content, chance))
        found = SavedSegments(output, "d", 1, drawn=chance.random() < 0.5)
        try:
            return "spoken again" if found.get(0) is None else None
        finally:
            found.release()

    return feed


_LINES = (
    {"text": "Yes.", "output": "a.wav", "seed": 3, "cfg_value": 2.0, "inference_timesteps": 4},
    {"text": "No.", "prompt": "me.wav", "prompt_text": "So.", "max_len": 5, "retry_badcase": False},
    {"text": "One", "voice": "ada", "control": "slow", "normalize": True},
)


def _jsonl(bundle: Path, folder: Path, _: str) -> Feed:
    from voxcpm_constants.manifest import Manifest
    from voxcpm_runtime.commands.batch_lines import Defaults, Failure, Lines
    from voxcpm_runtime.options import GenerationOptions
    from voxcpm_runtime.voices.recordings import Recordings

    defaults = Defaults(Manifest.read(bundle).architecture, Recordings(), None, None, GenerationOptions())

    def feed(chance: random.Random) -> None:
        lines = [document_bytes(mutated_document(chance.choice(_LINES), chance)) for _ in range(3)]
        content = b"\n".join(lines)
        (folder / "lines.jsonl").write_bytes(
            mutated_bytes(content, chance) if chance.random() < 0.4 else content
        )
        with contextlib.closing(Lines(str(folder / "lines.jsonl"), defaults)) as lines:
            for line in lines:
                assert len(str(line).splitlines()) == 1 or not isinstance(line, Failure), line

    return feed


def _recordings() -> list[bytes]:
    """A quarter of a second in each format."""
    import numpy as np
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
    return made


def _audio(bundle: Path, folder: Path, name: str) -> Feed:  # noqa: ARG001
    from voxcpm_runtime.audio.decoding import decode_audio

    recordings = _recordings()

    def feed(chance: random.Random) -> None:
        content = chance.choice(recordings)
        # Most of what a reader decides by is at the beginning.
        start = chance.choice((64, 256, len(content)))
        decode_audio(mutated_bytes(content[:start], chance) + content[start:], "me.wav")

    return feed


def _text(bundle: Path, folder: Path, _: str) -> Feed:  # noqa: ARG001
    from voxcpm_runtime.text.english import read_aloud
    from voxcpm_runtime.text.letters import spelled
    from voxcpm_runtime.text.segments import each_segment
    from voxcpm_runtime.text.sentences import each_sentence
    from voxcpm_runtime.text.tokenizer import TextTokenizer
    from voxcpm_runtime.text.words import checked_text, one_line

    tokenizer = TextTokenizer.from_folder(bundle / "tokenizer")

    def feed(chance: random.Random) -> None:
        text = checked_text(mutated_text(chance.choice(_TEXTS), chance), "text")
        found = "".join(sentence.text for sentence in each_sentence(text))
        # Nothing is lost where sentences end, and nothing is said twice.
        assert "".join(found.split()) == "".join(text.split()), "other characters than the text"
        for segment in each_segment(
            text, lambda part: len(tokenizer.tokens(part)), chance.choice((3, 20, 200))
        ):
            said = one_line(segment.text)
            read_aloud(said)
            spelled(said, tokenizer)

    return feed


def _server(bundle: Path, folder: Path, _: str) -> Feed:  # noqa: ARG001
    from fastapi.exceptions import RequestValidationError
    from starlette.exceptions import HTTPException
    from starlette.requests import Request

    from voxcpm_server.errors import ApiError
    from voxcpm_server.settings import Settings
    from voxcpm_server.speech_requests import speech_request

    settings = Settings()
    state = SimpleNamespace(service=SimpleNamespace(settings=settings))
    served: Any = SimpleNamespace(takes_instructions=True)
    recording = _recordings()[0]
    document = {
        "model": "voxcpm", "input": "Yes.", "voice": {"id": "ada"}, "response_format": "wav", "speed": 1.0, "seed": 3,
        "stream": True, "sample_rate": 24000, "cfg_value": 2.0, "instructions": "slow", "prompt_audio": "UklGRg==",
        "prompt_text": "so",
    }  # fmt: skip
    form = b"".join(
        b'--edge\r\nContent-Disposition: form-data; name="%s"%s\r\n\r\n%s\r\n' % (name, more, content)
        for name, more, content in (
            (b"input", b"", b"Yes."), (b"voice", b"", b"ada"), (b"seed", b"", b"3"), (b"prompt_text", b"", b"so"),
            (b"prompt_audio", b'; filename="me.wav"\r\nContent-Type: audio/wav', recording),
        )
    )  # fmt: skip

    async def asked(body: bytes, kind: str) -> None:
        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        scope = {
            "type": "http", "method": "POST", "path": "/v1/audio/speech", "query_string": b"",
            "headers": [(b"content-type", kind.encode("latin-1", "replace"))], "app": SimpleNamespace(state=state),
        }  # fmt: skip
        request = await speech_request(Request(scope, receive))
        request.ignored_fields(served)
        request.arguments(settings, served, 4096)

    def feed(chance: random.Random) -> str | None:
        if chance.random() < 0.5:
            kind = "application/json"
            body = document_bytes(mutated_document(document, chance))
            body = mutated_bytes(body, chance) if chance.random() < 0.3 else body
        else:
            kind = "multipart/form-data; boundary=edge"
            kind = mutated_text(kind, chance) if chance.random() < 0.1 else kind
            body = mutated_bytes(form + b"--edge--\r\n", chance)
        try:
            asyncio.run(asked(body, kind))
        except RequestValidationError:
            return "422"
        except (ApiError, HTTPException) as error:
            status = getattr(error, "status_code", None) or getattr(error, "status", 400)
            if int(status) >= 500:
                raise
            return str(status)
        return None

    return feed


TARGETS: dict[str, Callable[[Path, Path, str], Feed]] = {
    "manifest": _manifest,
    "package": _package,
    "weight.bin": _weights,
    "npy": _npy,
    "tokenizer": _tokenizer,
    "voice": _voice,
    "prefix": _prefix,
    "saved segments": _segment,
    "batch lines": _jsonl,
    "recordings": _audio,
    "text": _text,
    "server bodies": _server,
}
