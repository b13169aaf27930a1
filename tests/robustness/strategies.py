"""Inputs of the right structure with the wrong content, as strategies of hypothesis."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import strategies as st

from robustness.mutations import ODD_VALUES, PIECES, document_bytes

VALUES = st.recursive(
    st.one_of(
        st.sampled_from(ODD_VALUES).map(copy.deepcopy),
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(max_size=20),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def changed_document(draw: Any, document: Any) -> bytes:
    """A JSON document of which one to three values, at any depth, are others, are gone, or have a new neighbour."""
    changed = json.loads(json.dumps(document))
    for _ in range(draw(st.integers(1, 3))):
        holder = changed
        while True:
            key = draw(st.sampled_from(sorted(holder) if isinstance(holder, dict) else range(len(holder))))
            inner = holder[key]
            if not (isinstance(inner, dict | list) and inner and draw(st.integers(0, 3))):
                break
            holder = inner
        match draw(st.integers(0, 5)):
            case 0 if len(holder) > 1:
                del holder[key]
            case 1 if isinstance(holder, dict):
                holder[draw(st.text(max_size=8))] = draw(VALUES)
            case _:
                holder[key] = draw(VALUES)
    return document_bytes(changed)


def texts() -> st.SearchStrategy[bytes]:
    """Texts, of what a reader of texts has rules for and of any characters."""
    pieces = (
        st.sampled_from(PIECES) | st.text(max_size=8) | st.sampled_from(("Yes. ", "so ", "It is 5. ", "a"))
    )
    return st.lists(pieces, min_size=1, max_size=40).map("".join).map(surviving_bytes)


def surviving_bytes(text: str) -> bytes:
    """A text in UTF-8, in which a lone surrogate stays what it is."""
    return text.encode("utf-8", "surrogatepass")


@st.composite
def form(draw: Any, fields: tuple[tuple[str, tuple[bytes, ...]], ...], boundary: bytes) -> bytes:
    """A form of these fields, whose first contents are valid. Most are there once, as they should be: what is wrong is
    then read as far as it can be. Others have content, names, file names and headers of all kinds.
    """
    parts = []
    sent = [field for field in fields for _ in range(draw(st.sampled_from((1, 1, 1, 1, 1, 0, 2))))]
    for name, contents in draw(st.permutations(sent)):
        if draw(st.integers(0, 3)):
            named = '; filename="a.wav"' if name.endswith(("audio", "sample")) else ""
            parts.append(_part(boundary, f'form-data; name="{name}"{named}', "", contents[0]))
            continue
        said = draw(st.just(name) | st.text(max_size=12))
        content = draw(st.sampled_from(contents) | st.binary(max_size=40) | texts())
        parts.append(_part(boundary, f'form-data; name="{said}"{draw(_NAMES)}', draw(_HEADERS), content))
    end = b"--" + boundary + b"--\r\n"
    return b"".join(parts) + draw(st.sampled_from((end, end, end, end[:-4], b"")))


_NAMES = st.sampled_from(
    ("", '; filename="a.wav"', '; filename=""', "; filename*=UTF-8''a%00b", "; charset=x")
)
_HEADERS = st.sampled_from(
    ("", "Content-Type: audio/wav\r\n", "Content-Type: text/plain; charset=utf-99\r\n", "x\r\n")
)


def _part(boundary: bytes, disposition: str, headers: str, content: bytes) -> bytes:
    head = surviving_bytes(f"Content-Disposition: {disposition}\r\n{headers}\r\n")
    return b"--" + boundary + b"\r\n" + head + content + b"\r\n"
