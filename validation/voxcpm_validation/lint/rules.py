"""The table of rules for Core ML: what each expects of a function, why, and who reported it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from voxcpm_constants.bounds import (
    LARGEST_RANK,
    LARGEST_WEIGHT_FILE,
    LONGEST_AXIS,
    MASKED_BATCH,
    STATE_MULTIPLE,
)

from . import interface, shapes, values
from .function import Violation


@dataclass(frozen=True)
class Rule:
    """What every function of a package must respect, and its check."""

    name: str
    expectation: str
    reason: str
    """What happens otherwise, in one sentence."""
    sources: tuple[str, ...]
    """Reports of it: a repository and the number of its issue or pull request, or a document."""
    check: Callable[[Any], Iterator[Violation]]
    """Called with a `Function` or a `CoreAIFunction`."""
    accepted: str | None = None
    """Why a violation is accepted; None if it is a fault."""
    accepts: Callable[[Any], bool] = lambda function: True
    """The functions in which a violation is accepted, if `accepted` has a reason."""


RULES: tuple[Rule, ...] = (
    Rule(
        "select",
        "no `select`; indices of 16 bits stay so",
        "Core ML refuses to load a `select` whose operands it would have to broadcast.",
        ("onnxsim/onnxsim 1399", "kasper0406/stablehlo-coreml 91"),
        values.selections,
    ),
    Rule(
        "value-shaped",
        "no tensor's size is computed while the model runs",
        "Core ML refuses tensors that are shaped by a computed value; enumerated shapes are allowed.",
        ("onnxsim/onnxsim 1430",),
        shapes.value_shaped,
    ),
    Rule(
        "rank",
        f"tensors have at most {LARGEST_RANK} axes",
        "The Neural Engine's compiler fails on graphs with more.",
        ("FluidInference/FluidAudio 679",),
        shapes.ranks,
    ),
    Rule(
        "long-axis",
        f"no axis of an activation has more than {LONGEST_AXIS:,} elements at any enumerated length",
        "The Neural Engine refuses longer ones.",
        ("FluidInference/FluidAudio 121", "FluidInference/mobius 61"),
        shapes.long_axes,
    ),
    Rule(
        "declared-shape",
        "every declared shape is the one that ONNX infers at each enumerated length",
        "coremltools declares some results with a shape that they do not have, and Core ML plans with it.",
        ("onnxsim/onnxsim 1399",),
        shapes.declared_shapes,
    ),
    Rule(
        "dynamic-input",
        "inputs have fixed or enumerated shapes",
        "Core ML crashed with a range of lengths on the GPU and the Neural Engine.",
        ("apple/coremltools 2825", "FluidInference/FluidAudio 738"),
        interface.dynamic_inputs,
    ),
    Rule(
        "state-size",
        f"the last two axes of a state are multiples of {STATE_MULTIPLE}",
        "The Neural Engine fails on other states.",
        ("apple/coremltools 2631",),
        interface.state_sizes,
    ),
    Rule(
        "masked-batch",
        f"attention with a mask has leading axes of less than {MASKED_BATCH}",
        "From this size on, results are wrong on the GPU of macOS 26.2.",
        ("apple/coremltools 2650",),
        values.masked_batches,
    ),
    Rule(
        "blockwise-scale",
        "no `constexpr_blockwise_shift_scale` has fp16 scales",
        "On macOS 26 loading such weights for the Neural Engine aborted the process.",
        ("apple/coremltools 2688",),
        values.blockwise_scales,
        "a risk on macOS 26: the report is about palettes, and coremltools writes int8 and int4 for macOS 15 so",
        lambda function: function.precision in ("int8", "int4"),
    ),
    Rule(
        "scatter-into-state",
        "states are written with `slice_update`",
        "The Neural Engine's compiler refuses `scatter` into a cache, whatever its precision and rank.",
        ("FluidInference/mobius 67", "FluidInference/FluidAudio 679"),
        values.scatters_into_states,
    ),
    Rule(
        "float32",
        "packages other than fp32 compute in fp16; casts at the border are allowed",
        "The Neural Engine has no fp32, so each such operation leaves it.",
        ("FluidInference/mobius 67", "john-rocky/coreai-model-zoo 36"),
        values.float32_arithmetic,
    ),
    Rule(
        "infinite-constant",
        "all constants are finite",
        "A constant beyond fp16's 65504 is stored as infinity, and becomes NaN in a softmax.",
        ("cactus-compute/cactus 734",),
        values.infinite_constants,
    ),
    Rule(
        "cropped-convolution",
        "transposed convolutions are cropped by their padding, not by a slice",
        "Such slices leave the GPU on an iPhone.",
        ("apple/coremltools 2550",),
        values.cropped_convolutions,
    ),
    Rule(
        "padded-convolution",
        "transposed convolutions are padded equally, and an `output_shape` is what stride, kernel and padding give",
        "Otherwise results on the CPU differ from those elsewhere.",
        ("microsoft/onnxruntime 21416", "apple/coremltools 2281", "apple/coremltools 2324"),
        values.padded_convolutions,
    ),
    Rule(
        "interface",
        "the program's inputs and outputs are those of its description, and both those of the declaration",
        "Core ML binds what the description names, and an app what the manifest names.",
        ("Core ML's specification, `Model.proto`",),
        interface.interfaces,
    ),
    Rule(
        "target",
        "specification, operations and element types are those of the deployment target",
        "An earlier system cannot open the package.",
        ("coremltools' registry of operations",),
        interface.targets,
    ),
    Rule(
        "weight-file",
        f"the weights of a package have at most {LARGEST_WEIGHT_FILE / 1e9:g} GB",
        "An M1 loaded VoxCPM2's base language model only after it was split in two.",
        ("0seba/VoxCPMANE 14", "0seba/VoxCPMANE 13"),
        interface.weight_files,
    ),
)
