"""One module of upstream's package, by its file: importing the package would import torch."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


def upstream_module(name: str) -> ModuleType:
    package = importlib.util.find_spec("voxcpm")
    if package is None or package.origin is None:
        pytest.skip("needs upstream's voxcpm")
    spec = importlib.util.spec_from_file_location(
        f"upstreams_{Path(name).stem}", Path(package.origin).parent / name
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
