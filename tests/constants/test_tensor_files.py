import numpy as np
import pytest
from safetensors.numpy import load

from voxcpm_constants.tensor_files import header_of, tensor_file

METADATA = {"voice": "Ada, née Byron", "sha256": "0", "format": "1", "": "x"}
TENSORS = {
    "patches": np.arange(24, dtype=np.float32).reshape(2, 3, 4).transpose(2, 0, 1),
    "bytes": np.arange(3, dtype=np.uint8),
    "none": np.zeros((0, 4), np.float16),
}


def test_metadata_and_tensors_in_any_order_are_the_same_file():
    """safetensors itself would vary the order of four texts in most of twenty calls."""
    backwards = dict(reversed(METADATA.items()))
    contents = {tensor_file(TENSORS, given) for given in (METADATA, backwards) * 10}
    assert len(contents) == 1


@pytest.mark.parametrize("name", ["ada", "adam"])
def test_safetensors_reads_it(name):
    """Tensors are aligned for any header length."""
    content = tensor_file(TENSORS, {"name": name, **METADATA})
    header, start = header_of(content)
    assert header["__metadata__"] == {"name": name, **METADATA}
    assert start % 8 == 0
    read = load(content)
    assert read.keys() == TENSORS.keys()
    for key, tensor in TENSORS.items():
        assert read[key].dtype == tensor.dtype
        np.testing.assert_array_equal(read[key], tensor)
