"""Names of upstream's `VoxCPM` that ours has for compatibility."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from voxcpm_constants.errors import BundleError, InputError, system_errors_as
from voxcpm_runtime.argument_types import path_argument, switch
from voxcpm_runtime.backends.choice import AUTO_DEVICE, gpu_device
from voxcpm_runtime.bundle.opening import Bundle
from voxcpm_runtime.bundle.pretrained import Pretrained, pretrained_bundle

if TYPE_CHECKING:
    from typing_extensions import Self


class UpstreamNames:
    """Upstream's names that need only a bundle."""

    bundle: Bundle

    # A method of the class that has these names.
    from_bundle: ClassVar[Callable[..., Any]]

    @classmethod
    @system_errors_as(BundleError)
    def from_pretrained(
        cls,
        hf_model_id: str = "openbmb/VoxCPM2",
        load_denoiser: bool = True,  # noqa: ARG003 - upstream's; `denoise` says that there is none
        zipenhancer_model_id: str | None = None,  # noqa: ARG003 - likewise
        cache_dir: str | None = None,
        local_files_only: bool = False,
        optimize: bool = True,  # noqa: ARG003 - nothing is compiled by torch here
        device: str | None = None,
        lora_config: object = None,
        lora_weights_path: str | None = None,
        *,
        precision: str | None = None,
        **given: Any,
    ) -> Self:
        """Open a checkpoint as upstream does: converted once, into the user's cache, which takes minutes.

        hf_model_id: a hub id (organisation/name), or the folder of a checkpoint or of a bundle. cache_dir: folder for
        downloads. local_files_only: no network. lora_weights_path: a LoRA to merge. precision: that of the bundle, int8
        by default. device and given: see `from_bundle`. load_denoiser, zipenhancer_model_id and optimize are accepted
        and change nothing.

        Raises InputError for a wrong argument, MissingExtraError if the extra `convert` is not installed, and what the
        conversion and `from_bundle` raise.
        """
        if lora_config is not None:
            raise InputError(
                "lora_config is read from lora_config.json next to the LoRA's weights; leave it out"
            )
        # Before minutes of work.
        device = AUTO_DEVICE if device is None else device
        gpu_device(device)
        path_argument(hf_model_id, "hf_model_id")
        for name, path in (("cache_dir", cache_dir), ("lora_weights_path", lora_weights_path)):
            if path is not None:
                path_argument(path, name)
        asked = Pretrained(
            str(hf_model_id), cache_dir, switch(local_files_only, "local_files_only"), lora_weights_path
        )
        folder = pretrained_bundle(asked, precision)
        opened: Self = cls.from_bundle(folder, precision, device=device, **given)
        return opened

    @property
    def tts_model(self) -> Self:
        """This object: upstream's `tts_model.sample_rate` is its `sample_rate`."""
        return self

    @property
    def lora_enabled(self) -> bool:
        """Whether a LoRA was merged into the bundle's weights."""
        return self.bundle.manifest.source.lora is not None
