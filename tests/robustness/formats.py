"""Files in binary formats, of the right structure with the wrong content, as strategies of hypothesis."""

from __future__ import annotations

import functools
import struct
from typing import Any

from hypothesis import strategies as st

from robustness.damage import resealed

_TAGS = (1, 1, 1, 3, 6, 7, 2, 0x11, 0x31, 0x55, 0xFFFE, 0)
"""WAVE's numbers of encodings: PCM, float, A-law, µ-law, both ADPCMs, GSM, MP3, extensible, none."""
_SIZES = (*[None] * 24, 0, 1, 15, 2**31 - 1, 2**31, 2**32 - 1)
"""Sizes that a chunk says; None is its own."""
_SUBFORMAT = bytes.fromhex("0000100080000000aa00389b71")
_ODD_NUMBERS = (0, 1, -1, 2, 7, 2**31 - 1, -(2**31))


@st.composite
def wave_files(draw: Any) -> bytes:
    """A WAV file of a few hundred samples, whose header and chunks contradict each other here and there."""

    def usual(value: int, *others: int) -> int:
        return value if draw(st.integers(0, 9)) else draw(st.sampled_from(others))

    tag, channels = draw(st.sampled_from(_TAGS)), usual(1, 0, 2, 8, 9, 65535)
    rate, bits = usual(16_000, 0, 1, 44_100, 2**31 - 1, 2**32 - 1), usual(16, 0, 1, 8, 24, 32, 64, 65535)
    block = usual(channels * bits // 8, 0, 1, 3, 256, 65535) % 2**16
    form = struct.pack("<HHIIHH", tag, channels, rate, usual(rate * block % 2**32, 0, 1), block, bits)
    if tag != 1:
        form += draw(
            st.sampled_from((b"", b"\0\0", struct.pack("<HHI", 22, 16, 4) + b"\x01\0\0" + _SUBFORMAT))
        )
    samples = draw(st.binary(min_size=0, max_size=8)) * draw(st.sampled_from((0, 1, 100, 400)))
    chunks = [(b"fmt ", form), (b"data", samples)]
    for _ in range(draw(st.integers(0, 2))):
        name = draw(
            st.sampled_from((b"fact", b"LIST", b"bext", b"ds64", b"fmt ", b"data", b"PEAK", b"\0\0\0\0"))
        )
        chunks.insert(draw(st.integers(0, len(chunks))), (name, draw(st.binary(max_size=40))))
    body = b"WAVE" + b"".join(name + _size(draw, content) + content for name, content in chunks)
    kind = draw(st.sampled_from((b"RIFF", b"RIFF", b"RIFF", b"RIFF", b"RIFX", b"RF64")))
    return kind + _size(draw, body) + body


def _size(draw: Any, content: bytes) -> bytes:
    said = draw(st.sampled_from(_SIZES))
    return (len(content) if said is None else said).to_bytes(4, "little")


def changed_tensors(content: bytes) -> st.SearchStrategy[bytes]:
    """A file of tensors with one change that its digest knows of, in which hypothesis draws each choice."""
    return st.randoms(use_true_random=False).map(lambda chance: resealed(content, chance))


_DTYPES = (
    "<f2",
    "<f4",
    "<f4",
    ">f4",
    "<f8",
    "<i8",
    "|b1",
    "|O",
    "<U9",
    "|V4",
    "|S0",
    "<M8[s]",
    "<f2,<f2",
    "",
    "x",
)
_SHAPES = st.lists(st.sampled_from((0, 1, 2, 7, 64, -1, 2**31, 2**63, 10**22)), max_size=4).map(tuple)


@st.composite
def npy_files(draw: Any, content: bytes) -> bytes:
    """A `.npy` file whose header says another type, order or shape than its data have, or is none."""
    length = int.from_bytes(content[8:10], "little")
    data = content[10 + length :]
    odd = st.none() | st.integers() | st.text(max_size=5) | st.lists(st.integers(), max_size=3)
    fields = {
        "descr": draw(st.sampled_from(_DTYPES) | odd),
        "fortran_order": draw(st.booleans() | odd),
        "shape": draw(_SHAPES | odd),
        "more": 1,
    }
    kept = draw(st.sampled_from((("descr", "fortran_order", "shape"),) * 8 + (tuple(fields), ("descr",))))
    text = repr({name: fields[name] for name in kept}).encode("utf-8", "surrogatepass") + b"\n"
    version = draw(st.sampled_from((1, 1, 1, 1, 2, 3, 0, 255)))
    said = draw(st.sampled_from((len(text),) * 8 + (0, 1, len(text) + 9, 2**16 - 1)))
    size = said.to_bytes(2 if version == 1 else 4, "little")
    cut = draw(st.sampled_from((len(data), len(data), 0, 1, len(data) // 2)))
    return b"\x93NUMPY" + bytes((version, 0)) + size + text + data[:cut]


@st.composite
def changed_programs(draw: Any, content: bytes) -> bytes:
    """A package's program of which one to three operations have another type, other inputs, shapes or constants."""
    parsed, names, types = _parsed(content)
    program = type(parsed)()
    program.CopyFrom(parsed)
    ((_, function),) = program.mlProgram.functions.items()
    ((_, block),) = function.block_specializations.items()
    for _ in range(draw(st.integers(1, 3))):
        operation = block.operations[draw(st.integers(0, len(block.operations) - 1))]
        bindings = [one for name in sorted(operation.inputs) for one in operation.inputs[name].arguments]
        match draw(st.integers(0, 4)):
            case 0:
                operation.type = draw(st.sampled_from((*types, "x")))
            case 1 if bindings:
                draw(st.sampled_from(bindings)).name = draw(st.sampled_from((*names, "", "x")))
            case 2 if bindings:
                del operation.inputs[draw(st.sampled_from(sorted(operation.inputs)))]
            case 3:
                _change_shape(draw, operation.outputs[0].type.tensorType)
            case _:
                _change_constants(draw, operation)
    changed: bytes = program.SerializePartialToString()
    return changed


@functools.cache
def _parsed(content: bytes) -> tuple[Any, list[str], list[str]]:
    """A package's program, the names of its operations' results, and the types of its operations."""
    from coremltools.proto import Model_pb2

    program: Any = Model_pb2.Model.FromString(content)
    ((_, function),) = program.mlProgram.functions.items()
    ((_, block),) = function.block_specializations.items()
    names = sorted({output.name for operation in block.operations for output in operation.outputs})
    return program, names, sorted({operation.type for operation in block.operations})


def _change_shape(draw: Any, tensor: Any) -> None:
    tensor.dataType = draw(st.sampled_from((tensor.dataType, tensor.dataType, 0, 5, 10, 11, 23)))
    for dimension in tensor.dimensions:
        if not draw(st.integers(0, 2)):
            dimension.constant.size = draw(st.sampled_from((0, 1, 3, 2**31, 2**63)))


def _change_constants(draw: Any, operation: Any) -> None:
    """Other numbers, and other numbers of them, in what an operation has as constants."""
    inputs = [one.value for name in sorted(operation.inputs) for one in operation.inputs[name].arguments]
    values = [*inputs, *(operation.attributes[name] for name in sorted(operation.attributes))]
    for value in values:
        tensor = value.immediateValue.tensor
        if (kind := tensor.WhichOneof("value")) is None:
            continue
        held = getattr(tensor, kind).values
        if kind in ("ints", "longInts") and draw(st.booleans()):
            held[:] = draw(st.lists(st.sampled_from(_ODD_NUMBERS), max_size=5))
        elif kind in ("floats", "doubles") and draw(st.booleans()):
            held[:] = draw(st.lists(st.floats(width=32), max_size=3))
        elif kind == "bools":
            held[:] = draw(st.lists(st.booleans(), max_size=2))
        elif kind == "strings":
            held[:] = draw(st.lists(st.sampled_from(("", "valid", "same", "constant", "x")), max_size=2))
