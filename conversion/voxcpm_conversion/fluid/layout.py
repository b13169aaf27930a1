"""The room's door: writes six packages and the constants, for code that was written for this layout.

    folder/
      constants/   config.json (flat), embed_tokens.npy and three projections, all float32; no tokenizer
      fp16/, int8/ audio_vae_encoder, audio_vae_decoder, feat_encoder, base_lm_step, residual_lm_step, locdit_step

Differences from the original are on purpose, and follow upstream: the stop head reads the quantised hidden state, and
the angles of the DiT's times are float32 (docs/layouts.md).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from voxcpm_constants import step_models as names
from voxcpm_constants.architecture import Architecture, Transformer
from voxcpm_constants.arrays import EMBED_TOKENS
from voxcpm_constants.errors import CheckpointError, InputError
from voxcpm_constants.manifest import CONFIG_PATH, CONSTANTS_FOLDER, package_path
from voxcpm_constants.step_models import Precision, StepSizes
from voxcpm_constants.tokenizer_file import AUDIO_START
from voxcpm_conversion.checkpoint import Checkpoint
from voxcpm_conversion.convert import Report, check_checkpoint, constant
from voxcpm_conversion.core_ml.compression import compress
from voxcpm_conversion.core_ml.export import pass_pipeline, register_index_copy
from voxcpm_conversion.core_ml.packages import require_whole
from voxcpm_conversion.core_ml.toolchain import TOOLS, exporting, import_coremltools
from voxcpm_conversion.fluid.modules import build
from voxcpm_conversion.replacing import bundle_folder
from voxcpm_conversion.workspace import Workspace

PRECISIONS: tuple[Precision, ...] = ("fp16", "int8")
POSITIONS = 512
"""Default length of the KV caches."""
_ENCODED_SECONDS = 5
_DEFAULT_FRAMES, _MAX_FRAMES = 50, 2000
_PROJECTIONS = ("enc_to_lm_proj", "lm_to_dit_proj", "res_to_dit_proj")
_POSITION = "position"  # The only integer input


class Package(NamedTuple):
    """Shapes of the inputs by name, None for the decoder's open axis, and names of the outputs, in order."""

    inputs: Mapping[str, tuple[int | None, ...]]
    outputs: tuple[str, ...]


def packages(a: Architecture, positions: int) -> dict[str, Package]:
    """The six packages by name. positions: of the KV caches."""
    hidden, latents = a.lm_config.hidden_size, (2, a.feat_dim, a.patch_size)

    def lm(t: Transformer, *outputs: str) -> Package:
        cache = (1, t.num_kv_heads, positions, t.head_dim)
        caches = {f"{half}{layer}": cache for layer in range(t.num_layers) for half in "kv"}
        inputs = {"embed": (1, hidden), _POSITION: (1,), **caches}
        return Package(inputs, (*outputs, *(f"out_{name}" for name in caches)))

    times = {"t": (2,), "cond": latents, "dt": (2,)}
    return {
        names.AUDIO_VAE_ENCODER: Package({"audio": (1, 1, _encoded_samples(a))}, ("latent",)),
        names.AUDIO_VAE_DECODER: Package({"latent": (1, a.feat_dim, None)}, ("audio",)),
        names.FEAT_ENCODER: Package({"feat": (1, 1, a.patch_size, a.feat_dim)}, ("embedding",)),
        names.BASE_LM_STEP: lm(a.base_lm, "lm_hidden", "lm_hidden_fsq", "stop_logit"),
        names.RESIDUAL_LM_STEP: lm(a.residual_lm, "res_hidden"),
        names.LOCDIT_STEP: Package({"x": latents, "mu": (2, a.mu_size), **times}, ("velocity",)),
    }


def check(precisions: Sequence[Precision]) -> None:
    """Raises InputError for a precision that the layout does not have; before a download."""
    if other := [precision for precision in precisions if precision not in PRECISIONS]:
        raise InputError(f"--precision {other[0]}: --layout fluid has {' and '.join(PRECISIONS)} only")


def write(
    checkpoint: Checkpoint,
    output: Path,
    *,
    precisions: Sequence[Precision] = PRECISIONS,
    positions: int | None = None,
    overwrite: bool = False,
    report: Report = lambda model, stage, done, total: None,
) -> None:
    """Write the folder `output`, resuming an interrupted run; an error leaves none. positions: of the KV caches.

    Raises InputError for an output that exists and positions that the checkpoint does not support, CheckpointError for
    a generation that the layout cannot express, and for weights that do not fit.
    """
    a = checkpoint.architecture
    check(precisions)
    if a.traits.fuses_residual_input or a.traits.mu_tokens > 1:
        raise CheckpointError(
            f"--layout fluid holds VoxCPM 0.5B and 1.5, but this checkpoint is a {a.generation}; "
            "leave out --layout for a bundle of our own"
        )
    positions = positions or min(POSITIONS, a.max_length)
    sizes = StepSizes(kv_length=positions, prefill_chunks=(1,), encode_patches=(1,))
    check_checkpoint(checkpoint, sizes)
    folder = bundle_folder(output, checkpoint.inputs(), overwrite=overwrite)
    plan = {"layout": "fluid", "source": checkpoint.source().model_dump(mode="json"), "positions": positions}
    plan |= {"tools": {name: version(name) for name in TOOLS}, "precisions": [*precisions]}
    with Workspace(folder, plan) as workspace:
        bundle_folder(folder, checkpoint.inputs(), overwrite=overwrite)
        if not workspace.has(CONSTANTS_FOLDER):
            workspace.add(CONSTANTS_FOLDER, partial(_write_constants, checkpoint, positions))
        for name, package in packages(a, positions).items():
            paths = {precision: str(package_path(precision, name)) for precision in precisions}
            missing = {precision: path for precision, path in paths.items() if not workspace.has(path)}
            with exporting(partial(report, name)), workspace.temporary_files():
                whole: Any = _export(name, package, checkpoint, sizes) if missing else None
                for precision, path in missing.items():
                    model = whole if precision == "fp16" else compress(whole, name, precision)
                    model.short_description = f"VoxCPM {name}, {precision}"
                    workspace.add(path, partial(_save, model))
        bundle_folder(folder, checkpoint.inputs(), overwrite=overwrite)
        workspace.publish()


def _save(model: Any, path: Path) -> None:
    model.save(str(path))
    require_whole(path)


def _encoded_samples(a: Architecture) -> int:
    """Samples that the encoder takes: whole frames in five seconds."""
    hop = a.patch_input_samples // a.patch_size
    return _ENCODED_SECONDS * a.input_sample_rate // hop * hop


def _export(name: str, package: Package, checkpoint: Checkpoint, sizes: StepSizes) -> Any:
    """A package in fp16, as a coremltools MLModel."""
    ct = import_coremltools()
    register_index_copy("scatter")
    frames = ct.RangeDim(checkpoint.architecture.patch_size, _MAX_FRAMES, default=_DEFAULT_FRAMES)
    inputs, examples = [], []
    for tensor, axes in package.inputs.items():
        is_position, shape = tensor == _POSITION, [frames if axis is None else axis for axis in axes]
        inputs.append(ct.TensorType(tensor, shape, np.int32 if is_position else np.float16))
        example = [axis or _DEFAULT_FRAMES for axis in axes]
        examples.append(torch.zeros(example, dtype=torch.int32 if is_position else None))
    with torch.inference_mode():
        traced = torch.jit.trace(build(name, checkpoint, sizes), tuple(examples), check_trace=False)
    return ct.convert(
        traced, convert_to="mlprogram", minimum_deployment_target=ct.target.macOS14, skip_model_load=True,
        compute_precision=ct.transform.FP16ComputePrecision(op_selector=partial(_in_half, name)),
        inputs=inputs, outputs=[ct.TensorType(tensor, dtype=np.float16) for tensor in package.outputs],
        pass_pipeline=pass_pipeline(ct),
    )  # fmt: skip


def _in_half(name: str, operation: Any) -> bool:
    """Whether an operation computes in float16: all but the DiT's angles, up to 1000 rad, their sines and cosines."""
    kinds = {operation.op_type, *(child.op_type for out in operation.outputs for child in out.child_ops)}
    return name != names.LOCDIT_STEP or not kinds & {"sin", "cos"}


def _write_constants(checkpoint: Checkpoint, positions: int, folder: Path) -> None:
    folder.mkdir()
    for stem in (EMBED_TOKENS, *(f"{layer}_{kind}" for layer in _PROJECTIONS for kind in "wb")):
        np.save(folder / f"{stem}.npy", constant(checkpoint, stem))
    text = json.dumps(flat_config(checkpoint.architecture, positions), indent=1)
    (folder / Path(CONFIG_PATH).name).write_text(f"{text}\n", encoding="utf-8")


def flat_config(a: Architecture, positions: int) -> dict[str, float]:
    """What a driver needs to know, with one number a key."""
    return {
        "vocab_size": a.lm_config.vocab_size,
        "hidden_size": a.lm_config.hidden_size,
        "num_layers": a.base_lm.num_layers,
        "residual_num_layers": a.residual_lm.num_layers,
        "num_kv_heads": a.base_lm.num_kv_heads,
        "head_dim": a.base_lm.head_dim,
        "max_length": positions,
        "encoder_hidden_size": a.encoder_config.hidden_dim,
        "dit_hidden_size": a.dit_config.hidden_dim,
        "patch_size": a.patch_size,
        "feat_dim": a.feat_dim,
        "fsq_latent_dim": a.scalar_quantization_latent_dim,
        "sample_rate": a.output_sample_rate,
        "samples_per_frame": a.patch_output_samples // a.patch_size,
        "encoder_samples": _encoded_samples(a),
        "audio_start_token": AUDIO_START,
        # 1 without muP, as upstream: a driver that always multiplies then agrees with it.
        "scale_emb": a.text_embedding_scale,
    }
