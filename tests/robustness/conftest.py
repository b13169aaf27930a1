import functools
import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from robustness.damage import copy_of_one_precision
from robustness.scenarios import SCENARIOS, Materials, Whole, begin, command
from robustness.watched import Watched

SHARE = float(os.environ.get("TORTURE_SHARE", "1"))


@pytest.fixture(scope="session")
def torture_seed():
    """The random seed; `TORTURE_SEED` overrides it."""
    return int(os.environ.get("TORTURE_SEED", "17"))


@pytest.fixture(scope="session")
def share():
    """share(cases): the number of cases to run, scaled by `TORTURE_SHARE` from 0 to 1."""
    return lambda cases: max(1, round(SHARE * cases))


@pytest.fixture(scope="session")
def system_calls(tmp_path_factory):
    """The library that counts and fails system calls; skips off Linux and without a C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if platform.system() != "Linux" or compiler is None:
        pytest.skip("needs Linux and a C compiler")
    library = tmp_path_factory.mktemp("system-calls") / "system_calls.so"
    source = Path(__file__).with_name("system_calls.c")
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


@pytest.fixture(scope="session")
def commands(system_calls):
    """What runs commands."""
    with Watched("robustness.commands:scene", library=system_calls, hang_seconds=400, memory=0) as process:
        yield process


@pytest.fixture(scope="session")
def materials(speaking_bundle, tiny_checkpoint, commands, tmp_path_factory):
    """What the commands read."""
    folder = tmp_path_factory.mktemp("materials")
    cache, recording = folder / "cache", folder / "me.wav"
    cache.mkdir()
    given = ("generate", speaking_bundle, "--precision", "int8", "--text", "Good morning.", "--seed", 1)
    ended = command(commands, folder, (*given, "-o", recording), {"VOXCPM_COREML_CACHE": str(cache)})
    assert ended.code == 0, ended.err
    copy_of_one_precision(speaking_bundle, folder / "earlier")
    checkpoint = _min_checkpoint(folder / "checkpoint", tiny_checkpoint)
    return Materials(speaking_bundle, cache, checkpoint, recording, folder / "earlier", folder / "begun")


def _min_checkpoint(folder, tiny):
    """A checkpoint of one layer each, with the tokenizer of another one: a third of the work to convert.

    It has as many positions as the built-in voice is converted for.
    """
    from voxcpm_conversion.synthetic import write_synthetic_checkpoint
    from voxcpm_conversion.synthetic_presets import presets

    config = presets()["tiny"]
    language_model, vae = config["lm_config"], config["audio_vae_config"]
    language_model["max_position_embeddings"] = config["max_length"] = 2048
    language_model["num_hidden_layers"] = 1
    config["encoder_config"]["num_layers"] = config["dit_config"]["num_layers"] = 1
    vae["encoder_rates"], vae["decoder_rates"] = [2, 7], [7, 2]
    return write_synthetic_checkpoint(folder, config, seed=0, dtype="float32", tokenizer=tiny)


@pytest.fixture(scope="session")
def whole(materials, commands, tmp_path_factory):
    """whole(name): the undisturbed run of a scenario, cached."""

    @functools.cache
    def of(name):
        if "begun" in SCENARIOS[name].there.values() and not materials.begun.exists():
            begin(of("convert"), materials.begun)
        return Whole(name, commands, materials, tmp_path_factory.mktemp("whole"))

    return of
