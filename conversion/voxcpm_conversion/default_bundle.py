"""The checkpoint of the built-in voice, from which `make built-in-voice` converts the runtime's `default_bundle`."""

from __future__ import annotations

from pathlib import Path

from voxcpm_constants.step_models import AlignmentHead, StepSizes

DEFAULT_CHECKPOINT = Path(__file__).with_name("default_checkpoint")
SIZES = StepSizes(kv_length=1024, alignment=(AlignmentHead(4, 3, 0.12, 0.789),))
"""With the head that `convert` finds."""
