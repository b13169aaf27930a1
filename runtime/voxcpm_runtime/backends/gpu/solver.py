"""The Euler steps of a patch for a GPU: times for all steps at once, and guidance as a product of two matrices.

In the package each step embeds its own time, and guidance is written for fp16. Here x stays float32 in the layout of
the DiT's output, so that a step needs few nodes around the DiT.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import NodeProto, TensorProto

from voxcpm_runtime.backends.gpu.view import View
from voxcpm_runtime.backends.portable.formulas import Formula, Names
from voxcpm_runtime.backends.portable.graph import CONTRIB

# The embedding of one step's time, for both rows, and that of its length, which is the same in all steps.
_TIME: Formula = {
    "both": ("Add", "embedded", "delta"),
    "embedded": ("Add", "second", "second_bias"),
    "second": ("FusedMatMul", "active", "second_weight"),
    "active": ("Mul", "first", "gate"),
    "gate": ("Sigmoid", "first"),
    "first": ("Add", "product", "first_bias"),
    "product": ("FusedMatMul", "pair", "first_weight"),
    "pair": ("Concat", "time", "time"),
    "time": ("Slice", "times", "begin", "end", "axes", "strides"),
}
# x after one step, from x before it and the velocities (2, P, latent_dim): conditional, unconditional.
_EULER: Formula = {
    "next": ("Sub", "x", "moved"),
    "moved": ("Mul", "length", "guided"),
    "length": ("Slice", "lengths", "begin", "end", "axes", "strides"),
    "guided": ("Add", "start", "difference"),
    "difference": ("Mul", "cfg", "parted"),
    "parted": ("Sub", "conditional", "start"),
    "start": ("Mul", "y", "projection"),
    "projection": ("Div", "mean_product", "square"),
    "mean_product": ("ReduceMean", "products", "mean_axes"),
    "products": ("Mul", "conditional", "y"),
    "square": ("Max", "mean_square", "smallest_square"),
    "mean_square": ("ReduceMean", "squares", "square_axes"),
    "squares": ("Mul", "y", "y"),
    "y": ("Div", "unconditional", "peak"),
    "peak": ("Max", "largest", "smallest_peak"),
    "largest": ("ReduceMax", "magnitude", "peak_axes"),
    "magnitude": ("Abs", "unconditional"),
    "conditional": ("Slice", "turned", "first_begin", "first_end", "row_axes", "row_strides"),
    "unconditional": ("Slice", "turned", "second_begin", "second_end", "row_axes", "row_strides"),
    "turned": ("Transpose", "velocities"),
}
# What the DiT reads of x, for both rows.
_ROWS: Formula = {"rows": ("Transpose", "pair"), "pair": ("Concat", "x", "x")}

# (N, latent_dim, P) <-> (N, P, latent_dim)
_FRAMES_FIRST = [0, 2, 1]

_NORM_FLOOR = 1e-8
"""CFG-zero*: <v+, v-> / (|v-|² + 1e-8), as `flow_matching.guided_velocity`."""


def solver_step(view: View, node: NodeProto) -> list[NodeProto] | None:
    """What stands for a node of `locdit_solve`: the embedding of a time, an Euler step, or x as the DiT reads it."""
    if node.op_type == "Add":
        return _time(view, node)
    if node.op_type == "Sub":
        return _euler(view, node)
    return _rows(view, node) if node.op_type == "Transpose" else None


def _time(view: View, node: NodeProto) -> list[NodeProto] | None:
    names = view.match(_TIME, "both", node.output[0])
    found = None if names is None else _index(view, names, "times")
    width = None if names is None else (view.shapes.get(view.root(names["times"])) or (None,))[-1]
    if names is None or found is None or width is None:
        return None
    fixed = ("delta", "first_weight", "first_bias", "second_weight", "second_bias")
    if not all(view.is_fixed(names[key]) for key in fixed):
        return None
    start, graph, integers = len(view.graph.nodes), view.graph, view.graph.integers
    step, steps = found

    def all_steps() -> Sequence[str]:
        times = graph.emit("Reshape", names["times"], integers([steps, 1, width]))
        rows = graph.emit("Reshape", graph.emit("Concat", times, times, axis=1), integers([-1, width]))
        first = graph.emit("FusedMatMul", rows, names["first_weight"], domain=CONTRIB, transB=1)
        first = graph.emit("Add", first, names["first_bias"])
        active = graph.emit("Mul", first, graph.emit("Sigmoid", first))
        second = graph.emit("FusedMatMul", active, names["second_weight"], domain=CONTRIB, transB=1)
        second = graph.emit("Add", second, names["second_bias"])
        both = graph.emit("Reshape", second, integers([steps, 2, width]))
        both = graph.emit("Add", both, names["delta"])
        # Equal parts: CUDA takes their pointers by value.
        return graph.emit_many("Split", both, integers([1] * steps), outputs=steps, axis=0)

    made_of = (names["times"], *(view.recipe(names[key]) for key in fixed))
    parts = view.all_shared(("times", *made_of), all_steps)
    result = graph.emit("Reshape", parts[step], integers([2, width]))
    return view.appended(start, result, node.output[0])


def _euler(view: View, node: NodeProto) -> list[NodeProto] | None:
    names = view.match(_EULER, "next", node.output[0])
    found = None if names is None else _index(view, names, "lengths")
    if names is None or found is None or not _both_rows(view, names):
        return None
    step, steps = found
    start, graph, integers = len(view.graph.nodes), view.graph, view.graph.integers
    single = TensorProto.FLOAT

    def factors() -> Sequence[str]:
        """The factors of the conditional and of the unconditional velocity, (1, 1) for each step in turn."""
        lengths, cfg = view.root(names["lengths"]), view.root(names["cfg"])
        moved = graph.emit(
            "Neg", graph.emit("Reshape", graph.emit("Cast", lengths, to=single), integers([-1, 1]))
        )
        guidance = graph.emit("Cast", cfg, to=single)
        towards = graph.emit("Mul", moved, guidance)
        rest = graph.emit("Sub", moved, towards)
        both = graph.emit("Concat", towards, rest, axis=0)
        return graph.emit_many("Split", both, integers([1] * (2 * steps)), outputs=2 * steps, axis=0)

    parts = view.all_shared(("factors", *(view.root(names[key]) for key in ("lengths", "cfg"))), factors)
    floor = graph.constant([[_NORM_FLOOR]], np.float32)
    velocities = graph.emit("Reshape", graph.emit("Cast", names["velocities"], to=single), integers([2, -1]))
    # Rows of the products: <v+, v+>, <v+, v->, <v-, v+>, <v-, v->.
    products = graph.emit("FusedMatMul", velocities, velocities, domain=CONTRIB, transB=1)
    products = graph.emit("Reshape", products, integers([4, 1]))
    _, crossed, _, square = graph.emit_many("Split", products, integers([1] * 4), outputs=4, axis=0)
    scale = graph.emit("Div", crossed, graph.emit("Add", square, floor))
    weights = graph.emit("Concat", parts[step], graph.emit("Mul", parts[steps + step], scale), axis=1)
    moved = graph.emit("MatMul", weights, velocities)
    before = view.made.get(("flat", names["x"]))
    if before is None:
        turned = graph.emit("Transpose", graph.emit("Cast", names["x"], to=single), perm=_FRAMES_FIRST)
        before = graph.emit("Reshape", turned, integers([1, -1]))
    after = graph.emit("Add", before, moved)
    view.made["flat", node.output[0]] = after
    # Back to what the graph has: read by its end alone.
    frames = graph.emit("Reshape", after, integers([1, *(view.shapes.get(names["turned"]) or ())[:0:-1]]))
    half = graph.emit("Cast", frames, to=TensorProto.FLOAT16)
    view.made["frames", node.output[0]] = half
    result = graph.emit("Transpose", half, perm=_FRAMES_FIRST)
    return view.appended(start, result, node.output[0])


def _rows(view: View, node: NodeProto) -> list[NodeProto] | None:
    names = view.match(_ROWS, "rows", node.output[0])
    frames = None if names is None else view.made.get(("frames", names["x"]))
    if frames is None or [*node.attribute[0].ints] != _FRAMES_FIRST:
        return None
    start = len(view.graph.nodes)
    result = view.graph.emit("Concat", frames, frames, axis=0)
    return view.appended(start, result, node.output[0])


def _index(view: View, names: Names, sliced: str) -> tuple[int, int] | None:
    """Which one of the first axis a slice takes, and of how many; None if it takes another part."""
    begin, end, axes = (view.constant(names[key]) for key in ("begin", "end", "axes"))
    size = (view.shapes.get(view.root(names[sliced])) or (None,))[0]
    if begin is None or end is None or axes is None or size is None or axes[0] or begin[1:].any():
        return None
    return (int(begin[0]), size) if min(end[0], size) == begin[0] + 1 else None


def _both_rows(view: View, names: Names) -> bool:
    """Whether the velocities are those of two rows in fp16, the conditional one first."""
    begins, ends = (
        [view.constant(names[f"{which}_{bound}"]) for which in ("first", "second")]
        for bound in ("begin", "end")
    )
    bounds = [None if bound is None else bound.tolist() for bound in (*begins, ends[0])]
    turned = view.producers[names["turned"]].attribute[0].ints
    return (
        bounds[:2] == [[0, 0, 0], [1, 0, 0]]
        and bounds[2] is not None
        and bounds[2][0] == 1
        and [*turned] == _FRAMES_FIRST
        and view.shapes.get(names["turned"]) is not None
        # In a graph of float32 nothing is cast.
        and view.root(names["cfg"]) != names["cfg"]
    )
