"""Rotary embeddings in a half-mode graph: where one is computed, and its tables as ONNX Runtime's nodes take them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from voxcpm_runtime.backends.gpu.view import View, attribute


@dataclass(frozen=True)
class Rotary:
    """x · cos + (−second half of x, first half of x) · sin, x (B, heads, S, D); names of values."""

    x: str
    cos: str
    sin: str


def rotary(view: View, value: str) -> Rotary | None:
    """The rotary embedding that a value is; None for another value."""
    node = view.producer(value, "Add")
    if node is None:
        return None
    for straight, turned in (node.input, node.input[::-1]):
        for turn, sin in view.factors(turned):
            x = _turned(view, turn)
            cosines = [cos for other, cos in view.factors(straight) if other == x]
            if x is not None and cosines:
                return Rotary(x, cosines[0], sin)
    return None


def _turned(view: View, value: str) -> str | None:
    """x, if the value is (−second half of x, first half of x)."""
    concat = view.producer(value, "Concat")
    if concat is None or len(concat.input) != 2 or attribute(concat, "axis") not in (-1, 3):
        return None
    for second, sign in view.factors(concat.input[0]):
        split = view.producer(second, "Split")
        if view.number(sign) != -1 or split is None or attribute(split, "axis") not in (-1, 3):
            continue
        if list(split.output) == [concat.input[1], second]:
            return str(split.input[0])
    return None


def fixed_tables(view: View, found: Rotary) -> tuple[np.ndarray, np.ndarray] | None:
    """Cosines and sines (positions, D / 2), if they are constants with equal halves."""
    tables = [view.constant(name) for name in (found.cos, found.sin)]
    halves = [_half(table) for table in tables if table is not None]
    cos, sin = halves if len(halves) == 2 else (None, None)
    return None if cos is None or sin is None else (cos, sin)


@dataclass(frozen=True)
class GatheredTables:
    """Whole tables (all positions, D) in which cosines and sines are looked up; names of values."""

    positions: str
    """Where they are looked up (S,), as the graph has it."""
    cos: str
    sin: str
    half: int
    """D / 2: both halves are equal."""


def gathered_tables(view: View, found: Rotary) -> GatheredTables | None:
    """The tables in which cosines and sines are looked up; None for cosines of another form."""
    gathers = [view.producer(name, "Gather") for name in (found.cos, found.sin)]
    names = [g.input[0] for g in gathers if g is not None and not attribute(g, "axis")]
    tables = [view.constant(name) for name in names]
    halves = [_half(table) for table in tables if table is not None]
    roots = {view.root(g.input[1]) for g in gathers if g is not None}
    if len(halves) != 2 or len(roots) != 1:
        return None
    cos, sin = halves
    if cos is None or sin is None or cos.shape != sin.shape:
        return None
    (positions,) = roots
    if len(view.shapes.get(positions) or ()) != 1:
        return None  # a batch: positions of several utterances
    return GatheredTables(positions, names[0], names[1], cos.shape[-1])


def first_halves(view: View, tables: GatheredTables) -> tuple[str, str]:
    """Names of the tables' first halves (all positions, D / 2), cut when the graph is loaded: tables may be large."""
    integers = view.graph.integers
    bounds = (integers([0]), integers([tables.half]), integers([-1]))

    def half(table: str) -> str:
        return view.shared(("half", table), lambda: view.graph.emit("Slice", table, *bounds))

    return half(tables.cos), half(tables.sin)


def _half(table: np.ndarray) -> np.ndarray | None:
    """(positions, D / 2) of a table (..., positions, D) with equal halves."""
    if table.ndim < 2 or any(size != 1 for size in table.shape[:-2]) or table.shape[-1] % 2:
        return None
    first, second = np.split(table.reshape(table.shape[-2:]), 2, axis=-1)
    return np.ascontiguousarray(first) if np.array_equal(first, second) else None
