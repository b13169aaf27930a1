"""Names of repositories on the Hugging Face hub."""

from __future__ import annotations

import re

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def is_hub_id(name: str) -> bool:
    """Whether a name has the form `organisation/name`. Callers look for a path of that name first."""
    return _HUB_ID.fullmatch(name) is not None
