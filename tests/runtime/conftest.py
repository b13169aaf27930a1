"""Tiny architectures, and step models in a few lines of numpy that are causal, stateful and strict about shapes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from voxcpm_constants.architecture import Architecture
from voxcpm_constants.arrays import constant_shapes, write_constant
from voxcpm_constants.manifest import Manifest, Source, record_folder
from voxcpm_constants.step_models import StepModel, StepSizes, declare_step_models
from voxcpm_runtime import voxcpm
from voxcpm_runtime.backends.fallback import Placed
from voxcpm_runtime.bundle.opening import open_bundle
from voxcpm_runtime.commands import cli
from voxcpm_runtime.model.driver import Driver
from voxcpm_runtime.speech import kv_room

HIDDEN, DIT, FEAT, PATCH, VOCABULARY = 8, 6, 4, 2, 120
SIZES = StepSizes(kv_length=48, prefill_chunks=(1, 4, 16), encode_patches=(1, 4))


def config(generation: str) -> dict[str, Any]:
    local = {"hidden_dim": DIT, "ffn_dim": 8, "num_heads": 2, "num_layers": 1}
    vae = {
        "encoder_dim": 2,
        "encoder_rates": [2, 5],
        "latent_dim": FEAT,
        "decoder_dim": 8,
        "decoder_rates": [5, 2],
    }
    rates = {"sample_rate": 1000}
    if generation == "voxcpm2":
        rates |= {"out_sample_rate": 3000}
        vae["decoder_rates"] = [5, 2, 3]
    return {
        "architecture": generation,
        "patch_size": PATCH,
        "feat_dim": FEAT,
        "residual_lm_num_layers": 1,
        "lm_config": {
            "hidden_size": HIDDEN,
            "intermediate_size": 8,
            "max_position_embeddings": 64,
            "num_attention_heads": 2,
            "num_hidden_layers": 1,
            "num_key_value_heads": 1,
            "rms_norm_eps": 1e-5,
            "rope_theta": 1e4,
            "rope_scaling": {
                "long_factor": [1, 1],
                "short_factor": [1, 1],
                "original_max_position_embeddings": 64,
            },
            "vocab_size": VOCABULARY,
            "scale_emb": 12.0,
            "dim_model_base": 8,
            "scale_depth": 1.4,
        },
        "encoder_config": local,
        "dit_config": {**local, "cfm_config": {}},
        "audio_vae_config": {**vae, **rates},
    }


@pytest.fixture(params=["voxcpm", "voxcpm2"])
def architecture(request: pytest.FixtureRequest) -> Architecture:
    return Architecture.model_validate(config(request.param))


@pytest.fixture(autouse=True)
def _swift(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the estimates: with the tiny architectures' patches of 20 ms, a token would need 25 patches."""
    monkeypatch.setattr(kv_room, "SECONDS_PER_TOKEN", 0.01)


@pytest.fixture
def sizes() -> StepSizes:
    return SIZES


@pytest.fixture
def constants(architecture: Architecture) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    shapes = constant_shapes(architecture)
    return {name: rng.standard_normal(shape).astype(np.float32) / 3 for name, shape in shapes.items()}


class FakeState(dict[str, np.ndarray]):
    """The state of a fake step model, under any names; a KV cache is `cache` (positions, hidden)."""

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
        count = len(embeddings)
        decay = np.array(
            [[0.7 ** (p - q) if q <= p else 0 for q in range(count)] for p in range(count)], np.float32
        )
        positions = np.arange(count, dtype=np.float32)[:, np.newaxis]
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


def _cached(network: FakeNetwork, name: str) -> Callable[..., np.ndarray]:
    def run(inputs: Mapping[str, np.ndarray], state: dict[str, np.ndarray]) -> np.ndarray:
        embeddings, position = inputs["embeddings"][0], int(inputs["position"][0])
        # Rows that were never written are NaN, so that attending to them shows in the result.
        cache = state.setdefault("cache", np.full((SIZES.kv_length, HIDDEN), np.nan, np.float32))
        assert position + len(embeddings) <= SIZES.kv_length
        cache[position : position + len(embeddings)] = embeddings
        cache[position : position + len(embeddings)][~embeddings.any(axis=1)] = np.nan
        written = range(position, position + len(embeddings))
        return np.stack([network.causal(name, cache[: row + 1])[-1] for row in written])[np.newaxis]

    return run


def _running_sum(state: dict[str, np.ndarray], values: np.ndarray) -> np.ndarray:
    """A causal stream: each value plus half of the result before it."""
    last, out = state.get("last", 0.0), []
    for value in values:
        last = value + 0.5 * last
        out.append(last)
    state["last"] = last
    return np.stack(out)


def fake_encode(state: dict[str, np.ndarray], audio: np.ndarray, a: Architecture) -> np.ndarray:
    """(samples,) -> (latent_dim, frames)"""
    frames = audio.reshape(-1, a.encoder_hop).mean(axis=1)
    return _running_sum(state, frames[:, np.newaxis] * np.arange(1, FEAT + 1, dtype=np.float32)).T


def fake_decode(state: dict[str, np.ndarray], latents: np.ndarray, a: Architecture) -> np.ndarray:
    """(latent_dim, frames) -> (samples,)"""
    return np.repeat(_running_sum(state, latents.T)[:, 0], a.decoder_hop)


@pytest.fixture
def network(architecture: Architecture) -> FakeNetwork:
    return FakeNetwork(architecture)


@pytest.fixture
def models(network: FakeNetwork) -> dict[str, FakeStep]:
    a = network.a
    base, residual = _cached(network, "base"), _cached(network, "residual")

    def base_step(inputs: Mapping[str, np.ndarray], state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        hidden = base(inputs, state)
        quantised = network.fsq(hidden)
        return {"hidden": hidden, "fsq_hidden": quantised, "stop_logits": network.stop_logits(quantised)}

    functions = {
        "audio_vae_encoder": lambda i, s: {"latents": fake_encode(s, i["audio"][0, 0], a)[np.newaxis]},
        "audio_vae_decoder": lambda i, s: {
            "audio": fake_decode(s, i["latents"][0], a)[np.newaxis, np.newaxis]
        },
        "feat_encoder": lambda i, _: {"embeddings": network.embed(i["patches"][0])[np.newaxis]},
        "base_lm_step": base_step,
        "residual_lm_step": lambda i, s: {"hidden": residual(i, s)},
        "locdit_step": lambda i, _: {"velocity": network.velocity(i)},
    }
    declared = declare_step_models(a, SIZES)
    return {name: FakeStep(declared[name], function) for name, function in functions.items()}


@pytest.fixture
def encode() -> Callable[..., np.ndarray]:
    return fake_encode


@pytest.fixture
def decode() -> Callable[..., np.ndarray]:
    return fake_decode


CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,!?() "


def write_tokenizer(folder: Path) -> None:
    folder.mkdir()
    vocabulary = {
        token: index for index, token in enumerate(["<unk>", "<s>", "</s>", "▁", *CHARACTERS.strip()])
    }
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
            ],
        },
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": None,
        "model": {"type": "BPE", "unk_token": "<unk>", "vocab": vocabulary, "merges": []},
    }
    (folder / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({"legacy": True}), encoding="utf-8")


@pytest.fixture
def bundle_folder(
    tmp_path: Path,
    architecture: Architecture,
    constants: dict[str, np.ndarray],
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """A complete bundle, except that the packages of its step models are a few bytes each."""
    monkeypatch.setenv("VOXCPM_COREML_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "bundle"
    (folder / "constants").mkdir(parents=True)
    for name, array in constants.items():
        write_constant(folder / "constants", name, array)
    write_tokenizer(folder / "tokenizer")
    step_models = declare_step_models(architecture, SIZES)
    for precision in ("fp16", "int8"):
        for name in step_models:
            package = folder / precision / f"{name}.mlpackage"
            package.mkdir(parents=True)
            (package / "Manifest.json").write_text(precision + name)
    Manifest(
        architecture=architecture,
        sizes=SIZES,
        step_models=step_models,
        precisions=("fp16", "int8"),
        source=Source(checkpoint="tiny", sha256="0" * 64),
        tools={"numpy": np.__version__},
        files=record_folder(folder),
    ).write(folder)
    return folder


@pytest.fixture
def tts(
    bundle_folder: Path,
    architecture: Architecture,
    sizes: StepSizes,
    constants: dict[str, np.ndarray],
    models: dict[str, FakeStep],
) -> voxcpm.VoxCPM:
    return voxcpm.VoxCPM(open_bundle(bundle_folder), Driver(architecture, sizes, constants, models))


BATCH, LENGTH = 3, 48
BATCH_SIZES = StepSizes(batch=BATCH, kv_length=LENGTH, prefill_chunks=(1, 4, 16), encode_patches=(1, 4))


class BatchState(dict[int, FakeState]):
    """A cache for each slot, with their positions one after another."""

    def __init__(self, model):
        super().__init__({slot: model.new_state() for slot in range(BATCH)})

    def rows(self, start, stop):
        slot, first = divmod(start, LENGTH)
        return self[slot].rows(first, first + stop - start)

    def set_rows(self, start, rows):
        slot, first = divmod(start, LENGTH)
        self[slot].set_rows(first, rows)


class BatchStep:
    """A step model of the tiny network for a batch: rows are computed one slot at a time, and counted as one call."""

    def __init__(self, model, declared):
        self.model, self.declared, self.calls = model, declared, []

    def new_state(self):
        return BatchState(self.model)

    def __call__(self, inputs, state=None):
        for tensor in self.declared.inputs:
            shapes = {tensor.shape_at(chunk) for chunk in range(self.declared.chunk_count)}
            assert inputs[tensor.name].shape in shapes, tensor.name
        self.calls.append(inputs[self.declared.inputs[0].name].shape)
        rows = 1 if state is not None else 2
        outputs = []
        for slot in range(BATCH):
            own = {name: array[rows * slot : rows * (slot + 1)] for name, array in inputs.items()}
            # Idle slots get zeros, which the tiny network stores as NaN, so that attending to them shows in the result.
            outputs.append(self.model.function(own, None if state is None else state[slot]))
        return {name: np.concatenate([output[name] for output in outputs]) for name in outputs[0]}


@pytest.fixture
def batch_models(architecture, models):
    declared = declare_step_models(architecture, BATCH_SIZES)
    shared = {
        name: BatchStep(models[name], declared[name])
        for name in ("base_lm_step", "residual_lm_step", "locdit_step")
    }
    models["feat_encoder"].declared = declared["feat_encoder"]
    return models | shared


@pytest.fixture
def batched(bundle_folder, architecture, constants, batch_models):
    return voxcpm.VoxCPM(
        open_bundle(bundle_folder), Driver(architecture, BATCH_SIZES, constants, batch_models)
    )


@pytest.fixture
def speaking(
    bundle_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    models: dict[str, FakeStep],
    network: FakeNetwork,
) -> str:
    """A bundle with the tiny step models, whose stop head ends the speech as soon as it may."""
    placed = {name: Placed(model, "portable") for name, model in models.items()}
    monkeypatch.setattr(voxcpm, "place_step_models", lambda *_, **__: placed)
    network.stop_bias = np.array([-1e3, 0], np.float32)
    return str(bundle_folder)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def batch(
    speaking: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Writes the lines, speaks them into out/, and returns (exit code, standard output, standard error)."""

    def run(lines: list[Any] | None, *options: str, name: str = "lines.jsonl") -> tuple[int, str, str]:
        if lines is not None:
            text = "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)
            (folder / name).write_text(text, encoding="utf-8")
        code = cli.main(["batch", speaking, name, "-o", "out", *options])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A list that gets an entry each time a voice is opened."""
    opened: list[Any] = []
    from_bundle = voxcpm.VoxCPM.from_bundle

    def counted(*arguments: Any, **options: Any) -> voxcpm.VoxCPM:
        opened.append(arguments)
        return from_bundle(*arguments, **options)

    monkeypatch.setattr(voxcpm.VoxCPM, "from_bundle", counted)
    return opened
