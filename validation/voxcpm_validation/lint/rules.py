"""The table of rules for Core ML: what is checked, what happens otherwise, and the report of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from . import checks
from .function import Violation


@dataclass(frozen=True)
class Rule:
    """A rule that every function of a package must follow."""

    name: str
    check: Callable[[Any], Iterator[Violation]]
    """Called with a `Function` or a `CoreAIFunction`."""
    reason: str
    """What happens otherwise, in one sentence."""
    sources: tuple[str, ...]
    """Reports of it: a repository and the number of its issue or pull request, or a document."""
    accepted: str | None = None
    """Why a violation is accepted; None if it is a fault."""
    accepts: Callable[[Any], bool] = lambda function: True
    """The functions in which a violation is accepted, if `accepted` has a reason."""


RULES: tuple[Rule, ...] = (
    Rule(
        "select",
        checks.selections,
        "Core ML fails to load a `select` that broadcasts its operands.",
        ("onnxsim/onnxsim 1399", "kasper0406/stablehlo-coreml 91"),
    ),
    Rule(
        "value-shaped",
        checks.value_shaped,
        "Core ML rejects tensors whose shape is a computed value; enumerated shapes are allowed.",
        ("onnxsim/onnxsim 1430",),
    ),
    Rule(
        "rank",
        checks.ranks,
        "The Neural Engine's compiler fails on graphs with higher ranks.",
        ("FluidInference/FluidAudio 679",),
    ),
    Rule(
        "long-axis",
        checks.long_axes,
        "The Neural Engine rejects longer axes.",
        ("FluidInference/FluidAudio 121", "FluidInference/mobius 61"),
    ),
    Rule(
        "declared-shape",
        checks.declared_shapes,
        "coremltools declares wrong shapes for some results, and Core ML plans with them.",
        ("onnxsim/onnxsim 1399",),
    ),
    Rule(
        "dynamic-input",
        checks.dynamic_inputs,
        "Core ML crashed with a range of lengths on the GPU and the Neural Engine.",
        ("apple/coremltools 2825", "FluidInference/FluidAudio 738"),
    ),
    Rule(
        "state-size",
        checks.state_sizes,
        "The Neural Engine fails on states of other sizes.",
        ("apple/coremltools 2631",),
    ),
    Rule(
        "masked-batch",
        checks.masked_batches,
        "From this size on, results are wrong on the GPU of macOS 26.2.",
        ("apple/coremltools 2650",),
    ),
    Rule(
        "blockwise-scale",
        checks.blockwise_scales,
        "On macOS 26 loading such weights for the Neural Engine aborted the process.",
        ("apple/coremltools 2688",),
        "a risk on macOS 26: the report is about palettes, but coremltools' int8 and int4 for macOS 15 look the same",
        lambda function: function.precision in ("int8", "int4"),
    ),
    Rule(
        "scatter-into-state",
        checks.scatters_into_states,
        "The Neural Engine's compiler rejects `scatter` into a cache of any precision and rank.",
        ("FluidInference/mobius 67", "FluidInference/FluidAudio 679"),
    ),
    Rule(
        "float32",
        checks.float32_arithmetic,
        "The Neural Engine has no fp32, so such operations run elsewhere.",
        ("FluidInference/mobius 67", "john-rocky/coreai-model-zoo 36"),
    ),
    Rule(
        "infinite-constant",
        checks.infinite_constants,
        "A constant beyond fp16's 65504 is stored as infinity, and becomes NaN in a softmax.",
        ("cactus-compute/cactus 734",),
    ),
    Rule(
        "cropped-convolution",
        checks.cropped_convolutions,
        "Such slices do not run on an iPhone's GPU.",
        ("apple/coremltools 2550",),
    ),
    Rule(
        "padded-convolution",
        checks.padded_convolutions,
        "Otherwise the CPU's results differ from those of other units.",
        ("microsoft/onnxruntime 21416", "apple/coremltools 2281", "apple/coremltools 2324"),
    ),
    Rule(
        "weight-file",
        checks.weight_files,
        "An M1 loaded VoxCPM2's base language model only after it was split in two.",
        ("0seba/VoxCPMANE 14", "0seba/VoxCPMANE 13"),
    ),
)
