"""Names of repositories on the Hugging Face hub, and of their branches."""

from __future__ import annotations

import re

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


_NOT_IN_A_BRANCH = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|//|/\.|@\{|\.lock(/|$)")
"""What git's `check-ref-format` forbids anywhere in the name of a branch."""


def is_branch(name: str) -> bool:
    """Whether git allows a branch of this name."""
    return (
        name not in ("", "@", "HEAD")
        and _NOT_IN_A_BRANCH.search(name) is None
        and not name.startswith(("-", "/", "."))
        and not name.endswith(("/", "."))
    )


def is_hub_id(name: str) -> bool:
    """Whether a name has the form `organisation/name`; a path that exists is looked for first."""
    return _HUB_ID.fullmatch(name) is not None
