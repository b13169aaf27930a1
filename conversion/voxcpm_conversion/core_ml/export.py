"""Exports a step model: its torch module becomes an ML program with the declared inputs and outputs."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from voxcpm_constants.step_models import StepModel, TensorSpec
from voxcpm_constants.targets import StateForm, Target, updated_name
from voxcpm_conversion.core_ml.toolchain import import_coremltools
from voxcpm_conversion.step_modules import WithState, example_inputs

Arithmetic = Literal["fp16", "fp32"]

# Our indices are positions, never negative; the guard would add a `select`, which E5RT rejects in some forms.
_UNUSED_PASSES = {"common::guard_negative_gather_indices"}


def export_step(
    step: nn.Module, declaration: StepModel, arithmetic: Arithmetic, target: Target, state: StateForm
) -> Any:
    """Trace a step module and convert it. Returns a coremltools MLModel that is not loaded for prediction.

    state: the form of the state tensors. A native cache is written by `slice_update`, Apple's own form.
    """
    ct = import_coremltools()
    native = state == "native"
    register_index_copy("slice_update" if native else "scatter")
    passed = () if native else declaration.state
    # The graph must not depend on the traced length. If it does by mistake, the largest length shows it soonest.
    examples = example_inputs((*declaration.inputs, *passed), declaration.chunk_count - 1)
    with torch.inference_mode():
        module = WithState(step, declaration) if native else step
        traced = torch.jit.trace(module, examples, check_trace=False)
    precision = ct.precision.FLOAT16 if arithmetic == "fp16" else ct.precision.FLOAT32
    return ct.convert(
        traced,
        convert_to="mlprogram",
        minimum_deployment_target=getattr(ct.target, target),
        compute_precision=precision,
        inputs=[_input_type(ct, t, declaration, arithmetic) for t in (*declaration.inputs, *passed)],
        outputs=[
            *(ct.TensorType(name=t.name, dtype=_dtype(t, arithmetic)) for t in declaration.outputs),
            *(ct.TensorType(name=updated_name(t, state), dtype=_dtype(t, arithmetic)) for t in passed),
        ],
        states=[_state_type(ct, t) for t in declaration.state] if native else None,
        pass_pipeline=pass_pipeline(ct),
        skip_model_load=True,
    )


def pass_pipeline(ct: Any) -> Any:
    """coremltools' default passes without those that rewrite what hardware accepts into what it may reject."""
    pipeline = ct.PassPipeline.DEFAULT
    pipeline.remove_passes(_UNUSED_PASSES)
    return pipeline


def _input_type(ct: Any, tensor: TensorSpec, declaration: StepModel, arithmetic: Arithmetic) -> Any:
    shapes = list(dict.fromkeys(tensor.shape_at(chunk) for chunk in range(declaration.chunk_count)))
    shape = shapes[0] if len(shapes) == 1 else ct.EnumeratedShapes(shapes, default=shapes[0])
    return ct.TensorType(name=tensor.name, shape=shape, dtype=_dtype(tensor, arithmetic))


def _state_type(ct: Any, tensor: TensorSpec) -> Any:
    """The type of a Core ML state, which is float16 whatever the arithmetic."""
    return ct.StateType(ct.TensorType(shape=tensor.shape_at(0), dtype=np.float16), name=tensor.name)


def _dtype(tensor: TensorSpec, arithmetic: Arithmetic) -> type:
    compute = np.float16 if arithmetic == "fp16" else np.float32
    return {"float32": np.float32, "int32": np.int32, "compute": compute}[tensor.dtype]


def register_index_copy(operation: Literal["scatter", "slice_update"]) -> None:
    """Register translations of torch's index_copy_, which coremltools 9 does not support, and of index_put_, without a
    `select` for negative indices.

    scatter: rows go to any indices. slice_update: the indices are consecutive, and rows go to the first one and after.
    """
    from coremltools.converters.mil import Builder, register_torch_op
    from coremltools.converters.mil.frontend.torch.ops import _get_inputs

    def scattered(data: Any, axis: int, indices: Any, updates: Any, name: str) -> Any:
        return Builder.scatter(
            data=data, indices=indices, updates=updates, axis=axis, mode="update", name=name
        )

    def slice_updated(data: Any, axis: int, indices: Any, updates: Any, name: str) -> Any:
        elsewhere = [other != axis for other in range(data.rank)]
        first = Builder.slice_by_size(x=indices, begin=[0], size=[1])
        parts = [[0] * axis, first, [0] * (data.rank - axis - 1)]
        begin = Builder.concat(
            values=[np.int32(part) if part is not first else part for part in parts], axis=0
        )
        return Builder.slice_update(
            x=data, update=updates,
            begin=begin, end=Builder.add(x=begin, y=np.int32(updates.shape)),
            begin_mask=elsewhere, end_mask=elsewhere, name=name,
        )  # fmt: skip

    write = {"scatter": scattered, "slice_update": slice_updated}[operation]

    def index_copy(context: Any, node: Any) -> None:
        data, axis, indices, updates = _get_inputs(context, node, expected=4)
        context.add(write(data, axis.val, indices, updates, node.name))

    def index_put(context: Any, node: Any) -> None:
        data, indices, updates, *_ = _get_inputs(context, node)
        where = Builder.stack(values=indices, axis=-1)
        context.add(
            Builder.scatter_nd(data=data, indices=where, updates=updates, mode="update", name=node.name)
        )

    for translation in (index_copy, index_put):
        register_torch_op(override=True)(translation)
