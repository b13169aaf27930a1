"""int8: linear symmetric weights, one scale an output channel, of a finished fp16 program."""

from __future__ import annotations

from typing import Any

from voxcpm_conversion.toolchain import import_coremltools


def quantize_int8(model: Any) -> Any:
    """A copy of an MLModel whose weight matrices are int8; rotary tables (read by `gather`) stay as they are."""
    ct = import_coremltools()
    coreml = ct.optimize.coreml
    config = coreml.OptimizationConfig(
        global_config=coreml.OpLinearQuantizerConfig(mode="linear_symmetric", weight_threshold=2048),
        op_type_configs={"gather": None},
    )
    return coreml.linear_quantize_weights(model, config=config)
