"""Readers of packages: the program, what lowers it, and the records of its weights."""

import functools
import random
import shutil
from pathlib import Path
from typing import Any

from robustness.mutations import mutated_bytes
from robustness.reader import Reader

_OPERATIONS = (40, 70, 100)
"""Operations of a program that are read or lowered at a time, as all of them take tens of milliseconds."""


def lowering(bundle: Path, folder: Path) -> Reader:
    """Lowers the first operations of a program to an ONNX graph."""
    from voxcpm_runtime.backends.portable.lowering import lower
    from voxcpm_runtime.backends.portable.package import MODEL_FILE, read_specification

    package = _copied(bundle, folder, "locdit_step")
    specification = read_specification(package)

    def read(content: bytes) -> None:
        (package / MODEL_FILE).write_bytes(content)
        lower(package, signed_products=True)

    valid = tuple(_beginning(specification, count).SerializeToString() for count in _OPERATIONS)
    return Reader(valid, read, _changed_program)


def _beginning(specification: Any, count: int) -> Any:
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


def weights(bundle: Path, folder: Path) -> Reader:
    """weight.bin: the records before the weights, and its length."""
    from voxcpm_constants.tensor_files import BLOB_RECORD, BLOB_SENTINEL, WEIGHT_FILE
    from voxcpm_runtime.backends.portable.package import read_package

    package = _copied(bundle, folder, "feat_encoder")
    content = (package / WEIGHT_FILE).read_bytes()
    sentinel = BLOB_SENTINEL.to_bytes(4, "little")
    records = [at for at in range(0, len(content) - BLOB_RECORD.size, 64) if content[at : at + 4] == sentinel]
    part = folder / "weight.bin"

    def read(changed: bytes) -> None:
        # Never in place: the old one is mapped.
        part.write_bytes(changed)
        part.replace(package / WEIGHT_FILE)
        read_package(package)

    def changed(content: bytes, chance: random.Random) -> bytes:
        whole = bytearray(content)
        at = chance.choice(records)
        record = mutated_bytes(content[at : at + BLOB_RECORD.size], chance)
        whole[at : at + BLOB_RECORD.size] = record[: BLOB_RECORD.size].ljust(BLOB_RECORD.size, b"\0")
        if chance.random() < 0.2:
            del whole[chance.randrange(len(whole)) :]
        return bytes(whole)

    return Reader((content,), read, changed)


def _copied(bundle: Path, folder: Path, name: str) -> Path:
    return Path(shutil.copytree(bundle / f"int8/{name}.mlpackage", folder / "x.mlpackage"))


@functools.cache
def _parsed(content: bytes) -> Any:
    from coremltools.proto import Model_pb2

    return Model_pb2.Model.FromString(content)


def _changed_program(content: bytes, chance: random.Random) -> bytes:
    """The message with other fields, or sometimes with other bytes."""
    if chance.random() < 0.2:
        return mutated_bytes(content, chance)
    changed = type(_parsed(content))()
    changed.CopyFrom(_parsed(content))
    for _ in range(chance.randint(1, 3)):
        _mutate_message(changed, chance)
    whole: bytes = changed.SerializePartialToString()
    return whole


def _mutate_message(message: Any, chance: random.Random) -> None:
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
