"""The six step models: names, inputs, outputs, state, shapes and dtypes, declared once.

Export, example inputs, manifest, runtime checks and validation are derived from this declaration.
A step model is a pure function (inputs, state) -> (outputs, state); each state tensor is an input `name` and an output
`name_out` of the same shape, and a stream starts with zeros.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, starmap
from typing import Literal, NamedTuple

from pydantic import Field, field_validator

from voxcpm_constants.architecture import Architecture, Transformer
from voxcpm_constants.audio_vae_contexts import decoder_contexts, encoder_contexts
from voxcpm_constants.bounds import MAX_AXIS_LENGTH, MAX_EULER_STEPS, MAX_LAYERS, MAX_POSITIONS
from voxcpm_constants.json_files import Record

AUDIO_VAE_ENCODER = "audio_vae_encoder"
AUDIO_VAE_DECODER = "audio_vae_decoder"
FEAT_ENCODER = "feat_encoder"
BASE_LM_STEP = "base_lm_step"
RESIDUAL_LM_STEP = "residual_lm_step"
LOCDIT_STEP = "locdit_step"
LOCDIT_SOLVE = "locdit_solve"  # An optional seventh step model: all Euler steps of a patch in one call
STEP_MODEL_NAMES = (
    AUDIO_VAE_ENCODER,
    AUDIO_VAE_DECODER,
    FEAT_ENCODER,
    BASE_LM_STEP,
    RESIDUAL_LM_STEP,
    LOCDIT_STEP,
)

Precision = Literal["fp16", "int8", "int4", "fp32"]
PRECISIONS: tuple[Precision, ...] = ("fp16", "int8", "int4", "fp32")

_MAX_ENCODED_PATCHES = 8
MAX_TOGETHER = 8
"""The most utterances that one call of a step model advances."""
_ZERO_VELOCITY_FRACTION = 0.04

PART_OUTPUT = "hidden_states"  # The output of each part except the last: the `embeddings` of the next one
ATTENTION = "attention"  # An optional output of the base LM's decode step: rows of the alignment heads

Dtype = Literal["float32", "int32", "compute"]
"""compute: the package's own arithmetic, float32 in fp32 packages, float16 in all others."""

Axis = int | tuple[int, ...]  # The length of an axis, or all lengths that an enumerated axis may have


class TensorSpec(Record):
    """One input, output or state tensor.

    KV caches and convolution contexts have the dtype "compute", so that no step casts a whole cache.
    """

    name: str
    shape: tuple[Axis, ...]
    dtype: Dtype = "float32"
    meaning: str

    @property
    def output_name(self) -> str:
        """Name of the updated tensor, if this is a state tensor."""
        return f"{self.name}_out"

    def shape_at(self, chunk: int) -> tuple[int, ...]:
        """The shape with each enumerated axis at its `chunk`-th length, counted from 0."""
        return tuple(axis if isinstance(axis, int) else axis[chunk] for axis in self.shape)


class StepModel(Record):
    """The inputs, outputs and state of one step model, in order."""

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    state: tuple[TensorSpec, ...] = ()

    def precision_in(self, folder: Precision) -> Precision:
        """The precision of the package in that folder of the bundle: fp32 if the state is declared as float32."""
        return "fp32" if any(t.dtype == "float32" for t in self.state) else folder

    @property
    def has_caches(self) -> bool:
        """Whether the state consists of KV caches; that of the AudioVAE consists of contexts."""
        return self.name.startswith((BASE_LM_STEP, RESIDUAL_LM_STEP))

    @property
    def is_shared(self) -> bool:
        """Whether one call may advance several utterances, in a bundle for them; an AudioVAE would become slower."""
        return self.name.startswith((FEAT_ENCODER, LOCDIT_STEP)) or self.has_caches

    @property
    def chunk_axis(self) -> tuple[TensorSpec, int]:
        """The first input with an enumerated axis, and that axis; if there is none, the first input and axis 1."""
        axes = ((t, i) for t in self.inputs for i, axis in enumerate(t.shape) if isinstance(axis, tuple))
        return next(axes, (self.inputs[0], 1))

    @property
    def chunk_lengths(self) -> tuple[int, ...]:
        """The possible lengths of `chunk_axis`."""
        tensor, index = self.chunk_axis
        axis = tensor.shape[index]
        return (axis,) if isinstance(axis, int) else axis

    @property
    def chunk_count(self) -> int:
        """Number of input shapes that the model accepts."""
        return len(self.chunk_lengths)

    def at(self, chunk: int, utterances: int = 1) -> StepModel:
        """The step model with enumerated axes fixed at their `chunk`-th length; only the shortest has `ATTENTION`.

        utterances: of one call. The first axis of every tensor has them all.
        """
        absent = "" if self.chunk_lengths[chunk] == min(self.chunk_lengths) else ATTENTION

        def fixed(tensors: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
            kept = [(t, t.shape_at(chunk)) for t in tensors if t.name != absent]
            return tuple(t.model_copy(update={"shape": (utterances * n, *m)}) for t, (n, *m) in kept)

        return self.model_copy(
            update={kind: fixed(getattr(self, kind)) for kind in ("inputs", "outputs", "state")}
        )


class AlignmentHead(NamedTuple):
    """An attention head of the base LM that follows the text as it is said, chosen by a calibration at conversion."""

    layer: int
    head: int
    shift: float  # Seconds from the end of the patch that is fed until what the head looks at is said
    score: float  # From 0 to 1


class StepSizes(Record):
    """Sizes chosen by the user at conversion, such as the cache length and chunk lengths."""

    kv_length: int = Field(default=1024, gt=0, le=MAX_POSITIONS)
    """Positions in both KV caches: text tokens, prompt patches and generated patches together."""
    prefill_chunks: tuple[int, ...] = (1, 16, 64)
    """The possible numbers of embeddings in one call of an LM step."""
    encode_patches: tuple[int, ...] = Field(default=(1, 16), validate_default=True)
    """The possible numbers of patches in one call of the feat encoder, ascending; 1 is always one of them."""

    together: int = Field(default=1, ge=1, le=MAX_TOGETHER)
    """Utterances that one call of the shared step models (`is_shared`) can advance, in functions of their own."""
    base_lm_parts: int = Field(default=1, ge=1, le=MAX_LAYERS)
    """Number of packages into which the base LM's layers are split (`parts`)."""
    solver_steps: int = Field(default=0, ge=0, le=MAX_EULER_STEPS)
    """Euler steps that `locdit_solve` takes in one call; 0 for a bundle without it."""
    alignment: tuple[AlignmentHead, ...] = ()
    """The heads whose attention is an output of the base LM, by layer; none for a bundle without it."""

    @field_validator("encode_patches")
    @classmethod
    def _include_one(cls, patches: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(sorted({1, *patches}))


def declare_step_models(
    architecture: Architecture, sizes: StepSizes, *, audio_vae_fp32: bool = False, stacked: bool = False
) -> dict[str, StepModel]:
    """All step models of a bundle by name, in the order of STEP_MODEL_NAMES; `locdit_solve` last, if it is included.

    audio_vae_fp32: the AudioVAE computes in float32 in every precision. stacked: a package of a language model has two
    caches, the keys and the values of all its layers, instead of two a layer.
    """
    contexts: Dtype = "float32" if audio_vae_fp32 else "compute"
    hidden = architecture.base_lm.hidden_size
    base_lm = _lm_step(
        BASE_LM_STEP,
        architecture.base_lm,
        sizes,
        sizes.base_lm_parts if stacked else architecture.base_lm.num_layers,
        ("hidden", hidden, "last hidden state, after the final norm"),
        ("fsq_hidden", hidden, "hidden state through scalar quantisation: used at audio positions"),
        ("stop_logits", 2, "continue, stop: read from fsq_hidden"),
    )
    models = [
        _audio_vae_encoder(architecture, contexts),
        _audio_vae_decoder(architecture, contexts),
        _feat_encoder(architecture, sizes),
        _with_attention(base_lm, sizes),
        _lm_step(
            RESIDUAL_LM_STEP,
            architecture.residual_lm,
            sizes,
            1 if stacked else architecture.residual_lm.num_layers,
            ("hidden", hidden, "residual hidden state, after the final norm"),
        ),
        _locdit_step(architecture),
    ]
    if sizes.solver_steps:
        models.append(_locdit_solve(architecture, sizes))
    return {model.name: model for model in models}


def _axis(lengths: tuple[int, ...], unit: int = 1) -> Axis:
    return tuple(length * unit for length in lengths) if len(lengths) > 1 else lengths[0] * unit


def encoder_patches(a: Architecture) -> tuple[int, ...]:
    """The possible numbers of patches in one call of the AudioVAE encoder, ascending; the first is 1.

    With its left context no signal is longer than MAX_AXIS_LENGTH, unless a single patch is.
    """
    max_width = max(width for _, width in encoder_contexts(a))
    maximum = min(_MAX_ENCODED_PATCHES, (MAX_AXIS_LENGTH - max_width) // a.patch_input_samples)
    return (1, maximum) if maximum > 1 else (1,)


def _tensor(name: str, shape: tuple[Axis, ...], meaning: str, dtype: Dtype = "float32") -> TensorSpec:
    return TensorSpec(name=name, shape=shape, dtype=dtype, meaning=meaning)


def _audio_vae_encoder(a: Architecture, contexts: Dtype) -> StepModel:
    samples = _axis(encoder_patches(a), a.patch_input_samples)
    frames = _axis(encoder_patches(a), a.patch_size)
    return StepModel(
        name=AUDIO_VAE_ENCODER,
        inputs=(_tensor("audio", (1, 1, samples), f"mono audio at {a.input_sample_rate} Hz"),),
        outputs=(_tensor("latents", (1, a.feat_dim, frames), "latent frames (batch, latent_dim, frames)"),),
        state=_contexts(encoder_contexts(a), contexts),
    )


def _audio_vae_decoder(a: Architecture, contexts: Dtype) -> StepModel:
    # One patch: longer chunks round differently, and streaming must give exactly the samples of offline generation.
    latents, audio = (1, a.feat_dim, a.patch_size), (1, 1, a.patch_output_samples)
    return StepModel(
        name=AUDIO_VAE_DECODER,
        inputs=(_tensor("latents", latents, "latent frames of one patch (batch, latent_dim, frames)"),),
        outputs=(_tensor("audio", audio, f"waveform in [-1, 1] at {a.output_sample_rate} Hz"),),
        state=_contexts(decoder_contexts(a), contexts),
    )


def _feat_encoder(a: Architecture, sizes: StepSizes) -> StepModel:
    patches = _axis(sizes.encode_patches)
    shape = (1, patches, a.patch_size, a.feat_dim)
    return StepModel(
        name=FEAT_ENCODER,
        inputs=(_tensor("patches", shape, "latent patches (batch, patches, frames, latent_dim)"),),
        outputs=(_tensor("embeddings", (1, patches, a.base_lm.hidden_size), "one LM embedding a patch"),),
    )


def _lm_step(
    name: str, lm: Transformer, sizes: StepSizes, stacks: int, *outputs: tuple[str, int, str]
) -> StepModel:
    """A language model whose layers share this many pairs of caches: one each, or stacks of successive layers."""
    chunk = _axis(sizes.prefill_chunks)
    return StepModel(
        name=name,
        inputs=(
            _tensor("embeddings", (1, chunk, lm.hidden_size), "input embeddings"),
            _tensor("position", (1,), "cache position of the first embedding", "int32"),
        ),
        outputs=tuple(_tensor(tensor, (1, chunk, width), meaning) for tensor, width, meaning in outputs),
        state=tuple(
            _cache(word, lm, sizes.kv_length, own)
            for own in starmap(range, pairwise(shares(lm.num_layers, stacks)))
            for word in ("keys", "values")
        ),
    )


def _cache(word: str, lm: Transformer, positions: int, own: range) -> TensorSpec:
    """The cache of some layers. word: keys or values."""
    stacked, first = len(own) > 1, own[0]
    of = f"layers {first} to {own[-1]} (layers" if stacked else f"layer {first} (batch"
    name, shape = f"{word[0]}_cache{'s' * stacked}_{first:02d}", (len(own), lm.num_kv_heads, positions)
    meaning = f"{word} of {of}, kv_heads, positions, head_dim)"
    return _tensor(name, (*shape, lm.head_dim), meaning, "compute")


def shares(total: int, count: int) -> list[int]:
    """The bounds of `count` nearly equal shares of `total` things."""
    return [index * total // count for index in range(count + 1)]


def _with_attention(model: StepModel, sizes: StepSizes) -> StepModel:
    """A base LM, or a part of it, with the rows of its alignment heads as an output."""
    count = sum(head.layer in layers(model) for head in sizes.alignment)
    meaning = "attention of the last embedding (batch, 1, heads, positions)"
    rows = (_tensor(ATTENTION, (1, 1, count, sizes.kv_length), meaning),) if count else ()
    return model.model_copy(update={"outputs": (*model.outputs, *rows)})


def _locdit_step(a: Architecture) -> StepModel:
    latents, embedding = (2, a.feat_dim, a.patch_size), (2, a.dit_config.hidden_dim)
    return StepModel(
        name=LOCDIT_STEP,
        inputs=(
            _tensor("x", latents, "noisy patch; rows: conditional, unconditional"),
            _tensor("mu", (2, a.mu_size), "LM condition; zeros in the unconditional row"),
            _tensor("t_embedding", embedding, "sine and cosine of the time, from 1 (noise) to 0 (data)"),
            _tensor("cond", latents, "previous patch"),
            _tensor(
                "dt_embedding", embedding, "sine and cosine of the step length in mean mode, else of zero"
            ),
        ),
        outputs=(_tensor("velocity", latents, "velocity of each row"),),
    )


def zero_velocity_steps(steps: int) -> int:
    """Number of initial steps with zero velocity (CFG-zero*, arXiv 2503.18886): 1 for fewer than 49 steps."""
    return max(1, int((steps + 1) * _ZERO_VELOCITY_FRACTION))


def _locdit_solve(a: Architecture, sizes: StepSizes) -> StepModel:
    moves = sizes.solver_steps - zero_velocity_steps(sizes.solver_steps)
    latents, times = (1, a.feat_dim, a.patch_size), (moves, a.dit_config.hidden_dim)
    return StepModel(
        name=LOCDIT_SOLVE,
        inputs=(
            _tensor("noise", latents, "the patch at time 1"),
            _tensor("mu", (1, a.mu_size), "LM condition"),
            _tensor("cond", latents, "previous patch"),
            _tensor("t_embeddings", times, "sine and cosine of the time at each step that moves the patch"),
            _tensor("step_lengths", (moves,), "the length of each of these steps"),
            _tensor("cfg_value", (1,), "classifier-free guidance"),
        ),
        outputs=(_tensor("patch", latents, "the patch at time 0"),),
    )


def _contexts(widths: Iterator[tuple[int, int]], dtype: Dtype) -> tuple[TensorSpec, ...]:
    return tuple(
        _tensor(
            f"context_{index:02d}", (1, channels, width), f"left context of causal convolution {index}", dtype
        )
        for index, (channels, width) in enumerate(widths)
    )


def parts(model: StepModel, sizes: StepSizes) -> tuple[StepModel, ...]:
    """The step models that run in sequence as `model`, each in its own package; usually just `model`.

    A base LM whose weights are too large for one package is split, each part with some of the layers and their caches.
    The first one takes the embeddings, the others the previous part's hidden states, under the same name.
    """
    count = sizes.base_lm_parts if model.name == BASE_LM_STEP else 1
    if count == 1:
        return (model,)
    embeddings = model.inputs[0]
    part_output = TensorSpec(name=PART_OUTPUT, shape=embeddings.shape, meaning="after this part's layers")
    own = tuple(output for output in model.outputs if output.name != ATTENTION)
    bounds = [2 * bound for bound in shares(len(model.state) // 2, count)]
    updates = (
        {
            "name": f"{model.name}_{index + 1}",
            "outputs": own if index + 1 == count else (part_output,),
            "state": model.state[bounds[index] : bounds[index + 1]],
        }
        for index in range(count)
    )
    return tuple(_with_attention(model.model_copy(update=update), sizes) for update in updates)


def layers(model: StepModel) -> range:
    """The layers of a language model, or of a part of it, by the caches in its state."""
    first, utterances = int(model.state[0].name.rpartition("_")[2]), model.inputs[0].shape_at(0)[0]
    return range(first, first + sum(keys.shape_at(0)[0] for keys in model.state[::2]) // utterances)
