import numpy as np
import pytest

from voxcpm_constants import step_models as names
from voxcpm_constants.architecture import Architecture
from voxcpm_constants.manifest import MODEL_CARD_FILE, Manifest, package_path
from voxcpm_constants.step_models import StepSizes
from voxcpm_constants.vectors import read_vectors
from voxcpm_conversion.checkpoint import Checkpoint
from voxcpm_conversion.core_ml.toolchain import import_coremltools
from voxcpm_conversion.recipes import base_lm_parts
from voxcpm_runtime.backends.loading import load_portable_step_model
from voxcpm_runtime.backends.portable.package import read_package
from voxcpm_runtime.commands import cli
from voxcpm_runtime.doctor.worker import FLOORS, compare
from voxcpm_runtime.model.flow_matching import solve, solve_at_once
from voxcpm_runtime.voxcpm import VoxCPM
from voxcpm_validation.lint.bundle import lint_bundle

STEPS = 4
SPLIT = StepSizes(kv_length=128, prefill_chunks=(1, 8), solver_steps=100, base_lm_parts=2)
TEXT = "one two three."
GIVEN = {"seed": 3, "min_len": 6, "max_len": 6, "retry_badcase": False}
LM_STEPS = (names.BASE_LM_STEP, names.RESIDUAL_LM_STEP)


def _step(bundle, precision, name, **options):
    return load_portable_step_model(bundle, Manifest.read(bundle), precision, name, threads=1, **options)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", (["fp16", "int8"], "macOS14", "scatter", 0, True)),
        ("--no-measure", (["fp16", "int8"], "macOS14", "scatter", 0, False)),
        ("--quantize all", (["fp16", "int8"], "macOS14", "scatter", 0, False)),
        # A preset is what given options leave open.
        ("--preset phone", (["int8"], "macOS15", "stacked", 10, True)),
        ("--preset phone --precision fp16 --kv-cache scatter --solver-steps 0",
         (["fp16"], "macOS15", "scatter", 0, True)),
        ("--preset phone --batch 4 --kv-cache scatter", (["int8"], "macOS15", "scatter", 10, True)),
        # The base LM's two layers have 43,136 weights each, and two bytes a weight.
        ("--max-length 128 --kv-cache rows --solver-steps 100 --split-gigabytes 1.1e-4 --prefill-chunk 8", SPLIT),
    ],
)  # fmt: skip
def test_command_passes_options(tiny_checkpoint, tmp_path, asked, words, expected):
    given = ["convert", str(tiny_checkpoint), "-o", str(tmp_path / "b"), "--no-alignment", *words.split()]
    assert cli.main(given) == 130
    (each,) = asked
    if expected == SPLIT:
        assert (each["kv_cache"], each["sizes"]) == ("rows", SPLIT)
    else:
        names = ("precisions", "target", "kv_cache")
        assert (*(each[name] for name in names), each["sizes"].solver_steps, each["measure"]) == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--split-gigabytes", "inf"], "--split-gigabytes inf: expected a finite size above 0"),
        (["--solver-steps", "1"], "--solver-steps 1: expected 2 to 200, or 0 for none"),
        (["--kv-cache", ""], "--kv-cache '': expected one of scatter, rows, stacked"),
        (["--kv-cache", "stacked"], "--kv-cache stacked needs --target macos15"),
        (["--preset", "phone", "--target", "macos27"], "--kv-cache stacked needs --target macos15"),
        (["--preset", "phone", "--precision", "fp32"], "--precision fp32 needs --target macos14"),
        (["--preset", "watch"], "--preset watch: expected one of general, phone"),
        (["--kv-cache", "rows", "--target", "macos15"], "--kv-cache rows needs --target macos14"),
        (["--precision", "fp32", "--target", "macos15"], "--precision fp32 needs --target macos14"),
        (["--audio-vae-fp32", "--target", "macos27"], "--audio-vae-fp32 needs --target macos14 or macos15"),
        (["--precision", "int4"], "--precision int4 needs --target macos15"),
        (["--batch", "4", "--target", "macos14"], "--batch 4 needs --target macos15 and --kv-cache scatter"),
        (["--batch", "4", "--kv-cache", "rows"], "--kv-cache rows needs --target macos14"),
        (["--batch", "4", "--preset", "phone"], "--batch 4 needs --target macos15 and --kv-cache scatter"),
        (["--precision", "fp8"], "--precision fp8: expected one of fp16, int8, int4, fp32"),
        (["--target", "ios19"], "--target ios19: expected one of macos14, macos15, macos27"),
        (["--quantize", "half"], "--quantize half: expected one of measured, all"),
        (["--quantize", "measured", "--no-measure"], "--no-measure: --quantize measured measures; leave one"),
        (["--max-length", "0"], "--max-length 0: expected 1 to 1048576 positions"),
        (["--max-length", "32", "--prefill-chunk", "64"], "--prefill-chunk 64 does not fit"),
    ],
)
def test_options_are_checked_before_the_checkpoint_is_downloaded(
    tmp_path, monkeypatch, refusal, arguments, message
):
    def opened(*_, **__):
        raise AssertionError("the checkpoint was opened")

    monkeypatch.setattr(Checkpoint, "open", opened)
    line = refusal("convert", "openbmb/VoxCPM2", "-o", tmp_path / "b", *arguments)
    assert line.startswith(f"error: {message}")


def test_functions_for_several_utterances_follow_the_rules(together_bundle):
    manifest = Manifest.read(together_bundle)
    functions = {name: list(manifest.form(model).functions) for name, model in manifest.step_models.items()}

    assert manifest.target == "macOS15"
    assert {name for name, own in functions.items() if own[-1] == "together_4"} == {
        names.FEAT_ENCODER, names.LOCDIT_STEP, *LM_STEPS,
    }  # fmt: skip
    assert lint_bundle(str(together_bundle)).faults == []


@pytest.mark.parametrize(
    ("options", "warning"),
    [
        (["--max-length", "16384"], ""),
        (["--max-length", "16385"], "does not support caches of more than 16384"),
        (["--target", "macos15", "--max-length", "100"], "needs a multiple of 32 for Core ML's states"),
    ],
)
@pytest.mark.usefixtures("asked")
def test_caches_unsupported_by_the_neural_engine_are_named(
    tiny_checkpoint, tmp_path, monkeypatch, capsys, options, warning
):
    monkeypatch.setenv("COLUMNS", "500")
    cli.main(["convert", str(tiny_checkpoint), "-o", str(tmp_path / "b"), *options])
    said = capsys.readouterr().err
    assert ("Neural Engine" in said) == bool(warning)
    assert warning in said


@pytest.mark.parametrize(
    ("precision", "mode", "worst"), [("fp32", "plain", 1e-4), ("fp16", "faithful", 0.05)]
)
def test_solver_package_equals_the_hosts_solver(tiny_bundle, tiny_parts_bundle, precision, mode, worst):
    """The reference is the host's loop over the fp32 package."""
    a, rng = Manifest.read(tiny_bundle).architecture, np.random.default_rng(1)
    shape = (a.feat_dim, a.patch_size)
    given = [rng.standard_normal(s).astype(np.float32) for s in (shape, (a.mu_size,), shape)]
    options = {"steps": STEPS, "embedding_size": a.dit_config.hidden_dim}
    solver = _step(tiny_parts_bundle, precision, names.LOCDIT_SOLVE, mode=mode)
    for cfg_value, sway in ((2.0, 1.0), (1.0, 1.0), (3.0, 0.0)):
        chosen = options | {"cfg_value": cfg_value, "sway_sampling_coef": sway}
        expected = solve(_step(tiny_bundle, "fp32", names.LOCDIT_STEP), *given, **chosen)
        patch = solve_at_once(solver, *given, **chosen)
        np.testing.assert_allclose(patch, expected, rtol=0, atol=worst)
        assert np.corrcoef(patch.ravel(), expected.ravel())[0, 1] > 1 - worst**2


@pytest.mark.parametrize(
    ("given", "solver"),
    [
        ({"inference_timesteps": STEPS}, True),
        ({"inference_timesteps": 3}, False),
        ({"inference_timesteps": STEPS, "use_cfg_zero_star": False}, False),
    ],
)
def test_speech_equals_the_default_forms(tiny_bundle, tiny_parts_bundle, given, solver):
    """The solver package is used where it supports the options."""
    expected, tts = (VoxCPM.from_bundle(folder, "fp32") for folder in (tiny_bundle, tiny_parts_bundle))
    unused = names.LOCDIT_STEP if solver else names.LOCDIT_SOLVE
    tts.driver.models[unused] = lambda *_: pytest.fail(f"{unused} was called")
    theirs, ours = (each.speak(TEXT, **GIVEN, **given) for each in (expected, tts))
    np.testing.assert_allclose(ours.latents, theirs.latents, rtol=0, atol=1e-3)


def test_voxcpm2_splits_into_two_packages_under_2_gb(shared_data):
    """1.33 billion weights of two bytes, without the embedding; int8 packages are half as large."""
    a = Architecture.from_file(shared_data / "config" / "voxcpm-2.json")
    assert base_lm_parts(a, ["fp16", "int8"], 2) == 2
    assert base_lm_parts(a, ["int8"], 2) == 1
    # 28 layers of 95 MB, ten of them in a gigabyte. With the embedding, they would have 106.
    assert base_lm_parts(a, ["fp16"], 1) == 3
    assert base_lm_parts(a, ["fp16"], 1e-6) == a.base_lm.num_layers


def _description(package):
    return import_coremltools().utils.load_spec(str(package)).description


@pytest.mark.parametrize("precision", ["fp16", "int8"])
@pytest.mark.parametrize("name", LM_STEPS)
def test_language_models_have_one_function_per_length_and_keep_their_caches(tiny_bundle_15, name, precision):
    declared = Manifest.read(tiny_bundle_15).step_models[name]
    description = _description(tiny_bundle_15 / package_path(precision, name))
    assert description.defaultFunctionName == "decode"
    functions = {f.name: f for f in description.functions}
    assert list(functions) == ["decode", "prefill_16"]
    for chunk, (function, length) in enumerate(zip(functions.values(), (1, 16), strict=True)):
        inputs = {t.name: list(t.type.multiArrayType.shape) for t in function.input}
        assert inputs == {"embeddings": [1, length, 64], "position": [1]}
        outputs = {t.name for t in function.output}
        assert outputs == {t.name for t in declared.at(chunk).outputs}
        assert ("attention" in outputs) == (name == names.BASE_LM_STEP and length == 1)
        states = {t.name: tuple(t.type.stateType.arrayType.shape) for t in function.state}
        assert states == {t.name: t.shape for t in declared.state}


@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_stacked_states_are_two_a_package_and_written_once_a_call(phone_bundle, precision):
    manifest, stacks = Manifest.read(phone_bundle), {}
    for name in LM_STEPS:
        for part in manifest.parts(name):
            package = phone_bundle / manifest.package_path(precision, part.name)
            for function in ("decode", "prefill_16"):
                program = read_package(package, function)
                kinds = [operation.kind for operation in program.operations]
                assert kinds.count("read_state") == kinds.count("write_state") == len(program.states) == 2
            stacks[part.name] = {state.name: state.fixed_shape for state in program.states}
    four, three, two = ((layers, 2, 256, 64) for layers in (4, 3, 2))
    assert stacks == {
        "base_lm_step_1": {"k_caches_00": three, "v_caches_00": three},
        "base_lm_step_2": {"k_caches_03": four, "v_caches_03": four},
        "residual_lm_step": {"k_caches_00": two, "v_caches_00": two},
    }


@pytest.mark.parametrize(
    ("bundle", "macos_14", "voice"),
    [
        ("tiny_bundle_15", "tiny_bundle", {}),
        ("phone_bundle", "speaking_bundle", {"zero_shot": True}),
        ("phone_bundle", "speaking_bundle", {"voice": "heart"}),
    ],
)
def test_speech_of_states_equals_the_macos_14_bundle(request, bundle, macos_14, voice):
    """Also with a voice, whose rows are read from the states and written into those of the next speech."""
    given = GIVEN | voice | {"inference_timesteps": STEPS, "use_cfg_zero_star": False, "every_word": False}
    ours, theirs = (
        VoxCPM.from_bundle(request.getfixturevalue(name), "fp16").speak(
            "the you and all that is in it", **given
        )
        for name in (bundle, macos_14)
    )
    np.testing.assert_array_equal(ours.latents, theirs.latents)
    np.testing.assert_array_equal(ours.audio, theirs.audio)


@pytest.mark.parametrize("precision", ["fp16", "int8"])
@pytest.mark.parametrize("name", LM_STEPS)
def test_stacked_states_agree_with_the_test_vectors(phone_bundle, name, precision):
    """At either end of the caches."""
    manifest = Manifest.read(phone_bundle)
    declared, sizes = manifest.step_models[name], manifest.sizes
    found = compare(
        _step(phone_bundle, precision, name), declared, sizes, read_vectors(phone_bundle, declared, sizes)
    )
    assert found.worst > FLOORS[precision]


AUDIO_VAE = (names.AUDIO_VAE_ENCODER, names.AUDIO_VAE_DECODER)


@pytest.fixture(scope="module")
def mixed_bundle(tiny_checkpoint, conversion, command):
    def make(folder, checkpoint, *options):
        done = command("convert", checkpoint, "-o", folder, "--no-measure", *options)
        assert done.returncode == 0, done.stderr

    options = ("--precision", "int8", "--target", "macos15", "--max-length", "128", "--audio-vae-fp32")
    return conversion("bundle-tiny-mixed", make, tiny_checkpoint, *options)


@pytest.mark.parametrize("name", AUDIO_VAE)
def test_audio_vae_equals_fp32_bit_for_bit(mixed_bundle, tiny_bundle, name):
    rng = np.random.default_rng(0)
    (declared,) = Manifest.read(mixed_bundle).step_models[name].inputs
    ours, theirs = _step(mixed_bundle, "int8", name), _step(tiny_bundle, "fp32", name)
    states = ours.new_state(), theirs.new_state()
    for _ in range(3):
        inputs = {declared.name: rng.standard_normal(declared.shape_at(0), np.float32)}
        found, expected = ours(inputs, states[0]), theirs(inputs, states[1])
        for output in expected:
            np.testing.assert_array_equal(found[output], expected[output])


def test_lint_inspect_and_model_card_support_it(mixed_bundle, command):
    assert "float32" not in {row[0] for row in lint_bundle(str(mixed_bundle)).rows()}
    assert "int8; AudioVAE in fp32" in (mixed_bundle / MODEL_CARD_FILE).read_text(encoding="utf-8")
    shown = command("inspect", mixed_bundle).stdout
    assert "computes in float32 in every precision" in shown
    assert shown.count(" state ") >= 4
