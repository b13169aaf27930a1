"""Quantised packages are measured on a recorded sentence, and repaired where they are below a floor."""

import shutil
from pathlib import Path

import onnx
import pytest
from safetensors.torch import load_file, save_file

from shared_bundles import synthesize
from voxcpm_constants import step_models as names
from voxcpm_constants.manifest import Manifest
from voxcpm_constants.step_models import StepSizes, declare_step_models
from voxcpm_constants.user_folders import CACHE_VARIABLE
from voxcpm_conversion.checkpoint import Checkpoint
from voxcpm_conversion.convert import _add_constants
from voxcpm_conversion.core_ml.packages import add_packages
from voxcpm_conversion.default_bundle import DEFAULT_CHECKPOINT, SIZES
from voxcpm_conversion.gate import Gate, Measured, below, measured_path, measurements
from voxcpm_conversion.recording import Recording
from voxcpm_conversion.synthetic import write_synthetic_checkpoint
from voxcpm_conversion.synthetic_presets import presets, write_tokenizer
from voxcpm_conversion.workspace import Workspace
from voxcpm_runtime.backends.portable import cache
from voxcpm_runtime.backends.portable.kernels import ROW_PRODUCT, available_operators
from voxcpm_runtime.backends.portable.operators import DEQUANTIZERS
from voxcpm_runtime.backends.portable.package import read_package
from voxcpm_runtime.bundle.opening import DEFAULT_BUNDLE
from voxcpm_runtime.voxcpm import VoxCPM
from voxcpm_validation.lint.bundle import lint_function
from voxcpm_validation.lint.function import read_function
from voxcpm_validation.lint.rules import RULES

SHORT = StepSizes(kv_length=128)


class Packages:
    """Some step models of a checkpoint in one precision, converted with a gate, in a folder that is no whole bundle."""

    def __init__(
        self, folder, checkpoint, step_models, *,
        lora = None, precision = "int8", target = "macOS14",
        sizes = SHORT,
    ):  # fmt: skip
        opened = Checkpoint.open(checkpoint, lora=lora)
        self.folder, self.precision = folder, precision
        self.manifest = Manifest(
            architecture=opened.architecture, sizes=sizes,
            step_models=declare_step_models(opened.architecture, sizes), precisions=(precision,), target=target,
            source=opened.source(), tools={}, files={},
        )  # fmt: skip
        with Workspace(folder, {}) as workspace:
            _add_constants(workspace, opened)
            gate = Gate(Recording(opened, self.manifest, workspace.folder), self.manifest)
            for name in step_models:
                for package in self.manifest.parts(name):
                    add_packages(workspace, opened, self.manifest, package, [precision], gate=gate)
            self.measured: list[Measured] = measurements(workspace.folder, self.manifest)
            workspace.publish()
        self.recording = Recording(opened, self.manifest, folder)

    def quantised(self, package):
        """Number of the package's weights that are quantised, in all functions."""
        path = self.folder / self.manifest.package_path(self.precision, package)
        (form,) = {part.name: self.manifest.form(part) for part in self.manifest.parts(package)}.values()
        return max(
            sum(operation.kind in DEQUANTIZERS for operation in read_package(path, function).operations)
            for function in form.functions
        )

    def unaccepted(self, package):
        """The lint's rules that the package breaks."""
        path = self.folder / self.manifest.package_path(self.precision, package)
        functions = self.manifest.form(self.manifest.step_models[package]).functions
        read = [
            read_function(path, name, declared, precision=self.precision, is_first=not index)
            for index, (name, declared) in enumerate(functions.items())
        ]
        return {f.rule for each in read for f in lint_function(each, package, RULES) if f.accepted is None}


def is_mended(measured, precision="int8"):
    """Whether the recipe was below a floor, and keeping some but not all weights in fp16 is not."""
    kept = 0 < len(measured.kept) < measured.compressible
    return bool(below(measured.recipe, precision)) and not below(measured.figures, precision) and kept


def weights(package):
    (found,) = package.rglob("weight.bin")
    return found.read_bytes()


@pytest.fixture(scope="module")
def outliers(tmp_path_factory):
    """A checkpoint in which 8 bits are too few for the columns of some matrices."""
    folder = tmp_path_factory.mktemp("gate") / "outliers"
    synthesize(folder, "tiny", "outliers")
    return folder


def test_built_in_voice_needs_no_repair_and_keeps_its_bytes(tmp_path):
    tried = [names.RESIDUAL_LM_STEP, names.LOCDIT_STEP]
    made = Packages(tmp_path / "made", DEFAULT_CHECKPOINT, tried, sizes=SIZES)
    assert [(m.package, m.kept, below(m.figures, "int8")) for m in made.measured] == [
        (n, (), []) for n in tried
    ]
    for path in (made.manifest.package_path("int8", name) for name in tried):
        assert weights(made.folder / path) == weights(DEFAULT_BUNDLE / path)


@pytest.mark.parametrize(
    ("precision", "target"), [("int8", "macOS14"), ("int8", "macOS15"), ("int4", "macOS15")]
)
def test_outlier_channels_ruin_the_recipe_and_the_gate_mends_it(
    outliers, tmp_path, monkeypatch, precision, target
):
    sizes = StepSizes(kv_length=128, prefill_chunks=(1, 16))
    given = outliers, (names.LOCDIT_STEP, names.BASE_LM_STEP)
    made = Packages(tmp_path / "made", *given, precision=precision, target=target, sizes=sizes)
    for measured in made.measured:
        assert is_mended(measured, precision)
        assert made.quantised(measured.package) == measured.compressible - len(measured.kept)
        assert made.unaccepted(measured.package) <= {"state-size"}  # this preset's, in macOS 15's form
        if ROW_PRODUCT in available_operators() and (precision, measured.package) == (
            "int8",
            names.LOCDIT_STEP,
        ):
            # What stays int8 is as fast as without the gate.
            monkeypatch.setattr(cache, "_MIN_KERNEL_BYTES", 0)
            path = made.folder / made.manifest.package_path("int8", names.LOCDIT_STEP)
            nodes = onnx.load_from_string(cache.load_lowered(path).model).graph.node
            kinds = [node.op_type for node in nodes]
            assert kinds.count(ROW_PRODUCT) == measured.compressible - len(measured.kept)


def test_merged_lora_is_what_is_measured(tiny_checkpoint, tmp_path, write_lora):
    """Some channels of a LoRA are so large that 8 bits of the merged weights lose the checkpoint's own."""
    lora = write_lora(tmp_path / "lora", tiny_checkpoint, enable_lm=True)
    stored = load_file(lora / "lora_weights.safetensors")
    for name, weight in stored.items():
        if name.endswith("lora_A"):
            weight[:, ::32] *= 100
    save_file(stored, lora / "lora_weights.safetensors")
    plain, merged = (
        Packages(tmp_path / name, tiny_checkpoint, (names.RESIDUAL_LM_STEP,), lora=given)
        for name, given in (("plain", None), ("merged", lora))
    )
    assert plain.measured[0].kept == ()
    assert is_mended(*merged.measured)


def test_constants_before_upsampling_become_tones_and_the_gate_mends_them(tmp_path):
    document = presets()["tiny"]
    rates = {"encoder_rates": [2, 3, 6, 7, 7], "decoder_rates": [7, 7, 6, 3, 2], "decoder_dim": 512}
    document["audio_vae_config"] |= rates
    tokenizer = write_tokenizer(tmp_path / "tokenizer")
    for kind in ("random", "tonal"):
        write_synthetic_checkpoint(tmp_path / kind, document, seed=0, likeness=kind, tokenizer=tokenizer)
    random, tonal = (
        Packages(tmp_path / f"made-{kind}", tmp_path / kind, (names.AUDIO_VAE_DECODER,)).measured[0]
        for kind in ("random", "tonal")
    )
    assert random.recipe["flatness"] == pytest.approx(1, abs=0.02)
    assert "flatness" in below(tonal.recipe, "int8")
    assert not below(tonal.figures, "int8")
    assert {name.rpartition("_block_")[2] for name in tonal.kept} == {"1_weight"}


def test_package_below_a_floor_that_its_module_meets_is_written_again(tiny_bundle, tmp_path, monkeypatch):
    manifest = Manifest.read(tiny_bundle)
    gate, package = Gate(None, manifest), manifest.step_models[names.RESIDUAL_LM_STEP]
    gate._choices[package.name, "int8"] = {"hidden": 26.0}, ["worst", "second", "third", "last"], 1
    figures, rebuilt = iter([20.0, 24.0, 25.0]), list[list[str]]()
    monkeypatch.setattr(gate, "_figures", lambda *_: {"hidden": next(figures)})
    measured = gate.judge(tmp_path, package, "int8", rebuilt.append)
    assert rebuilt == [["worst", "second"], ["worst", "second", "third"]]
    assert measured.kept == ("worst", "second", "third")


def test_packages_on_trial_leave_nothing_in_the_users_cache(outliers, tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    VoxCPM.from_bundle(None).generate("a", max_len=2)

    def entries():
        # Without our compiled operators, which an earlier test of this process may have made elsewhere.
        return {path for path in (tmp_path / "cache").rglob("*") if path.suffix in (".lowered", ".ort")}

    before = entries()
    made = Packages(tmp_path / "made", outliers, (names.RESIDUAL_LM_STEP,))
    assert made.measured[0].kept
    assert entries() == before != set()


def test_value_near_the_end_of_float16_is_reported_with_the_way_out(tiny_checkpoint, tmp_path):
    checkpoint = Path(shutil.copytree(tiny_checkpoint, tmp_path / "checkpoint"))
    stored = load_file(checkpoint / "model.safetensors")
    stored["feat_encoder.encoder.layers.1.mlp.up_proj.weight"] *= 30000
    stored["feat_encoder.encoder.layers.1.mlp.down_proj.weight"] /= 30000
    save_file(stored, checkpoint / "model.safetensors")
    made = Packages(tmp_path / "made", checkpoint, ())
    (line,) = Gate(made.recording, made.manifest).overflow_lines()
    assert line.startswith(f"{names.FEAT_ENCODER}: values up to ")
    assert "layers.1.mlp" in line
    assert line.endswith("convert with --precision fp32")


def test_command_prints_a_line_per_package_and_the_card_has_them(tiny_checkpoint, tmp_path, command):
    options = (tiny_checkpoint, "--precision", "int8", "--max-length", "64", "--no-alignment")
    done = command("convert", *options, "-o", tmp_path / "bundle")
    assert done.returncode == 0, done.stderr
    said, manifest = " ".join(done.stderr.split()), Manifest.read(tmp_path / "bundle")
    card = (tmp_path / "bundle/README.md").read_text()
    for name in manifest.step_models:
        assert measured_path("int8", name) in manifest.files
        assert f"int8/{name}: " in said
        assert f"| int8 | {name} |" in card
    assert "Not measured" not in card


def test_what_cannot_be_measured_says_so(tiny_checkpoint, tmp_path, command):
    options = ("--precision", "int8", "--max-length", "8", "--no-alignment")
    done = command("convert", tiny_checkpoint, *options, "-o", tmp_path / "bundle")
    assert done.returncode == 0, done.stderr
    assert "No weights or values are measured, as that needs --target macos14 or macos15, and" in done.stderr
    assert "Not measured at conversion: int8." in (tmp_path / "bundle/README.md").read_text()
