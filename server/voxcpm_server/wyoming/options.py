"""The options of Wyoming."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from voxcpm_server.settings import Settings, access, network


@dataclass(frozen=True)
class WyomingSettings(Settings):
    """Where Wyoming is spoken."""

    wyoming: Annotated[
        int | None,
        network(
            "Port to speak Wyoming on, for Home Assistant; 0 is any that is free. It has no key: on loopback only "
            "unless an --insecure option lets everyone in.", 0, 65535,
        ),
    ] = None  # fmt: skip
    insecure_wyoming_without_key: Annotated[
        bool,
        access(
            "Speak Wyoming with anyone who reaches --host; it has no key. It is on loopback only otherwise.",
            flags=["--insecure-wyoming-without-key"],
        ),
    ] = False

    def only_alone(self) -> Iterator[str]:
        """The given options that only a single server can have."""
        if self.wyoming is not None:
            yield "--wyoming"
        yield from super().only_alone()
