"""Where a half-mode graph computes attention in a form that a GPU's nodes compute.

The formulas are those that the conversion writes; every bundle's step models are compared with float32 in the tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from voxcpm_runtime.backends.gpu.rotary import Rotary, fixed_tables, rotary
from voxcpm_runtime.backends.gpu.view import HEADS_FIRST, View, attribute, is_product
from voxcpm_runtime.backends.portable.formulas import Formula, Names

# One part of a product of the embeddings: queries, keys or values (B, heads, S, width).
_PART: Formula = {
    "part": ("Transpose", "split"),
    "split": ("Reshape", "product", "shape"),
    "product": ("FusedMatMul", "x", "weight"),
}
# The rows of the last product (B, S, heads · width) of attention among the positions of a patch.
_WITHIN: Formula = {
    "rows": ("Reshape", "turned", "rows_shape"),
    "turned": ("Transpose", "heads"),
    "heads": ("Reshape", "attended", "heads_shape"),
    "attended": ("MatMul", "weights", "values"),
    "weights": ("Softmax", "scores"),
    "scores": ("FusedMatMul", "queries", "keys"),
    "queries": ("Reshape", "scaled", "queries_shape"),
    "scaled": ("Mul", "turned_queries", "factor"),
}
# Widths of a head that the kernel takes are multiples of this.
_WIDTHS = 8


@dataclass(frozen=True)
class Part:
    """Queries, keys or values, before the product of the embeddings is split into heads."""

    x: str
    weight: str
    batch: int
    positions: int
    heads: int
    width: int
    rotary: Rotary | None


@dataclass(frozen=True)
class Attention:
    """Attention in which a group of query heads shares a head of keys and values."""

    queries: Part
    keys: Part
    values: Part
    scale: float
    """What the scores are multiplied by."""


def attention_within(view: View, rows: str) -> Attention | None:
    """The attention among a fixed number of positions whose rows (B, S, heads · width) a value is; None for another."""
    names = view.match(_WITHIN, "rows", rows)
    if names is None:
        return None
    q, k, v = (_part(view, names[key]) for key in ("turned_queries", "keys", "values"))
    scale = view.number(names["factor"])
    if not (q and k and v and scale) or not _attends(view, names, (q, k, v)):
        return None
    if (
        k.x != v.x
        or len({q.batch, k.batch, v.batch}) != 1
        or k.positions != v.positions
        or (q.x == k.x and q.positions != k.positions)
        or min(q.positions, k.positions) < 1
        or k.width % _WIDTHS
        or not all(_has_tables(view, part) for part in (q, k, v))
    ):
        return None
    return Attention(q, k, v, scale)


def _part(view: View, value: str) -> Part | None:
    found = rotary(view, value)
    names = view.match(_PART, "part", value if found is None else found.x)
    if names is None or not view.is_fixed(names["weight"]):
        return None
    shape, product = view.constant(names["shape"]), view.producers[names["product"]]
    turned = view.producers[names["part"]].attribute[0].ints
    if shape is None or shape.size != len(HEADS_FIRST) or min(shape[2:]) < 1 or [*turned] != HEADS_FIRST:
        return None
    if not is_product(product):
        return None
    batch, positions, heads, width = shape.tolist()
    return Part(names["x"], names["weight"], batch, positions, heads, width, found)


def _attends(view: View, names: Names, parts: tuple[Part, Part, Part]) -> bool:
    """Whether attributes and shapes are those of attention: groups of query heads, each with one key and value head."""
    q, k, v = parts
    if not q.width == k.width == v.width or k.heads != v.heads or q.heads % k.heads:
        return False
    grouped = q.positions * (q.heads // k.heads) if q.positions > 0 else -1
    return (
        is_product(view.producers[names["scores"]])
        and attribute(view.producers[names["weights"]], "axis") in (None, -1, 3)
        and [*view.producers[names["turned"]].attribute[0].ints] == HEADS_FIRST
        and _is_shape(view, names["queries_shape"], (q.batch, k.heads, grouped, q.width))
        and _is_shape(view, names["heads_shape"], (q.batch, q.heads, q.positions, q.width))
        and _is_shape(view, names["rows_shape"], (q.batch, q.positions, q.heads * q.width))
    )


def _is_shape(view: View, name: str, expected: Sequence[int]) -> bool:
    """Whether a constant is the shape, of which it may leave one axis to be inferred."""
    shape = view.constant(name)
    return (
        shape is not None
        and shape.size == len(expected)
        and all(given in (-1, size) for given, size in zip(shape.tolist(), expected, strict=True))
    )


def _has_tables(view: View, part: Part) -> bool:
    """Whether a part is not rotated, or by constants for each of its positions."""
    if part.rotary is None:
        return True
    tables = fixed_tables(view, part.rotary)
    return tables is not None and all(t.shape == (part.positions, part.width // 2) for t in tables)
