"""`batch --ray` on two nodes of one machine: the same files, in whatever order, whoever dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from waiting import until

Start = Callable[..., subprocess.Popen[str]]
TEXT = "This is line number {}, and it is spoken by a machine of the cluster."


def lines(folder: Path, count: int, *more: str) -> Path:
    """A JSONL file of seeded lines."""
    path = folder / "lines.jsonl"
    documents = [json.dumps({"text": TEXT.format(i), "seed": i, "output": f"{i}.wav"}) for i in range(count)]
    path.write_text("\n".join([*documents, *more]) + "\n")
    return path


def spoken(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.wav"))}


def recorded(folder: Path) -> list[str]:
    return [json.loads(line)["output"] for line in (folder / "spoken.jsonl").read_text().splitlines()]


def done(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=150)
    return process.returncode, out, err


@pytest.fixture(scope="module")
def one_machine(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files that one machine makes of 16 lines."""
    from voxcpm_runtime.commands.cli import main

    folder = tmp_path_factory.mktemp("one")
    assert main(["batch", str(bundle), str(lines(folder, 16)), "-o", str(folder / "out"), "-q"]) == 0
    return spoken(folder / "out")


def test_with_a_node_killed_in_the_middle_nothing_is_lost_and_nothing_is_twice(
    bundle: Path,
    cluster: Any,
    nodes: list[Any],
    started: Start,
    tmp_path: Path,
    one_machine: dict[str, bytes],
) -> None:
    out = tmp_path / "out"
    bad = ['{"text": "", "output": "bad.wav"}']
    process = started("batch", bundle, lines(tmp_path, 16), "-o", out, "--ray", cluster.address)
    until(lambda: len(spoken(out)) >= 4)

    cluster.remove_node(nodes.pop(), allow_graceful=False)
    at_the_kill = len(spoken(out))
    code, printed, errors = done(process)

    assert (code, errors) == (0, "")
    assert at_the_kill < 13
    assert printed.splitlines()[-1] == "16 spoken, 0 skipped (already there), 0 failed"
    assert sorted(recorded(out)) == sorted(one_machine)
    assert spoken(out) == one_machine
    assert not [path.name for path in out.iterdir() if path.suffix == ".part"]

    # The same command resumes: what is there is not made again, what is missing is, and a bad line is reported.
    (out / "3.wav").unlink()
    before = (out / "4.wav").stat().st_mtime_ns
    process = started("batch", bundle, lines(tmp_path, 16, *bad), "-o", out, "--ray", cluster.address)
    code, printed, errors = done(process)

    bad_line = "line 17: the text is empty; expected something to say"
    assert code == 1
    assert printed.splitlines()[-1] == "1 spoken, 15 skipped (already there), 1 failed"
    assert errors == f"{bad_line}\nfailed: {bad_line}\n"
    assert spoken(out) == one_machine
    assert (out / "4.wav").stat().st_mtime_ns == before


@pytest.mark.usefixtures("nodes")
def test_a_recording_travels_with_its_line(
    bundle: Path, cluster: Any, started: Start, tmp_path: Path
) -> None:
    noise = np.random.default_rng(0).uniform(-0.3, 0.3, 24_000)
    soundfile.write(tmp_path / "me.wav", noise, 16_000)
    prompt = {"prompt": "me.wav", "prompt_text": "What I say.", "seed": 1}
    asked = [
        {"text": "In my voice.", "output": "a.flac", **prompt},
        {
            "text": "It may not be longer than five patches.",
            "output": "b.wav",
            "seed": 2,
            "max_len": 5,
        },
        {"text": "No file.", "output": "c.wav", **prompt, "prompt": "lines.jsonl"},
    ]
    (tmp_path / "lines.jsonl").write_text("\n".join(map(json.dumps, asked)))

    outcomes = []
    for folder, ray in (("one", ()), ("ray", ("--ray", cluster.address))):
        process = started("batch", bundle, "lines.jsonl", "-o", folder, "--threads", 1, *ray)
        code, printed, errors = done(process)
        files = {path.name: path.read_bytes() for path in (tmp_path / folder).glob("*.*a*")}
        outcomes.append((code, printed.splitlines()[-1], sorted(errors.splitlines()), sorted(files), files))

    assert outcomes[0][:4] == outcomes[1][:4]
    assert outcomes[0][4]["a.flac"] == outcomes[1][4]["a.flac"]
    assert outcomes[0][4]["b.wav"] == outcomes[1][4]["b.wav"]
    assert outcomes[0][0] == 1


@pytest.mark.usefixtures("nodes")
def test_ctrl_c_keeps_what_is_finished_and_leaves_no_process(
    bundle: Path, cluster: Any, started: Start, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    process = started("batch", bundle, lines(tmp_path, 200), "-o", out, "--ray", cluster.address)
    until(lambda: len(spoken(out)) >= 2)

    process.send_signal(signal.SIGINT)
    code, printed, errors = done(process)

    assert code == 130, errors
    assert errors.count("\n") == 1
    count = len(spoken(out))
    left = (
        f"{count} spoken, 0 skipped (already there), 0 failed, {200 - count} left: the same command resumes"
    )
    assert printed.splitlines()[-1] == left
    assert sorted(recorded(out)) == sorted(spoken(out))


@pytest.mark.usefixtures("nodes")
def test_a_line_that_ends_every_process_fails_and_the_others_are_spoken(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The executor itself, with an actor that dies of one line."""
    from types import SimpleNamespace

    from voxcpm_runtime import CancelToken
    from voxcpm_server.cluster import batch as cluster_batch

    class Dies:
        def open(self, *_: object) -> str:
            return ""

        def speak(self, asked: str, output: str) -> tuple[str, list[str]]:
            if output == "bad":
                os._exit(1)
            return asked, []

    def task(line: int, output: str) -> Any:
        return SimpleNamespace(
            line=SimpleNamespace(line=line, output=output), self_contained=lambda _: f"spoken {line}"
        )

    monkeypatch.setattr(cluster_batch, "Speaker", Dies)
    bundle = SimpleNamespace(digest="")
    engine = SimpleNamespace(device="cpu", threads=None)
    executor = cluster_batch.RayExecutor(cluster.address, None, bundle, engine)
    names = ["good", "bad", *["good"] * 6]
    given = (task(line, name) for line, name in enumerate(names, start=1))
    results = {t.line.line: r for t, r in executor(given, CancelToken(), lambda _: None, lambda *_: None)}

    assert sorted(results) == list(range(1, 9))
    assert "3 processes ended" in str(results.pop(2))
    assert results == {line: f"spoken {line}" for line in results}
