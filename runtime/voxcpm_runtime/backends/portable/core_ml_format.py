"""coremltools' protobuf classes, as a package of its own: `from .core_ml_format import Model_pb2`.

`import coremltools` itself takes seconds, as it imports converters, and with them PyTorch where that is installed.
"""

from importlib.util import find_spec
from pathlib import Path

_coremltools = find_spec("coremltools")
if _coremltools is None or _coremltools.origin is None:
    raise ModuleNotFoundError("No module named 'coremltools'", name="coremltools")

# What makes a module a package: where its submodules are found.
__path__ = [str(Path(_coremltools.origin).parent / "proto")]
