"""The command `voxcpm-coreml synthetic`: a synthetic checkpoint from a preset or a published config.json."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from voxcpm_constants.architecture import Architecture
from voxcpm_constants.errors import InputError, one_of
from voxcpm_constants.json_files import printed_json, read_json
from voxcpm_conversion.synthetic_presets import DTYPES, LIKENESSES, VOCABULARY, presets, write_tokenizer


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
    weights: Annotated[
        str,
        typer.Option(
            help=f"{', '.join(LIKENESSES)}: what the weights have of trained ones, to try a quantisation on."
        ),
    ] = LIKENESSES[0],
    tokenizer: Annotated[
        Path | None,
        typer.Option(help="Folder of a tokenizer to copy. Default: a small tokenizer is generated."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Write a checkpoint of seeded random weights: it loads, converts and runs, and speaks noise."""
    document = presets().get(config.lower()) or _document(Path(config))
    dtype, weights = one_of("--dtype", dtype, DTYPES), one_of("--weights", weights, LIKENESSES)
    vocabulary = int(document["lm_config"]["vocab_size"])
    if tokenizer is None and vocabulary < VOCABULARY:
        raise InputError(
            f"vocab_size {vocabulary}: the generated tokenizer needs {VOCABULARY}; pass another with --tokenizer"
        )
    # With PyTorch.
    from voxcpm_conversion.synthetic import write_synthetic_checkpoint

    with tempfile.TemporaryDirectory() as made:
        source = tokenizer or write_tokenizer(Path(made))
        write_synthetic_checkpoint(
            output, document, seed=seed, dtype=dtype, likeness=weights, tokenizer=source
        )
    said = f"{output}: synthetic weights (they speak noise), seed {seed}"
    typer.echo(printed_json({"output": str(output), "seed": seed}) if as_json else said)


def _document(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise InputError(f"{path}: no such file (expected a config.json, or one of {', '.join(presets())})")
    Architecture.from_file(path)
    document: dict[str, Any] = read_json(path)
    return document
