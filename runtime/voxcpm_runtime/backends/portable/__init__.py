"""The portable backend: runs a Core ML .mlpackage on ONNX Runtime.

The package's ML program is lowered to an ONNX graph once (lowering.py, operators/) and cached (cache.py); the weights
stay in the package, memory-mapped. A start with a cache hit imports neither coremltools nor onnx.
"""

from voxcpm_runtime.backends.portable.lowered import PROBE_OUTPUT
from voxcpm_runtime.backends.portable.package import PackageError
from voxcpm_runtime.backends.portable.step_model import PortableStepModel

__all__ = ["PROBE_OUTPUT", "PackageError", "PortableStepModel"]
