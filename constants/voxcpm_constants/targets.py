"""Deployment targets, and the form of a step model's package for each of them.

macOS14   one function, `main`, that accepts every enumerated length; state is inputs `name` and outputs `name_out`.
          With the KV cache form "rows", the caches are inputs only; the outputs `name_rows` are the rows that the
          call computed, and the caller writes them into the caches.
macOS15   the caches of the LM steps are Core ML states, and these packages have one function for each length, which
          share the weights: `decode` for one embedding, `prefill_16` for 16, and so on. The other step models have
          the same form as for macOS14. With the KV cache form "stacked", a language model has two caches instead of
          two a layer; they are declared so (`declare_step_models`). In a bundle for several utterances at once, the
          packages of `is_shared` step models have another function, such as `together_4`, whose caches are inputs and
          outputs.
macOS27   Core AI programs instead of Core ML packages. All state is Core AI's: the contexts of the AudioVAE, and the
          KV caches of the LM steps as two tensors, the keys and the values of all layers. With the form "rows" these
          two are inputs, and two outputs are the rows of all layers. Each step model with several lengths has one
          function for each of them: those of the LM steps as for macOS15, else `patches_16`, named after the input.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from voxcpm_constants.step_models import StepModel, TensorSpec

Target = Literal["macOS14", "macOS15", "macOS27"]
TARGETS: tuple[Target, ...] = ("macOS14", "macOS15", "macOS27")
MIN_MACOS: dict[Target, int] = {"macOS14": 14, "macOS15": 15, "macOS27": 27}
"""The oldest major version of macOS that opens packages of a target."""
SYSTEMS: dict[Target, str] = {
    "macOS14": "macOS 14, iOS 17 or later",
    "macOS15": "macOS 15, iOS 18 or later",
    "macOS27": "macOS 27, iOS 27 or later",
}
"""Systems that run the packages of a target."""
CORE_AI: Target = "macOS27"  # The target whose packages are Core AI's; those of the others are Core ML's

PACKAGE_SUFFIXES: dict[Target, str] = {
    "macOS14": ".mlpackage",
    "macOS15": ".mlpackage",
    "macOS27": ".aimodel",
}
"""Suffix of a package's name, by target."""

KVCache = Literal["scatter", "rows", "stacked"]
"""How a macOS 14 package returns its KV caches: whole, or only the rows that a call computed. stacked: in macOS 15
packages, the caches of all layers are one state for the keys and one for the values.
"""
KV_CACHES: tuple[KVCache, ...] = ("scatter", "rows", "stacked")

StateForm = Literal["passed", "rows", "native"]
"""passed: inputs and outputs. rows: inputs, whose new rows are outputs. native: states of Core ML or Core AI."""

MAIN = "main"  # Name of the function in a package that has only one
_TOGETHER = "together_"  # Begins the name of a function for several utterances; their number follows


class PackageForm(NamedTuple):
    """The functions of a package by name, the default one first, and how they handle state."""

    functions: dict[str, StepModel]
    state: StateForm

    def state_in(self, function: str) -> StateForm:
        """How a function handles state. That of several utterances is passed: Core ML's own has one shape a package."""
        return "passed" if utterances_of(function) > 1 else self.state


def utterances_of(function: str) -> int:
    """The number of utterances that a call of a function of that name advances."""
    return int(function.removeprefix(_TOGETHER)) if function.startswith(_TOGETHER) else 1


def package_form(
    model: StepModel, target: Target, kv_cache: KVCache = "scatter", together: int = 1
) -> PackageForm:
    """The form of a step model's package for a deployment target.

    kv_cache: not "rows" for macOS 15. together: the utterances that a bundle for macOS 15 can advance in one call.
    """
    by_length = target == CORE_AI or (target == "macOS15" and model.has_caches)
    state: StateForm = "native" if by_length else "passed"
    if model.has_caches and kv_cache == "rows":
        state = "rows"
    own = with_stacked_caches(model) if model.has_caches and target == CORE_AI else model
    functions = {MAIN: own}
    if by_length and model.chunk_count > 1:
        functions = {_function_name(model, length): own.at(i) for i, length in enumerate(model.chunk_lengths)}
    if together > 1 and model.is_shared:
        shortest = own.chunk_lengths.index(min(own.chunk_lengths))
        functions[f"{_TOGETHER}{together}"] = own.at(shortest, together)
    return PackageForm(functions, state)


def with_stacked_caches(model: StepModel) -> StepModel:
    """A language model with its caches stacked in two (layers, 1, kv_heads, positions, head_dim): keys and values."""
    layers = len(model.state) // 2
    stacked = (
        TensorSpec(
            name=f"{kind}_caches",
            shape=(layers, *model.state[0].shape),
            dtype="compute",
            meaning=f"{word} of all layers (layers, batch, kv_heads, positions, head_dim)",
        )
        for kind, word in (("k", "keys"), ("v", "values"))
    )
    return model.model_copy(update={"state": tuple(stacked)})


def _function_name(model: StepModel, length: int) -> str:
    if not model.has_caches:
        return f"{model.chunk_axis[0].name}_{length}"
    return "decode" if length == 1 else f"prefill_{length}"


def updated_name(tensor: TensorSpec, state: StateForm) -> str:
    """Name of the output that updates a state tensor.

    A native state is updated inside the package and has no such output: then it is the state's own name.
    """
    return {"passed": tensor.output_name, "rows": f"{tensor.name}_rows", "native": tensor.name}[state]
