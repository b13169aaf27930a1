"""Options of Wyoming."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from voxcpm_server.settings import Settings, access, network


@dataclass(frozen=True)
class WyomingSettings(Settings):
    """Address and exposure of Wyoming."""

    wyoming: Annotated[
        int | None,
        network(
            "Port for Wyoming (Home Assistant); 0 means any free port. Wyoming has no keys, so it listens on loopback "
            "unless an --insecure option is given.", 0, 65535,
        ),
    ] = None  # fmt: skip
    insecure_wyoming_without_key: Annotated[
        bool,
        access("Serve Wyoming, which has no keys, on --host.", flags=["--insecure-wyoming-without-key"]),
    ] = False
