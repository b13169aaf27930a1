#!/usr/bin/env python3
"""VoxCPM's algorithm in one file, from text to WAV, with numpy, a tokenizer and the six step models of a bundle.

    text ─► tokens ─► prefill ─► patches ─► audio
                         │          │
        base LM ─► hidden, stop     └─ noise ─► Euler steps of the DiT, guided by the LMs' hidden states
        residual LM ─► residual hidden         ─► feat encoder ─► one step of both LMs ─► the next patch

    python generate_coreml.py --bundle voxcpm-1.5 --text "Hello." --prompt me.wav --prompt-text "What I say."

Core ML runs the step models on a Mac, ONNX Runtime elsewhere. The samples are those of `voxcpm-coreml generate
--no-retry --no-every-word --zero-shot` for a text of one segment. What that adds is left out here: long texts, reading
numbers aloud, retries, word times, default voices, raising quiet recordings.

A patch is `patch_size` latent frames; `hidden` is the width of the language models.
"""

from __future__ import annotations

import argparse
import itertools
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import soundfile

# Runs from a checkout where only the requirements are installed.
sys.path[:0] = [str(Path(__file__).resolve().parent / package) for package in ("constants", "runtime")]

from voxcpm_constants.architecture import Architecture
from voxcpm_constants.errors import InputError, VoxCPMError
from voxcpm_runtime.backends.loading import load_step_models
from voxcpm_runtime.backends.step_function import StepFunction, StepState
from voxcpm_runtime.bundle.opening import Bundle, open_bundle

Array = npt.NDArray[Any]

AUDIO_START, REFERENCE_START, REFERENCE_END = 101, 103, 104  # Tokens between text and audio
AUDIO = -1  # In place of a token: a patch of a recording
STOP = 1  # Index of "stop" in the stop head's logits
CALL_COST = 8  # A call reads all weights, which takes about as long as the arithmetic for this many positions


# ── Recordings ────────────────────────────────────────────────────────────────────────────────────────────────────────


def read_recording(path: str, rate: int, patch_samples: int, *, pad_left: bool) -> Array:
    """A recording as mono float32 (samples,) at `rate` Hz, zero-padded to whole patches."""
    samples, source_rate = soundfile.read(path, dtype="float32", always_2d=True)
    audio = samples.mean(axis=1, dtype=np.float32)
    if source_rate != rate:
        import soxr

        audio = soxr.resample(audio, source_rate, rate)
    padding = -len(audio) % patch_samples
    return np.pad(audio, (padding, 0) if pad_left else (0, padding))


# ── Step models ───────────────────────────────────────────────────────────────────────────────────────────────────────


def chunks(
    count: int, sizes: Sequence[int], position: int = 0, capacity: float = math.inf
) -> Iterator[tuple[int, int, int]]:
    """The cheapest way to run `count` positions in chunks of `sizes`, the lengths that a step model was converted for.

    Yields (start, length, size). Only the last chunk may be padded, from `length` to `size`. Its padding is written to
    the KV cache too, where nothing attends to it before it is overwritten; it must fit in `capacity`.
    """
    best = [(0, 0)]  # (cost, -size of the first chunk) of the last `left` positions
    for left in range(1, count + 1):
        fitting = [size for size in sizes if size <= left or position + count - left + size <= capacity]
        best.append(min((CALL_COST + size + best[max(0, left - size)][0], -size) for size in fitting))
    start = 0
    while start < count:
        size = -best[count - start][1]
        yield start, min(size, count - start), size
        start += size


def padded(rows: Array, size: int) -> Array:
    """Rows (n, ...) as a batch of one (1, size, ...), padded with zeros."""
    batch = np.zeros((1, size, *rows.shape[1:]), np.float32)
    batch[0, : len(rows)] = rows
    return batch


def linear(rows: Array, weight: Array, bias: Array) -> Array:
    """A projection of rows (..., inputs) to (..., outputs).

    Without BLAS for a row or two, since its threads would then spin for 0.1 s on the cores that the step models need.
    """
    weight, bias = np.asarray(weight, np.float32), np.asarray(bias, np.float32)
    few = rows.size <= 4 * weight.shape[1]
    product: Array = np.einsum("...i,oi->...o", rows, weight) if few else rows @ weight.T
    return product + bias


class LanguageModels:
    """The two language models and their KV caches, the feat encoder, and the projections between them."""

    def __init__(self, bundle: Bundle, models: Mapping[str, StepFunction]) -> None:
        self.architecture, self.sizes, self.constants = (
            bundle.architecture,
            bundle.manifest.sizes,
            bundle.constants,
        )
        self.models = models
        self.base_cache, self.residual_cache = (
            models[f"{name}_lm_step"].new_state() for name in ("base", "residual")
        )
        self.position = 0

    def prefill(self, tokens: Sequence[int], patches: Array) -> None:
        """Run tokens (n,), with the patches at those that are AUDIO (patches, frames, latent_dim)."""
        is_audio = np.array(tokens) == AUDIO
        audio = np.zeros((len(tokens), self.architecture.lm_config.hidden_size), np.float32)
        audio[is_audio] = self.embed_patches(patches)
        text = np.asarray(self.constants["embed_tokens"][np.array(tokens)], np.float32)
        text *= np.float32(self.architecture.text_embedding_scale)
        self._run(np.where(is_audio[:, None], audio, text), audio, is_audio)

    def feed(self, patch: Array) -> None:
        """Run one generated patch (frames, latent_dim)."""
        audio = self.embed_patches(patch[None])
        self._run(audio, audio, np.array([True]))

    def _run(self, embeddings: Array, audio: Array, is_audio: Array) -> None:
        """Run embeddings (n, hidden); `audio` is zero at text. Sets `condition` and `stops` for the next patch."""
        base = self._lm_step("base_lm_step", self.base_cache, embeddings)
        # Audio positions pass through the scalar quantiser, text positions do not.
        hidden = np.where(is_audio[:, None], base["fsq_hidden"], base["hidden"])
        if self.architecture.traits.fuses_residual_input:
            rows = np.concatenate((hidden, audio), axis=-1)
            rows = linear(
                rows, self.constants["fusion_concat_proj_w"], self.constants["fusion_concat_proj_b"]
            )
        else:
            rows = hidden + audio
        residual = self._lm_step("residual_lm_step", self.residual_cache, rows)["hidden"]
        self.position += len(embeddings)

        lm = linear(hidden[-1], self.constants["lm_to_dit_proj_w"], self.constants["lm_to_dit_proj_b"])
        res = linear(residual[-1], self.constants["res_to_dit_proj_w"], self.constants["res_to_dit_proj_b"])
        added = self.architecture.traits.mu_tokens == 1
        self.condition = lm + res if added else np.concatenate((lm, res))  # mu (mu_size,)
        self.stops = int(np.argmax(base["stop_logits"][-1])) == STOP

    def embed_patches(self, patches: Array) -> Array:
        """Patches (n, frames, latent_dim) as the base LM reads them (n, hidden)."""
        found = [np.zeros((0, self.architecture.lm_config.hidden_size), np.float32)]
        for start, length, size in chunks(len(patches), self.sizes.encode_patches):
            outputs = self.models["feat_encoder"]({"patches": padded(patches[start : start + length], size)})
            found.append(outputs["embeddings"][0, :length])
        return np.concatenate(found)

    def _lm_step(self, name: str, cache: StepState, rows: Array) -> dict[str, Array]:
        """Run a language model on rows (n, hidden), which it writes to its cache from `position` on."""
        parts = []
        for start, length, size in chunks(
            len(rows), self.sizes.prefill_chunks, self.position, self.sizes.kv_length
        ):
            at = np.array([self.position + start], np.int32)
            outputs = self.models[name](
                {"embeddings": padded(rows[start : start + length], size), "position": at}, cache
            )
            parts.append({output: array[0, :length] for output, array in outputs.items()})
        return {
            name: np.concatenate([part[name] for part in parts])
            for name in parts[-1].keys() & parts[0].keys()
        }


# ── A patch from noise ────────────────────────────────────────────────────────────────────────────────────────────────


def euler_steps(steps: int, sway: float = 1.0) -> tuple[Array, Array]:
    """Time and length (steps,) of each Euler step from 1 (noise) to 0 (data), with sway sampling (arXiv 2410.06885)."""
    index = np.arange(steps + 1, dtype=np.float32)
    step = np.float32(1) / np.float32(steps)
    # From both ends, as torch.linspace computes it.
    even = np.where(2 * index < steps + 1, 1 - step * index, step * (steps - index)).astype(np.float32)
    times = even + np.float32(sway) * (np.cos(np.float32(math.pi / 2) * even) - np.float32(1) + even)
    # Upstream subtracts the lengths, and the DiT sees the rounding of that.
    t, starts, lengths = times[0], [], []
    for following in times[1:]:
        dt = t - following
        starts.append(t)
        lengths.append(dt)
        t = t - dt
    return np.array(starts, np.float32), np.array(lengths, np.float32)


def time_embedding(times: Array, width: int) -> Array:
    """Sines, then cosines, of 1000 · time at geometric frequencies from 1 to 1/10000: (n,) -> (n, width)."""
    half = width // 2
    frequencies = np.exp(np.arange(half, dtype=np.float32) * np.float32(math.log(1 / 10000) / (half - 1)))
    angles = np.float32(1000) * times[:, None] * frequencies
    return np.concatenate((np.sin(angles), np.cos(angles)), axis=-1)


def draw_patch(
    dit: StepFunction, a: Architecture, noise: Array, condition: Array, before: Array, steps: int, cfg: float
) -> Array:  # fmt: skip
    """A patch (latent_dim, frames) from noise of that shape. before: the previous patch.

    The DiT runs on two rows, with the condition and without (classifier-free guidance). CFG-zero* (arXiv 2503.18886)
    has zero velocity in the first 4 % of the steps, one at least, and scales the unconditional velocity by its
    projection on the conditional one.
    """
    times, lengths = euler_steps(steps)
    width = a.dit_config.hidden_dim
    t_embeddings = time_embedding(times, width)
    dt_embeddings = time_embedding(lengths if a.mean_mode else np.zeros_like(lengths), width)
    mu, cond = np.stack([condition, np.zeros_like(condition)]), np.stack([before, before])
    x = noise
    for step in range(max(1, int((steps + 1) * 0.04)), steps):
        t, dt = t_embeddings[step], dt_embeddings[step]
        inputs = {"x": np.stack([x, x]), "mu": mu, "cond": cond}
        inputs |= {"t_embedding": np.stack([t, t]), "dt_embedding": np.stack([dt, dt])}
        positive, negative = dit(inputs)["velocity"]
        negative = negative * (np.sum(positive * negative) / (np.sum(negative * negative) + np.float32(1e-8)))
        x = x - lengths[step] * (negative + np.float32(cfg) * (positive - negative))
    return x


# ── The AudioVAE, whose states carry the left context of its causal convolutions ──────────────────────────────────────


def encode_audio(encoder: StepFunction, a: Architecture, audio: Array, sizes: Sequence[int]) -> Array:
    """Patches (n, frames, latent_dim) of audio that is a whole number of patches long."""
    state, samples = encoder.new_state(), a.patch_input_samples
    found = [np.zeros((0, a.patch_size, a.feat_dim), np.float32)]
    for start, length, size in chunks(len(audio) // samples, sizes):
        chunk = np.zeros((1, 1, size * samples), np.float32)
        chunk[0, 0, : length * samples] = audio[start * samples : (start + length) * samples]
        latents = encoder({"audio": chunk}, state)["latents"][0]  # (latent_dim, size · frames)
        found.append(latents.reshape(a.feat_dim, size, -1).transpose(1, 2, 0)[:length])
    return np.ascontiguousarray(np.concatenate(found), np.float32)


def speak(bundle: Bundle, models: Mapping[str, StepFunction], given: argparse.Namespace) -> Iterator[Array]:
    """Yield the audio (samples,) of each patch at `output_sample_rate`: all of the algorithm, in order."""
    a, sizes = bundle.architecture, bundle.manifest.sizes
    given.text = re.sub(r"\s+", " ", given.text)
    if unknown := bundle.tokenizer.unknown_characters(given.prompt_text + given.text):
        raise InputError(f"the vocabulary has no token for {unknown!r}; spell the text in those that it has")
    if given.reference and not a.traits.takes_reference:
        raise InputError("--reference needs VoxCPM2; use --prompt and --prompt-text")

    # The voice, as latent patches. The prompt ends, and the reference begins, with the recording.
    encoder = models["audio_vae_encoder"]
    samples = bundle.manifest.step_models["audio_vae_encoder"].chunk_lengths
    lengths = [length // a.patch_input_samples for length in samples]
    recordings = [
        read_recording(path, a.input_sample_rate, a.patch_input_samples, pad_left=left)
        if path
        else np.zeros(0)
        for path, left in ((given.prompt, True), (given.reference, False))
    ]
    prompt, reference = (encode_audio(encoder, a, audio, lengths) for audio in recordings)

    # Prefill: all positions before the first generated patch.
    #   zero-shot       text 101
    #   continuation    text 101 prompt                  (text: the transcript and the text, tokenised as one)
    #   reference       103 reference 104 text 101       (VoxCPM2)
    #   both            103 reference 104 text 101 prompt
    text, transcript = (
        bundle.tokenizer(said) for said in (given.prompt_text + given.text, given.prompt_text)
    )
    lead = [REFERENCE_START, *[AUDIO] * len(reference), REFERENCE_END] if len(reference) else []
    tokens = [*lead, *text, AUDIO_START, *[AUDIO] * len(prompt)]
    shortest = min(given.min_len + 2, given.max_len)
    bound = int(len(bundle.tokenizer(given.text)) * 6 + 10)  # Upstream's maximum for a text
    limit = min(max(min(bound, given.max_len), shortest), sizes.kv_length - len(tokens))
    if limit < shortest:
        raise InputError(f"{len(tokens)} positions leave no room in a KV cache of {sizes.kv_length}")
    language_models = LanguageModels(bundle, models)
    # First what depends on the voice alone, which a server computes once; then from the first token that differs.
    if voice := [*lead, *transcript]:
        language_models.prefill(voice, reference)
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(voice, tokens, strict=False))
    language_models.position = len(list(same))
    language_models.prefill(tokens[language_models.position :], prompt)

    # The decoder continues the prompt's sound.
    decoder, state = models["audio_vae_decoder"], models["audio_vae_decoder"].new_state()
    for patch in prompt[max(0, len(prompt) - a.traits.decoder_context_patches) :]:
        decoder({"latents": np.ascontiguousarray(patch.T[None])}, state)

    rng = np.random.default_rng(given.seed)
    patch = prompt[-1] if len(prompt) else np.zeros((a.patch_size, a.feat_dim), np.float32)
    for index in range(limit):
        noise = rng.standard_normal((1, a.feat_dim, a.patch_size)).astype(np.float32)[0]
        before = np.ascontiguousarray(patch.T)
        latents = draw_patch(
            models["locdit_step"], a, noise, language_models.condition, before, given.steps, given.cfg
        )
        yield decoder({"latents": np.ascontiguousarray(latents[None], np.float32)}, state)["audio"][0, 0]
        # The stop head judges what was fed so far, so the patch after its decision is the last one.
        if language_models.stops and index > given.min_len and not given.no_stop:
            return
        patch = np.ascontiguousarray(latents.T)
        if index + 1 < limit:
            language_models.feed(patch)


def main() -> int:
    """Speak the text of the command line into a WAV file; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bundle", help="folder of a bundle; default: the built-in voice")
    parser.add_argument("--text", required=True)
    parser.add_argument("--prompt", metavar="WAV", help="recording to continue")
    parser.add_argument("--prompt-text", default="", help="its transcript")
    parser.add_argument("--reference", metavar="WAV", help="recording of the voice (VoxCPM2)")
    parser.add_argument("--output", default="out.wav", metavar="WAV")
    parser.add_argument("--precision", help="int8, int4, fp16 or fp32")
    parser.add_argument("--max-len", type=int, default=4096, help="maximum number of patches")
    parser.add_argument("--min-len", type=int, default=2, help="patches before the stop head is heard")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--steps", type=int, default=10, help="Euler steps a patch")
    parser.add_argument("--cfg", type=float, default=2.0, help="strength of classifier-free guidance")
    parser.add_argument("--no-stop", action="store_true", help="speak until --max-len")
    given = parser.parse_args()
    if bool(given.prompt) != bool(given.prompt_text):
        parser.error("--prompt and --prompt-text belong together")
    try:
        bundle = open_bundle(given.bundle, given.precision)
        audio = np.concatenate(list(speak(bundle, load_step_models(bundle), given)))
    except (VoxCPMError, OSError, soundfile.LibsndfileError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    samples = np.round(np.clip(audio, -1, 1) * 32767).astype(np.int16)
    soundfile.write(given.output, samples, bundle.architecture.output_sample_rate)
    return 0


if __name__ == "__main__":
    sys.exit(main())
