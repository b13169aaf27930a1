"""All step models of a patch as one call on a GPU, without transfers to the host between them.

    previous patch ─► feat encoder ─► base LM ─► residual LM ─► DiT condition ─► all Euler steps ─► patch

The graphs of the step models are merged into one, which updates their caches in place. The projections between them,
computed by numpy elsewhere, are nodes in float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from voxcpm_constants.arrays import FUSION, LM_TO_DIT, RESIDUAL_TO_DIT
from voxcpm_constants.generations import Traits
from voxcpm_constants.step_models import (
    ATTENTION,
    BASE_LM_STEP,
    FEAT_ENCODER,
    LOCDIT_SOLVE,
    RESIDUAL_LM_STEP,
    StepSizes,
)
from voxcpm_runtime.backends.gpu.device import Device, DeviceWorker
from voxcpm_runtime.backends.gpu.state import DeviceState
from voxcpm_runtime.backends.gpu.step_model import DeviceCalls, GPUStepModel, open_on_device
from voxcpm_runtime.backends.portable.lowered import Interface, Lowered, checked_inputs
from voxcpm_runtime.backends.step_function import Array, PendingPatch, StepFunction, StepState

PARTS = (FEAT_ENCODER, BASE_LM_STEP, RESIDUAL_LM_STEP, LOCDIT_SOLVE)
LANGUAGE_MODELS = (BASE_LM_STEP, RESIDUAL_LM_STEP)
PATCHES = "patches"

# Inputs of the call, and the step models that read them under the same name.
_INPUTS = {
    PATCHES: (FEAT_ENCODER,),
    "position": LANGUAGE_MODELS,
    **dict.fromkeys(("noise", "t_embeddings", "step_lengths", "cfg_value"), (LOCDIT_SOLVE,)),
}
# Outputs of the call, and the step models that return them; only some base LMs return the last one.
_OUTPUTS = {"patch": LOCDIT_SOLVE, "stop_logits": BASE_LM_STEP, ATTENTION: BASE_LM_STEP}


class JoinedPatch:
    """A `NextPatch`: feat encoder, language models and DiT in one captured call. Thread-safe."""

    def __init__(
        self, models: Mapping[str, GPUStepModel], device: Device, traits: Traits, constants: Mapping[str, Array]
    ) -> None:  # fmt: skip
        parts = {name: models[name] for name in PARTS}
        graphs = {name: model.lowered for name, model in parts.items()}
        graph = joined_graph(graphs, traits, constants)
        names = [_qualified(part, ref.name) for part, model in parts.items() for ref in model.lowered.weights]
        self._weights = [value for model in parts.values() for value in model.weights]
        state = {
            _qualified(p, i): _qualified(p, o) for p, model in parts.items() for i, o in model.state.items()
        }
        every = {_qualified(p, i.name): i for p, model in parts.items() for i in model.lowered.inputs}
        self._inputs = {
            name: _min_shape(every[_qualified(readers[0], name)]) for name, readers in _INPUTS.items()
        }
        self._worker = DeviceWorker(device)
        with device.memory_checked("join the step models of a patch"):
            session, captured = self._worker.run_exclusively(
                open_on_device, graph, names, self._weights, device
            )
        caches = {name: every[name] for name in state}
        self._calls = DeviceCalls(
            session, self._worker, _outputs(graphs), state, caches, frozenset(state),
            returns_rows=False, captured=captured,
        )  # fmt: skip

    def new_states(self) -> tuple[DeviceState, DeviceState]:
        """See `NextPatch`. Raises DeviceError for a GPU with too little memory."""
        both = self._calls.new_state()
        base, residual = (both.part(_qualified(part, "")) for part in LANGUAGE_MODELS)
        return base, residual

    def begin(
        self,
        inputs: Mapping[str, Array],
        base: StepState,
        residual: StepState,
        before: PendingPatch | None = None,
    ) -> PendingPatch:
        """See `NextPatch`."""
        both = self._both(base, residual)
        if before is None:
            feeds = checked_inputs("a patch", self._inputs, inputs, "half")
            return self._calls.begin(lambda: feeds, both)
        given = {name: interface for name, interface in self._inputs.items() if name != PATCHES}
        others = checked_inputs("a patch", given, inputs, "half")
        begun = [before]

        def continued() -> dict[str, Array]:
            # Popped, as an error's traceback refers to this frame, and would form a cycle with the KV caches.
            patches = begun.pop().result()["patch"].transpose(0, 2, 1)[np.newaxis]
            last = {PATCHES: self._inputs[PATCHES]}
            return checked_inputs("a patch", last, {PATCHES: patches}, "half") | others

        return self._calls.begin(continued, both)

    def _both(self, base: StepState, residual: StepState) -> DeviceState:
        """The state that both are parts of; calls are captured with its buffers."""
        if isinstance(base, DeviceState) and isinstance(residual, DeviceState) and base.whole is not None:
            made = [base.whole.buffers.part(_qualified(part, "")) for part in LANGUAGE_MODELS]
            if base.whole.worker is self._worker and made == [base.buffers, residual.buffers]:
                return base.whole
        raise ValueError(
            "expected the two states that one call of `new_states` returned, the base LM's first"
        )


def joined_patch(
    models: Mapping[str, StepFunction],
    device: Device,
    sizes: StepSizes,
    traits: Traits,
    constants: Mapping[str, Array],
) -> JoinedPatch | None:
    """The joined call of a bundle's step models on a GPU; None if they must be called one by one.

    That is the case for a base LM of several packages, a DiT of one step, functions by length and returned rows.
    """
    found = {name: model for name, model in models.items() if isinstance(model, GPUStepModel)}
    one_each = 1 in sizes.encode_patches and 1 in sizes.prefill_chunks
    if not one_each or not found.keys() >= {*PARTS} or not all(found[name].writes_in_place for name in PARTS):
        return None
    return JoinedPatch(found, device, traits, constants)


def joined_graph(lowered: Mapping[str, Lowered], traits: Traits, constants: Mapping[str, Array]) -> bytes:
    """The lowered step models merged into one ONNX model, with values named STEP_MODEL/NAME."""
    import onnx  # slow, and only needed here
    from onnx import ValueInfoProto, compose, helper

    from voxcpm_runtime.backends.portable.graph import Graph
    from voxcpm_runtime.backends.portable.lowering import IR_VERSION, OPSETS

    parts = {
        name: compose.add_prefix(onnx.load_from_string(part.model), _qualified(name, "")).graph
        for name, part in lowered.items()
    }
    declared = {value.name: value for part in parts.values() for value in (*part.input, *part.output)}
    graph = Graph()

    def renamed(part: str, name: str) -> ValueInfoProto:
        value = helper.make_tensor_value_info(name, 0, [])
        value.type.CopyFrom(declared[_qualified(part, name)].type)
        return value

    def link(value: str, part: str, name: str) -> None:
        graph.nodes.append(helper.make_node("Identity", [value], [_qualified(part, name)]))

    def linear(rows: str, stem: str) -> str:
        row = graph.emit("Reshape", rows, graph.integers([1, -1]))
        weight, bias = (graph.constant(constants[f"{stem}_{kind}"], np.float32) for kind in "wb")
        return graph.emit("Gemm", row, weight, bias, transB=1)

    def between(first: str, second: str, *, side_by_side: bool) -> str:
        return (
            graph.emit("Concat", first, second, axis=-1) if side_by_side else graph.emit("Add", first, second)
        )

    for name, readers in _INPUTS.items():
        for part in readers:
            link(name, part, name)
    # The DiT's condition is the same patch.
    frames = graph.emit("Squeeze", PATCHES, graph.integers([0]))
    link(graph.emit("Transpose", frames, perm=[0, 2, 1]), LOCDIT_SOLVE, "cond")
    graph.nodes.extend(parts[FEAT_ENCODER].node)
    embedding = _qualified(FEAT_ENCODER, "embeddings")
    link(embedding, BASE_LM_STEP, "embeddings")
    graph.nodes.extend(parts[BASE_LM_STEP].node)
    hidden = _qualified(BASE_LM_STEP, "fsq_hidden")
    residual_input = between(hidden, embedding, side_by_side=traits.fuses_residual_input)
    if traits.fuses_residual_input:
        residual_input = graph.emit("Reshape", linear(residual_input, FUSION), graph.integers([1, 1, -1]))
    link(residual_input, RESIDUAL_LM_STEP, "embeddings")
    graph.nodes.extend(parts[RESIDUAL_LM_STEP].node)
    residual = _qualified(RESIDUAL_LM_STEP, "hidden")
    projected = linear(hidden, LM_TO_DIT), linear(residual, RESIDUAL_TO_DIT)
    link(between(*projected, side_by_side=traits.mu_tokens > 1), LOCDIT_SOLVE, "mu")
    graph.nodes.extend(parts[LOCDIT_SOLVE].node)
    returned = _outputs(lowered)
    for name, part in returned.items():
        graph.nodes.append(helper.make_node("Identity", [_qualified(part, name)], [name]))

    inputs = [renamed(readers[0], name) for name, readers in _INPUTS.items()]
    outputs = [renamed(part, name) for name, part in returned.items()]
    for part, model in lowered.items():
        inputs += [declared[_qualified(part, name)] for name in model.scattered]
        outputs += [declared[_qualified(part, name)] for name in model.scattered.values()]
    initializers = [*graph.initializers.values(), *(t for part in parts.values() for t in part.initializer)]
    model_proto = helper.make_model(
        helper.make_graph(graph.nodes, "patch", inputs, outputs, initializers),
        opset_imports=[helper.make_opsetid(*opset) for opset in OPSETS],
        ir_version=IR_VERSION,
    )
    return bytes(model_proto.SerializeToString())


def _outputs(lowered: Mapping[str, Lowered]) -> dict[str, str]:
    outputs = {name: {output.name for output in part.outputs} for name, part in lowered.items()}
    return {name: part for name, part in _OUTPUTS.items() if name in outputs[part]}


def _qualified(part: str, name: str) -> str:
    return f"{part}/{name}"


def _min_shape(interface: Interface) -> Interface:
    """The input restricted to its smallest shape: one patch."""
    return replace(interface, shapes=(min(interface.shapes),))
