"""Which attention heads of the base LM follow the text as it is said: a calibration that needs no recordings.

The model speaks a few texts. A head is good if the text position it attends to advances steadily, and it attends to
little else. With its time shift, the loud letters that it has reached are where the speech is loud.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from voxcpm_constants import step_models as names
from voxcpm_constants.step_models import AlignmentHead, StepSizes, declare_step_models
from voxcpm_constants.tokenizer_file import AUDIO_START, open_tokenizer
from voxcpm_conversion.checkpoint import Checkpoint
from voxcpm_conversion.modules.voxcpm import EMBED_TOKENS, empty_modules
from voxcpm_conversion.step_modules import build_step
from voxcpm_conversion.vectors import time_embedding

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

MIN_SCORE = 0.5
"""Heads with a lower score may not follow the text. Those of random weights have 0.2 at most; trained ones from 0.5 on
followed each text to its end (TRIALS.md, every-word)."""
TEXTS = (
    "the old man walked slowly down to the river, sat on a stone, and watched the boats go by.",
    "when the rain stopped, we opened all the windows, and the smell of wet grass filled the room.",
    "she asked for bread, milk, apples, and a small bag of sugar.",
    "in the morning, before the sun was up, they packed their bags, locked the door, and left.",
    "it was late, but nobody wanted to go home, because the music was so good.",
    "two small dogs ran across the field, jumped over the wall, and disappeared into the woods.",
)
_KV_LENGTH, _EULER_STEPS, _CFG_VALUE = 512, 10, 2.0
_MIN_PATCHES, _MAX_PATCHES = 4, 64  # Of each text, whose natural duration is about 35 patches
_SHIFTS = np.arange(-40, 81) / 200
"""Seconds. With a wider range, letters might match the syllable after their own."""
_LOUD = "aeiouylr"  # Vowels and liquids
_FRAME, _QUIET, _MIN_PAUSE = 0.01, 35.0, 6
"""Seconds of a frame, decibels below the loud frames from which it is silent, and frames of the shortest pause."""


def with_alignment(
    sizes: StepSizes,
    checkpoint: Checkpoint,
    report: Callable[[str, int, int], object],
    say: Callable[[str], object],
) -> StepSizes:
    """The sizes with the best head, or none if its score is below `MIN_SCORE`. All weights are in memory, in float32.

    report(stage, done, total): progress. say: called with a line about the head.
    """
    speaker, a = _Speaker(checkpoint), checkpoint.architecture
    spoken = []
    for done, text in enumerate(TEXTS):
        report("alignment", done, len(TEXTS))
        encoded = speaker.tokenizer.encode(text, add_special_tokens=False)
        rows, audio = speaker.speak(encoded.ids, seed=done)
        spoken.append((text, rows, [*(start for start, _ in encoded.offsets), len(text)], audio))
        if head_scores(rows).max() < MIN_SCORE / 2:
            break  # The other texts would take minutes
    scores = np.mean([head_scores(rows) for _, rows, *_ in spoken], axis=0)
    best, score = int(scores.argmax()), float(scores.max())
    if score < MIN_SCORE:
        say(f"alignment: none, as no head of the base LM follows the text (score {score:.2f} of {MIN_SCORE})")
        return sizes
    fits = np.zeros(len(_SHIFTS))
    for text, rows, places, audio in spoken:
        position = np.maximum.accumulate(_positions(rows)[:, best])
        reached = np.interp(position, np.arange(len(places)), places)
        fits += _shift_fits(text, reached, a.patch_seconds, audio, a.output_sample_rate)
    layer, head = divmod(best, a.base_lm.num_heads)
    say(f"alignment: head {head} of layer {layer} of the base LM (score {score:.2f})")
    chosen = AlignmentHead(layer, head, float(_SHIFTS[fits.argmax()]), round(score, 3))
    return sizes.model_copy(update={"alignment": (chosen,)})


def head_scores(rows: Floats) -> Floats:
    """The score (heads,) of each head, from 0 to 1, by its attention to the text (patches, heads, tokens).

    The correlation of position and time, times the share of patches at which the position does not fall, 1 - entropy,
    the attention's share on the text, and the share of the text that is covered.
    """
    tokens, mass = rows.shape[2], rows.sum(axis=2)
    shares = rows / np.maximum(mass, 1e-9)[..., None]
    entropy = -(shares * np.log(np.maximum(shares, 1e-12))).sum(axis=2).mean(axis=0) / math.log(tokens)
    position = _positions(rows)
    centred, time = position - position.mean(axis=0), np.arange(len(rows)) - (len(rows) - 1) / 2
    spread = np.sqrt((centred**2).sum(axis=0) * (time**2).sum())
    correlation = np.maximum(time @ centred / np.maximum(spread, 1e-9), 0)
    rising = (np.diff(position, axis=0) > -0.5).mean(axis=0)
    covered = (position.max(axis=0) - position.min(axis=0)) / (tokens - 1)
    return np.asarray(correlation * rising * (1 - entropy) * mass.mean(axis=0) * covered)


def _positions(rows: Floats) -> Floats:
    """The mean text position that each head looks at (patches, heads)."""
    return np.asarray(rows @ np.arange(rows.shape[2]) / np.maximum(rows.sum(axis=2), 1e-9))


def _shift_fits(text: str, reached: Doubles, patch_seconds: float, audio: Floats, rate: int) -> Doubles:
    """How well loud letters match loudness in `audio` (samples,) at each of `_SHIFTS`: covariance (shifts,).

    reached: index of the character that a head looks at while each patch but the last is fed (patches - 1,); it never
    falls. A character sounds from when it is reached until the next one is.
    """
    times, loudness = _loudness(audio, rate)
    loud = [float(letter in _LOUD) for letter in text]
    fed = np.arange(1, len(reached) + 1) * patch_seconds
    places = np.interp(times[:, None] - _SHIFTS, fed, reached)
    expected = np.interp(places, np.arange(len(text)) + 0.5, loud)
    return np.asarray(loudness @ expected / len(times))


def _loudness(audio: Floats, rate: int) -> tuple[Doubles, Doubles]:
    """Seconds and loudness, with mean 0 and variance 1, of the frames outside pauses, in which heads may look ahead."""
    size = round(rate * _FRAME)
    power = np.square(audio[: len(audio) // size * size].reshape(-1, size)).mean(axis=1)
    quiet = np.percentile(power, 95) * 10 ** (-_QUIET / 10)
    spoken = np.ones(len(power), bool)
    edges = np.flatnonzero(np.diff((power < quiet).astype(int), prepend=0, append=0))
    for begin, end in edges.reshape(-1, 2):
        spoken[begin:end] = end - begin < _MIN_PAUSE
    level = np.log(np.maximum(power, quiet)[spoken])
    return np.asarray((np.flatnonzero(spoken) + 0.5) * _FRAME), np.asarray(
        (level - level.mean()) / level.std()
    )


class _Speaker:
    """The step modules with all weights, which speak zero-shot and return the attention of every head."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        a = self.architecture = checkpoint.architecture
        self.tokenizer, _ = open_tokenizer(checkpoint.folder, needs_config=False)
        self.modules = empty_modules(a)
        weights = {name: checkpoint.tensor(name) for name, _ in self.modules.named_parameters()}
        self.modules.load_state_dict(weights, assign=True)
        self.table = checkpoint.tensor(EMBED_TOKENS) * a.text_embedding_scale
        layers, heads = range(a.base_lm.num_layers), range(a.base_lm.num_heads)
        every = tuple(AlignmentHead(layer, head, 0.0, 0.0) for layer in layers for head in heads)
        sizes = StepSizes(kv_length=_KV_LENGTH, solver_steps=_EULER_STEPS, alignment=every)
        self.declared = declare_step_models(a, sizes)
        self.steps = {name: build_step(d, self.modules, a, sizes) for name, d in self.declared.items()}
        # Upstream's sway sampling.
        even = 1 - torch.arange(_EULER_STEPS + 1) / _EULER_STEPS
        times = (even + torch.cos(math.pi / 2 * even) - 1 + even)[names.zero_velocity_steps(_EULER_STEPS) :]
        embedded = [time_embedding((1, a.dit_config.hidden_dim), float(time)) for time in times[:-1]]
        self.times = torch.tensor(np.concatenate(embedded), dtype=torch.float32), times[:-1] - times[1:]

    @torch.inference_mode()
    def speak(self, ids: list[int], seed: int) -> tuple[Floats, Floats]:
        """Attention of every head to the text (patches - 1, heads, tokens), and audio (samples,)."""
        a, steps, noise = self.architecture, self.steps, torch.Generator().manual_seed(seed)
        state = {n: [torch.zeros(t.shape_at(0)) for t in d.state] for n, d in self.declared.items()}
        times, cfg_value = self.times, torch.tensor([_CFG_VALUE])
        patches, rows = [torch.zeros(1, a.feat_dim, a.patch_size)], list[Tensor]()
        mu, stop, _ = self._language_models(self.table[torch.tensor([*ids, AUDIO_START])][None], 0, state)
        while len(patches) <= min(_MAX_PATCHES, _KV_LENGTH - len(ids) - 2):
            start = torch.randn(patches[0].shape, generator=noise)
            patches.append(steps[names.LOCDIT_SOLVE](start, mu, patches[-1], *times, cfg_value))
            if len(patches) > _MIN_PATCHES and stop.argmax() == 1:
                break
            embedding = steps[names.FEAT_ENCODER](patches[-1].transpose(1, 2)[None])
            mu, stop, row = self._language_models(embedding, len(ids) + len(patches) - 1, state)
            rows.append(row[:, : len(ids)].clone())
        decoder = names.AUDIO_VAE_DECODER
        audio = steps[decoder](torch.cat(patches[1:], dim=2), *state[decoder])[0][0, 0]
        return torch.stack(rows).numpy(), audio.numpy()

    def _language_models(
        self, embeddings: Tensor, position: int, state: dict[str, list[Tensor]]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The DiT's condition, stop logits (2,) and attention (heads, positions); text is at position 0."""
        m, traits, at = self.modules, self.architecture.traits, torch.tensor([position], dtype=torch.int32)
        base, residual = names.BASE_LM_STEP, names.RESIDUAL_LM_STEP
        hidden, quantized, stop, rows, *_ = self.steps[base](embeddings, at, *state[base])
        hidden, heard = (quantized, embeddings) if position else (hidden, embeddings * 0)
        fused = traits.fuses_residual_input
        following = m.fusion_concat_proj(torch.cat((hidden, heard), dim=2)) if fused else hidden + heard
        after = self.steps[residual](following, at, *state[residual])[0]
        first, second = m.lm_to_dit_proj(hidden[:, -1]), m.res_to_dit_proj(after[:, -1])
        mu = torch.cat((first, second), dim=1) if traits.mu_tokens > 1 else first + second
        return mu, stop[0, -1], rows[0, 0]
