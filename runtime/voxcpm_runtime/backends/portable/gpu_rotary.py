"""Rotary embeddings in a half-mode graph: where one is computed, and its tables as ONNX Runtime's nodes take them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .gpu_view import View, attribute


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


def gathered_tables(view: View, found: Rotary) -> tuple[str, str, str] | None:
    """Positions (S,) as the graph has them, and names of the whole tables (all positions, D / 2) at which they look up
    cosines and sines; None for cosines of another form.
    """
    gathers = [view.producer(name, "Gather") for name in (found.cos, found.sin)]
    tables = [None if g is None or attribute(g, "axis") else view.constant(g.input[0]) for g in gathers]
    roots = {view.root(g.input[1]) for g in gathers if g is not None}
    halves = [None if table is None else _half(table) for table in tables]
    if len(roots) != 1 or any(half is None for half in halves):
        return None
    if len(view.shapes.get(next(iter(roots))) or ()) != 1:
        return None  # a batch: positions of several utterances
    cos, sin = (
        _sliced(view, g.input[0], half)
        for g, half in zip(gathers, halves, strict=True)
        if g is not None and half is not None
    )
    return roots.pop(), cos, sin


def _half(table: np.ndarray) -> np.ndarray | None:
    """(positions, D / 2) of a table (..., positions, D) with equal halves."""
    if table.ndim < 2 or any(size != 1 for size in table.shape[:-2]) or table.shape[-1] % 2:
        return None
    first, second = np.split(table.reshape(table.shape[-2:]), 2, axis=-1)
    return np.ascontiguousarray(first) if np.array_equal(first, second) else None


def _sliced(view: View, name: str, half: np.ndarray) -> str:
    """The first half of a table's columns, cut when the graph is loaded: tables may be large."""
    integers = view.graph.integers
    bounds = (integers([0]), integers([half.shape[-1]]), integers([-1]))
    return view.shared(("half", name), lambda: view.graph.emit("Slice", name, *bounds))
