"""Containerfile and compose.yaml, as far as that can be checked without a container engine; its balancer is tried in
tests/server/test_balancer.py.
"""

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
from voxcpm_server.api.status_routes import probes
from voxcpm_server.middleware.authentication import KEYS_VARIABLE, Keys, check_exposure
from voxcpm_server.rooms import AllSettings as Settings

DEPLOY = Path(__file__).resolve().parents[1] / "deploy"


@pytest.fixture(scope="module")
def instructions() -> list[tuple[str, str]]:
    """Each instruction of the Containerfile with its arguments on one line."""
    text = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [(line.split()[0], line.partition(" ")[2].strip()) for line in joined.splitlines() if line.strip()]


@pytest.fixture(scope="module")
def services() -> dict[str, dict[str, Any]]:
    """The services of compose.yaml."""
    document = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    assert set(document["volumes"]) == {"data"}
    assert set(document["services"]) == {"balancer", "speech", "jobs"}
    return dict(document["services"])


@pytest.fixture(scope="module", params=["speech", "jobs"])
def server(request: pytest.FixtureRequest, services: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Each service that speaks."""
    return services[request.param]


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
    instructions: list[tuple[str, str]], server: dict[str, Any]
) -> None:
    assert json.loads(the(instructions, "ENTRYPOINT")) == ["voxcpm-coreml"]
    text = (DEPLOY / "compose.yaml").read_text(encoding="utf-8")
    (with_bundles,) = re.findall(r"# command: (\[.*\])", text)
    for arguments in (json.loads(the(instructions, "CMD")), server["command"], yaml.safe_load(with_bundles)):
        given = parsed(arguments)
        assert (given["host"], given["port"]) == ("0.0.0.0", 8000)  # noqa: S104 - inside a container
        check_exposure(Settings(host=given["host"]), Keys(("key",)))
        assert not given["insecure_serve_without_key"]
    assert KEYS_VARIABLE in server["environment"]
    with pytest.raises(Exception, match="--nothing"):
        parsed(["serve", "--nothing"])


def test_the_health_check_asks_what_the_server_answers(instructions: list[tuple[str, str]]) -> None:
    check = json.loads(the(instructions, "HEALTHCHECK").partition("CMD ")[2])
    assert check[:2] == ["python", "-c"]
    compile(check[2], "health check", "exec")
    (path,) = re.findall(r"http://127\.0\.0\.1:8000(/\w+)", check[2])
    assert path in {getattr(route, "path", None) for route in probes.routes}
    assert the(instructions, "EXPOSE") == "8000"


def test_it_runs_without_rights_and_writes_where_its_volume_is(
    instructions: list[tuple[str, str]], server: dict[str, Any]
) -> None:
    names = [name for name, _ in instructions]
    user = the(instructions, "USER")
    assert user != "root"
    assert f" {user}" in the(instructions, "RUN")
    assert names.index("USER") > names.index("RUN")
    environment = dict(pair.split("=", 1) for pair in shlex.split(the(instructions, "ENV")))
    assert environment[CACHE_VARIABLE] == the(instructions, "VOLUME") == "/data"
    assert "data:/data" in server["volumes"]
    assert server["read_only"] is True
    assert server["cap_drop"] == ["ALL"]
    assert server["build"] == {"context": "..", "dockerfile": "deploy/Containerfile"}


def test_its_python_and_its_extra_are_this_projects(instructions: list[tuple[str, str]]) -> None:
    project = metadata("voxcpm-coreml")
    (version,) = re.findall(r"^python:(\d\.\d+)-slim$", the(instructions, "FROM"))
    assert f"Programming Language :: Python :: {version}" in project.get_all("Classifier", ())
    (extra,) = re.findall(r"\[(\w+)\]", the(instructions, "RUN"))
    assert extra in project.get_all("Provides-Extra", ())
    copied = the(instructions, "COPY").split()[:-1]
    kept = (DEPLOY / "Containerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    assert [f"!{name}" for name in copied] == [line for line in kept if line.startswith("!")]
    assert (DEPLOY.parent / "constraints.txt").is_file()


def test_the_server_has_longer_to_end_than_it_drains(server: dict[str, Any]) -> None:
    seconds = int(server["stop_grace_period"].removesuffix("s"))
    assert seconds > parsed(server["command"])["drain_seconds"]


def test_jobs_are_taken_by_one_server_and_only_the_balancer_is_reached_from_outside(
    services: dict[str, dict[str, Any]],
) -> None:
    assert services["speech"]["deploy"]["replicas"] > 1
    assert parsed(services["speech"]["command"])["max_jobs"] == 0
    assert "deploy" not in services["jobs"]
    assert str(parsed(services["jobs"]["command"])["jobs_folder"]).startswith("/data/")
    assert parsed(services["jobs"]["command"])["max_jobs"] > 0
    assert [name for name, service in services.items() if "ports" in service] == ["balancer"]


def test_the_balancer_asks_for_services_that_exist_and_ends_after_them(
    services: dict[str, dict[str, Any]],
) -> None:
    (mounted,) = services["balancer"]["volumes"]
    configuration = (DEPLOY / mounted.partition(":")[0]).read_text(encoding="utf-8")
    assert mounted.endswith(":/usr/local/etc/haproxy/haproxy.cfg:ro")
    asked = set(re.findall(r"^ +server(?:-template)? \w+ (?:\d+ )?(\w+):8000", configuration, re.MULTILINE))
    assert asked == {"speech", "jobs"} == set(services["balancer"]["depends_on"])
    # Longer than the servers drain, and not so long that it would be killed.
    (seconds,) = map(int, re.findall(r"hard-stop-after (\d+)s", configuration))
    longest = int(services["balancer"]["stop_grace_period"].removesuffix("s"))
    assert parsed(services["speech"]["command"])["drain_seconds"] < seconds < longest
    assert services["balancer"]["ports"] == ["8000:8000"]
    assert re.findall(r"bind :(\d+)", configuration) == ["8000"]
