import json
import shutil
import subprocess
import sys

import pytest

from conftest import REPOSITORY

COMPARE = REPOSITORY / "benchmarks" / "compare.py"
SLEEP_MS = 30


@pytest.fixture(scope="module")
def slowed_tree(tmp_path_factory):
    """A copy of this tree whose DiT sleeps before each call."""
    tree = tmp_path_factory.mktemp("slowed")
    for root in ("constants", "runtime"):
        shutil.copytree(REPOSITORY / root, tree / root, ignore=shutil.ignore_patterns("__pycache__"))
    step_model = tree / "runtime/voxcpm_runtime/backends/portable/step_model.py"
    source = step_model.read_text()
    line = "        feeds = checked_inputs(self._name"
    assert line in source
    slow = f"        if 'locdit' in self._name:\n            import time; time.sleep({SLEEP_MS / 1e3})\n"
    step_model.write_text(source.replace(line, slow + line))
    return tree


def run(*arguments):
    command = [sys.executable, COMPARE, *arguments]
    given = list(map(str, command))
    return subprocess.run(given, check=False, capture_output=True, text=True, cwd=REPOSITORY)


def compared(*arguments):
    done = run(*arguments, "--threads", 1, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.long
def test_identical_trees_are_equal_and_a_slowed_one_differs(tiny_bundle, slowed_tree):
    given = (tiny_bundle, REPOSITORY, REPOSITORY, slowed_tree, "--rounds", 5, "--patches", 4)
    result = compared(*given, "--only", "locdit_step", "--only", "feat_encoder", "--only", "speech")
    ratios = {figure: [c["ratio"] for c in own] for figure, own in result["figures"].items()}
    medians = {figure: [c["median"] for c in own] for figure, own in result["figures"].items()}
    assert {"locdit_step[1], ms", "feat_encoder[1], ms", "first audio, ms", "patches/s"} <= set(ratios)
    for figure, (itself, equal, _) in ratios.items():
        assert itself == [1, 1, 1]
        if figure != "peak memory, GB":
            assert equal[0] < 1.3, figure
            assert equal[2] > 0.7, figure
    # One sleep per call.
    slept = medians["locdit_step[1], ms"][2] - medians["locdit_step[1], ms"][0]
    assert SLEEP_MS <= slept < 1.5 * SLEEP_MS
    assert ratios["locdit_step[1], ms"][2][0] > 2
    assert ratios["patches/s"][2][2] < 0.5
    assert ratios["feat_encoder[1], ms"][2][0] < 1.5


@pytest.mark.long
def test_upstream_is_a_contender(tiny_bundle, tiny_checkpoint):
    given = (tiny_bundle, "upstream:bfloat16", ".", "--checkpoint", tiny_checkpoint)
    figures = compared(*given, "--rounds", 1, "--patches", 4, "--only", "prefill", "--only", "speech")[
        "figures"
    ]
    both = {name for name, (upstream, bundle) in figures.items() if upstream and bundle}
    assert {"prefill, ms/token", "patches/s", "real-time factor", "peak memory, GB"} <= both
    assert figures["step by step, ms/token"][1] is None
    speed, factor = figures["patches/s"][0]["median"], figures["real-time factor"][0]["median"]
    ours, ours_factor = figures["patches/s"][1]["median"], figures["real-time factor"][1]["median"]
    assert speed * factor == pytest.approx(ours * ours_factor)


def test_invalid_arguments_are_one_line_errors():
    done = run("b", ".", "upstream:int8")
    assert done.returncode == 2
    assert "upstream:int8: expected a checkout of this project" in done.stderr.splitlines()[-1]
