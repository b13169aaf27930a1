"""benchmarks/on_gpu.py: figures of the first round only are reported, and a contender that always fails is an error."""

import importlib
import json
import sys

import pytest

from conftest import REPOSITORY


@pytest.fixture
def on_gpu(monkeypatch):
    monkeypatch.syspath_prepend(REPOSITORY / "benchmarks")
    module = importlib.import_module("on_gpu")
    monkeypatch.setattr(sys, "argv", ["on_gpu.py", "bundle", "--checkpoint", "checkpoint", "--rounds", "3"])
    return module


def test_a_figure_is_the_median_of_the_rounds_that_have_it(on_gpu, monkeypatch, tmp_path):
    speeds = iter((1.0, 5.0, 2.0))

    def child(_, __, *, first):
        return {"patches_per_second": next(speeds), **({"ms locdit[1]": 7.0} if first else {})}

    monkeypatch.setattr(on_gpu, "_in_child", child)
    file = tmp_path / "figures.json"
    sys.argv += ["--json", str(file), "--contenders", "bundle"]
    on_gpu.main()
    figures = json.loads(file.read_text())
    assert figures["medians"] == {"bundle": {"patches_per_second": 2.0, "ms locdit[1]": 7.0}}


def test_a_contender_that_fails_in_every_round_is_an_error(on_gpu, monkeypatch, capsys):
    monkeypatch.setattr(on_gpu, "_in_child", lambda name, *_, first: None if name == "upstream" else {"x": 1})
    with pytest.raises(SystemExit, match="failed in every round: upstream") as ended:
        on_gpu.main()
    assert isinstance(ended.value.code, str)  # Python prints it, and exits with 1
    assert '"bundle-without-graphs": {' in capsys.readouterr().out
