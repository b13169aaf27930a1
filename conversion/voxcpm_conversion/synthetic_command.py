"""The command `voxcpm-coreml synthetic`: a synthetic checkpoint from a preset's name or a published config.json."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from voxcpm_constants.architecture import Architecture
from voxcpm_constants.errors import CheckpointError
from voxcpm_constants.json_files import read_json
from voxcpm_conversion.synthetic import DTYPES, Dtype, write_synthetic_checkpoint
from voxcpm_conversion.synthetic_presets import VOCABULARY, presets, write_tokenizer


def synthesize_checkpoint(
    config: Annotated[
        str,
        typer.Argument(
            help=f"A config.json, or a preset: {', '.join(presets())}. The last three have the sizes of published "
            "checkpoints, 1.6 to 5.0 GB."
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write the checkpoint into.")],
    seed: Annotated[int, typer.Option(help="The same seed gives the same weights.")] = 0,
    dtype: Annotated[
        str, typer.Option(help=f"Data type of the model's weights: {', '.join(DTYPES)}.")
    ] = "bfloat16",
    tokenizer: Annotated[
        Path | None,
        typer.Option(help="Folder of a tokenizer to copy. Default: a small tokenizer is generated."),
    ] = None,
) -> None:
    """Write a checkpoint of seeded random weights: it loads, converts and runs, and speaks noise."""
    document = _document(config)
    with tempfile.TemporaryDirectory() as made:
        source = tokenizer or _small_tokenizer(Path(made), document)
        write_synthetic_checkpoint(output, document, seed=seed, dtype=_dtype(dtype), tokenizer=source)
    typer.echo(f"{output}: synthetic weights (they speak noise), seed {seed}")


def _document(config: str) -> dict[str, Any]:
    named = presets().get(config.lower())
    if named is not None:
        return named
    path = Path(config)
    if not path.is_file():
        raise CheckpointError(
            f"{config}: no such file (expected a config.json, or one of {', '.join(presets())})"
        )
    Architecture.from_file(path)
    document: dict[str, Any] = read_json(path)
    return document


def _dtype(name: str) -> Dtype:
    for dtype in DTYPES:
        if dtype == name:
            return dtype
    raise CheckpointError(f"--dtype {name}: expected {', '.join(DTYPES)}")


def _small_tokenizer(folder: Path, document: dict[str, Any]) -> Path:
    vocabulary = int(document["lm_config"]["vocab_size"])
    if vocabulary < VOCABULARY:
        raise CheckpointError(
            f"vocab_size {vocabulary}: the made tokenizer needs {VOCABULARY}; give another with --tokenizer"
        )
    return write_tokenizer(folder)["tokenizer.json"]
