"""`inspect` and `benchmark` on a bundle for macOS 27."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from voxcpm_constants.manifest import Manifest
from voxcpm_runtime.commands import cli

pytest.importorskip("coreai", exc_type=ImportError)


def test_inspect_names_target_tools_and_functions(
    tiny_bundle_27: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["inspect", str(tiny_bundle_27)]) == 0

    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["target", "macOS", "27,", "iOS", "27", "(Core", "AI)"] in rows
    assert ["tools", "coreai-core"] in [row[:2] for row in rows]
    functions = [row[1] for row in rows if row[:1] == ["func"]]
    assert {"audio_84", "audio_672", "patches_1", "patches_16", "decode", "prefill_16"} == set(functions)


@pytest.mark.usefixtures("own_compiled_27")
def test_benchmark_times_every_function_on_core_ai(
    tiny_bundle_27: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--precision", "fp32", "--json", "--patches", "2", "--repeats", "1", "--no-cold"]
    assert cli.main(["benchmark", str(tiny_bundle_27), *words]) == 0

    report = json.loads(capsys.readouterr().out)
    calls = {
        name: len(declared.chunk_lengths)
        for name, declared in Manifest.read(tiny_bundle_27).step_models.items()
    }
    assert len(report["step_milliseconds"]) == sum(calls.values())
    assert {timed.partition("[")[0] for timed in report["step_milliseconds"]} == calls.keys()
    assert min(report["step_milliseconds"].values()) > 0
    assert report["real_time_factor"] > 0
