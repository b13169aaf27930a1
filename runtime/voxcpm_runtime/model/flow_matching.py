"""A patch from noise: Euler steps with classifier-free guidance and CFG-zero* (upstream `locdit/unified_cfm.py`).

All arithmetic is float32, in upstream's order, so that only rounding differs.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt

from voxcpm_constants.step_models import zero_velocity_steps
from voxcpm_runtime.argument_types import wrong_type
from voxcpm_runtime.backends.step_function import Floats

Estimator = Callable[[Mapping[str, Floats]], Mapping[str, Floats]]
"""A step model without state: `locdit_step` (rows: conditional, unconditional) or `locdit_solve`."""

_NORM_FLOOR = np.float32(1e-8)
_LOWEST_FREQUENCY = 1 / 10000
_ANGLE_SCALE = np.float32(1000)


class NoiseSource(Protocol):
    """The source of all random numbers, such as numpy's Generator."""

    def standard_normal(self, size: tuple[int, ...]) -> npt.NDArray[np.floating]:
        """Numbers from the standard normal distribution, of shape `size`."""


def draw_noise(rng: NoiseSource, shape: tuple[int, ...]) -> Floats:
    """Noise of this shape. Raises InputError if the source returns anything but finite numbers of that shape."""
    given = rng.standard_normal(shape)
    with contextlib.suppress(TypeError, ValueError), np.errstate(over="ignore"):
        noise = np.asarray(given, np.float32)
        if noise.shape == shape and np.isfinite(noise).all():
            return noise
    raise wrong_type(given, "rng", f"a source whose standard_normal gives finite numbers of shape {shape}")


def time_span(steps: int, sway_sampling_coef: float = 1.0) -> Floats:
    """Times (steps + 1,) from 1 (noise) to 0 (data), denser near the noise for a positive coefficient ("sway
    sampling", arXiv 2410.06885).
    """
    index = np.arange(steps + 1, dtype=np.float32)
    step = np.float32(1) / np.float32(steps)
    # Computed from both ends, as torch.linspace does.
    linear = np.where(2 * index < steps + 1, 1 - step * index, step * (steps - index)).astype(np.float32)
    sway = np.cos(np.float32(math.pi / 2) * linear) - np.float32(1) + linear
    return (linear + np.float32(sway_sampling_coef) * sway).astype(np.float32)


def time_embedding(times: Floats, width: int) -> Floats:
    """Sines, then cosines, of 1000 · time at geometric frequencies from 1 to 1/10000: times (n,) -> (n, width)."""
    half = width // 2
    frequencies = np.exp(
        np.arange(half, dtype=np.float32) * np.float32(math.log(_LOWEST_FREQUENCY) / (half - 1))
    )
    angles = _ANGLE_SCALE * times[:, np.newaxis] * frequencies
    return np.concatenate((np.sin(angles), np.cos(angles)), axis=-1)


def guided_velocity(velocities: Floats, cfg_value: float, *, use_cfg_zero_star: bool = True) -> Floats:
    """Velocity (latent_dim, frames) from the conditional and unconditional ones (2, latent_dim, frames).

    CFG-zero* first scales the unconditional one by its projection, <v+, v-> / (|v-|^2 + 1e-8).
    """
    conditional, unconditional = velocities[0], velocities[1]
    if use_cfg_zero_star:
        scale = np.sum(conditional * unconditional) / (np.sum(unconditional * unconditional) + _NORM_FLOOR)
        unconditional = unconditional * scale
    return unconditional + np.float32(cfg_value) * (conditional - unconditional)


def euler_steps(steps: int, sway_sampling_coef: float = 1.0, *, skipped: int = 0) -> tuple[Floats, Floats]:
    """Time and length of each Euler step after the first `skipped`: two arrays (steps - skipped,)."""
    times = time_span(steps, sway_sampling_coef)
    t, dt = times[0], times[0] - times[1]
    starts, lengths = [], []
    for step in range(1, steps + 1):
        starts.append(t)
        lengths.append(dt)
        # Not times[step]: upstream subtracts, and the estimator's input includes the rounding of t.
        t = t - dt
        if step < steps:
            dt = t - times[step + 1]
    return np.array(starts[skipped:], np.float32), np.array(lengths[skipped:], np.float32)


def solve(
    estimator: Estimator, noise: Floats, mu: Floats, cond: Floats, *, steps: int, cfg_value: float,
    embedding_size: int, sway_sampling_coef: float = 1.0, use_cfg_zero_star: bool = True, mean_mode: bool = False,
) -> Floats:  # fmt: skip
    """Turn noise (latent_dim, frames) into a patch of the same shape.

    mu: LM condition (mu_size,). cond: the previous patch (latent_dim, frames). embedding_size: width of the estimator's
    time embeddings. mean_mode: pass the length of each step to the estimator, otherwise zero. use_cfg_zero_star: zero
    velocity in the first steps, then a projected unconditional velocity.
    """
    conditions = {"mu": np.stack([mu, np.zeros_like(mu)]), "cond": np.stack([cond, cond])}
    skipped = zero_velocity_steps(steps) if use_cfg_zero_star else 0
    embeddings, lengths = _moving_steps(steps, sway_sampling_coef, embedding_size, skipped)
    dt_embeddings = time_embedding(lengths if mean_mode else np.zeros_like(lengths), embedding_size)
    x = noise
    for t_embedding, dt_embedding, dt in zip(embeddings, dt_embeddings, lengths, strict=True):
        moving = {
            "x": np.stack([x, x]),
            "t_embedding": np.stack([t_embedding, t_embedding]),
            "dt_embedding": np.stack([dt_embedding, dt_embedding]),
        }
        velocities = estimator(moving | conditions)["velocity"]
        x = x - dt * guided_velocity(velocities, cfg_value, use_cfg_zero_star=use_cfg_zero_star)
    return x


@functools.lru_cache(16)
def _moving_steps(
    steps: int, sway_sampling_coef: float, embedding_size: int, skipped: int
) -> tuple[Floats, Floats]:
    """Time embeddings (steps - skipped, embedding_size) and lengths of the steps after the first `skipped`, cached."""
    times, lengths = euler_steps(steps, sway_sampling_coef, skipped=skipped)
    return time_embedding(times, embedding_size), lengths


def solve_at_once(
    solver: Estimator, noise: Floats, mu: Floats, cond: Floats, *, steps: int, cfg_value: float,
    embedding_size: int, sway_sampling_coef: float = 1.0,
) -> Floats:  # fmt: skip
    """The patch of `solve` with CFG-zero*, in one call of `locdit_solve`, converted for that many `steps`."""
    embeddings, lengths = _moving_steps(steps, sway_sampling_coef, embedding_size, zero_velocity_steps(steps))
    inputs = {
        "noise": noise[np.newaxis],
        "mu": mu[np.newaxis],
        "cond": cond[np.newaxis],
        # Copies, because Core ML's binding must not share the cached arrays.
        "t_embeddings": embeddings.copy(),
        "step_lengths": lengths.copy(),
        "cfg_value": np.array([cfg_value], np.float32),
    }
    return np.asarray(solver(inputs)["patch"][0], np.float32)
