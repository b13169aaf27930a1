"""The GPU's graphs, buffers and threads, run with ONNX Runtime's CPU provider."""

from __future__ import annotations

import gc
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from voxcpm_constants.errors import DeviceError
from voxcpm_constants.step_models import BASE_LM_STEP, LOCDIT_STEP
from voxcpm_runtime.backends.gpu import step_model as device_calls
from voxcpm_runtime.backends.gpu.device import Device
from voxcpm_runtime.backends.gpu.fusion import fuse_for_gpu
from voxcpm_runtime.backends.gpu.step_model import GRAPH_ID
from voxcpm_runtime.backends.loading import load_portable_step_model
from voxcpm_runtime.backends.portable.lowering import lower
from voxcpm_runtime.bundle.opening import Bundle, open_bundle

# `Device.check` refuses GPUs with older ones, whose ONNX Runtime lacks some of the nodes.
pytestmark = pytest.mark.skipif(sys.version_info < (3, 11), reason="a GPU needs Python 3.11 or newer")

ON_DEVICE: dict[str, Any] = {"device": Device("cpu")}


def load(bundle: Bundle, name: str, **options: Any) -> Any:
    return load_portable_step_model(
        bundle.folder, bundle.manifest, bundle.precision, name, threads=1, **options
    )


def random_inputs(bundle: Bundle, name: str, rng: np.random.Generator, chunk: int = 0) -> dict[str, Any]:
    return {
        t.name: np.full(t.shape_at(chunk), 3, np.int32)
        if t.dtype == "int32"
        else rng.standard_normal(t.shape_at(chunk), np.float32)
        for t in bundle.manifest.step_models[name].inputs
    }


FORMS = [
    ("tiny_bundle", "fp16", 0.9999),
    # Plain arithmetic rounds activations to 8 bits too.
    ("tiny_bundle", "int8", 0.99),
    ("tiny_bundle_15", "int4", 0.99),
    ("tiny_parts_bundle", "fp16", 0.9999),
]


@pytest.mark.parametrize(("form", "precision", "floor"), FORMS)
def test_every_step_model_agrees_with_float32(
    request: pytest.FixtureRequest, form: str, precision: str, floor: float
) -> None:
    """Three calls per length: the first, the bound one, and the other of two buffers."""
    bundle = open_bundle(request.getfixturevalue(form), precision)
    for name, declared in bundle.manifest.step_models.items():
        rng = np.random.default_rng(0)
        calls = [
            random_inputs(bundle, name, rng, chunk)
            for chunk in range(len(declared.chunk_lengths) if declared.state else 1)
            for _ in range(3)
        ]
        outputs = []
        for options in ({}, ON_DEVICE):
            model = load(bundle, name, **options)
            state = model.new_state() if declared.state else None
            outputs.append([model(inputs, state) for inputs in calls])
        for plain, half in zip(*outputs, strict=True):
            for tensor, expected in plain.items():
                assert half[tensor].dtype == expected.dtype
                assert np.corrcoef(half[tensor].ravel(), expected.ravel())[0, 1] > floor, (name, tensor)


@pytest.mark.parametrize("name", [BASE_LM_STEP, LOCDIT_STEP])
def test_rewrites_match_converted_programs(tiny_bundle: Path, name: str) -> None:
    """Otherwise they would be skipped silently, with the same results."""
    import onnx

    path = tiny_bundle / open_bundle(tiny_bundle, "fp16").manifest.package_path("fp16", name)
    kinds = {
        node.op_type
        for node in onnx.load_from_string(lower(path, mode="half", rewrite=fuse_for_gpu).model).graph.node
    }
    assert kinds >= {"RotaryEmbedding", "SkipSimplifiedLayerNormalization"}
    assert ("MultiHeadAttention" in kinds) == (name == LOCDIT_STEP)


@pytest.fixture
def base_lm(tiny_bundle: Path) -> tuple[Bundle, Any]:
    bundle = open_bundle(tiny_bundle, "fp16")
    return bundle, load(bundle, BASE_LM_STEP, **ON_DEVICE)


def test_cache_rows_round_trip(base_lm: tuple[Bundle, Any]) -> None:
    _, model = base_lm
    state, rng = model.new_state(), np.random.default_rng(1)
    shapes = {name: array.shape for name, array in state.rows(0, 5).items()}
    rows = {n: rng.standard_normal(s).astype(np.float16).astype(np.float32) for n, s in shapes.items()}
    state.set_rows(7, rows)
    for name, array in state.rows(6, 13).items():
        assert array.dtype == np.float32
        np.testing.assert_array_equal(array[:, :, 1:6], rows[name])
        assert not array[:, :, [0, 6]].any()
    assert all(array.shape[2] == 0 for array in state.rows(4, 4).values())


def test_streams_have_separate_states(base_lm: tuple[Bundle, Any]) -> None:
    bundle, model = base_lm

    def steps(seed: int) -> list[dict[str, Any]]:
        rng = np.random.default_rng(seed)
        inputs = [random_inputs(bundle, BASE_LM_STEP, rng) for _ in range(5)]
        return [{**given, "position": np.array([at], np.int32)} for at, given in enumerate(inputs)]

    def alone(seed: int) -> list[Any]:
        state = model.new_state()
        return [model(inputs, state)["hidden"] for inputs in steps(seed)]

    expected = [alone(seed) for seed in range(3)]
    states = [model.new_state() for _ in range(3)]
    for at in range(5):
        for seed in (2, 0, 1):
            np.testing.assert_array_equal(model(steps(seed)[at], states[seed])["hidden"], expected[seed][at])
    with ThreadPoolExecutor(3) as threads:
        assert all(map(np.array_equal, threads.map(alone, range(3)), expected))


def test_reused_state_starts_from_zeros(base_lm: tuple[Bundle, Any]) -> None:
    _, model = base_lm
    first = model.new_state()
    first.set_rows(0, {name: np.full_like(rows, np.nan) for name, rows in first.rows(0, 9).items()})
    buffers = first.buffers
    del first
    gc.collect()
    second = model.new_state()
    assert second.buffers is buffers
    assert not any(rows.any() for rows in second.rows(0, 9).values())


def test_contexts_take_turns_and_start_from_zeros(tiny_bundle: Path) -> None:
    bundle = open_bundle(tiny_bundle, "fp16")
    model = load(bundle, "audio_vae_decoder", **ON_DEVICE)
    calls = [random_inputs(bundle, "audio_vae_decoder", np.random.default_rng(seed)) for seed in range(4)]

    def decoded() -> list[Any]:
        state = model.new_state()
        return [model(inputs, state)["audio"] for inputs in calls]

    first = decoded()
    np.testing.assert_array_equal(decoded(), first)


def test_outputs_survive_the_next_call(tiny_bundle: Path) -> None:
    bundle = open_bundle(tiny_bundle, "fp16")
    model, rng = load(bundle, LOCDIT_STEP, **ON_DEVICE), np.random.default_rng(0)
    results = [model(random_inputs(bundle, LOCDIT_STEP, rng))["velocity"] for _ in range(3)]
    kept = [result.copy() for result in results]
    model(random_inputs(bundle, LOCDIT_STEP, rng))
    np.testing.assert_array_equal(results, kept)


def test_captured_calls_have_unique_ids_and_are_limited(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Device, "captures", True)
    monkeypatch.setattr(device_calls, "MAX_GRAPHS", 2)
    bundle = open_bundle(tiny_bundle, "fp16")
    model = load(bundle, "audio_vae_decoder", **ON_DEVICE)
    inputs = random_inputs(bundle, "audio_vae_decoder", np.random.default_rng(0))
    states = [model.new_state() for _ in range(2)]
    for _ in range(4):
        for state in states:
            model(inputs, state)
    bound = list(model._calls._bound.values())
    assert [b.options.get_run_config_entry(GRAPH_ID) for b in bound] == ["1", "2", "-1", "-1"]


def test_wrong_states_are_rejected(base_lm: tuple[Bundle, Any]) -> None:
    bundle, model = base_lm
    inputs = random_inputs(bundle, BASE_LM_STEP, np.random.default_rng(0))
    with pytest.raises(ValueError, match="has a state: pass one"):
        model(inputs)
    with pytest.raises(ValueError, match="pass a state of this step model"):
        model(inputs, load(bundle, BASE_LM_STEP).new_state())


def test_out_of_memory_while_speaking_is_one_line(
    base_lm: tuple[Bundle, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, model = base_lm

    def full(*_: Any) -> None:
        raise RuntimeError("CUDA failure 2: out of memory ; GPU=0")

    state = model.new_state()
    monkeypatch.setattr(model._calls, "_call", full)
    with pytest.raises(DeviceError, match="not enough GPU memory to run a step model"):
        model(random_inputs(bundle, BASE_LM_STEP, np.random.default_rng(0)), state)
