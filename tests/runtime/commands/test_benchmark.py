"""`voxcpm-coreml benchmark`: what a patch must read, how fast memory is read, and calls that end in time."""

import json

import numpy as np
import pytest

from voxcpm_constants.manifest import Manifest
from voxcpm_runtime.backends import machine
from voxcpm_runtime.commands import benchmark, cli
from voxcpm_runtime.voxcpm import VoxCPM


class Counted:
    """A step model that counts its calls."""

    def __init__(self, model):
        self._model = model
        self.calls = 0
        self.new_state = model.new_state

    def __call__(self, *given):
        self.calls += 1
        return self._model(*given)


def test_a_patch_takes_the_calls_that_are_counted_for_it(tiny_bundle):
    with VoxCPM.from_bundle(tiny_bundle, "fp32") as tts:
        models = {name: Counted(model) for name, model in tts.driver.models.items()}
        tts.driver.models.update(models)
        after = []
        for patches in (3, 8):
            tts.generate("hello.", seed=0, min_len=patches, max_len=patches, retry_badcase=False)
            after.append({name: model.calls for name, model in models.items()})
    # The second utterance has the calls of the first one, and those of five more patches.
    of_five = {name: calls - 2 * after[0][name] for name, calls in after[1].items()}
    called = {name: calls for name, calls in of_five.items() if calls}
    assert called == {name: 5 * calls for name, calls in benchmark.calls_a_patch().items()}


def test_json_has_the_machine_and_the_share_of_the_limit(tiny_bundle, capsys, monkeypatch):
    monkeypatch.setattr(benchmark, "memory_bandwidth", lambda threads: 2e9 * threads)
    options = ["--no-cold", "--patches", "4", "--repeats", "2", "--threads", "1"]
    assert cli.main(["benchmark", str(tiny_bundle), "--precision", "int8", "--json", *options]) == 0
    measured = json.loads(capsys.readouterr().out)
    assert measured["processor"] == machine.chip()
    assert tuple(measured["cpu_features"]) == machine.cpu_features()
    assert (measured["cores"], measured["threads"]) == (machine.cores(), 1)
    assert measured["memory_bandwidth"] == 2e9
    weights = benchmark.weight_bytes_a_patch(Manifest.read(tiny_bundle), "int8")
    assert measured["min_patch_seconds"] == pytest.approx(weights / 2e9)
    share = measured["min_patch_seconds"] * measured["patches_per_second"]
    assert measured["roofline_share"] == pytest.approx(share)


def test_reading_memory_takes_the_time_that_it_takes():
    """A bandwidth beyond any memory would mean that nothing was read."""
    assert np.isfinite(bandwidth := benchmark.memory_bandwidth(1))
    assert 1e8 < bandwidth < 1e12


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        (
            "flags\t\t: fpu sse2 avx2 avx512f avx512_vnni amx_int8 amx_tile\n",
            ("AVX2", "AVX-512", "VNNI", "AMX"),
        ),
        ("flags\t\t: fpu avx2 avx_vnni\n", ("AVX2", "VNNI")),
        ("Features\t: fp asimd asimddp i8mm\n", ("NEON", "dot product", "I8MM")),
        ("model name: a processor with avx2\n", ()),
    ],
)
def test_features_are_those_that_the_system_lists(tmp_path, monkeypatch, listed, expected):
    path = tmp_path / "cpuinfo"
    path.write_text(listed)
    monkeypatch.setattr(machine, "_CPU_INFO", path)
    machine.cpu_features.cache_clear()
    try:
        assert machine.cpu_features() == expected
    finally:
        machine.cpu_features.cache_clear()
