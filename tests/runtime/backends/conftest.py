"""Small ML programs built with coremltools' MIL builder, saved as .mlpackage and run by the portable backend."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mil_programs import converted
from voxcpm_conversion.core_ml.toolchain import import_coremltools
from voxcpm_runtime.backends.portable import PortableStepModel, cache
from voxcpm_runtime.backends.portable.kernels import ROW_PRODUCT, available_operators
from voxcpm_runtime.backends.portable.package import read_package

# FeatureTypes of the interface, by numpy dtype name.
INPUT_TYPES = {"float16": "fp16", "float32": "fp32", "int32": "int32"}


@pytest.fixture(scope="session")
def ct():
    """coremltools, without its logs and progress bars."""
    logging.disable(logging.WARNING)
    module = import_coremltools()
    import tqdm

    tqdm.tqdm.disable = True
    return module


@pytest.fixture(autouse=True)
def private_cache(tmp_path, monkeypatch):
    """An empty cache, so that each test lowers its programs."""
    directory = tmp_path / "cache"
    monkeypatch.setenv("VOXCPM_COREML_CACHE", str(directory))
    return directory


@pytest.fixture
def processor(request, monkeypatch):
    """Products as on an "exact" or a "saturating" processor (`has_exact_signed_products`), or by our own operators."""
    exact = request.param != "saturating"
    if exact and not cache.has_exact_signed_products():
        pytest.skip("this processor's signed products saturate")
    monkeypatch.setattr(cache, "has_exact_signed_products", lambda: exact)
    if request.param == "kernels":
        if ROW_PRODUCT not in available_operators():
            pytest.skip("no C++ compiler, or a processor without AVX-512 VNNI")
        monkeypatch.setattr(cache, "_MIN_KERNEL_BYTES", 0)


@dataclass(frozen=True)
class Laboratory:
    """A builder and runner of programs with one or a few operations."""

    ct: Any
    directory: Path
    target: str = "macOS14"

    @property
    def mb(self):
        from coremltools.converters.mil import Builder

        return Builder

    def convert(self, build, inputs):
        """The converted model of a function from MIL inputs to MIL outputs, in the precision of the inputs."""
        from coremltools.converters.mil.mil import types

        def spec(value):
            dtype, shape = value if isinstance(value, tuple) else (value.dtype.name, value.shape)
            return self.mb.TensorSpec(shape=shape, dtype=getattr(types, INPUT_TYPES[dtype]))

        return converted(build, {name: spec(value) for name, value in inputs.items()}, self.target)

    def save(self, model, name="model"):
        path = self.directory / f"{name}.mlpackage"
        model.save(str(path))
        return path

    def package(self, build, inputs, name="model"):
        return self.save(self.convert(build, inputs), name)

    def run(self, build, inputs, kind, **options):
        """The outputs in order. The package must contain the operation under test."""
        package = self.package(build, inputs)
        assert kind in {op.kind for op in read_package(package).operations}
        return list(PortableStepModel(package, threads=1, **options)(inputs).values())


@pytest.fixture
def lab(ct, tmp_path):
    return Laboratory(ct, tmp_path)


@pytest.fixture
def later_lab(ct, tmp_path):
    """A builder of programs for macOS 15."""
    return Laboratory(ct, tmp_path, "macOS15")


@pytest.fixture
def rng():
    return np.random.default_rng(0)
