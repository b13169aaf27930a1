import json

import pytest

from voxcpm_runtime.backends import machine
from voxcpm_runtime.commands import cli
from voxcpm_runtime.voxcpm import VoxCPM


def test_figures_are_consistent(tiny_bundle, capsys):
    options = ["--no-cold", "--patches", "4", "--repeats", "2", "--threads", "1"]
    assert cli.main(["benchmark", str(tiny_bundle), "--precision", "int8", "--json", *options]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert (figures["bundle"], figures["precision"]) == (tiny_bundle.name, "int8")
    assert figures["processor"] == machine.chip()
    assert figures["startup_cold_seconds"] is None
    assert figures["startup_warm_seconds"] > 0
    with VoxCPM.from_bundle(tiny_bundle) as tts:
        seconds = tts.bundle.architecture.patch_seconds
    assert figures["patches_per_second"] * figures["real_time_factor"] == pytest.approx(1 / seconds)
    assert 0 < figures["time_to_first_audio_seconds"] < 4 / figures["patches_per_second"]
    steps = figures["step_milliseconds"]
    assert {"base_lm_step[1]", "base_lm_step[64]", "locdit_step[1]", "audio_vae_decoder[1]"} <= steps.keys()
    assert 1e7 < figures["peak_memory_bytes"] < 1e11


def test_table_contains_the_figures(tiny_bundle, capsys):
    assert cli.main(["benchmark", str(tiny_bundle), "--patches", "4", "--repeats", "1", "--cold"]) == 0
    text = capsys.readouterr().out
    for figure in ("startup cold", "startup warm", "time to first audio", "real time factor", "peak memory"):
        assert figure in text
