"""Attributes and methods that a user of upstream's `VoxCPM` finds on ours, beside those that do the work."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from voxcpm_constants.errors import InputError
from voxcpm_runtime.bundle.opening import Bundle

if TYPE_CHECKING:
    from typing_extensions import Self

_MERGED = (
    "a LoRA is merged when a checkpoint is converted, and cannot be changed in a bundle; give it as "
    "from_pretrained(…, lora_weights_path=…), or with `convert --lora`, and open another bundle without it"
)


class UpstreamNames:
    """The names of upstream's class that need nothing but the open bundle."""

    bundle: Bundle

    @property
    def tts_model(self) -> Self:
        """This object: upstream's `tts_model.sample_rate` is its `sample_rate`."""
        return self

    @property
    def lora_enabled(self) -> bool:
        """Whether a LoRA was merged into the bundle's weights."""
        return self.bundle.manifest.source.lora is not None

    def load_lora(self, lora_weights_path: str) -> NoReturn:
        """Not offered. Raises InputError, which says how a bundle gets a LoRA."""
        raise InputError(f"load_lora({lora_weights_path!r}): {_MERGED}")

    def unload_lora(self) -> NoReturn:
        """Not offered. Raises InputError."""
        raise InputError(f"unload_lora: {_MERGED}")

    def set_lora_enabled(self, enabled: bool) -> NoReturn:
        """Not offered. Raises InputError."""
        raise InputError(f"set_lora_enabled({enabled!r}): {_MERGED}")

    def get_lora_state_dict(self) -> NoReturn:
        """Not offered. Raises InputError."""
        raise InputError(f"get_lora_state_dict: {_MERGED}")
