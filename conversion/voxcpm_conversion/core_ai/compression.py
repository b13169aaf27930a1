"""Compression of a step module's weights, as `recipes` prescribe. Only this module calls coreai-opt."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor, nn

from voxcpm_constants.step_models import Precision
from voxcpm_conversion.core_ai.toolchain import import_module
from voxcpm_conversion.recipes import BLOCK, MIN_ELEMENTS, Format, chosen_format


def compress(step: nn.Module, step_model: str, precision: Precision, examples: tuple[Tensor, ...]) -> None:
    """Compress a float32 step module's weights in place, as the recipe of `precision` prescribes.

    Modules that share a weight with `step` share the compressed one. examples: inputs for one run.
    """
    quantization = import_module("coreai_opt.quantization")
    mode = import_module("coreai_opt.quantization.config.quantization_config").ExecutionMode.EAGER
    backend = import_module("coreai_opt.common").ExportBackend.CoreAI
    specifications = {
        f"^{re.escape(name)}$": quantization.ModuleQuantizerConfig(
            op_input_spec=None, op_output_spec=None, op_state_spec={"weight": _specification(form)}
        )
        for name, form in weight_formats(step, step_model, precision).items()
    }
    config = quantization.QuantizerConfig(
        global_config=None, module_name_configs=specifications, execution_mode=mode
    )
    quantizer = quantization.Quantizer(step, config)
    quantizer.prepare(examples)
    quantizer.finalize(backend=backend)


def weight_formats(step: nn.Module, step_model: str, precision: Precision) -> dict[str, Format]:
    """The format of each compressible weight, by the name of its module.

    A weight whose inputs are not whole blocks, such as a depthwise convolution's, is not compressed.
    """
    formats = {}
    for name, module in step.named_modules():
        if isinstance(module, (nn.Conv1d, nn.Linear)) and module.weight.numel() > MIN_ELEMENTS:
            shape = tuple(module.weight.shape[:2])
            if shape[1] % BLOCK == 0:
                weight = f"{name.replace('.', '_')}_weight"
                formats[name] = chosen_format(precision, step_model, weight, shape)
    return formats


def _specification(form: Format) -> Any:
    """coreai-opt's specification of a format for a weight (outputs, inputs, …).

    Blocks of 32 weights with a scale each and no offset: on an M4 Max 5 times as fast as one scale per channel
    (john-rocky/coreai-model-zoo, minicpm5-1b). The Neural Engine computes blocks wrongly (apple/coreai-models 279).
    """
    spec = import_module("coreai_opt.quantization.spec")
    return spec.QuantizationSpec(
        dtype=torch.int8 if form == "int8" else torch.int4,  # type: ignore[attr-defined]
        qscheme=spec.QuantizationScheme.SYMMETRIC,
        granularity=spec.PerBlockGranularity(axis=1, block_size=BLOCK),
    )
