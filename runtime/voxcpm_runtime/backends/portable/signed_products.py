"""Whether this processor multiplies unsigned by signed bytes exactly.

ONNX Runtime's fastest integer kernels (VNNI, AMX, and ARM's dot products) take one unsigned and one signed factor. On
x86 without VNNI the same product adds pairs in 16 bits, which saturate: 255 · 127 twice is 64770, above 32767.
"""

from __future__ import annotations

import base64
import functools

import numpy as np

from voxcpm_runtime.backends.portable.onnx_runtime import ort

ROWS, INNER, COLUMNS = 4, 64, 16
_UNSIGNED, SIGNED = 255, 127

# "rows" (ROWS, INNER) uint8 times a weight (INNER, COLUMNS) of int8 SIGNED, by MatMulIntegerToFloat. It is written out
# here, as the library that makes graphs is not imported at a usual start; a test makes it again.
PRODUCT = base64.b64decode(
    "CAk65AEKNgoFc2hhcGUSB3dlaWdodHMiD0NvbnN0YW50T2ZTaGFwZSoTCgV2YWx1ZSoHCAEQA0oBf6ABBApHCgRyb3dzCgd3ZWlnaHRzCgNvbmUK"
    "A29uZRIHcHJvZHVjdCIUTWF0TXVsSW50ZWdlclRvRmxvYXQ6DWNvbS5taWNyb3NvZnQSACodCAIQB0IFc2hhcGVKEEAAAAAAAAAAEAAAAAAAAAAq"
    "DRABQgNvbmVKBAAAgD9aFgoEcm93cxIOCgwIAhIICgIIBAoCCEBiGQoHcHJvZHVjdBIOCgwIARIICgIIBAoCCBBCBAoAEBRCEQoNY29tLm1pY3Jv"
    "c29mdBAB"
)


@functools.cache
def exact() -> bool:
    """Whether a product whose pairs would saturate in 16 bits comes out as the integers' true sum."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(PRODUCT, options, providers=["CPUExecutionProvider"])
    (product,) = session.run(None, {"rows": np.full((ROWS, INNER), _UNSIGNED, np.uint8)})
    return bool(np.all(product == INNER * _UNSIGNED * SIGNED))
