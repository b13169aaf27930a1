"""docs/bundle.md as an app's developer would follow it: its loop, written a second time, over the same packages."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from voxcpm_runtime import VoxCPM

SEED, PATCHES = 5, 6
TEXT, TRANSCRIPT = "the  you\nand", "so it is. "
AUDIO_START, REFERENCE_START, REFERENCE_END = 101, 103, 104
MIN_LEN, STEPS, CFG, SWAY = 2, 10, 2.0, 1.0


@dataclass
class App:
    """What is in the folder, and its packages as functions."""

    manifest: Mapping[str, Any]
    constants: Mapping[str, np.ndarray]
    models: Mapping[str, Any]
    tokens: Any

    @property
    def second(self) -> bool:
        return self.manifest["architecture"]["architecture"] == "voxcpm2"

    def shape(self, model: str, kind: str, tensor: int) -> list[Any]:
        return self.manifest["step_models"][model][kind][tensor]["shape"]

    def call(self, model: str, state: Any = None, /, **inputs: np.ndarray) -> dict[str, np.ndarray]:
        given = {name: np.ascontiguousarray(array) for name, array in inputs.items()}
        return self.models[model](given, *([] if state is None else [state]))

    def project(self, x: np.ndarray, name: str) -> np.ndarray:
        return x @ self.constants[f"{name}_w"].T + self.constants[f"{name}_b"]

    def encoded(self, recording: np.ndarray, side: str) -> list[np.ndarray]:
        """2: patches (P, F) of a recording, one patch a call."""
        samples = self.shape("audio_vae_encoder", "inputs", 0)[2][0]
        missing = -len(recording) % samples
        whole = np.pad(recording, (missing, 0) if side == "left" else (0, missing))
        state = self.models["audio_vae_encoder"].new_state()
        return [
            self.call("audio_vae_encoder", state, audio=chunk[np.newaxis, np.newaxis])["latents"][0].T
            for chunk in whole.reshape(-1, samples)
        ]

    def embedded(self, patch: np.ndarray) -> np.ndarray:
        return self.call("feat_encoder", patches=patch[np.newaxis, np.newaxis])["embeddings"][0, 0]

    def residual_input(self, h: np.ndarray, audio: np.ndarray) -> np.ndarray:
        return self.project(np.concatenate([h, audio]), "fusion_concat_proj") if self.second else h + audio

    def condition(self, h: np.ndarray, r: np.ndarray) -> np.ndarray:
        both = self.project(h, "lm_to_dit_proj"), self.project(r, "res_to_dit_proj")
        return np.concatenate(both) if self.second else both[0] + both[1]

    def solved(self, x: np.ndarray, mu: np.ndarray, cond: np.ndarray) -> np.ndarray:
        """6: a patch (F, P) from noise."""
        even = 1 - np.arange(STEPS + 1) / STEPS
        t = (even + SWAY * (np.cos(np.pi / 2 * even) - 1 + even)).astype(np.float32)
        skipped = max(1, math.floor(0.04 * (STEPS + 1)))
        half = self.shape("locdit_step", "inputs", 2)[1] // 2
        frequencies = np.exp(-np.arange(half) * math.log(10000) / (half - 1)).astype(np.float32)

        def embedded(time: float) -> np.ndarray:
            angles = np.float32(1000) * np.float32(time) * frequencies
            return np.concatenate([np.sin(angles), np.cos(angles)])

        for i in range(skipped + 1, STEPS + 1):
            plus, minus = self.call(
                "locdit_step", x=np.stack([x, x]), mu=np.stack([mu, 0 * mu]),
                t_embedding=np.stack([embedded(t[i - 1])] * 2), cond=np.stack([cond, cond]),
                dt_embedding=np.stack([embedded(0)] * 2),
            )["velocity"]  # fmt: skip
            minus = minus * np.sum(plus * minus) / (np.sum(minus * minus) + np.float32(1e-8))
            x = x - (t[i - 1] - t[i]) * (minus + np.float32(CFG) * (plus - minus))
        return x


def speak(app: App, prompt: np.ndarray | None, reference: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Latents and audio of PATCHES patches at most."""
    transcript = TRANSCRIPT if prompt is not None else ""
    sequence: list[int | np.ndarray] = [*app.tokens(transcript + re.sub(r"\s+", " ", TEXT)), AUDIO_START]
    prompt_patches = [] if prompt is None else app.encoded(prompt, "left")
    if reference is not None:
        sequence = [REFERENCE_START, *app.encoded(reference, "right"), REFERENCE_END, *sequence]
    sequence += prompt_patches

    lm = app.manifest["architecture"]["lm_config"]
    scale = np.float32(lm["scale_emb"] if lm["use_mup"] else 1)
    base, residual = (app.models[name].new_state() for name in ("base_lm_step", "residual_lm_step"))

    def step(embedding: np.ndarray, audio: np.ndarray, position: int, output: str) -> tuple[np.ndarray, ...]:
        at = np.array([position], np.int32)
        found = app.call("base_lm_step", base, embeddings=embedding[np.newaxis, np.newaxis], position=at)
        h = found[output][0, 0]
        z = app.residual_input(h, audio)[np.newaxis, np.newaxis]
        r = app.call("residual_lm_step", residual, embeddings=z, position=at)["hidden"][0, 0]
        return h, r, found["stop_logits"][0, 0]

    for position, item in enumerate(sequence):
        if isinstance(item, np.ndarray):
            embedding = audio = app.embedded(item)
            h, r, stop = step(embedding, audio, position, "fsq_hidden")
        else:
            embedding = np.asarray(app.constants["embed_tokens"][item], np.float32) * scale
            h, r, stop = step(embedding, np.zeros_like(embedding), position, "hidden")

    decoder = app.models["audio_vae_decoder"].new_state()
    for patch in prompt_patches[-(3 if app.second else 2) :]:
        app.call("audio_vae_decoder", decoder, latents=patch.T[np.newaxis])
    frames, width = app.shape("feat_encoder", "inputs", 0)[2:]
    cond = prompt_patches[-1] if prompt_patches else np.zeros((frames, width), np.float32)
    generator = np.random.default_rng(SEED)
    latents, heard = [], []
    for k in range(PATCHES):
        noise = generator.standard_normal((1, width, frames))[0].astype(np.float32)
        x = app.solved(noise, app.condition(h, r), cond.T)
        latents.append(x.T)
        heard.append(app.call("audio_vae_decoder", decoder, latents=x[np.newaxis])["audio"][0, 0])
        if k > MIN_LEN and stop[1] > stop[0]:
            break
        embedding = app.embedded(x.T)
        h, r, stop = step(embedding, embedding, len(sequence) + k, "fsq_hidden")
        cond = x.T
    return np.stack(latents), np.concatenate(heard)


@pytest.mark.converts
@pytest.mark.parametrize(
    ("bundle", "given"),
    [
        ("tiny_bundle", ""),
        ("tiny_bundle", "prompt"),
        ("second_bundle", ""),
        ("second_bundle", "prompt"),
        ("second_bundle", "reference"),
        ("second_bundle", "prompt reference"),
    ],
)
def test_the_loop_of_the_manual_speaks_as_the_runtime_does(
    bundle: str, given: str, request: pytest.FixtureRequest
) -> None:
    folder: Path = request.getfixturevalue(bundle)
    recording = (np.random.default_rng(3).standard_normal(700) / 10).astype(np.float32)
    prompt = recording if "prompt" in given else None
    reference = recording[::-1].copy() if "reference" in given else None
    with VoxCPM.from_bundle(folder, precision="fp32") as tts:
        rate = tts.bundle.architecture.input_sample_rate
        spoken = tts.speak(
            TEXT,
            None if prompt is None else (prompt, rate),
            None if prompt is None else TRANSCRIPT,
            None if reference is None else (reference, rate),
            seed=SEED, max_len=PATCHES, retry_badcase=False,
        )  # fmt: skip
        app = App(
            json.loads((folder / "manifest.json").read_text(encoding="utf-8")),
            {path.stem: np.load(path) for path in (folder / "constants").glob("*.npy")},
            tts.driver.models,
            tts.bundle.tokenizer,
        )
        latents, audio = speak(app, prompt, reference)

    # Chunks of several positions round differently, and a rounding may flip a level of the quantiser.
    assert latents.shape == spoken.latents.shape
    assert np.corrcoef(latents.ravel(), spoken.latents.ravel())[0, 1] > 0.9999
    assert np.corrcoef(audio, spoken.audio)[0, 1] > 0.999
