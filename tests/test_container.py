"""Containerfile and compose.yaml, as far as that can be checked without a container engine."""

from __future__ import annotations

import json
import re
import shlex
from importlib.metadata import metadata
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from voxcpm_constants.user_folders import CACHE_VARIABLE
from voxcpm_runtime.commands import cli
from voxcpm_server.authentication import KEYS_VARIABLE, Keys, check_exposure
from voxcpm_server.probes import router
from voxcpm_server.settings import Settings

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def instructions() -> list[tuple[str, str]]:
    """Each instruction of the Containerfile with its arguments on one line."""
    text = (REPOSITORY / "Containerfile").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [(line.split()[0], line.partition(" ")[2].strip()) for line in joined.splitlines() if line.strip()]


@pytest.fixture(scope="module")
def speech() -> dict[str, Any]:
    """The service of compose.yaml."""
    document = yaml.safe_load((REPOSITORY / "compose.yaml").read_text(encoding="utf-8"))
    assert set(document["volumes"]) == {"data"}
    return dict(document["services"]["speech"])


def the(instructions: list[tuple[str, str]], name: str) -> str:
    (found,) = [arguments for instruction, arguments in instructions if instruction == name]
    return found


def parsed(arguments: list[str]) -> dict[str, Any]:
    """The parameters of a command line of this program. Raises click's errors of usage."""
    command: Any = typer.main.get_command(cli.build_app(arguments[0]))
    context = command.context_class(command, info_name="voxcpm-coreml")
    name, chosen, rest = command.resolve_command(context, list(arguments))
    return dict(chosen.make_context(name, rest, parent=context).params)


def test_commands_exist_and_need_keys_on_every_address(
    instructions: list[tuple[str, str]], speech: dict[str, Any]
) -> None:
    assert json.loads(the(instructions, "ENTRYPOINT")) == ["voxcpm-coreml"]
    text = (REPOSITORY / "compose.yaml").read_text(encoding="utf-8")
    (with_bundles,) = re.findall(r"# command: (\[.*\])", text)
    for arguments in (json.loads(the(instructions, "CMD")), speech["command"], yaml.safe_load(with_bundles)):
        given = parsed(arguments)
        assert (given["host"], given["port"]) == ("0.0.0.0", 8000)  # noqa: S104 - inside a container
        check_exposure(Settings(host=given["host"]), Keys(("key",)))
        assert not given["insecure_serve_without_key"]
    assert KEYS_VARIABLE in speech["environment"]
    with pytest.raises(Exception, match="--nothing"):
        parsed(["serve", "--nothing"])


def test_the_health_check_asks_what_the_server_answers(instructions: list[tuple[str, str]]) -> None:
    check = json.loads(the(instructions, "HEALTHCHECK").partition("CMD ")[2])
    assert check[:2] == ["python", "-c"]
    compile(check[2], "health check", "exec")
    (path,) = re.findall(r"http://127\.0\.0\.1:8000(/\w+)", check[2])
    assert path in {getattr(route, "path", None) for route in router.routes}
    assert the(instructions, "EXPOSE") == "8000"


def test_it_runs_without_rights_and_writes_where_its_volume_is(
    instructions: list[tuple[str, str]], speech: dict[str, Any]
) -> None:
    names = [name for name, _ in instructions]
    user = the(instructions, "USER")
    assert user != "root"
    assert f" {user}" in the(instructions, "RUN")
    assert names.index("USER") > names.index("RUN")
    environment = dict(pair.split("=", 1) for pair in shlex.split(the(instructions, "ENV")))
    assert environment[CACHE_VARIABLE] == the(instructions, "VOLUME") == "/data"
    assert "data:/data" in speech["volumes"]
    assert speech["read_only"] is True
    assert speech["build"]["dockerfile"] == "Containerfile"


def test_its_python_and_its_extra_are_this_projects(instructions: list[tuple[str, str]]) -> None:
    project = metadata("voxcpm-coreml")
    (version,) = re.findall(r"^python:(\d\.\d+)-slim$", the(instructions, "FROM"))
    assert f"Programming Language :: Python :: {version}" in project.get_all("Classifier", ())
    (extra,) = re.findall(r"\[(\w+)\]", the(instructions, "RUN"))
    assert extra in project.get_all("Provides-Extra", ())
    copied = the(instructions, "COPY").split()[:-1]
    kept = (REPOSITORY / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert [f"!{name}" for name in copied] == [line for line in kept if line.startswith("!")]
    assert (REPOSITORY / "constraints.txt").is_file()


def test_the_server_has_longer_to_end_than_it_drains(speech: dict[str, Any]) -> None:
    seconds = int(speech["stop_grace_period"].removesuffix("s"))
    assert seconds > parsed(speech["command"])["drain_seconds"]
