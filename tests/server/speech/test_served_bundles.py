"""Several bundles behind one address: loaded on demand, evicted when others need their memory."""

import asyncio
import contextlib
import shutil
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from server_on_loopback import ServerOnLoopback
from speech_socket import socket_to
from voxcpm_runtime import BundleError, InputError, VoxCPM
from voxcpm_runtime.audio.pcm import pcm16
from voxcpm_runtime.bundle.opening import DEFAULT_BUNDLE
from voxcpm_server.application import create_app
from voxcpm_server.errors import ApiError
from voxcpm_server.middleware.authentication import Keys
from voxcpm_server.rooms import AllSettings as Settings
from voxcpm_server.speech.served_bundles import (
    Bundles,
    Unloaded,
    parse_bytes,
    parse_named_bundles,
    parse_seconds,
)
from waiting import until

pytestmark = pytest.mark.anyio
SAID = {
    "voice": "default", "text": "Hello.", "response_format": "wav", "seed": 3, "stream": False, "model": "voxcpm",
}  # fmt: skip


@contextlib.contextmanager
def serving(app, settings):
    running = ServerOnLoopback(app, settings)
    try:
        yield running
    finally:
        running.stop()


@dataclass(frozen=True)
class Opened:
    """A fake bundle without step models."""

    architecture: Any
    lexicon: dict[str, str] = field(default_factory=dict)


class Loaded:
    """A fake loaded bundle that records its closing. Its architecture has its name, and patches of 1 s a letter."""

    def __init__(self, name, closed):
        self.bundle = Opened(SimpleNamespace(name=name, patch_seconds=float(len(name))))
        self._closed, self._driver = closed, name

    def close(self):
        self._closed.append(self._driver)
        self._driver = ""


class Shelf:
    """Fake bundles of 10 bytes each with a limit of `most`."""

    def __init__(self, most=None, failing=(), **options):
        self.loads: list[str] = []
        self.loaded: list[Loaded] = []
        self.closed: list[str] = []
        names = ("default", "a", "b", "c")
        sources = {name: self._source(name, failing) for name in names}
        self.bundles = Bundles(
            sources.pop("default"),
            None,
            sources,
            max_bytes=most,
            # What was closed in a copy of itself still has its driver.
            memory=lambda: 10 * sum(bool(one._driver) for one in self.loaded),
            **options,
        )

    def _source(self, name, failing):
        def load():
            self.loads.append(name)
            self.loaded.append(Loaded(name, self.closed))
            return self.loaded[-1]

        def opened():
            if name in failing:
                raise BundleError(f"/secret/{name}: manifest.json is missing")
            return Unloaded(10, f"generation of {name}", load)

        return opened


async def test_concurrent_requests_load_a_bundle_once():
    shelf = Shelf()
    assert shelf.bundles.names == ("a", "b", "c", "tts-1", "tts-1-hd", "gpt-4o-mini-tts")
    leased = await asyncio.gather(*(shelf.bundles.lease(name) for name in ("a", "tts-1", "a", None)))
    assert [served.name for served in leased] == ["a", "generation of default"] * 2
    assert sorted(shelf.loads) == ["a", "default"]
    assert shelf.bundles.names[0] == "generation of default"
    # A client that disconnects does not end the loading that others wait for.
    clients = [asyncio.create_task(shelf.bundles.lease("b")) for _ in range(2)]
    await asyncio.sleep(0)
    clients[0].cancel()
    assert (await clients[1]).name == "b"
    assert await shelf.bundles.lease("generation of default") is leased[1]
    # The default bundle's names take precedence over another bundle's.
    same = Bundles(shelf.bundles.default.source, "a", {"a": leased[0].source})
    assert await same.find("a") is same.default


async def test_least_recently_used_idle_bundle_is_evicted():
    shelf = Shelf(most=30)
    assert await shelf.bundles.load_default() is None
    for name in ("a", "b", "a"):
        with await shelf.bundles.lease(name):
            pass
    with await shelf.bundles.lease("c"):
        assert shelf.closed == ["b"]
    used = await shelf.bundles.lease("a")
    with await shelf.bundles.lease("b"):
        # c was used later than a, but a is in use. The default bundle is never evicted.
        assert shelf.closed == ["b", "c"]
        with pytest.raises(ApiError, match=r"needs about 0\.0 GB in addition") as caught:
            await shelf.bundles.lease("c")
        assert caught.value.status_code == 503
        assert caught.value.headers == {"Retry-After": "5"}
    used.release()
    await shelf.bundles.close()
    assert shelf.closed == ["b", "c", "default", "a", "b"]


def test_failed_load_is_retried_and_its_path_not_exposed(caplog):
    async def asked():
        shelf = Shelf(failing=("a",))
        for _ in range(2):
            with pytest.raises(ApiError, match="cannot load the bundle a") as caught:
                await shelf.bundles.lease("a")
            assert caught.value.status_code == 503
            assert "secret" not in caught.value.detail
        with await shelf.bundles.lease("b"):
            pass
        with pytest.raises(ApiError, match="expected one of generation of default, a, b, c") as caught:
            await shelf.bundles.lease("d")
        assert caught.value.status_code == 404

    asyncio.run(asked())
    assert caplog.text.count("bundle a: /secret/a: manifest.json is missing") == 2


@pytest.mark.parametrize(
    ("parse", "right", "wrong"),
    [
        (parse_bytes, {"8GB": 8e9, " 1.5 gib ": 1.5 * 2**30, "9KB": 9e3}, "8|GB|-1GB|8 parsecs|0GB|1e3MB"),
        (parse_seconds, {"90s": 90, "10m": 600, " 1.5 h ": 5400}, "10|m|-1m|0m|10 parsecs|1e3s|nans"),
    ],
)
def test_amounts_and_durations_require_a_unit(parse, right, wrong):
    assert {text: parse(text, "--option") for text in right} == right
    for text in ("", *wrong.split("|")):
        with pytest.raises(InputError, match=r"--option: expected an? .* with a unit"):
            parse(text, "--option")


def test_server_unloads_when_idle_and_speaks_the_same_after(tmp_path):
    settings = Settings(voices_folder=tmp_path, max_jobs=0, idle_unload="0.5s")
    with serving(create_app(source_of(DEFAULT_BUNDLE, "int8"), settings, Keys(())), settings) as running:

        def ready():
            answer = running.get("/ready")
            return answer.status_code, answer.json()["loaded_bundles"]

        first = running.speak(**SAID).content
        until(lambda: ready() == (200, 0))
        assert "voxcpm_loaded_bundles 0.0" in running.metrics()
        assert running.speak(**SAID).content == first
        # Open text in fragments is a use, even while it has nothing to say.
        with socket_to(running) as connection:
            connection.send('{"type": "start"}')
            connection.recv()
            time.sleep(1.5)
            assert ready() == (200, 1)
        until(lambda: ready() == (200, 0))


def test_bundle_option_has_a_name_and_a_path():
    assert parse_named_bundles(["calm=/some/folder", "x = org/name=1"]) == {
        "calm": "/some/folder",
        "x": "org/name=1",
    }
    for wrong in (["calm"], ["=path"], ["calm="], [" =path"], ["a\nb=path"], ["a=1", "a=2"]):
        with pytest.raises(InputError, match="--bundle: "):
            parse_named_bundles(wrong)


def source_of(folder, precision):
    def opened():
        if not folder.is_dir():
            raise BundleError(f"{folder}: no such folder")
        return Unloaded(1, "voxcpm", lambda: VoxCPM.from_bundle(folder, precision=precision))

    return opened


def test_two_bundles_are_served_and_one_may_disappear(tts, speaking_bundle, tmp_path):
    going, second = (Path(shutil.copytree(speaking_bundle, tmp_path / name)) for name in ("going", "second"))
    settings = Settings(voices_folder=tmp_path / "voices", max_jobs=0)
    named = {"second": source_of(second, "fp32"), "going": source_of(going, "int8")}
    with VoxCPM.from_bundle(speaking_bundle, precision="fp32") as other:
        expected = {
            name: pcm16(speaker.generate("Hello.", seed=3))
            for name, speaker in (("second", other), ("voxcpm", tts))
        }
    assert not np.array_equal(expected["second"], expected["voxcpm"])
    with serving(create_app(tts, settings, Keys(()), named=named), settings) as running:
        models = [model["id"] for model in running.get("/v1/models").json()["data"]]
        assert models == ["voxcpm", "second", "going", "tts-1", "tts-1-hd", "gpt-4o-mini-tts"]
        assert running.get("/v1/models/second").json()["id"] == "second"
        assert len(running.service.bundles.loaded) == 1
        answers = {model: running.speak(**SAID | {"model": model}) for model in expected}
        for model, samples in expected.items():
            assert answers[model].status_code == 200, answers[model].text
            assert np.array_equal(np.frombuffer(answers[model].content[44:], "<i2"), samples)

        shutil.rmtree(going)
        shutil.rmtree(second)
        # A loaded bundle does not need its folder.
        for model, before in answers.items():
            assert running.speak(**SAID | {"model": model}).content == before.content
        gone = running.speak(**SAID | {"model": "going"})
        assert (gone.status_code, gone.json()["error"]["code"]) == (503, "model_unavailable")
        assert str(tmp_path) not in gone.text
        # A voice of one bundle does not fit another's AudioVAE.
        made = tts.create_voice((np.sin(np.arange(16_000) / 20) / 3, 16_000), "a", name="ada")
        header = made.header.model_copy(update={"latent_space": "another", "generation": "voxcpm2"})
        (tmp_path / "voices").mkdir()
        replace(made, header=header).save(tmp_path / "voices" / "ada.voice")
        wrong = running.speak(**SAID | {"model": "second", "voice": "ada"})
        assert wrong.status_code == 400
        assert "made for another AudioVAE" in wrong.json()["error"]["message"]


def test_probes_respond_during_loading():
    may_load, begun, answers = threading.Event(), [], []

    def opened():
        assert may_load.wait(30)
        return Unloaded(1, "voxcpm", VoxCPM.from_bundle)

    settings = Settings(max_jobs=0)
    with serving(create_app(opened, settings, Keys(()), on_loaded=begun.append), settings) as running:
        assert running.get("/healthz").status_code == 200
        loading = running.get("/ready")
        assert (loading.status_code, loading.json()["status"]) == (503, "loading")
        asking = threading.Thread(target=lambda: answers.append(running.speak(**SAID)))
        asking.start()
        time.sleep(0.2)
        assert answers == begun == []
        may_load.set()
        asking.join(60)
        assert answers[0].status_code == 200
        assert begun == [None]
        assert running.get("/ready").status_code == 200


async def test_bundle_with_a_lexicon_is_evicted_whole():
    shelf = Shelf(most=20, lexicon={"Ada": "eider"})
    assert await shelf.bundles.load_default() is None
    for name in ("a", "b", "c"):
        with await shelf.bundles.lease(name) as served:
            assert served.tts.bundle.lexicon == {"Ada": "eider"}


async def test_length_of_a_voice_is_in_patches_of_a_bundle_that_accepts_it():
    def check(architecture):
        if architecture.name != "a":
            raise InputError("made for another AudioVAE")

    shelf = Shelf()
    assert await shelf.bundles.load_default() is None
    voice = SimpleNamespace(check=check)
    assert shelf.bundles.patch_seconds(voice) == len("default")
    (await shelf.bundles.lease("a")).release()
    assert shelf.bundles.patch_seconds(voice) == len("a")
