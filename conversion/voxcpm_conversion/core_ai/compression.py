"""Compression of a step module's weights, as `recipes` prescribe. Only this module calls coreai-opt."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor, nn

from voxcpm_constants.step_models import Precision
from voxcpm_conversion.core_ai.toolchain import import_module
from voxcpm_conversion.recipes import BLOCK, SMALLEST, Format, chosen_format

_OUTPUT_CHANNELS: dict[type[nn.Module], int] = {nn.Linear: 0, nn.Conv1d: 0, nn.ConvTranspose1d: 1}
"""The modules whose weights are compressed, and the axis of the weight that has its output channels."""


def compress(step: nn.Module, step_model: str, precision: Precision, examples: tuple[Tensor, ...]) -> None:
    """Give the weights of a float32 step module the formats that the recipe of `precision` prescribes, in place.

    Modules that share a weight with `step` share the compressed one. examples: inputs, with which it is run once.
    """
    quantization = import_module("coreai_opt.quantization")
    mode = import_module("coreai_opt.quantization.config.quantization_config").ExecutionMode.EAGER
    backend = import_module("coreai_opt.common").ExportBackend.CoreAI
    specifications = {
        f"^{re.escape(name)}$": quantization.ModuleQuantizerConfig(
            op_input_spec=None, op_output_spec=None, op_state_spec={"weight": specification}
        )
        for name, (form, axis) in weight_formats(step, step_model, precision).items()
        if (specification := _specification(form, axis)) is not None
    }
    config = quantization.QuantizerConfig(
        global_config=None, module_name_configs=specifications, execution_mode=mode
    )
    quantizer = quantization.Quantizer(step, config)
    quantizer.prepare(examples)
    quantizer.finalize(backend=backend)


def weight_formats(step: nn.Module, step_model: str, precision: Precision) -> dict[str, tuple[Format, int]]:
    """The format of each compressible weight and the axis of its output channels, by the name of its module."""
    formats = {}
    for name, module in step.named_modules():
        axis = next((axis for kind, axis in _OUTPUT_CHANNELS.items() if isinstance(module, kind)), None)
        if axis is not None and module.weight.numel() > SMALLEST:
            weight = f"{name.replace('.', '_')}_weight"
            formats[name] = (chosen_format(precision, step_model, weight, tuple(module.weight.shape)), axis)
    return formats


def _specification(form: Format, axis: int) -> Any | None:
    """coreai-opt's description of a format; None for one that is not compressed."""
    spec = import_module("coreai_opt.quantization.spec")
    if form == "int8":
        return spec.QuantizationSpec(
            dtype=torch.int8,
            qscheme=spec.QuantizationScheme.SYMMETRIC,
            granularity=spec.PerChannelGranularity(axis=axis),
        )
    if form == "int4":
        return spec.QuantizationSpec(
            dtype=torch.uint4,  # type: ignore[attr-defined]
            qscheme=spec.QuantizationScheme.ASYMMETRIC,
            granularity=spec.PerBlockGranularity(axis=1, block_size=BLOCK),
        )
    return None
