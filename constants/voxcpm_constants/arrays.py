"""The constants of a bundle: numpy arrays that the runtime itself computes with, shared by all precisions.

| file | shape | use |
|---|---|---|
| embed_tokens.npy | (vocabulary, hidden) | text embeddings, memory-mapped |
| lm_to_dit_proj_{w,b}.npy | (dit_hidden, hidden), (dit_hidden,) | LM hidden -> DiT condition |
| res_to_dit_proj_{w,b}.npy | (dit_hidden, hidden), (dit_hidden,) | residual hidden -> DiT condition |
| fusion_concat_proj_{w,b}.npy | (hidden, 2 hidden), (hidden,) | VoxCPM2: (fsq, embedding) -> residual input |
"""

from __future__ import annotations

import math
import re
import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt

from voxcpm_constants.architecture import Architecture
from voxcpm_constants.bounds import MAX_NPY_HEADER_BYTES
from voxcpm_constants.errors import BundleError, first_line

EMBED_TOKENS = "embed_tokens"
LM_TO_DIT = "lm_to_dit_proj"
RESIDUAL_TO_DIT = "res_to_dit_proj"
FUSION = "fusion_concat_proj"

# bfloat16 and float16 weights fit float16 to within half of its smallest step; float32 ones need not.
_LOSSLESS_FLOAT16 = 2.0**-25
_MAGIC = b"\x93NUMPY\x01\x00"
# The magic, and the length of the header that follows.
_FIXED = struct.Struct("<8sH")
_HEADER = re.compile(
    rb"\{'descr': '(?P<dtype>[<>|=]?\w{1,8})', 'fortran_order': (?:True|False), "
    rb"'shape': \((?P<shape>[\d, ]{0,80})\), } *\n"
)
_ITEM_BYTES = {b"<f4": 4, b"<f2": 2}


def constant_shapes(a: Architecture) -> dict[str, tuple[int, ...]]:
    """Shape of every constant of this architecture, by the name of its file without `.npy`."""
    hidden, dit = a.lm_config.hidden_size, a.dit_config.hidden_dim
    projections = {LM_TO_DIT: (dit, hidden), RESIDUAL_TO_DIT: (dit, hidden)}
    if a.traits.fuses_residual_input:
        projections[FUSION] = (hidden, 2 * hidden)
    shapes: dict[str, tuple[int, ...]] = {EMBED_TOKENS: (a.lm_config.vocab_size, hidden)}
    for name, shape in projections.items():
        shapes[f"{name}_w"], shapes[f"{name}_b"] = shape, shape[:1]
    return shapes


def write_constant(folder: Path, stem: str, array: npt.NDArray[np.float32]) -> None:
    """Write the array to `stem`.npy; the embedding table is stored as float16 if that is lossless."""
    if stem == EMBED_TOKENS:
        half = array.astype(np.float16)
        if np.max(np.abs(half.astype(np.float32) - array), initial=0.0) <= _LOSSLESS_FLOAT16:
            np.save(folder / f"{stem}.npy", half)
            return
    np.save(folder / f"{stem}.npy", array)


def load_constants(folder: Path, a: Architecture) -> dict[str, npt.NDArray[np.floating]]:
    """All constants by file stem; the embedding table is memory-mapped.

    Header and size of each file are compared with what this architecture has before an array is read. Raises
    BundleError for a file that cannot be read, has another shape or dtype, or, but for that table, infinities or NaN.
    """
    arrays: dict[str, npt.NDArray[np.floating]] = {}
    for stem, shape in constant_shapes(a).items():
        path = folder / f"{stem}.npy"
        mapped = stem == EMBED_TOKENS
        try:
            _check_header(path, shape)
            arrays[stem] = np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise BundleError(
                f"{path}: expected a numpy array, but it cannot be read ({first_line(error)})"
            ) from None
        # The embedding table is not read as a whole: the driver checks the rows of a text's tokens.
        if not mapped and not np.isfinite(arrays[stem]).all():
            raise BundleError(f"{path}: expected finite numbers, found infinities or NaN; convert again")
    return arrays


def _check_header(path: Path, shape: tuple[int, ...]) -> None:
    """Raises ValueError unless the file has an array of this shape, in a dtype that is written here, and nothing else.

    numpy's own reader evaluates the header as Python before anything of it is known.
    """
    with path.open("rb") as file:
        start = file.read(_FIXED.size)
        # Later versions are for headers that are longer, or have other characters.
        if len(start) < _FIXED.size or not start.startswith(_MAGIC):
            raise ValueError(f"it does not begin as version 1.0 of the format does: {_MAGIC!r}")
        _, length = _FIXED.unpack(start)
        header = _HEADER.fullmatch(file.read(min(length, MAX_NPY_HEADER_BYTES)))
    if header is None:
        raise ValueError("its header is not as numpy writes it")
    found = tuple(int(axis) for axis in header["shape"].split(b",") if axis.strip())
    if found != shape:
        raise ValueError(f"expected shape {shape}, got {found}")
    bytes_each = _ITEM_BYTES.get(header["dtype"])
    if bytes_each is None:
        raise ValueError(f"expected float32 or float16, got {header['dtype'].decode()}")
    expected = _FIXED.size + length + math.prod(shape) * bytes_each
    if path.stat().st_size != expected:
        raise ValueError(f"expected {expected} bytes, got {path.stat().st_size}")
