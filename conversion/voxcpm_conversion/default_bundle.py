"""The built-in voice: a small trained checkpoint in this package, and the bundle that it becomes.

The runtime finds `make_default_bundle` by entry point, and says where the bundle is to lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from voxcpm_constants.step_models import Precision, StepSizes

DEFAULT_CHECKPOINT = Path(__file__).with_name("default_checkpoint")
SIZES = StepSizes(kv_length=1024)
PRECISIONS: tuple[Precision, ...] = ("fp16", "int8")


def make_default_bundle(folder: Path, precisions: Sequence[Precision] = PRECISIONS) -> None:
    """Convert the built-in voice into a bundle at `folder`, which takes about half a minute.

    Raises what `convert` raises, and ModuleNotFoundError if PyTorch is not installed.
    """
    # The names above are wanted without PyTorch, too.
    from voxcpm_conversion.checkpoint import Checkpoint
    from voxcpm_conversion.convert import convert

    convert(Checkpoint.open(str(DEFAULT_CHECKPOINT)), folder, precisions=precisions, sizes=SIZES)
