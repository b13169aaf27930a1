"""Readers of external input: bundles, packages, texts, recordings, saved voices, events of Wyoming.

Each is made with the folder of a bundle and an empty folder of its own.
"""

import asyncio
import contextlib
import functools
import io
import json
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile

from robustness.mutations import damaged, mutated_bytes, mutated_json, mutated_text
from voxcpm_constants.arrays import load_constants
from voxcpm_constants.errors import InputError
from voxcpm_constants.manifest import Manifest
from voxcpm_constants.tensor_files import BLOB_RECORD, BLOB_SENTINEL, WEIGHT_FILE, dump_tensors, load_tensors
from voxcpm_runtime import Voice
from voxcpm_runtime.argument_types import checked_text
from voxcpm_runtime.audio.reading import decode_audio
from voxcpm_runtime.backends.portable.lowering import lower
from voxcpm_runtime.backends.portable.package import MODEL_FILE, read_package, read_specification
from voxcpm_runtime.bundle.opening import _check_declaration, choose_precision
from voxcpm_runtime.commands.batch_lines import Failure, read_lines
from voxcpm_runtime.speech.request import Request
from voxcpm_runtime.text.english.reading import read_aloud
from voxcpm_runtime.text.normalization import said_text, spelled
from voxcpm_runtime.text.segments import each_segment
from voxcpm_runtime.text.sentences import each_sentence
from voxcpm_runtime.text.tokenizer import TextTokenizer
from voxcpm_runtime.voices.voice import Turn, VoiceHeader, latent_space
from voxcpm_server.errors import ApiError
from voxcpm_server.wyoming.server import MAX_LINE_BYTES, read_event


@dataclass(frozen=True)
class Reader:
    """A reader of external input and a mutator of its inputs."""

    valid: tuple[bytes, ...]
    """Valid inputs."""
    read: Callable[[bytes], object]
    """Reads one input. Raises what the reader raises; may return a word for another kind of rejection."""
    changed: Callable[[bytes, random.Random], bytes] = mutated_bytes
    """A mutation of one of `valid`."""


def manifest(bundle, folder):
    """A manifest without a digest, which would reject every change before it is read."""

    def read(changed):
        (folder / "manifest.json").write_bytes(changed)
        found = Manifest.read(folder)
        _check_declaration(folder, found)
        found.digest(choose_precision(folder, found, None))

    return Reader(((bundle / "manifest.json").read_bytes(),), read, mutated_json)


def npy(bundle, folder):
    """The smallest of the constants."""
    architecture = Manifest.read(bundle).architecture
    shutil.copytree(bundle / "constants", folder / "constants")
    path = min((folder / "constants").glob("*.npy"), key=lambda path: path.stat().st_size)
    part = folder / "new"

    def read(changed):
        # Never in place: the old one is mapped.
        part.write_bytes(changed)
        part.replace(path)
        load_constants(folder / "constants", architecture)

    def changed(content, chance):
        header = 128 if chance.random() < 0.8 else len(content)
        return mutated_bytes(content[:header], chance) + content[header:]

    return Reader((path.read_bytes(),), read, changed)


def _tokenizer_reader(name):
    def reader(bundle, folder):
        shutil.copytree(bundle / "tokenizer", folder, dirs_exist_ok=True)

        def read(changed):
            (folder / name).write_bytes(changed)
            opened = TextTokenizer.from_folder(folder)
            for text in TEXTS:
                opened(text)
                opened.unknown_characters(text)

        return Reader(((folder / name).read_bytes(),), read, mutated_json)

    return reader


_OPERATIONS = (40, 70, 100)
"""Operations of a program that are read or lowered at a time, as all of them take tens of milliseconds."""


def lowering(bundle, folder):
    """Lowers the first operations of a program to an ONNX graph."""
    package = _copied(bundle, folder, "locdit_step")
    specification = read_specification(package)

    def read(content):
        (package / MODEL_FILE).write_bytes(content)
        lower(package, signed_products=True)

    valid = tuple(_beginning(specification, count).SerializeToString() for count in _OPERATIONS)
    return Reader(valid, read, _changed_program)


def _beginning(specification, count):
    """The program of the first operations, whose only output is the last of their results."""
    part = type(specification)()
    part.CopyFrom(specification)
    ((_, function),) = part.mlProgram.functions.items()
    ((_, block),) = function.block_specializations.items()
    while block.operations[count - 1].type == "const":
        count += 1
    del block.operations[count:]
    result = block.operations[count - 1].outputs[0]
    del block.outputs[:]
    block.outputs.append(result.name)
    del part.description.output[1:]
    part.description.output[0].name = result.name
    return part


def weights(bundle, folder):
    """weight.bin: the records before the weights, and its length."""
    package = _copied(bundle, folder, "feat_encoder")
    content = (package / WEIGHT_FILE).read_bytes()
    sentinel = BLOB_SENTINEL.to_bytes(4, "little")
    records = [at for at in range(0, len(content) - BLOB_RECORD.size, 64) if content[at : at + 4] == sentinel]
    part = folder / "weight.bin"

    def read(changed):
        # Never in place: the old one is mapped.
        part.write_bytes(changed)
        part.replace(package / WEIGHT_FILE)
        read_package(package)

    def changed(content, chance):
        whole = bytearray(content)
        at = chance.choice(records)
        record = mutated_bytes(content[at : at + BLOB_RECORD.size], chance)
        whole[at : at + BLOB_RECORD.size] = record[: BLOB_RECORD.size].ljust(BLOB_RECORD.size, b"\0")
        if chance.random() < 0.2:
            del whole[chance.randrange(len(whole)) :]
        return bytes(whole)

    return Reader((content,), read, changed)


def _copied(bundle, folder, name):
    return Path(shutil.copytree(bundle / f"int8/{name}.mlpackage", folder / "x.mlpackage"))


@functools.cache
def _parsed(content):
    from coremltools.proto import Model_pb2

    return Model_pb2.Model.FromString(content)


def _changed_program(content, chance):
    """The message with other fields, or sometimes with other bytes."""
    if chance.random() < 0.2:
        return mutated_bytes(content, chance)
    changed = type(_parsed(content))()
    changed.CopyFrom(_parsed(content))
    for _ in range(chance.randint(1, 3)):
        _mutate_message(changed, chance)
    return changed.SerializePartialToString()


def _mutate_message(message, chance):
    """Change one field, somewhere below a protobuf message."""
    while fields := message.ListFields():
        field, value = chance.choice(fields)
        if isinstance(value, int | float | str | bytes | bool):
            try:
                setattr(message, field.name, _odd_scalar(value, chance))
            except (ValueError, TypeError):
                message.ClearField(field.name)
            return
        if hasattr(value, "ListFields"):
            inner = value
        else:
            # A map or a list of messages or scalars.
            is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
            key = chance.choice(sorted(value)) if is_map else chance.randrange(len(value))
            inner = value[key]
            if chance.random() < 0.1 or not hasattr(inner, "ListFields"):
                if is_map or chance.random() < 0.15:
                    del value[key]
                elif hasattr(inner, "ListFields"):
                    inner.Clear()
                else:
                    value[key] = _odd_scalar(inner, chance)
                return
        message = inner


def _odd_scalar(value, chance):
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return chance.choice((0, 1, value + 1, 2**31 - 1))
    if isinstance(value, float):
        return chance.choice((0.0, -1.0, float("nan"), 3e38))
    if isinstance(value, str):
        return chance.choice(("", "x", "../../x", value[::-1]))
    return mutated_bytes(value, chance)


TEXTS = (
    "Dr. Smith paid $4.20 at 12:30 on 3/4/2021; see https://a.org/b?c=1#d. NASA said: “No!” He left... Why?",
    "Chapter III.\n\nIt was 1984 – 5 km/h, 10^3 m², No. 7, e.g. a@b.co, v2.0.1, 1,234,567.89 and 1/2.\n\nYes. No! So?",
    "你好,世界。今天是2024年。(Yes) <b>bold</b> [1] {x} *a* _b_ `c` #tag @me 😀 it's the dogs' U.S. 50% +1 (555) 123",
)

_LINE = {"text": "Yes.", "output": "a.wav", "seed": 3, "cfg_value": 2.0, "inference_timesteps": 4}


def batch_lines(bundle, folder):  # noqa: ARG001
    """A JSONL file. Each invalid line is reported in one line; the others are read."""

    def read(content):
        (folder / "lines.jsonl").write_bytes(content)
        refused = 0
        for line in read_lines(str(folder / "lines.jsonl"), Request()):
            if isinstance(line, Failure):
                refused += 1
                assert len(str(line).splitlines()) == 1, line
        return f"{min(refused, 3)} lines refused" if refused else None

    return Reader((json.dumps(_LINE).encode(),), read, mutated_json)


def recordings():
    """A quarter of a second in each format."""
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


def recording(bundle, folder):  # noqa: ARG001

    def read(content):
        decode_audio(content, "me.wav")

    def changed(content, chance):
        # Readers decide mostly by the beginning.
        start = chance.choice((64, 256, len(content)))
        return mutated_bytes(content[:start], chance) + content[start:]

    return Reader(recordings(), read, changed)


def text(bundle, folder):  # noqa: ARG001
    """Sentences and segments of a text, each as it is read aloud and spelled."""
    tokenizer = TextTokenizer.from_folder(bundle / "tokenizer")

    def read(content):
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

    def changed(content, chance):
        return mutated_text(content.decode(), chance).encode("utf-8", "surrogatepass")

    return Reader(tuple(text.encode() for text in TEXTS[:2]), read, changed)


def _changed_voice(content, chance):
    """Mutated tensors with a valid digest, or mutated bytes, mostly of the header."""
    if chance.random() < 0.5:
        return _resealed(content, chance)
    length = 8 + int.from_bytes(content[:8], "little") if chance.random() < 0.8 else len(content)
    return mutated_bytes(content[:length], chance) + content[length:]


def _resealed(content, chance):
    """A tensor file with a changed element, shape, dtype, name or metadata and a valid digest."""
    tensors, metadata = load_tensors(content)
    name = chance.choice(sorted(tensors))
    tensor = tensors[name]
    match chance.randrange(6 if metadata else 5):
        case 0:
            flipped = damaged(tensor.tobytes(), "flip", chance)
            tensors[name] = np.frombuffer(flipped, tensor.dtype).reshape(tensor.shape)
        case 1 if tensor.ndim:
            tensors[name] = tensor[: chance.randrange(len(tensor) + 1)]
        case 1 | 2:
            tensors[name] = tensor.astype(chance.choice(["f8", "f2", "i4", "u1"]))
        case 3:
            tensors[chance.choice(["", "x", "../x", *tensors])] = tensors.pop(name)
        case 4:
            tensors[name] = tensor.reshape(-1, 1)
        case _:
            key = chance.choice(sorted(metadata))
            metadata[key] = mutated_json(metadata[key].encode(), chance).decode(errors="replace")
    return dump_tensors(tensors, metadata)


def voice(bundle, folder):

    a = Manifest.read(bundle).architecture
    header = VoiceHeader(
        name="ada", generation=a.generation, latent_space=latent_space(a), sample_rate=a.input_sample_rate,
        turns=(Turn(text="so", patches=3),),
    )  # fmt: skip
    path = folder / "a.voice"
    Voice(header, np.ones((3, a.patch_size, a.feat_dim), np.float32)).save(path)

    def read(content):
        (folder / "b.voice").write_bytes(content)
        Voice.load(folder / "b.voice").check(a)

    return Reader((path.read_bytes(),), read, _changed_voice)


def wyoming(bundle, folder):  # noqa: ARG001
    """Events of Wyoming, one after another."""
    data = json.dumps({"text": "Yes.", "voice": {"name": "ada"}}).encode()
    events = (
        b'{"type": "describe"}\n',
        b'{"type": "synthesize", "data": {"text": "No."}, "data_length": %d}\n%s' % (len(data), data),
        b'{"type": "audio-chunk", "payload_length": 5, "version": "1.7.0"}\nabcde',
    )

    async def read_all(content):
        reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
        reader.feed_data(content)
        reader.feed_eof()
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                event = await read_event(reader, 1 << 20)
                assert isinstance(event.type, str)

    def read(content):
        try:
            asyncio.run(read_all(content))
        except (InputError, ApiError) as error:
            if getattr(error, "status_code", 400) >= 500:
                raise
            return "refused"
        return None

    return Reader((b"".join(events), *events), read)


READERS = {
    maker.__name__: maker
    for maker in (manifest, npy, lowering, weights, voice, batch_lines, recording, text, wyoming)
} | {name: _tokenizer_reader(f"{name}.json") for name in ("tokenizer", "tokenizer_config")}
