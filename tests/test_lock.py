import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
NOT_LOCKED = {"distillmos", "pip-audit", "resemblyzer", "speechmos", "swift-f0", "uv", "voxcpm", "xls-r-sqa"}
"""Installed only by the Makefile."""


def test_constraints_are_locked_with_hashes():
    tomllib = pytest.importorskip("tomllib")  # since Python 3.11
    lock = tomllib.loads((REPOSITORY / "uv.lock").read_text(encoding="utf-8"))
    locked = {(package["name"], package.get("version")): package for package in lock["package"]}
    pins = re.findall(r"^([\w.-]+)==([^;\s]+)", (REPOSITORY / "constraints.txt").read_text(), re.MULTILINE)
    wanted = {(name.lower().replace("_", "-"), version) for name, version in pins}
    assert {pin for pin in wanted - locked.keys() if pin[0] not in NOT_LOCKED} == set()
    wheels = [wheel for package in locked.values() for wheel in package.get("wheels", ())]
    assert len(wheels) > 1000
    assert all(wheel["hash"].startswith("sha256:") for wheel in wheels)
