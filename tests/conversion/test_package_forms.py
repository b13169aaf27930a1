"""The optional forms of a bundle: caches that return rows, a base LM of two packages, Euler steps in one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from voxcpm_constants.architecture import Architecture
from voxcpm_constants.errors import InputError
from voxcpm_constants.manifest import Manifest
from voxcpm_constants.step_models import BASE_LM_STEP, LOCDIT_SOLVE, LOCDIT_STEP, RESIDUAL_LM_STEP, StepSizes
from voxcpm_conversion.checkpoint import Checkpoint
from voxcpm_conversion.splitting import base_lm_parts
from voxcpm_runtime.backends.loading import load_portable_step_model
from voxcpm_runtime.backends.step_function import StepFunction, write_rows
from voxcpm_runtime.commands import cli
from voxcpm_runtime.model.flow_matching import solve, solve_at_once
from voxcpm_runtime.voxcpm import VoxCPM

STEPS = 4
TEXT = "one two three."
GIVEN = {"seed": 3, "min_len": 6, "max_len": 6, "retry_badcase": False}
LM_STEPS = (BASE_LM_STEP, RESIDUAL_LM_STEP)


def _step(bundle: Path, precision: str, name: str, **options: object):  # type: ignore[no-untyped-def]
    return load_portable_step_model(bundle, Manifest.read(bundle), precision, name, threads=1, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", LM_STEPS)
def test_a_cache_that_returns_rows_computes_what_a_scattered_one_does(
    tiny_bundle: Path, tiny_parts_bundle: Path, name: str
) -> None:
    """Chunks of 16, 1 and 1 embeddings; then the last position of the cache."""
    rng = np.random.default_rng(0)
    models = [_step(folder, "fp32", name) for folder in (tiny_bundle, tiny_parts_bundle)]
    states = [model.new_state() for model in models]
    for position, length in ((0, 16), (16, 1), (17, 1), (127, 1)):
        inputs = {
            "embeddings": rng.standard_normal((1, length, 64), np.float32),
            "position": np.array([position], np.int32),
        }
        theirs, ours = (model(inputs, state) for model, state in zip(models, states, strict=True))
        for output in theirs:
            np.testing.assert_allclose(ours[output], theirs[output], rtol=0, atol=2e-5)
    for start, stop in ((0, 18), (18, 127), (127, 128)):
        theirs, ours = (state.rows(start, stop) for state in states)
        assert theirs.keys() == ours.keys()
        for cache in theirs:
            np.testing.assert_allclose(ours[cache], theirs[cache], rtol=0, atol=2e-5)


def test_the_base_lm_has_two_packages_with_half_of_the_layers_each(tiny_parts_bundle: Path) -> None:
    manifest = Manifest.read(tiny_parts_bundle)
    first, second = manifest.parts(BASE_LM_STEP)
    assert [t.name for t in first.state] == ["k_cache_00", "v_cache_00"]
    assert [t.name for t in second.state] == ["k_cache_01", "v_cache_01"]
    for part in (first, second):
        assert (tiny_parts_bundle / "fp16" / f"{part.name}.mlpackage").is_dir()
    assert not (tiny_parts_bundle / "fp16" / f"{BASE_LM_STEP}.mlpackage").exists()


@pytest.fixture(scope="session")
def forms_of_macos_15(some_packages: Callable[..., Path]) -> Path:
    """The base LM of "tiny" in two packages with states, for macOS 15."""
    sizes = StepSizes(kv_length=128, prefill_chunks=(1, 16), base_lm_parts=2)
    return some_packages("forms-15", "tiny", (BASE_LM_STEP,), sizes, ("fp16",), "macOS15")


def _equal_to_the_last_bit(models: Sequence[StepFunction]) -> None:
    """Outputs and caches over chunks of 16, 1 and 1 embeddings, and the last position of the cache."""
    rng = np.random.default_rng(2)
    states = [model.new_state() for model in models]
    for position, length in ((0, 16), (16, 1), (17, 1), (127, 1)):
        inputs = {
            "embeddings": rng.standard_normal((1, length, 64), np.float32),
            "position": np.array([position], np.int32),
        }
        theirs, ours = (model(inputs, state) for model, state in zip(models, states, strict=True))
        assert theirs.keys() == ours.keys()
        for output in theirs:
            np.testing.assert_array_equal(ours[output], theirs[output])
    theirs, ours = (state.rows(0, 128) for state in states)
    assert theirs.keys() == ours.keys()
    for cache in theirs:
        np.testing.assert_array_equal(ours[cache], theirs[cache])
    assert all(np.any(array) for array in ours.values())


def test_parts_with_states_and_functions_are_the_whole_base_lm_to_the_last_bit(
    tiny_bundle_15: Path, forms_of_macos_15: Path
) -> None:
    manifest = Manifest.read(forms_of_macos_15)
    for part in manifest.parts(BASE_LM_STEP):
        form = manifest.form(part)
        assert (list(form.functions), form.state) == (["decode", "prefill_16"], "native")
    _equal_to_the_last_bit(
        [_step(folder, "fp16", BASE_LM_STEP) for folder in (tiny_bundle_15, forms_of_macos_15)]
    )


def test_the_command_passes_the_three_options_on(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The base LM's two layers have 43,136 weights each, and two bytes a weight."""
    asked: list[dict[str, Any]] = []

    def noted(*_: object, **given: Any) -> None:
        asked.append(given)
        raise InputError("far enough")

    monkeypatch.setattr("voxcpm_conversion.cli.convert_checkpoint", noted)
    forms = ("--kv-cache", "rows", "--solver-steps", "100", "--split-gigabytes", "1.1e-4")
    given = ["convert", str(tiny_checkpoint), "-o", str(tmp_path / "b"), "--max-length", "128", *forms]
    assert cli.main(given) == 2
    (options,) = asked
    assert options["kv_cache"] == "rows"
    assert options["sizes"] == StepSizes(kv_length=128, solver_steps=100, base_lm_parts=2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--split-gigabytes", "inf"], "--split-gigabytes inf: expected a finite size above 0"),
        (["--split-gigabytes", "0"], "--split-gigabytes 0: expected a finite size above 0"),
        (["--solver-steps", "201"], "--solver-steps 201: expected 2 to 200, or 0 for none"),
        (["--solver-steps", "1"], "--solver-steps 1: expected 2 to 200, or 0 for none"),
        (["--solver-steps", "-1"], "--solver-steps -1: expected 2 to 200, or 0 for none"),
        (["--kv-cache", ""], "--kv-cache '': expected one of scatter, rows"),
        (["--kv-cache", "rows", "--target", "macos15"], "--kv-cache rows needs --target macos14"),
        (["--precision", "fp32", "--target", "macos15"], "--precision fp32 needs --target macos14"),
        (["--audio-vae-fp32", "--target", "macos27"], "--audio-vae-fp32 needs --target macos14 or macos15"),
        (["--precision", "int4"], "--precision int4 needs --target macos15"),
        (["--max-length", "32", "--prefill-chunk", "64"], "--prefill-chunk 64 does not fit"),
    ],
)
def test_what_needs_no_checkpoint_is_checked_before_one_is_downloaded(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    def opened(*_: object, **__: object) -> None:
        raise AssertionError("the checkpoint was opened")

    monkeypatch.setattr(Checkpoint, "open", opened)
    assert cli.main(["convert", "openbmb/VoxCPM2", "-o", str(tmp_path / "b"), *arguments]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {message}")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("sizes", "warning"),
    [
        (["--max-length", "16384"], None),
        (["--max-length", "16385"], "does not take caches of more than 16384"),
        (["--target", "macos15", "--max-length", "100"], "needs a multiple of 32 for Core ML's states"),
        (["--target", "macos15", "--max-length", "96"], None),
        (["--max-length", "100"], None),
    ],
)
def test_caches_that_the_neural_engine_does_not_take_are_named(
    tiny_checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    sizes: list[str],
    warning: str | None,
) -> None:
    """It takes 16,384 positions, and states in multiples of 32; others run elsewhere."""

    def ended(*_: object, **__: object) -> None:
        raise InputError("far enough")

    monkeypatch.setattr("voxcpm_conversion.cli.convert_checkpoint", ended)
    monkeypatch.setenv("COLUMNS", "500")
    cli.main(["convert", str(tiny_checkpoint), "-o", str(tmp_path / "b"), *sizes])
    *before, error = capsys.readouterr().err.splitlines()
    assert error == "error: far enough"
    warnings = [line for line in before if "Neural Engine" in line]
    assert len(warnings) == (warning is not None)
    assert all((warning or "") in line for line in warnings)


@pytest.mark.parametrize(
    ("precision", "mode", "worst"), [("fp32", "plain", 1e-4), ("fp16", "faithful", 0.05)]
)
def test_all_euler_steps_in_one_package_are_the_hosts_solver(
    tiny_bundle: Path, tiny_parts_bundle: Path, precision: str, mode: str, worst: float
) -> None:
    """The reference is the host's loop over the fp32 package."""
    a, rng = Manifest.read(tiny_bundle).architecture, np.random.default_rng(1)
    shape = (a.feat_dim, a.patch_size)
    given = [rng.standard_normal(s).astype(np.float32) for s in (shape, (a.mu_size,), shape)]
    options = {"steps": STEPS, "embedding_size": a.dit_config.hidden_dim}
    solver = _step(tiny_parts_bundle, precision, LOCDIT_SOLVE, mode=mode)
    for cfg_value, sway in ((2.0, 1.0), (1.0, 1.0), (3.0, 0.0)):
        chosen = options | {"cfg_value": cfg_value, "sway_sampling_coef": sway}
        expected = solve(_step(tiny_bundle, "fp32", LOCDIT_STEP), *given, **chosen)  # type: ignore[arg-type]
        patch = solve_at_once(solver, *given, **chosen)  # type: ignore[arg-type]
        np.testing.assert_allclose(patch, expected, rtol=0, atol=worst)
        assert np.corrcoef(patch.ravel(), expected.ravel())[0, 1] > 1 - worst**2


def test_speech_is_that_of_the_usual_forms(tiny_bundle: Path, tiny_parts_bundle: Path) -> None:
    """With as many steps as the solver's package takes, and with others, for which the step's package is called."""
    for steps in (STEPS, 3):
        theirs, ours = (
            VoxCPM.from_bundle(folder, "fp32").speak(TEXT, **GIVEN, inference_timesteps=steps)
            for folder in (tiny_bundle, tiny_parts_bundle)
        )
        np.testing.assert_allclose(ours.latents, theirs.latents, rtol=0, atol=1e-3)


@pytest.mark.parametrize(("given", "called"), [({}, True), ({"use_cfg_zero_star": False}, False)])
def test_the_solvers_package_is_called_where_it_does_what_was_asked(
    tiny_parts_bundle: Path, given: dict[str, bool], called: bool
) -> None:
    tts = VoxCPM.from_bundle(tiny_parts_bundle, "fp32")
    calls = []

    def counted(name: str, model: StepFunction) -> StepFunction:
        def call(inputs: object, state: object = None) -> object:
            calls.append(name)
            return model(inputs, state)  # type: ignore[arg-type]

        call.new_state = model.new_state  # type: ignore[attr-defined]
        return call  # type: ignore[return-value]

    for name in (LOCDIT_SOLVE, LOCDIT_STEP):
        tts.driver.models[name] = counted(name, tts.driver.models[name])  # type: ignore[index]
    tts.speak(TEXT, **GIVEN, inference_timesteps=STEPS, **given)
    assert set(calls) == {LOCDIT_SOLVE if called else LOCDIT_STEP}
    assert len(calls) == 6 * (1 if called else STEPS)


def test_voxcpm_2_fits_into_packages_of_two_gigabytes_as_two(shared_data: Path) -> None:
    """1.33 billion weights of two bytes; int8 packages are half as large."""
    a = Architecture.from_file(shared_data / "config" / "voxcpm-2.json")
    assert base_lm_parts(a, ["fp16", "int8"], 2) == 2
    assert base_lm_parts(a, ["int8"], 2) == 1
    assert base_lm_parts(a, ["fp16"], 1e-6) == a.base_lm.num_layers


def test_rows_of_each_utterance_go_to_its_own_part_of_the_cache() -> None:
    cache, rows = (
        np.zeros((1, 1, 8, 1), np.float32),
        np.arange(1.0, 5.0, dtype=np.float32).reshape(1, 1, 4, 1),
    )
    write_rows(cache, rows, np.array([2, 0], np.int32))
    assert cache.ravel().tolist() == [0, 0, 1, 2, 3, 4, 0, 0]
