"""A checkpoint's weights compared with the shapes that follow from its config.json."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from voxcpm_constants.architecture import Architecture
from voxcpm_constants.errors import CheckpointError
from voxcpm_conversion.modules.voxcpm import expected_shapes
from voxcpm_conversion.silence import silenced
from voxcpm_conversion.weight_files import Shape

_LISTED = 20
_MAX_PAIRS = 12
"""Different pairs of lengths from which values of fields are guessed; a damaged file may have any number."""
_LAYERS = (
    "lm_config.num_hidden_layers",
    "residual_lm_num_layers",
    "encoder_config.num_layers",
    "dit_config.num_layers",
)


def check_weights(found: Mapping[str, Shape], a: Architecture) -> None:
    """Compare names and shapes of a checkpoint's weights with those of its architecture.

    Raises CheckpointError, which lists missing and unexpected weights, and names the fields of config.json from which
    wrong shapes follow, or lists the weights if there are none.
    """
    expected = expected_shapes(a)
    lora = [name for name in found if ".lora_" in f".{name}" and name not in expected]
    if lora:
        raise CheckpointError(
            f"the checkpoint carries {len(lora)} LoRA weights beside the base weights ({lora[0]}, …): "
            "keep the base weights alone here, and give the LoRA as a folder of its own with --lora"
        )
    missing = [f"{name} {expected[name]}" for name in sorted(expected.keys() - found.keys())]
    unexpected = [f"{name} {found[name]}" for name in sorted(found.keys() - expected.keys())]
    misfits = _misfits(found, expected)
    wrong = [f"{name} (expected {misfits[name]}, found {found[name]})" for name in sorted(misfits)]
    # torch warns of modules without elements, which some guesses have.
    with silenced():
        fields = _fitting_fields(found, a)
    if fields:
        wrong = []
    groups = (("missing", missing), ("unexpected", unexpected), ("of another shape", wrong))
    complaints = [f"{len(names)} {what}: {_listing(names)}" for what, names in groups if names]
    if complaints or fields:
        raise CheckpointError("the weights do not fit config.json; " + "; ".join([*fields, *complaints]))


def _misfits(found: Mapping[str, Shape], expected: Mapping[str, Shape]) -> dict[str, Shape]:
    """The expected shape of each weight that has another one."""
    return {name: shape for name, shape in expected.items() if found.get(name, shape) != shape}


def _fitting_fields(found: Mapping[str, Shape], a: Architecture) -> list[str]:
    """The fields of config.json that must change for all shapes to fit, each with its value; empty if none do.

    One field is changed after another, always the one that makes most weights fit.
    """
    # One layer of each kind says what all of them say.
    document = a.model_dump(mode="json", by_alias=True)
    for path in _LAYERS:
        document = _changed(document, path, 1)
    fields: list[str] = []
    expected = _shapes(document)
    misfits = _misfits(found, expected)
    while misfits:
        trials = [
            (len(_misfits(found, shapes)), path, before, after)
            for path, before in _whole_numbers(document)
            for after in sorted(_guesses(before, misfits, found))
            if (shapes := _shapes(_changed(document, path, after)))
        ]
        fewest = min((count for count, *_ in trials), default=len(misfits))
        if fewest >= len(misfits):
            return []
        best = [(path, before, after) for count, path, before, after in trials if count == fewest]
        fields.append(
            " or ".join(f"{path} is {before}, but the weights have {after}" for path, before, after in best)
        )
        document = _changed(document, best[0][0], best[0][2])
        misfits = _misfits(found, _shapes(document))
    return fields


def _shapes(document: dict[str, Any]) -> dict[str, Shape]:
    """Shape of each weight, by name; empty for a document that is not an architecture."""
    try:
        return expected_shapes(Architecture.from_document(document))
    except (CheckpointError, ValueError, RuntimeError, ZeroDivisionError):
        return {}


def _guesses(before: int, misfits: Mapping[str, Shape], found: Mapping[str, Shape]) -> set[int]:
    """Values of a field that change an expected length into the found one, if the length is a multiple of the field."""
    pairs = dict.fromkeys(
        pair
        for name, shape in misfits.items()
        if len(shape) == len(found[name])
        for pair in zip(shape, found[name], strict=True)
        if pair[0] != pair[1]
    )
    ratios = [(up, down) for pair in islice(pairs, _MAX_PAIRS) for up, down in (pair, pair[::-1])]
    return {before * up // down for up, down in ratios if down > 0 and before * up % down == 0} - {0, before}


def _whole_numbers(document: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, int]]:
    """Dotted name and value of each whole number of a document."""
    for key, value in document.items():
        if isinstance(value, dict):
            yield from _whole_numbers(value, f"{prefix}{key}.")
        elif isinstance(value, int) and not isinstance(value, bool):
            yield prefix + key, value


def _changed(document: dict[str, Any], path: str, value: int) -> dict[str, Any]:
    changed = copy.deepcopy(document)
    *folders, key = path.split(".")
    place = changed
    for folder in folders:
        place = place[folder]
    place[key] = value
    if path == "feat_dim":
        # Both are the width of a latent.
        changed["audio_vae_config"]["latent_dim"] = value
    return changed


def _listing(names: list[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more
