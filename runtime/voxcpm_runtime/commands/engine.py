"""Opening a bundle, and loading its step models, from a command's arguments."""

from __future__ import annotations

from typing import cast

from voxcpm_runtime.backends.choice import Backend, check_engine
from voxcpm_runtime.bundle.opening import Bundle, open_bundle
from voxcpm_runtime.bundle.pretrained import pretrained_bundle
from voxcpm_runtime.commands.shared_arguments import CheckpointArguments, Engine
from voxcpm_runtime.commands.status_line import Notes
from voxcpm_runtime.voxcpm import VoxCPM


def opened(bundle: str | None, engine: Engine, *, checkpoint: CheckpointArguments | None = None) -> Bundle:
    """The open bundle, without its step models; a checkpoint is converted when it is first used.

    Raises BundleError, DeviceError, InputError, and what a conversion raises.
    """
    check_engine(engine.backend, engine.threads, engine.units(), device=engine.device)
    if checkpoint is not None and (pretrained := checkpoint.chosen(bundle)) is not None:
        bundle = str(pretrained_bundle(pretrained, engine.precision))
    opened_bundle = open_bundle(bundle, engine.precision, verify=engine.verify)
    check_engine(engine.backend, engine.threads, engine.units(), opened_bundle, device=engine.device)
    return opened_bundle


def loaded(bundle: Bundle, engine: Engine, note: Notes = lambda _: None) -> VoxCPM:
    """The bundle with its step models. note: see `on_first_use`. Raises BundleError, DeviceError and InputError."""
    return VoxCPM.from_bundle(
        bundle,
        backend=cast("Backend", engine.backend),
        threads=engine.threads,
        compute_units=engine.units(),
        device=engine.device,
        on_first_use=note,
    )
