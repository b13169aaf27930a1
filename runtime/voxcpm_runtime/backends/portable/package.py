"""Reads the MIL program of an .mlpackage into Python objects, with large weights left on disk (`Blob`)."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from voxcpm_constants.errors import BundleError, first_line
from voxcpm_constants.targets import MAIN
from voxcpm_constants.tensor_files import BLOB_RECORD, BLOB_SENTINEL, WEIGHT_FILE
from voxcpm_runtime.backends.portable.lowered import GRAPH_DTYPES, Interface

MODEL_FILE = Path("Data/com.apple.CoreML/model.mlmodel")
BLOB_FILE_NAME = "@model_path/weights/weight.bin"

# MIL element type → dtype of stored elements.
STORED_DTYPES: dict[str, np.dtype[Any]] = {name: np.dtype(name.lower()) for name in GRAPH_DTYPES}

# Two elements a byte, the first in the low half.
HALF_BYTES = "INT4"

# FeatureTypes.proto ArrayFeatureType.ArrayDataType → MIL element type.
FEATURE_DTYPES = {65552: "FLOAT16", 65568: "FLOAT32", 131104: "INT32"}


class PackageError(BundleError):
    """An .mlpackage that cannot be read or run: incomplete, damaged, or with an unsupported operation."""


@contextmanager
def package_errors(package: Path) -> Iterator[None]:
    """A context in which errors of a malformed program become a PackageError; system errors propagate."""
    try:
        yield
    except (BundleError, ImportError, OSError, RecursionError, MemoryError):
        raise
    except Exception as error:
        raise PackageError(
            f"{package} is damaged or not supported by this release "
            f"({type(error).__name__}: {first_line(error)}); convert again"
        ) from error


@dataclass(frozen=True)
class TensorType:
    """Element type (MIL name, such as FLOAT16) and shape; None is a dynamic dimension."""

    dtype: str
    shape: tuple[int | None, ...]


@dataclass(frozen=True)
class Blob:
    """A tensor in weight.bin: MIL element type, shape, and offset of its first byte in the file."""

    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def size(self) -> int:
        """Size in bytes."""
        count = math.prod(self.shape)
        return (count + 1) // 2 if self.dtype == HALF_BYTES else count * STORED_DTYPES[self.dtype].itemsize


@dataclass(frozen=True)
class Constant:
    """A constant MIL value: an array or a string in the program, or a blob in weight.bin."""

    type: TensorType
    data: np.ndarray | str | Blob


Argument = str | Constant


@dataclass(frozen=True)
class Operation:
    """One MIL operation: its inputs (names of earlier values, or constants), attributes and outputs."""

    kind: str
    inputs: Mapping[str, tuple[Argument, ...]]
    attributes: Mapping[str, Constant]
    outputs: tuple[tuple[str, TensorType], ...]

    @property
    def name(self) -> str:
        """The name of its first output, which Core ML's tools show for the operation."""
        return self.outputs[0][0]


@dataclass(frozen=True)
class Program:
    """One function of an ML program, its interface, and the memory-mapped weight file (uint8)."""

    inputs: tuple[Interface, ...]
    outputs: tuple[Interface, ...]
    states: tuple[Interface, ...]
    operations: tuple[Operation, ...]
    weights: np.ndarray

    @functools.cached_property
    def readers(self) -> Counter[str]:
        """Number of operations that read each value, by name."""
        inputs = (operation.inputs.values() for operation in self.operations)
        return Counter(
            a for given in inputs for a in {a for a in chain.from_iterable(given) if isinstance(a, str)}
        )

    def read(self, blob: Blob) -> np.ndarray:
        """The blob's elements: a view, or an int8 copy of half bytes."""
        flat = np.frombuffer(self.weights, np.uint8, blob.size, blob.offset)
        if blob.dtype == HALF_BYTES:
            return _unpack_int4(flat, blob.shape)
        return flat.view(STORED_DTYPES[blob.dtype]).reshape(blob.shape)


def read_package(package: Path, function: str = MAIN) -> Program:
    """Read one function of the program in an .mlpackage folder.

    Raises PackageError if the package is incomplete, or has no such function.
    """
    spec = read_specification(package)
    weights = map_weights(package)
    with package_errors(package):
        # Protobuf's map would insert a missing key on lookup.
        main = dict(spec.mlProgram.functions)[function]
        (block,) = main.block_specializations.values()
        # A package with one function describes it as the model itself.
        description = next((f for f in spec.description.functions if f.name == function), spec.description)
        operations = tuple(_operation(op, weights) for op in block.operations)
        types = {name: type_ for op in operations for name, type_ in op.outputs}
        types |= {value.name: tensor_type(value.type) for value in main.inputs}
        return Program(
            inputs=tuple(_input(feature) for feature in description.input),
            outputs=tuple(Interface(n, types[n].dtype, (types[n].shape,)) for n in block.outputs),
            states=tuple(_input(feature) for feature in description.state),
            operations=operations,
            weights=weights,
        )


def read_specification(package: Path) -> Any:
    """The package's `Model` message (Apple's protobuf). Raises PackageError if it is missing or damaged."""
    # Imported lazily, as it is not needed on a cache hit.
    from google.protobuf.message import DecodeError

    from voxcpm_runtime.backends.portable.core_ml_format import Model

    path = package / MODEL_FILE
    if not path.is_file():
        raise PackageError(f"{package} is not an .mlpackage: it has no {MODEL_FILE}")
    spec = Model()
    try:
        spec.ParseFromString(path.read_bytes())
    except DecodeError as error:
        raise PackageError(f"{path} is damaged: {error}") from None
    return spec


def map_weights(package: Path) -> np.ndarray:
    """The package's weight.bin as a read-only memory map of bytes; no bytes if it is missing. Raises OSError."""
    path = package / WEIGHT_FILE
    if not path.is_file() or not path.stat().st_size:  # which cannot be mapped
        return np.empty(0, np.uint8)
    try:
        return np.memmap(path, np.uint8, mode="r")
    except OSError as error:  # mmap duplicates the descriptor, and does not name the file
        raise OSError(error.errno, error.strerror, str(path)) from None


def _input(feature: Any) -> Interface:
    is_state = feature.type.WhichOneof("Type") == "stateType"
    array = feature.type.stateType.arrayType if is_state else feature.type.multiArrayType
    if array.dataType not in FEATURE_DTYPES:
        raise PackageError(f"input {feature.name} has an element type that is not supported")
    shapes: tuple[tuple[int | None, ...], ...]
    match array.WhichOneof("ShapeFlexibility"):
        case "enumeratedShapes":
            shapes = tuple(tuple(map(int, option.shape)) for option in array.enumeratedShapes.shapes)
        case "shapeRange":  # not in our packages: the lint checks
            shapes = ((None,) * len(array.shapeRange.sizeRanges),)
        case _:
            shapes = (tuple(map(int, array.shape)),)
    return Interface(feature.name, FEATURE_DTYPES[array.dataType], shapes)


def _operation(proto: Any, weights: np.ndarray) -> Operation:
    def argument(binding: Any) -> Argument:
        return binding.name if binding.WhichOneof("binding") == "name" else _constant(binding.value, weights)

    return Operation(
        kind=proto.type,
        inputs={k: tuple(argument(a) for a in v.arguments) for k, v in proto.inputs.items()},
        attributes={k: _constant(v, weights) for k, v in proto.attributes.items() if k != "name"},
        outputs=tuple((value.name, tensor_type(value.type)) for value in proto.outputs),
    )


def tensor_type(proto: Any) -> TensorType:
    """The type of a MIL value (a `ValueType` message); for a state, that of the wrapped tensor."""
    from voxcpm_runtime.backends.portable.core_ml_format import DATA_TYPES

    is_state = proto.WhichOneof("type") == "stateType"
    tensor = proto.stateType.wrappedType.tensorType if is_state else proto.tensorType
    shape = tuple(
        int(d.constant.size) if d.WhichOneof("dimension") == "constant" else None for d in tensor.dimensions
    )
    return TensorType(DATA_TYPES[tensor.dataType], shape)


def _constant(proto: Any, weights: np.ndarray) -> Constant:
    type_ = tensor_type(proto.type)
    if type_.dtype not in (*STORED_DTYPES, HALF_BYTES, "STRING"):
        raise PackageError(f"a constant of MIL type {type_.dtype} cannot be read")
    if proto.WhichOneof("value") == "blobFileValue":
        return Constant(type_, _blob(proto.blobFileValue, type_, weights))
    tensor = proto.immediateValue.tensor
    values = getattr(tensor, tensor.WhichOneof("value")).values
    if type_.dtype == "STRING":
        return Constant(type_, str(values[0]))
    shape = tuple(d or 0 for d in type_.shape)
    if type_.dtype == HALF_BYTES:
        return Constant(type_, _unpack_int4(np.frombuffer(values, np.uint8), shape))
    dtype = STORED_DTYPES[type_.dtype]
    flat = np.frombuffer(values, dtype) if isinstance(values, bytes) else np.array(values, dtype)
    return Constant(type_, flat.reshape(shape))


def _unpack_int4(packed: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Elements of half a byte as int8."""
    pairs = np.stack((packed & 0x0F, packed >> 4), axis=-1)
    values = pairs.reshape(-1)[: math.prod(shape)].reshape(shape)
    return (values ^ 8).astype(np.int8) - np.int8(8)


def _blob(value: Any, type_: TensorType, weights: np.ndarray) -> Blob:
    if value.fileName != BLOB_FILE_NAME or value.offset + BLOB_RECORD.size > weights.size:
        raise PackageError(f"the weight at {value.fileName}:{value.offset} is missing from the package")
    sentinel, _, size, offset = BLOB_RECORD.unpack_from(weights.data, value.offset)
    blob = Blob(type_.dtype, tuple(d or 0 for d in type_.shape), offset)
    if sentinel != BLOB_SENTINEL or size != blob.size or offset + size > weights.size:
        raise PackageError(
            f"weight.bin is damaged at byte {value.offset}: no weight of {blob.size} bytes is there"
        )
    return blob
