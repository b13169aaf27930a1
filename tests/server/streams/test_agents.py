"""Voice agents' own services speak with a server: Pipecat's and LiveKit's for OpenAI and for ElevenLabs.

They need an environment of their own, which `make test-clients` makes.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from heard_words import SAID, wrong_words

pytestmark = [
    pytest.mark.clients,
]
REPOSITORY = Path(__file__).resolve().parents[3]
AGENTS = REPOSITORY / "tests" / "agents"
RATE = 24_000
KEY = "secret"


@pytest.fixture(scope="module")
def python():
    """The interpreter of the clients' environment."""
    found = REPOSITORY / os.environ.get("VOXCPM_COREML_CLIENTS", ".venv-clients") / "bin" / "python"
    if not found.is_file():
        pytest.skip(f"needs the clients in {found.parents[1]}: make test-clients")
    return found


@pytest.mark.usefixtures("seeded")
@pytest.mark.parametrize("service", ["openai", "elevenlabs"])
@pytest.mark.parametrize("agent", ["pipecat", "livekit"])
def test_agents_audio_is_transcribed(agent, service, python, serve, tmp_path):
    running = serve(keys=(KEY,))
    out = tmp_path / "heard.pcm"
    given = [python, AGENTS / f"{agent}_speech.py", service, running.url, KEY, SAID.strip(), out]
    done = subprocess.run(given, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["errors"] == [], done.stderr[-2000:]
    pcm = out.read_bytes()
    assert wrong_words(pcm, RATE) <= 4
    if service == "elevenlabs":
        words = "".join(word if word.endswith(" ") else f"{word} " for word, _ in told["words"]).split()
        assert words == SAID.split()
        times = [at for _, at in told["words"]]
        assert times == sorted(times)
        assert times[-1] - times[0] < len(pcm) / 2 / RATE
    if (agent, service) == ("livekit", "elevenlabs"):
        assert told["whole"] > len(pcm) / 4 / RATE  # seconds
        assert "alloy" in told["voices"]


@pytest.mark.parametrize("language", ["python", "javascript"])
def test_elevenlabs_sdk_calls_the_plain_routes(language, python, serve):
    running = serve(keys=(KEY,))
    given = [python, AGENTS / "elevenlabs_calls.py"]
    if language == "javascript":
        folder, node = python.parents[1], shutil.which("node")
        if node is None or not (folder / "node_modules").is_dir():
            pytest.skip(f"needs Node and its packages in {folder}: make test-clients")
        given = [node, AGENTS / "elevenlabs_calls.mjs", folder]
    given += [running.url, KEY, "alloy"]
    done = subprocess.run(given, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout)
    # Only Python's SDK has a websocket for speech.
    assert min(told["convert"], 2 * told["stream"], told.get("realtime", told["convert"])) > 4_000
    assert "".join(told["timestamps"]) == "".join(told.get("streamed", told["timestamps"])) == "Hello there."
    assert told["found"] == ["alloy"]
    assert "alloy" in told["voices"]
    assert told["voice"] == "alloy"
    assert "tts-1" in told["models"]
