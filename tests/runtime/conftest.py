"""Tiny architectures, bundles and voices, which the step models of `tiny_network` speak."""

import json
from typing import Any

import numpy as np
import pytest

import tiny_network as tiny
from voxcpm_constants.architecture import Architecture
from voxcpm_constants.arrays import constant_shapes, write_constant
from voxcpm_constants.manifest import Manifest, Source, record_folder
from voxcpm_constants.step_models import declare_step_models
from voxcpm_conversion.default_bundle import DEFAULT_CHECKPOINT
from voxcpm_runtime import voxcpm
from voxcpm_runtime.backends.loading import PlacedStepModel
from voxcpm_runtime.bundle.opening import open_bundle
from voxcpm_runtime.commands import cli
from voxcpm_runtime.model.driver import Driver, Patch
from voxcpm_runtime.speech import budget
from voxcpm_runtime.text.tokenizer import TextTokenizer


def config(generation):
    local = {"hidden_dim": tiny.DIT, "ffn_dim": 8, "num_heads": 2, "num_layers": 1}
    factors = {"long_factor": [1, 1], "short_factor": [1, 1]}
    vae = {
        "encoder_dim": 2,
        "encoder_rates": [2, 5],
        "latent_dim": tiny.FEAT,
        "decoder_dim": 8,
        "sample_rate": 1000,
    }
    vae["decoder_rates"] = [5, 2]
    if generation == "voxcpm2":
        vae |= {"out_sample_rate": 3000, "decoder_rates": [5, 2, 3]}
    return {
        "architecture": generation,
        "patch_size": tiny.PATCH,
        "feat_dim": tiny.FEAT,
        "residual_lm_num_layers": 1,
        "lm_config": {
            "hidden_size": tiny.HIDDEN,
            "intermediate_size": 8,
            "max_position_embeddings": 64,
            "num_attention_heads": 2,
            "num_hidden_layers": 1,
            "num_key_value_heads": 1,
            "rms_norm_eps": 1e-5,
            "rope_theta": 1e4,
            "rope_scaling": {**factors, "original_max_position_embeddings": 64},
            "vocab_size": tiny.VOCABULARY,
            "scale_emb": 12.0,
            "dim_model_base": 8,
            "scale_depth": 1.4,
        },
        "encoder_config": local,
        "dit_config": {**local, "cfm_config": {}},
        "audio_vae_config": vae,
    }


@pytest.fixture(params=["voxcpm", "voxcpm2"])
def architecture(request):
    return Architecture.model_validate(config(request.param))


@pytest.fixture(autouse=True)
def _swift(monkeypatch):
    """Shorten the estimates: with the tiny architectures' patches of 20 ms, a token would need 25 patches."""
    monkeypatch.setattr(budget, "SECONDS_PER_TOKEN", 0.01)


@pytest.fixture
def sizes():
    return tiny.SIZES


@pytest.fixture
def constants(architecture):
    rng = np.random.default_rng(1)
    shapes = constant_shapes(architecture)
    return {name: rng.standard_normal(shape).astype(np.float32) / 3 for name, shape in shapes.items()}


@pytest.fixture
def network(architecture):
    return tiny.FakeNetwork(architecture)


@pytest.fixture
def models(network):
    a = network.a
    base, residual = tiny.cached(network, "base"), tiny.cached(network, "residual")

    def base_step(inputs, state):
        hidden = base(inputs, state)
        quantised = network.fsq(hidden)
        return {"hidden": hidden, "fsq_hidden": quantised, "stop_logits": network.stop_logits(quantised)}

    functions = {
        "audio_vae_encoder": lambda i, s: {"latents": tiny.fake_encode(s, i["audio"][0, 0], a)[np.newaxis]},
        "audio_vae_decoder": lambda i, s: {
            "audio": tiny.fake_decode(s, i["latents"][0], a)[np.newaxis, np.newaxis]
        },
        "feat_encoder": lambda i, _: {"embeddings": network.embed(i["patches"][0])[np.newaxis]},
        "base_lm_step": base_step,
        "residual_lm_step": lambda i, s: {"hidden": residual(i, s)},
        "locdit_step": lambda i, _: {"velocity": network.velocity(i)},
    }
    declared = declare_step_models(a, tiny.SIZES)
    return {name: tiny.FakeStep(declared[name], function) for name, function in functions.items()}


CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,!?() "


def write_tokenizer(folder):
    folder.mkdir()
    vocabulary = {
        token: index for index, token in enumerate(["<unk>", "<s>", "</s>", "▁", *CHARACTERS.strip()])
    }
    document = {
        "version": "1.0",
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
            ],
        },
        "model": {"type": "BPE", "unk_token": "<unk>", "vocab": vocabulary, "merges": []},
    }
    (folder / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({"legacy": True}), encoding="utf-8")


@pytest.fixture
def bundle_folder(tmp_path, architecture, constants, monkeypatch):
    """A complete bundle, with step model packages of a few bytes."""
    monkeypatch.setenv("VOXCPM_COREML_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "bundle"
    (folder / "constants").mkdir(parents=True)
    for name, array in constants.items():
        write_constant(folder / "constants", name, array)
    write_tokenizer(folder / "tokenizer")
    step_models = declare_step_models(architecture, tiny.SIZES)
    for precision in ("fp16", "int8"):
        for name in step_models:
            package = folder / precision / f"{name}.mlpackage"
            package.mkdir(parents=True)
            (package / "Manifest.json").write_text(precision + name)
    Manifest(
        architecture=architecture,
        sizes=tiny.SIZES,
        step_models=step_models,
        precisions=("fp16", "int8"),
        source=Source(checkpoint="tiny", sha256="0" * 64),
        tools={"numpy": np.__version__},
        files=record_folder(folder),
    ).write(folder)
    return folder


@pytest.fixture
def tts(bundle_folder, architecture, sizes, constants, models):
    return voxcpm.VoxCPM(open_bundle(bundle_folder), Driver(architecture, sizes, constants, models))


@pytest.fixture
def speaking(bundle_folder, monkeypatch, models, network):
    """A bundle with the tiny step models, which stop at the minimum length."""
    placed = {name: PlacedStepModel(model, "portable") for name, model in models.items()}
    monkeypatch.setattr(voxcpm, "place_step_models", lambda *_, **__: placed)
    network.stop_bias = np.array([-1e3, 0], np.float32)
    return str(bundle_folder)


@pytest.fixture
def prompt_audio():
    """A recording of three patches, and its sample rate."""
    return np.random.default_rng(0).standard_normal(45).astype(np.float32) * 0.1, 1000


@pytest.fixture(scope="session")
def letters():
    """The built-in voice's tokenizer, whose vocabulary is letters."""
    return TextTokenizer.from_folder(DEFAULT_CHECKPOINT)


@pytest.fixture
def stopping(network):
    """Makes speech stop at the minimum length of four patches."""
    network.stop_bias = np.array([-1e3, 0], np.float32)


@pytest.fixture
def stop_after(monkeypatch):
    """stop_after(length): each attempt ends after `length(first_patch)` patches, which only the stop head may know."""
    generate = Driver.generate_patches

    def scripted(length_of):
        def patches(*arguments, **options):
            length = None
            for patch in generate(*arguments, **options):
                length = length or length_of(patch)
                stops = patch.index + 1 == length
                yield Patch(patch.index, patch.latents, stops)
                if stops:
                    return

        monkeypatch.setattr(Driver, "generate_patches", patches)

    return scripted


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def run(capsys):
    """run(*arguments): a command's exit code, standard output and standard error."""

    def run(*arguments):
        code = cli.main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def batch(speaking, folder, run):
    """Write the lines, speak them into out/, and return (exit code, stdout, stderr)."""

    def spoken(lines, *options, name="lines.jsonl"):
        if lines is not None:
            text = "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)
            (folder / name).write_text(text, encoding="utf-8")
        return run("batch", speaking, name, "-o", "out", *options)

    return spoken


@pytest.fixture
def loads(monkeypatch):
    """A list that grows each time a voice is opened."""
    opened: list[Any] = []
    from_bundle = voxcpm.VoxCPM.from_bundle

    def counted(*arguments, **options):
        opened.append(arguments)
        return from_bundle(*arguments, **options)

    monkeypatch.setattr(voxcpm.VoxCPM, "from_bundle", counted)
    return opened
