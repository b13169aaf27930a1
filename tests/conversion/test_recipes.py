from fnmatch import fnmatchcase

import numpy as np
import pytest

from voxcpm_constants.architecture import Architecture
from voxcpm_constants.manifest import package_path
from voxcpm_constants.step_models import STEP_MODEL_NAMES, StepSizes, declare_step_models
from voxcpm_conversion.core_ml.toolchain import import_coremltools
from voxcpm_conversion.modules.voxcpm import empty_modules
from voxcpm_conversion.recipes import BLOCK, RECIPES, chosen_format
from voxcpm_conversion.step_modules import build_step
from voxcpm_conversion.synthetic_presets import presets

SIZES = StepSizes(kv_length=128, prefill_chunks=(1,))
DEQUANTIZE = "constexpr_blockwise_shift_scale"


@pytest.mark.parametrize(
    "pattern",
    ["*stop_proj*", "*stop_head*", "*quantizer_in_proj*", "*_[kvo]_proj_weight", "dit_*", "network_*"],
)
def test_sensitive_weights_use_8_bits_or_more(pattern):
    matched = [
        (s, w) for s, w in _names(Architecture.from_document(presets()["tiny"])) if fnmatchcase(w, pattern)
    ]
    assert matched
    assert "int4" not in {chosen_format("int4", *name, (64, 64)) for name in matched}


def _names(a):
    """(step model, weight) of all matrices and kernels, with coremltools' names."""
    modules = empty_modules(a)
    for step_model, declared in declare_step_models(a, SIZES).items():
        for name, parameter in build_step(declared, modules, a, SIZES).named_parameters():
            # The encoder's variance is used in training only; the special token and the alphas are not multiplied with.
            if (
                parameter.ndim > 1
                and not name.startswith("network.fc_logvar")
                and not name.endswith(("token", "alpha"))
            ):
                yield step_model, name.replace(".", "_")


def _formats(package):
    """Element type, shape and scales per row of each compressed weight in a package; FLOAT16 for the other weights."""
    types = import_coremltools().proto.MIL_pb2.DataType
    spec = import_coremltools().utils.load_spec(str(package))
    found = {}
    for function in spec.mlProgram.functions.values():
        for operation in function.block_specializations[function.opset].operations:
            name = operation.outputs[0].name if operation.outputs else ""
            if operation.type == DEQUANTIZE:
                data, scale = (
                    operation.inputs[key].arguments[0].value.type.tensorType for key in ("data", "scale")
                )
                shape = tuple(d.constant.size for d in data.dimensions)
                found[name.removesuffix("_to_fp16_quantized").removeprefix("step_")] = (
                    types.Name(data.dataType), shape, scale.dimensions[-1].constant.size,
                )  # fmt: skip
            elif operation.type == "const":
                value = operation.outputs[0].type.tensorType
                shape = tuple(d.constant.size for d in value.dimensions)
                found[name.removesuffix("_to_fp16").removeprefix("step_")] = (
                    types.Name(value.dataType), shape, 0,
                )  # fmt: skip
    return found


@pytest.mark.parametrize("precision", RECIPES)
@pytest.mark.parametrize("step_model", STEP_MODEL_NAMES)
def test_packages_store_weights_in_the_recipes_formats(
    tiny_bundle_15, tiny_checkpoint, step_model, precision
):
    found = _formats(tiny_bundle_15 / package_path(precision, step_model))
    weights = [
        w for s, w in _names(Architecture.from_file(tiny_checkpoint / "config.json")) if s == step_model
    ]
    large = [w for w in weights if np.prod(found[w][1]) > 2048]
    for weight in large:
        kind, shape, scales = found[weight]
        expected = chosen_format(precision, step_model, weight, shape)
        assert kind.lower() == expected, weight
        assert scales == (shape[1] // BLOCK if expected == "int4" else 1), weight
    assert {found[w][0] for w in weights if w not in large} <= {"FLOAT16"}
    assert large
