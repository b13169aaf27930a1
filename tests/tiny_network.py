"""Small step models in numpy that are causal, stateful and strict about shapes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from voxcpm_constants.architecture import Architecture
from voxcpm_constants.step_models import StepModel, StepSizes

HIDDEN, DIT, FEAT, PATCH, VOCABULARY = 8, 6, 4, 2, 120
SIZES = StepSizes(kv_length=48, prefill_chunks=(1, 4, 16), encode_patches=(1, 4))


class FakeState(dict[str, np.ndarray]):
    """The state of a fake step model, by name; a KV cache is `cache` (positions, hidden)."""

    def rows(self, start: int, stop: int) -> dict[str, np.ndarray]:
        whole = self.get("cache", np.zeros((SIZES.kv_length, HIDDEN), np.float32))
        return {"cache": whole[np.newaxis, np.newaxis, start:stop].copy()}

    def set_rows(self, start: int, rows: Mapping[str, np.ndarray]) -> None:
        cache = self.setdefault("cache", np.full((SIZES.kv_length, HIDDEN), np.nan, np.float32))
        cache[start : start + rows["cache"].shape[2]] = rows["cache"][0, 0]


@dataclass
class FakeStep:
    """Checks every call against the declaration, counts it, and passes (inputs, state) to a numpy function."""

    declared: StepModel
    function: Callable[[Mapping[str, np.ndarray], dict[str, np.ndarray]], dict[str, np.ndarray]]
    calls: list[tuple[int, ...]] = field(default_factory=list)
    releases_gil: bool = True

    def new_state(self) -> FakeState:
        return FakeState()

    def __call__(self, inputs: Mapping[str, np.ndarray], state: Any = None) -> dict[str, np.ndarray]:
        allowed = {t.name: t for t in self.declared.inputs}
        assert set(inputs) == set(allowed)
        for name, array in inputs.items():
            spec = allowed[name]
            assert array.dtype == spec.dtype, (name, array.dtype)
            assert array.shape in {spec.shape_at(chunk) for chunk in range(self.declared.chunk_count)}, name
        assert (state is not None) == bool(self.declared.state), self.declared.name
        self.calls.append(inputs[self.declared.inputs[0].name].shape)
        return self.function(inputs, state)


class FakeNetwork:
    """The arithmetic behind the step models, also callable on whole sequences, as upstream runs it."""

    def __init__(self, architecture: Architecture) -> None:
        self.a = architecture
        rng = np.random.default_rng(2)
        self.w = {
            name: rng.standard_normal(shape).astype(np.float32)
            for name, shape in {
                "base": (HIDDEN, HIDDEN),
                "residual": (HIDDEN, HIDDEN),
                "stop": (HIDDEN, 2),
                "encoder": (PATCH * FEAT, HIDDEN),
                "dit": (FEAT * PATCH, FEAT * PATCH),
                "dit_mu": (architecture.mu_size, FEAT * PATCH),
                "dit_cond": (FEAT * PATCH, FEAT * PATCH),
            }.items()
        }
        self.stop_bias = np.array([1e3, 0], np.float32)

    def causal(self, name: str, embeddings: np.ndarray) -> np.ndarray:
        """Row p depends on rows 0..p and on p itself, so that a wrong position or cache row changes the result."""
        positions = np.arange(len(embeddings), dtype=np.float32)[:, np.newaxis]
        decay = np.tril(0.7 ** (positions - positions.T)).astype(np.float32)
        return np.tanh(decay @ embeddings @ self.w[name] * 0.5 + np.sin(positions))

    def fsq(self, hidden: np.ndarray) -> np.ndarray:
        return np.round(hidden * 3) / 3

    def stop_logits(self, fsq_hidden: np.ndarray) -> np.ndarray:
        return fsq_hidden @ self.w["stop"] + self.stop_bias

    def embed(self, patches: np.ndarray) -> np.ndarray:
        return np.tanh(patches.reshape(len(patches), PATCH * FEAT) @ self.w["encoder"])

    def velocity(self, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        flat = {name: inputs[name].reshape(2, -1) for name in ("x", "mu", "cond")}
        mixed = flat["x"] @ self.w["dit"] + flat["mu"] @ self.w["dit_mu"] + flat["cond"] @ self.w["dit_cond"]
        return np.tanh(mixed * 0.3 + inputs["t_embedding"][:, :1] + inputs["dt_embedding"][:, :1]).reshape(
            2, FEAT, PATCH
        )


def cached(network: FakeNetwork, name: str) -> Callable[..., np.ndarray]:
    def run(inputs: Mapping[str, np.ndarray], state: dict[str, np.ndarray]) -> np.ndarray:
        embeddings, position = inputs["embeddings"][0], int(inputs["position"][0])
        # Unwritten rows are NaN, so that attending to them shows in the result.
        cache = state.setdefault("cache", np.full((SIZES.kv_length, HIDDEN), np.nan, np.float32))
        assert position + len(embeddings) <= SIZES.kv_length
        cache[position : position + len(embeddings)] = embeddings
        cache[position : position + len(embeddings)][~embeddings.any(axis=1)] = np.nan
        written = range(position, position + len(embeddings))
        return np.stack([network.causal(name, cache[: row + 1])[-1] for row in written])[np.newaxis]

    return run


def _running_sum(state: dict[str, np.ndarray], values: np.ndarray) -> np.ndarray:
    """A causal filter: each value plus half of the previous result."""
    last, out = state.get("last", 0.0), []
    for value in values:
        last = value + 0.5 * last
        out.append(last)
    state["last"] = last
    return np.stack(out)


def fake_encode(state: dict[str, np.ndarray], audio: np.ndarray, a: Architecture) -> np.ndarray:
    """(samples,) -> (latent_dim, frames)"""
    frames = audio.reshape(-1, a.patch_input_samples // a.patch_size).mean(axis=1)
    return _running_sum(state, frames[:, np.newaxis] * np.arange(1, FEAT + 1, dtype=np.float32)).T


def fake_decode(state: dict[str, np.ndarray], latents: np.ndarray, a: Architecture) -> np.ndarray:
    """(latent_dim, frames) -> (samples,)"""
    return np.repeat(_running_sum(state, latents.T)[:, 0], a.patch_output_samples // a.patch_size)
