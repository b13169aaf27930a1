"""Compression of a finished fp16 program, as `recipes` prescribe. Only this module calls coremltools' optimiser."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Collection, Iterator
from typing import Any

from voxcpm_constants.step_models import Precision
from voxcpm_conversion.core_ml.toolchain import import_coremltools
from voxcpm_conversion.recipes import BLOCK, MIN_ELEMENTS, RECIPES, Format, chosen_format

# Arguments of coremltools' OpLinearQuantizerConfig; None does not compress a weight.
QUANTIZERS: dict[Format, dict[str, Any] | None] = {
    "fp16": None,
    "int8": {"mode": "linear_symmetric"},
    "int4": {"mode": "linear", "dtype": "int4", "granularity": "per_block", "block_size": BLOCK},
}

# coremltools' fp16 pass appends this to a weight's name.
_HALF_SUFFIX = "_to_fp16"


def compress(model: Any, step_model: str, precision: Precision, kept: Collection[str] = ()) -> Any:
    """A copy of an fp16 MLModel whose weights have the formats that the recipe of `precision` prescribes.

    kept: weights that stay in fp16, by their names in the step module, which may be within another one here.

    Raises OSError if the model's temporary package cannot be read.
    """
    ct = import_coremltools()
    from coremltools.converters.mil.converter import mil_convert
    from coremltools.converters.mil.mil.passes.graph_pass import PassOption
    from coremltools.converters.mil.mil.passes.pass_registry import PASS_REGISTRY

    if model.weights_dir is None:
        # coremltools could not open the package that it had just written, and continued.
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    default = RECIPES[precision].default
    stems = {*kept, *(f"step_{name}" for name in kept)}
    formats: dict[str, Format] = {}
    for name, shape in _weights(model):
        weight = name.removesuffix(_HALF_SUFFIX)
        formats[name] = "fp16" if weight in stems else chosen_format(precision, step_model, weight, shape)
    config = ct.optimize.coreml.OptimizationConfig(
        global_config=_quantizer(ct, default),
        op_type_configs={"gather": None},
        op_name_configs={n: _quantizer(ct, f) for n, f in formats.items() if f != default},
    )
    # `linear_quantize_weights` would run the default passes on the result, including those that the export skips.
    quantize = PASS_REGISTRY["compression::linear_quantize_weights"]
    quantize.set_options([PassOption("config", config)])
    program = ct.models.utils._apply_graph_pass(model, quantize, return_pymil_prog=True)  # noqa: SLF001
    specification = model.get_spec()
    return mil_convert(
        program,
        convert_from="milinternal",
        convert_to="mlprogram",
        compute_units=model.compute_unit,
        specification_version=specification.specificationVersion,
        model_description=specification.description,
        pass_pipeline=ct.PassPipeline.EMPTY,
        skip_model_load=True,
    )


def _weights(model: Any) -> Iterator[tuple[str, tuple[int, ...]]]:
    """(name, shape) of every weight that a recipe applies to, excluding tables, which `gather` reads."""
    for function in model.get_spec().mlProgram.functions.values():
        for block in function.block_specializations.values():
            gathers = [operation for operation in block.operations if operation.type == "gather"]
            tables = {argument.name for gather in gathers for argument in gather.inputs["x"].arguments}
            constants = [operation.outputs[0] for operation in block.operations if operation.type == "const"]
            for constant in constants:
                shape = tuple(d.constant.size for d in constant.type.tensorType.dimensions)
                if len(shape) > 1 and math.prod(shape) > MIN_ELEMENTS and constant.name not in tables:
                    yield constant.name, shape


def _quantizer(ct: Any, form: Format) -> Any:
    arguments = QUANTIZERS[form]
    if arguments is None:
        return None
    return ct.optimize.coreml.OpLinearQuantizerConfig(weight_threshold=MIN_ELEMENTS, **arguments)
