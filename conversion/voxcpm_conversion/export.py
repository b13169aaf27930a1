"""Export of a step model: its torch module becomes an ML program with the inputs and outputs of its declaration."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from voxcpm_constants.step_models import StepModel, TensorSpec
from voxcpm_constants.targets import Target
from voxcpm_conversion.step_modules import WithState, example_inputs
from voxcpm_conversion.toolchain import import_coremltools

Arithmetic = Literal["fp16", "fp32"]

# MIL operations whose inputs are angles up to 1000 rad, which fp16 rounds to multiples of 0.5 rad.
_ANGLE_FUNCTIONS = ("sin", "cos")


def export_step(
    step: nn.Module,
    declaration: StepModel,
    arithmetic: Arithmetic,
    *,
    target: Target = "macOS14",
    keeps_state: bool = False,
    fp32_angles: bool = False,
) -> Any:
    """Trace a step module and convert it. Returns a coremltools MLModel that is not loaded for prediction.

    keeps_state: make the state tensors Core ML states (macOS 15) instead of inputs and outputs.
    fp32_angles: compute every operation that feeds a sine or cosine in fp32, also in an fp16 program (the DiT's time
    embedding needs it).
    """
    ct = import_coremltools()
    _register_index_copy()
    # State tensors that are inputs and outputs of the program.
    passed = () if keeps_state else declaration.state
    # The graph must not depend on the traced length. If it does by mistake, the largest length shows it soonest.
    examples = example_inputs((*declaration.inputs, *passed), declaration.chunk_count - 1)
    with torch.inference_mode():
        module = WithState(step, declaration) if keeps_state else step
        traced = torch.jit.trace(module, examples, check_trace=False)
    precision: Any = ct.precision.FLOAT32
    if arithmetic == "fp16":
        precision = ct.transform.FP16ComputePrecision(lambda op: not (fp32_angles and _feeds_angle(op)))
    return ct.convert(
        traced,
        convert_to="mlprogram",
        minimum_deployment_target=getattr(ct.target, target),
        compute_precision=precision,
        inputs=[_input_type(ct, t, declaration, arithmetic) for t in (*declaration.inputs, *passed)],
        outputs=[
            *(ct.TensorType(name=t.name, dtype=_dtype(t, arithmetic)) for t in declaration.outputs),
            *(ct.TensorType(name=t.output_name, dtype=_dtype(t, arithmetic)) for t in passed),
        ],
        states=[_state_type(ct, t) for t in declaration.state] if keeps_state else None,
        skip_model_load=True,
    )


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


def _feeds_angle(op: Any) -> bool:
    """Whether a MIL operation is a sine or cosine, or part of an element-wise chain that computes the angle of one."""
    if op.op_type in _ANGLE_FUNCTIONS:
        return True
    return any(
        _feeds_angle(child) for output in op.outputs for child in output.child_ops if _is_elementwise(child)
    )


def _is_elementwise(op: Any) -> bool:
    return op.op_type in ("mul", "expand_dims", "cast", *_ANGLE_FUNCTIONS)


def _register_index_copy() -> None:
    """Translate torch's index_copy_, which coremltools 9 does not support, to MIL's one-dimensional scatter."""
    from coremltools.converters.mil import Builder, register_torch_op
    from coremltools.converters.mil.frontend.torch.ops import _get_inputs

    def index_copy(context: Any, node: Any) -> None:
        data, axis, indices, updates = _get_inputs(context, node, expected=4)
        copied = Builder.scatter(
            data=data, indices=indices, updates=updates, axis=axis.val, mode="update", name=node.name
        )
        context.add(copied)

    register_torch_op(override=True)(index_copy)
