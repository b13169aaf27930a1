import os
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest

from voxcpm_runtime.backends.portable import PortableStepModel, cache
from voxcpm_runtime.backends.portable.cache import load_lowered, read_entry

X = np.ones((1, 64), np.float32)

WARM_START = """
import sys
from pathlib import Path
import numpy as np
from voxcpm_runtime.backends.portable import PortableStepModel
(y,) = PortableStepModel(Path(sys.argv[1]), threads=1)({"x": np.ones((1, 64), np.float32)}).values()
print(float(y[0, 0]), sorted({"coremltools", "onnx", "torch"} & set(sys.modules)))
"""


@pytest.fixture
def package(lab):
    """A linear layer whose 64 outputs are 64 · 2 for an input of ones."""
    weight = np.full((64, 64), 2, np.float32)
    return lab.package(lambda x: lab.mb.linear(x=x, weight=weight), {"x": X})


def the_entry(directory):
    (entry,) = (directory / "lowered").iterdir()
    return entry


def y(package):
    (value,) = PortableStepModel(package, threads=1)({"x": X}).values()
    return float(value[0, 0])


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda data: data[:-7],
    "one bit flipped": lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_entry_is_rebuilt(package, private_cache, damage):
    assert y(package) == 128
    entry = the_entry(private_cache)
    intact = entry.read_bytes()
    entry.write_bytes(DAMAGES[damage](intact))
    assert read_entry(entry) is None
    assert y(package) == 128
    assert read_entry(the_entry(private_cache)) == load_lowered(package)


def test_earlier_lowering_and_changed_weights_miss_the_cache(package, private_cache):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cache, "LOWERING_VERSION", cache.LOWERING_VERSION - 1)
        assert y(package) == 128
    assert y(package) == 128
    assert len(list((private_cache / "lowered").iterdir())) == 2
    weights = np.memmap(next(package.rglob("weight.bin")), np.float32, mode="r+")
    weights[weights == 2] = 3
    weights.flush()
    assert y(package) == 192


def test_unwritable_cache_is_not_an_error(package, private_cache):
    private_cache.mkdir()
    (private_cache / "lowered").write_text("a file where the directory should be")
    assert y(package) == 128


def test_a_warm_start_imports_neither_coremltools_nor_onnx(package, private_cache):
    assert y(package) == 128
    before = the_entry(private_cache).stat().st_mtime_ns
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", WARM_START, str(package)]
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert output.split(maxsplit=1) == ["128.0", "[]\n"]
    assert the_entry(private_cache).stat().st_mtime_ns == before
