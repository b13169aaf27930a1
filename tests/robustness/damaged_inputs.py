"""Damage to what has no digests: a checkpoint, a LoRA, the jobs of a server. It may be refused, or read as what it is
now; one process has a copy of its own and restores it after each case.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from robustness.damage import UNNOTICED, case_of, files_of, write_anew
from robustness.mutations import damaged
from robustness.watched import LINES, REFUSED, SAME, TRACEBACK, Ended

_OF_THE_FOLDER = (501, 507)
"""Answers of a server that cannot use its folder of jobs, or its disk."""
_LONGEST_JOB = 60.0
"""Seconds until the jobs of the scene are done."""


class _Copy:
    """What runs a case: a file of a folder is damaged, and what `read` says is compared with what it said before."""

    def __init__(self, folder: Path, read: Callable[[], str]) -> None:
        self._folder, self._read = folder, read
        self._before = {path: path.read_bytes() for path in files_of(folder)}
        self._whole = read()
        self._restore()
        assert read() == self._whole

    def __call__(self, case: dict[str, Any]) -> Ended:
        chance = random.Random(json.dumps(case, sort_keys=True))
        paths = sorted(self._before)
        file, damage = case_of(case["number"], len(paths))
        path = paths[file]
        try:
            if damage == "swap" and chance.random() < 0.5:
                other = chance.choice([each for each in paths if each != path])
                write_anew(path, self._before[other])
                write_anew(other, self._before[path])
            else:
                write_anew(path, damaged(self._before[path], damage, chance))
            return Ended(SAME if self._read() == self._whole else UNNOTICED, path.name)
        except _Refused as error:
            return Ended(error.outcome, f"{damage} of {path.name}: {error}")
        finally:
            self._restore()

    def _restore(self) -> None:
        for path in files_of(self._folder):
            if path not in self._before:
                path.unlink()
        for path, content in self._before.items():
            if not path.is_file() or path.read_bytes() != content:
                write_anew(path, content)


class _Refused(Exception):
    """A refusal that is no error of this project's family."""

    def __init__(self, outcome: str, said: str) -> None:
        super().__init__(said)
        self.outcome = outcome


def _copied(folder: str) -> Path:
    scratch = Path(tempfile.mkdtemp(prefix="damage-", dir=Path(folder).parent)) / "copy"
    return Path(shutil.copytree(folder, scratch))


def checkpoint(folder: str) -> _Copy:
    """What runs a case on a checkpoint: it is opened and all of its weights are read, as a conversion does it."""
    scratch = _copied(folder)

    def read() -> str:
        from voxcpm_conversion.checkpoint import Checkpoint

        opened = Checkpoint.open(scratch)
        whole = hashlib.sha256(repr((opened.architecture, opened.source())).encode())
        for name in sorted(opened.shapes()):
            whole.update(opened.tensor(name).numpy().tobytes())
        for name, path in sorted(opened.tokenizer_files().items()):
            whole.update(name.encode() + path.read_bytes())
        return whole.hexdigest()

    return _Copy(scratch, read)


def lora(folder: str, checkpoint: str) -> _Copy:
    """What runs a case on a LoRA: the checkpoint is opened with it, and all weights that it changes are merged."""
    scratch = _copied(folder)

    def read() -> str:
        from voxcpm_conversion.checkpoint import Checkpoint

        opened = Checkpoint.open(checkpoint, lora=scratch)
        whole = hashlib.sha256()
        for name in sorted(opened.shapes()):
            whole.update(opened.tensor(name).numpy().tobytes())
        return whole.hexdigest()

    return _Copy(scratch, read)


def jobs(bundle: str) -> _Copy:
    """What runs a case on the jobs of a server that has ended: a server begins on them, and answers for each of them.

    Their database has no digests, so that another text or time may be shown; an error inside the server may not.
    """
    from voxcpm_runtime import VoxCPM

    tts = VoxCPM.from_bundle(bundle, precision="int8", threads=1)
    folder = Path(tempfile.mkdtemp(prefix="damage-", dir=Path(bundle).parent)) / "jobs"
    with _served(tts, folder) as client:
        for text in ("Yes.", "No."):
            asked = {"model": "tts-1", "input": text, "response_format": "wav", "seed": 1}
            answer = client.post("/v1/audio/jobs", json=asked)
            assert answer.status_code == 202, answer.text
        _wait(client)

    def read() -> str:
        whole = hashlib.sha256()
        with _served(tts, folder) as client:
            for job in _answer(client, "/v1/audio/jobs").json()["data"]:
                path = f"/v1/audio/jobs/{job['id']}"
                whole.update(_answer(client, path).content)
                whole.update(_answer(client, f"{path}/audio").content)
        return whole.hexdigest()

    return _Copy(folder, read)


def _served(tts: Any, folder: Path) -> Any:
    from starlette.testclient import TestClient

    from voxcpm_server.application import create_app
    from voxcpm_server.middleware.authentication import Keys
    from voxcpm_server.rooms import AllSettings as Settings

    settings = Settings(voices_folder=folder.parent / "voices", jobs_folder=folder)
    # An error inside the server is an answer like any other one, as for a client.
    return TestClient(
        create_app(tts, settings, Keys(())), base_url="http://127.0.0.1", raise_server_exceptions=False
    )


def _answer(client: Any, path: str) -> Any:
    answer = client.get(path)
    if answer.status_code >= 500 and answer.status_code not in _OF_THE_FOLDER:
        raise _Refused(TRACEBACK, f"{path}: {answer.status_code} {answer.text[:200]}")
    if answer.status_code >= 400:
        said = answer.json()["error"]["message"]
        raise _Refused(REFUSED if len(said.splitlines()) == 1 else LINES, said)
    return answer


def _wait(client: Any) -> None:
    until = time.monotonic() + _LONGEST_JOB
    while {job["state"] for job in client.get("/v1/audio/jobs").json()["data"]} != {"done"}:
        assert time.monotonic() < until, client.get("/v1/audio/jobs").text
        time.sleep(0.05)
