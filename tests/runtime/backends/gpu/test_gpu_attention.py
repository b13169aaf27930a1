"""Attention becomes one node for a GPU where a graph computes exactly that, and stays as it is anywhere else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from onnx import NodeProto, TensorProto, helper

from voxcpm_runtime.backends.gpu.attention import attention
from voxcpm_runtime.backends.gpu.fusion import fuse_for_gpu
from voxcpm_runtime.backends.gpu.view import HEADS_FIRST, View
from voxcpm_runtime.backends.portable.graph import CONTRIB, Graph
from voxcpm_runtime.backends.portable.lowering import IR_VERSION, OPSETS
from voxcpm_runtime.backends.portable.onnx_runtime import ort

HIDDEN, HEADS, KV_HEADS, WIDTH, LENGTH, POSITIONS = 32, 4, 2, 16, 64, 5
HALF, INT = np.float16, np.int32


class Drawing:
    """A half-mode graph of one attention, as the lowering makes it, with one property changed."""

    def __init__(self, **changes: Any) -> None:
        self.changes = changes
        self.graph = Graph()
        self.inputs: dict[str, tuple[Any, tuple[int | None, ...]]] = {}
        self.shapes: dict[str, tuple[int | None, ...] | None] = {}
        self.outputs = ["result"]
        self.batch, self.positions = changes.get("batch", 1), changes.get("positions", -1)
        self.heads, self.kv_heads = changes.get("heads", HEADS), changes.get("kv_heads", KV_HEADS)
        self.width = changes.get("width", WIDTH)
        self._random = np.random.default_rng(0)

    def changed(self, name: str, usual: Any) -> Any:
        return self.changes.get(name, usual)

    def flags(self, name: str) -> dict[str, Any]:
        """Attributes that a node has beside the usual ones."""
        return self.changes.get(name, {})

    def given(self, name: str, dtype: Any, shape: tuple[int | None, ...]) -> str:
        self.inputs[name], self.shapes[name] = (dtype, shape), shape
        return name

    def weight(self, *shape: int) -> str:
        return self.graph.constant(self._random.standard_normal(shape) * 0.3, HALF)

    def shape(self, *sizes: int) -> str:
        return self.graph.integers(sizes)

    def product(self, x: str, y: str, name: str) -> str:
        flags = {"transB": 1, **self.flags(name)}
        return self.graph.emit("FusedMatMul", x, y, domain=CONTRIB, **flags)

    def part(self, name: str, x: str) -> str:
        """Queries, keys or values."""
        heads = self.changed(f"{name}_heads", self.heads if name == "queries" else self.kv_heads)
        width = self.changed(f"{name}_width", self.width)
        positions = self.changed(f"{name}_positions", self.positions)
        product = self.product(x, self.weight(heads * width, HIDDEN), f"{name}_product")
        shape = self.shape(self.changed(f"{name}_batch", self.batch), positions, heads, width)
        split = self.graph.emit("Reshape", product, shape)
        return self.graph.emit("Transpose", split, perm=self.changed(f"{name}_order", HEADS_FIRST))

    def rotated(self, x: str, cos: str, sin: str) -> str:
        half = self.shape(self.width // 2, self.width // 2)
        first, second = self.graph.emit_many("Split", x, half, outputs=2, axis=-1)
        negative = self.graph.emit("Mul", second, self.graph.constant(-1, HALF))
        turned = self.graph.emit("Concat", negative, first, axis=-1)
        return self.graph.emit("Add", self.graph.emit("Mul", x, cos), self.graph.emit("Mul", turned, sin))

    def tables(self, rows: int) -> list[np.ndarray]:
        """Cosines and sines (rows, width)."""
        angles = np.outer(np.arange(rows), 1 / (1 + np.arange(self.width // 2)))
        angles = np.concatenate([angles, angles], axis=1)
        return [np.cos(angles).astype(HALF), np.sin(angles).astype(HALF)]

    def attended(self, queries: str, keys: str, values: str, mask: str | None = None) -> None:
        """The result, from queries, and keys and values of all places."""
        graph, batch, positions, heads, width = (
            self.graph, self.batch, self.positions, self.heads, self.width,
        )  # fmt: skip
        scaled = graph.emit("Mul", queries, graph.constant(self.changed("factor", 0.25), HALF))
        groups = self.changed("queries_shape", (batch, self.kv_heads, -1, width))
        scores = self.product(graph.emit("Reshape", scaled, self.shape(*groups)), keys, "scores")
        if mask is not None:
            scores = graph.emit("Add", scores, mask)
        weights = graph.emit("Softmax", scores, axis=self.changed("softmax_axis", -1))
        in_heads = self.changed("heads_shape", (batch, heads, positions, width))
        by_head = graph.emit("Reshape", graph.emit("MatMul", weights, values), self.shape(*in_heads))
        turned = graph.emit("Transpose", by_head, perm=self.changed("rows_order", HEADS_FIRST))
        in_rows = self.changed("rows_shape", (batch, positions, heads * width))
        rows = graph.emit("Reshape", turned, self.shape(*in_rows))
        self.product(rows, self.weight(HIDDEN, heads * width), "result")
        graph.nodes[-1].output[:] = ["result"]

    def view(self) -> View:
        return View(self.graph.nodes, *self._seen())

    def fused(self) -> list[NodeProto]:
        return fuse_for_gpu(list(self.graph.nodes), *self._seen())

    def _seen(self) -> tuple[Any, ...]:
        dtypes = {name: np.dtype(dtype) for name, (dtype, _) in self.inputs.items()}
        return self.graph, None, self.shapes, dtypes


def within(**changes: Any) -> Drawing:
    """Attention among a fixed number of positions."""
    d = Drawing(**{"positions": POSITIONS, **changes})
    x = d.given("x", HALF, (1, POSITIONS, HIDDEN))
    other = d.given("other", HALF, (1, POSITIONS, HIDDEN)) if d.changed("two_sources", False) else x
    queries, keys, values = d.part("queries", x), d.part("keys", x), d.part("values", other)
    if d.changed("rotates", True):
        cos, sin = (d.graph.constant(table, HALF) for table in d.tables(d.changed("table_rows", POSITIONS)))
        queries, keys = d.rotated(queries, cos, sin), d.rotated(keys, cos, sin)
    d.attended(queries, keys, values)
    return d


def found(drawing: Drawing) -> list[NodeProto] | None:
    (last,) = (node for node in drawing.graph.nodes if "result" in node.output)
    return attention(drawing.view(), last)


def run(drawing: Drawing, nodes: list[NodeProto], feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    elements = {HALF: TensorProto.FLOAT16, INT: TensorProto.INT32}
    graph = helper.make_graph(
        nodes, "attention",
        [helper.make_tensor_value_info(n, elements[dtype], s) for n, (dtype, s) in drawing.inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT16, None) for name in drawing.outputs],
        list(drawing.graph.initializers.values()),
    )  # fmt: skip
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid(*o) for o in OPSETS], ir_version=IR_VERSION
    )
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(drawing.outputs, dict(feeds))


def random_feeds(drawing: Drawing, *, count: int) -> dict[str, np.ndarray]:
    """Values of the inputs: `count` positions from 7 on, and what the caches hold before them."""
    rng = np.random.default_rng(1)
    return {
        name: (np.arange(count) + 7).astype(INT)
        if dtype is INT
        else rng.standard_normal([size or count for size in shape]).astype(HALF)
        for name, (dtype, shape) in drawing.inputs.items()
    }


@pytest.mark.parametrize("rotates", [True, False])
def test_attention_within_a_patch_becomes_one_node(rotates: bool) -> None:
    plain, drawing = within(rotates=rotates), within(rotates=rotates)
    feeds = random_feeds(plain, count=POSITIONS)
    nodes = drawing.fused()
    expected, fused = run(plain, list(plain.graph.nodes), feeds), run(drawing, nodes, feeds)

    assert [node.op_type for node in nodes].count("MultiHeadAttention") == 1
    np.testing.assert_allclose(fused[0], expected[0], atol=0.02)


EITHER: dict[str, dict[str, Any]] = {
    "values of another width": {"values_width": 2 * WIDTH},
    "values with other heads": {"values_heads": 1},
    "query heads that make no groups": {"heads": 3},
    "keys of another input than values": {"two_sources": True},
    "scores that are scaled": {"scores": {"alpha": 0.5}},
    "a product that is scaled": {"keys_product": {"alpha": 2.0}},
    "a product of plain weights": {"keys_product": {"transB": 0}},
    "a result that is scaled": {"result": {"alpha": 0.5}},
    "a softmax over rows": {"softmax_axis": 2},
    "heads in another order": {"keys_order": [0, 1, 2, 3]},
    "queries in other groups": {"queries_shape": (1, 1, -1, WIDTH)},
}
ONLY_WITHIN: dict[str, dict[str, Any]] = {
    "heads too narrow for the kernel": {"width": 4},
    "an open number of positions": {"positions": -1, "rotates": False},
    "one angle for all positions": {"table_rows": 1},
}


@pytest.mark.parametrize("changes", [*EITHER.values(), *ONLY_WITHIN.values()], ids=[*EITHER, *ONLY_WITHIN])
def test_other_attention_within_a_patch_stays(changes: dict[str, Any]) -> None:
    drawing = within(**changes)
    before = list(drawing.graph.nodes)
    assert found(drawing) is None
    assert drawing.graph.nodes == before
