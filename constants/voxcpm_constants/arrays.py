"""The constants of a bundle: arrays for the arithmetic between step models, shared by all precisions.

| file | shape | use |
|---|---|---|
| embed_tokens.npy | (vocabulary, hidden) | text embeddings, memory-mapped |
| lm_to_dit_proj_{w,b}.npy | (dit_hidden, hidden), (dit_hidden,) | LM hidden -> DiT condition |
| res_to_dit_proj_{w,b}.npy | (dit_hidden, hidden), (dit_hidden,) | residual hidden -> DiT condition |
| fusion_concat_proj_{w,b}.npy | (hidden, 2 hidden), (hidden,) | VoxCPM2: (fsq, embedding) -> residual input |
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from voxcpm_constants.architecture import Architecture
from voxcpm_constants.errors import BundleError, first_line

EMBED_TOKENS = "embed_tokens"
LM_TO_DIT = "lm_to_dit_proj"
RESIDUAL_TO_DIT = "res_to_dit_proj"
FUSION = "fusion_concat_proj"

_MAX_HEADER_BYTES = 512  # Of an `.npy` file; a bundle's have 118
# bfloat16 and float16 weights fit in float16 to within half of its smallest step; float32 ones may not.
_LOSSLESS_FLOAT16 = 2.0**-25


def constant_shapes(a: Architecture) -> dict[str, tuple[int, ...]]:
    """Shape of every constant of this architecture, by file stem."""
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
    """All constants by file stem; the embedding table is memory-mapped. Raises BundleError.

    Shape and dtype are checked before an array is read into memory.
    """
    arrays: dict[str, npt.NDArray[np.floating]] = {}
    for stem, shape in constant_shapes(a).items():
        path = folder / f"{stem}.npy"
        try:
            with np.errstate(over="ignore"):
                mapped = np.lib.format.open_memmap(path, mode="r", max_header_size=_MAX_HEADER_BYTES)
        except Exception as error:  # noqa: BLE001 - numpy parses the header as Python, and raises any error of its parser
            raise BundleError(
                f"{path}: expected a numpy array, but it cannot be read ({first_line(error)})"
            ) from None
        if mapped.shape != shape or mapped.dtype.name not in ("float32", "float16"):
            raise BundleError(
                f"{path}: expected float32 or float16 of shape {shape}, got {mapped.dtype} of {mapped.shape}; "
                "convert again"
            )
        # The embedding table stays on disk: the driver checks the rows of a text's tokens.
        arrays[stem] = mapped if stem == EMBED_TOKENS else np.array(mapped)
        if stem != EMBED_TOKENS and not np.isfinite(arrays[stem]).all():
            raise BundleError(f"{path}: expected finite numbers, found infinities or NaN; convert again")
    return arrays
