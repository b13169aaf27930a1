"""`batch --ray` on two nodes of one machine: the same files in any order, despite killed nodes."""

import json
import os
import signal
import subprocess
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile

from voxcpm_runtime import CancelToken, InputError
from voxcpm_runtime.commands.shared_arguments import Engine
from waiting import until

Start = Callable[..., subprocess.Popen[str]]
TEXT = "This is line number {}, and it is spoken by a machine of the cluster."


def lines(folder, count, *more):
    """A JSONL file of seeded lines; the first one continues a recording."""
    noise = np.random.default_rng(0).uniform(-0.3, 0.3, 24_000)
    soundfile.write(folder / "me.wav", noise, 16_000)
    documents = [{"text": TEXT.format(i), "seed": i, "output": f"{i}.wav"} for i in range(count)]
    documents[0] |= {"prompt": str(folder / "me.wav"), "prompt_text": "What I say."}
    path = folder / "lines.jsonl"
    path.write_text("\n".join([*map(json.dumps, documents), *more]) + "\n")
    return path


def spoken(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.wav"))}


def recorded(folder):
    return [json.loads(line)["output"] for line in (folder / "spoken.jsonl").read_text().splitlines()]


def done(process):
    """Exit code, stdout and stderr without lines of status."""
    out, err = process.communicate(timeout=150)
    said = "".join(line for line in err.splitlines(keepends=True) if not line.endswith("…\n"))
    return process.returncode, out, said


def test_killed_node_neither_loses_nor_repeats_lines(bundle, cluster, nodes, started, tmp_path):
    from voxcpm_runtime.commands.cli import main

    given = lines(tmp_path, 16)
    options = ("--threads", "1", "--timestamps", "srt")
    assert main(["batch", str(bundle), str(given), "-o", str(tmp_path / "one"), "-q", *options]) == 0
    one_machine, out = spoken(tmp_path / "one"), tmp_path / "out"
    ray = ("-o", out, *options, "--ray", cluster.address)
    process = started("batch", bundle, given, *ray)
    until(lambda: len(spoken(out)) >= 4)
    cluster.remove_node(nodes.pop(), allow_graceful=False)
    at_the_kill = len(spoken(out))
    code, printed, errors = done(process)

    assert (code, errors) == (0, "")
    assert at_the_kill < 13
    assert printed.splitlines()[-1] == "16 spoken, 0 skipped (already there), 0 failed"
    assert sorted(recorded(out)) == sorted(one_machine)
    assert spoken(out) == one_machine
    subtitles = {path.name: path.read_bytes() for path in sorted(out.glob("*.srt"))}
    assert subtitles == {path.name: path.read_bytes() for path in sorted((tmp_path / "one").glob("*.srt"))}
    assert b"line number 3," in subtitles["3.srt"]
    assert not [path.name for path in out.iterdir() if path.suffix == ".part"]

    # The same command resumes: it generates only missing files and reports bad lines.
    (out / "3.wav").unlink()
    before = (out / "4.wav").stat().st_mtime_ns
    bad = [
        '{"text": "", "output": "bad.wav"}',
        json.dumps({"text": "No file.", "prompt": str(given), "prompt_text": "a"}),
    ]
    code, printed, errors = done(started("batch", bundle, lines(tmp_path, 16, *bad), *ray))

    assert code == 1
    assert printed.splitlines()[-1] == "1 spoken, 15 skipped (already there), 2 failed"
    assert "failed: line 17: the text is empty; expected text to speak\n" in errors
    assert "failed: line 18: " in errors
    assert spoken(out) == one_machine
    assert (out / "4.wav").stat().st_mtime_ns == before


@pytest.mark.usefixtures("nodes")
def test_ctrl_c_keeps_finished_files(bundle, cluster, started, tmp_path):
    out = tmp_path / "out"
    process = started("batch", bundle, lines(tmp_path, 200), "-o", out, "--ray", cluster.address)
    until(lambda: len(spoken(out)) >= 2)
    process.send_signal(signal.SIGINT)
    code, printed, errors = done(process)
    assert code == 130, errors
    assert errors.count("\n") == 1
    count = len(spoken(out))
    left = f"{count} spoken, 0 skipped (already there), 0 failed, {200 - count} left: run the same command to resume"
    assert printed.splitlines()[-1] == left
    assert sorted(recorded(out)) == sorted(spoken(out))


def executed(address, monkeypatch, speak, outputs, together=1):
    """The executor's results by line, with another function that speaks them."""
    from voxcpm_server.cluster import batch

    monkeypatch.setattr(batch, "speak", speak)
    lines = (
        SimpleNamespace(
            number=number,
            self_contained=lambda _, given=(number, output): SimpleNamespace(
                number=given[0], output=given[1]
            ),
        )
        for number, output in enumerate(outputs)
    )
    executor = batch.RayExecutor(address, None, SimpleNamespace(digest=""), Engine(), together)
    results = {line.number: r for line, r in executor(lines, CancelToken(), lambda _: None, lambda *_: None)}
    return [results[number] for number in range(len(outputs))]


@pytest.mark.usefixtures("nodes")
def test_line_that_crashes_every_process_fails_and_the_others_are_spoken(cluster, monkeypatch):
    def dies(_, lines, together):  # noqa: ARG001 - the task's
        asked = {line.number: line.output for line in lines}
        return os._exit(1) if "bad" in asked.values() else (asked, [])

    results = executed(cluster.address, monkeypatch, dies, ["good", "bad", *["good"] * 6])
    assert "all processes failed" in str(results.pop(1))
    assert results == ["good"] * 7


@pytest.mark.usefixtures("nodes")
def test_a_machine_speaks_lines_together(together_bundle, cluster, monkeypatch, started, tmp_path):
    def counts(_, lines, together):
        return {line.number: (len(lines), together) for line in lines}, []

    assert executed(cluster.address, monkeypatch, counts, "abcdefg", 4) == [(4, 4)] * 4 + [(3, 4)] * 3
    for name, more in (("one", ()), ("four", ("--ray", cluster.address, "--together", "4"))):
        options = ("-o", tmp_path / name, "--precision", "int8", "--threads", "1", *more)
        assert done(started("batch", together_bundle, lines(tmp_path, 6), *options))[0] == 0
    assert spoken(tmp_path / "four") == spoken(tmp_path / "one")


@pytest.mark.usefixtures("nodes")
def test_machine_that_cannot_load_the_bundle_ends_the_batch(cluster, monkeypatch):
    def refuses(_, lines, together):  # noqa: ARG001 - the task's
        asked = {line.number: line.output for line in lines}
        return "10.0.0.7: no bundle" if "bad" in asked.values() else (asked, [])

    with pytest.raises(InputError, match=r"^10\.0\.0\.7: no bundle$"):
        executed(cluster.address, monkeypatch, refuses, ["good", "bad", *["good"] * 6])
