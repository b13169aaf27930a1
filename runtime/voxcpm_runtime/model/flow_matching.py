"""A patch from noise: Euler steps with classifier-free guidance and CFG-zero* (upstream `locdit/unified_cfm.py`).

All arithmetic is float32, in upstream's order, so that it differs from upstream only by rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from voxcpm_runtime.backends.step_function import Floats

Estimator = Callable[[Mapping[str, Floats]], Mapping[str, Floats]]
"""The `locdit_step` step model, for two rows: conditional, unconditional."""

_ZERO_VELOCITY_FRACTION = 0.04
_NORM_FLOOR = np.float32(1e-8)
_LOWEST_FREQUENCY = 1 / 10000
_ANGLE_SCALE = np.float32(1000)


def time_span(steps: int, sway_sampling_coef: float = 1.0) -> Floats:
    """Times (steps + 1,) from 1 (noise) to 0 (data), denser near the noise for a positive coefficient ("sway
    sampling", arXiv 2410.06885).
    """
    index = np.arange(steps + 1, dtype=np.float32)
    step = np.float32(1) / np.float32(steps)
    # Both halves count from their own end, as torch.linspace does.
    linear = np.where(2 * index < steps + 1, 1 - step * index, step * (steps - index)).astype(np.float32)
    sway = np.cos(np.float32(math.pi / 2) * linear) - np.float32(1) + linear
    return (linear + np.float32(sway_sampling_coef) * sway).astype(np.float32)


def zero_velocity_steps(steps: int) -> int:
    """Number of first steps with zero velocity (CFG-zero*, arXiv 2503.18886): 1 for fewer than 49 steps."""
    return max(1, int((steps + 1) * _ZERO_VELOCITY_FRACTION))


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


def solve(
    estimator: Estimator,
    noise: Floats,
    mu: Floats,
    cond: Floats,
    *,
    steps: int,
    cfg_value: float,
    embedding_size: int,
    sway_sampling_coef: float = 1.0,
    use_cfg_zero_star: bool = True,
    mean_mode: bool = False,
) -> Floats:
    """Turn noise (latent_dim, frames) into a patch of the same shape.

    mu: LM condition (mu_size,). cond: the previous patch (latent_dim, frames). embedding_size: width of the estimator's
    time embeddings. mean_mode: tell the estimator the length of each step, otherwise zero. use_cfg_zero_star: zero
    velocity in the first steps, then a projected unconditional velocity.
    """
    times = time_span(steps, sway_sampling_coef)
    conditions = {
        "mu": np.stack([mu, np.zeros_like(mu)]),
        "cond": np.stack([cond, cond]),
    }
    unmoved = zero_velocity_steps(steps) if use_cfg_zero_star else 0
    x, t, dt = noise, times[0], times[0] - times[1]
    for step in range(1, steps + 1):
        if step > unmoved:
            told = dt if mean_mode else np.float32(0)
            moving = {
                "x": np.stack([x, x]),
                "t_embedding": time_embedding(np.full(2, t), embedding_size),
                "dt_embedding": time_embedding(np.full(2, told), embedding_size),
            }
            velocities = estimator(moving | conditions)["velocity"]
            x = x - dt * guided_velocity(velocities, cfg_value, use_cfg_zero_star=use_cfg_zero_star)
        # Not times[step]: upstream subtracts, and the estimator's input includes the rounding of t.
        t = t - dt
        if step < steps:
            dt = t - times[step + 1]
    return x
