"""The portable executor: a Core ML .mlpackage run on ONNX Runtime, off the Mac.

    model = PortableStepModel(path, state={"k_cache_0": "k_cache_0_out"})
    state = model.new_state()
    outputs = model({"embeds": embeds, "position": position}, state)

The package's ML program is lowered to an ONNX graph once (lowering.py, operators/) and cached (cache.py); the weights
stay in the package, memory-mapped. A cached start imports neither coremltools nor onnx.
"""

from voxcpm_runtime.backends.portable.lowered import PROBE_OUTPUT
from voxcpm_runtime.backends.portable.package import PackageError
from voxcpm_runtime.backends.portable.step_model import PortableStepModel

__all__ = ["PROBE_OUTPUT", "PackageError", "PortableStepModel"]
