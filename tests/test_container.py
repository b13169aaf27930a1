"""Containerfile and compose.yaml, as far as that can be checked without a container engine; its balancer is tried in
tests/server/test_balancer.py.
"""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from documents import parsed
from voxcpm_constants.user_folders import CACHE_VARIABLE
from voxcpm_server.api.status_routes import probes
from voxcpm_server.middleware.authentication import KEYS_VARIABLE, Keys, check_exposure
from voxcpm_server.rooms import AllSettings as Settings

DEPLOY = Path(__file__).resolve().parents[1] / "deploy"


@pytest.fixture(scope="module")
def instructions():
    """Each instruction of the Containerfile with its arguments on one line."""
    text = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [(line.split()[0], line.partition(" ")[2].strip()) for line in joined.splitlines() if line.strip()]


@pytest.fixture(scope="module")
def services():
    """The services of compose.yaml."""
    document = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    assert set(document["volumes"]) == {"data"}
    assert set(document["services"]) == {"balancer", "speech", "jobs"}
    return dict(document["services"])


@pytest.fixture(scope="module", params=["speech", "jobs"])
def server(request, services):
    """Each service that speaks."""
    return services[request.param]


def the(instructions, name):
    (found,) = [arguments for instruction, arguments in instructions if instruction == name]
    return found


def test_image_commands_exist_and_require_keys(instructions, server):
    assert json.loads(the(instructions, "ENTRYPOINT")) == ["voxcpm-coreml"]
    text = (DEPLOY / "compose.yaml").read_text(encoding="utf-8")
    (with_bundles,) = re.findall(r"# command: (\[.*\])", text)
    for arguments in (json.loads(the(instructions, "CMD")), server["command"], yaml.safe_load(with_bundles)):
        given = parsed(arguments).params
        assert (given["host"], given["port"]) == ("0.0.0.0", 8000)  # noqa: S104 - inside a container
        check_exposure(Settings(host=given["host"]), Keys(("key",)))
        assert not given["insecure_serve_without_key"]
    assert KEYS_VARIABLE in server["environment"]


def test_health_check_matches_the_server(instructions):
    check = json.loads(the(instructions, "HEALTHCHECK").partition("CMD ")[2])
    assert check[:2] == ["python", "-c"]
    compile(check[2], "health check", "exec")
    (path,) = re.findall(r"http://127\.0\.0\.1:8000(/\w+)", check[2])
    assert path in {getattr(route, "path", None) for route in probes.routes}
    assert the(instructions, "EXPOSE") == "8000"


def test_container_is_unprivileged_writes_only_to_its_volume_and_may_drain(instructions, server):
    steps = [name for name, _ in instructions]
    user = the(instructions, "USER")
    assert user != "root"
    assert f" {user}" in the(instructions, "RUN")
    assert steps.index("USER") > steps.index("RUN")
    environment = dict(pair.split("=", 1) for pair in shlex.split(the(instructions, "ENV")))
    assert environment[CACHE_VARIABLE] == the(instructions, "VOLUME") == "/data"
    assert "data:/data" in server["volumes"]
    assert (server["read_only"], server["cap_drop"]) == (True, ["ALL"])
    assert server["build"] == {"context": "..", "dockerfile": "deploy/Containerfile"}
    assert (
        int(server["stop_grace_period"].removesuffix("s")) > parsed(server["command"]).params["drain_seconds"]
    )


def test_one_server_takes_jobs_and_only_the_balancer_is_published(services):
    assert services["speech"]["deploy"]["replicas"] > 1
    assert parsed(services["speech"]["command"]).params["max_jobs"] == 0
    assert "deploy" not in services["jobs"]
    assert str(parsed(services["jobs"]["command"]).params["jobs_folder"]).startswith("/data/")
    assert parsed(services["jobs"]["command"]).params["max_jobs"] > 0
    assert [name for name, service in services.items() if "ports" in service] == ["balancer"]
    (mounted,) = services["balancer"]["volumes"]
    configuration = (DEPLOY / mounted.partition(":")[0]).read_text(encoding="utf-8")
    asked = set(re.findall(r"^ +server(?:-template)? \w+ (?:\d+ )?(\w+):8000", configuration, re.MULTILINE))
    assert asked == {"speech", "jobs"}


def test_the_wheel_needs_no_environment():
    """It is the first step of an image."""
    dry_run = [shutil.which("make") or "make", "-n", "wheel", "VENV=nowhere"]
    done = subprocess.run(dry_run, cwd=DEPLOY.parent, capture_output=True, text=True, check=True)
    assert "pip" in done.stdout
    assert "nowhere" not in done.stdout


def test_each_documented_compose_command_has_the_keys():
    """Compose refuses any command, even one that only scales, without the variable that the file requires."""
    for document in (DEPLOY / "compose.yaml", DEPLOY.parent / "docs" / "server-operation.md"):
        text = document.read_text(encoding="utf-8")
        commands = [match.start() for match in re.finditer("docker compose .* up", text)]
        assert len(commands) == 2
        assert f"export {KEYS_VARIABLE}=" in text[: commands[0]]
