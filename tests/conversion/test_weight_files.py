"""The last write to weight.bin is its header, and coremltools says nothing if the system refuses it."""

import errno
import os
import shutil

import pytest

from voxcpm_constants.weight_files import WEIGHT_FILE, is_whole
from voxcpm_conversion.core_ml.packages import _require_whole


@pytest.fixture
def package(tiny_bundle, tmp_path):
    name = "locdit_step.mlpackage"
    return shutil.copytree(tiny_bundle / "fp16" / name, tmp_path / name, copy_function=shutil.copyfile)


def test_the_weights_of_a_conversion_are_whole(tiny_bundle):
    found = {path: is_whole(path) for path in tiny_bundle.rglob("weight.bin")}
    assert len(found) > 6
    assert all(found.values()), found


def damaged(content, at, change):
    content[at] += change
    return content


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda content: damaged(content, 0, -1), id="a weight that is not counted"),
        pytest.param(lambda content: damaged(content, 0, 1), id="a weight that is missing"),
        pytest.param(lambda content: damaged(content, 64, 1), id="no record"),
        pytest.param(lambda content: content[:-1], id="an end that is missing"),
        pytest.param(lambda content: content[:70], id="half a record"),
        pytest.param(lambda content: content[:0], id="nothing"),
        pytest.param(lambda content: content + bytes(64), id="something behind the end"),
    ],
)
def test_a_package_whose_weights_were_not_all_written_is_refused(package, damage):
    _require_whole(package)
    weights = package / WEIGHT_FILE
    weights.write_bytes(damage(bytearray(weights.read_bytes())))

    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        _require_whole(package)


def test_a_package_may_have_no_weights(package):
    (package / WEIGHT_FILE).unlink()
    _require_whole(package)
