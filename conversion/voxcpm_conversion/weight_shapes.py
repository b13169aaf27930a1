"""A checkpoint's weights compared with the names and shapes that follow from its config.json."""

from __future__ import annotations

from collections.abc import Mapping

from voxcpm_constants.architecture import Architecture
from voxcpm_constants.errors import CheckpointError
from voxcpm_conversion.modules.voxcpm import expected_shapes
from voxcpm_conversion.weight_files import Shape

_LISTED = 20


def check_weights(found: Mapping[str, Shape], a: Architecture) -> None:
    """Compare names and shapes of a checkpoint's weights with those of its architecture.

    Raises CheckpointError, which lists the weights that are missing, unexpected or of another shape.
    """
    expected = expected_shapes(a)
    lora = [name for name in found if ".lora_" in f".{name}" and name not in expected]
    if lora:
        raise CheckpointError(
            f"the checkpoint carries {len(lora)} LoRA weights in addition to the base weights ({lora[0]}, …): "
            "keep the base weights alone here, and give the LoRA as a folder of its own with --lora"
        )
    missing = [f"{name} {expected[name]}" for name in sorted(expected.keys() - found.keys())]
    unexpected = [f"{name} {found[name]}" for name in sorted(found.keys() - expected.keys())]
    wrong = [
        f"{name} (expected {shape}, found {found[name]})"
        for name, shape in sorted(expected.items())
        if found.get(name, shape) != shape
    ]
    groups = (("missing", missing), ("unexpected", unexpected), ("of another shape", wrong))
    complaints = [f"{len(names)} {what}: {_listing(names)}" for what, names in groups if names]
    if complaints:
        raise CheckpointError(f"the weights do not fit config.json; {'; '.join(complaints)}")


def _listing(names: list[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more
