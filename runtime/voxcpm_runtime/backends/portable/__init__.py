"""The portable executor: a Core ML .mlpackage run on ONNX Runtime, off the Mac.

The package's ML program is lowered to an ONNX graph once (lowering.py, operators/) and cached (cache.py); the weights
stay in the package, memory-mapped. A cached start imports neither coremltools nor onnx.
"""

from voxcpm_runtime.backends.portable.lowered import PROBE_OUTPUT
from voxcpm_runtime.backends.portable.package import PackageError
from voxcpm_runtime.backends.portable.step_model import PortableStepModel

__all__ = ["PROBE_OUTPUT", "PackageError", "PortableStepModel"]
