"""The server's bundles by model name, loaded on first use.

When another bundle needs memory, the least recently used idle ones are closed. The default bundle is loaded at startup,
and closed before shutdown only after a time without use, like all others; the next request loads it again.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import copy
import logging
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple, TypeVar

import psutil
from pydantic import ByteSize, TypeAdapter, ValidationError

from voxcpm_runtime import InputError, Voice, VoxCPM, VoxCPMError
from voxcpm_server.errors import MODEL_UNAVAILABLE, RETRY, ApiError, error_location
from voxcpm_server.settings import OPENAI_MODELS

Result = TypeVar("Result")
_OTHER_SERVERS_MODELS = frozenset({"kokoro"})  # that clients send unless configured otherwise
_log = logging.getLogger("voxcpm_server")


class Unloaded(NamedTuple):
    """A bundle that was opened and checked, without its step models."""

    size: int  # bytes of its step models' files, an estimate of its memory
    generation: str
    load: Callable[[], VoxCPM]


Source = Callable[[], Unloaded]
"""Opens and checks a bundle. It and `Unloaded.load` run on a thread and raise VoxCPMError."""


@dataclass(eq=False)
class ServedBundle:
    """A bundle of the server. As a context manager it ends a lease of `Bundles.lease`."""

    name: str
    source: Source
    loaded: VoxCPM | None = None  # None while the step models are not loaded
    leases: int = 0  # requests and streams that keep it open
    last_used: float = 0.0  # when a lease last began or ended (time.monotonic)
    loading: asyncio.Task[None] | None = field(default=None, repr=False)

    @property
    def tts(self) -> VoxCPM:
        """The loaded bundle. Raises ApiError (503) if it is not loaded."""
        if self.loaded is None:
            message = "the server is still loading the bundle; try again in a moment"
            raise ApiError(503, message, code="loading", headers=RETRY)
        return self.loaded

    @property
    def takes_instructions(self) -> bool:
        """Whether the bundle's generation supports styles in words."""
        return self.tts.bundle.architecture.traits.takes_reference

    def release(self) -> None:
        """End a lease."""
        self.leases -= 1
        self.last_used = time.monotonic()

    def __enter__(self) -> ServedBundle:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class Bundles:
    """All bundles of a server. Bound to one event loop.

    default: the bundle that OpenAI's model names select; one that is already open is never closed. default_name: its
    model name; None for its generation. named: the others. max_bytes: limit on resident memory when loading.
    idle_seconds: time without a lease after which `unload_idle` closes a bundle. lexicon: words that all of them say
    differently.
    """

    def __init__(
        self, default: VoxCPM | Source, default_name: str | None, named: Mapping[str, Source], *,
        max_bytes: int | None = None, idle_seconds: float | None = None,
        memory: Callable[[], int] = lambda: psutil.Process().memory_info().rss,
        lexicon: Mapping[str, str] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        self._lexicon = lexicon
        self._owned = not isinstance(default, VoxCPM)
        if isinstance(default, VoxCPM):
            # Whoever gave an open bundle keeps it without the lexicon.
            tts = self._with_lexicon(copy.copy(default) if lexicon else default)
            unloaded = Unloaded(0, tts.bundle.architecture.generation, lambda: tts)
            self.default = ServedBundle(default_name or unloaded.generation, lambda: unloaded, tts)
        else:
            self.default = ServedBundle(default_name or "", default)
        # Whether the default bundle has been loaded, even if it is unloaded now.
        self.is_ready = not self._owned
        self._named = {name: ServedBundle(name, source) for name, source in named.items()}
        self._max_bytes = max_bytes
        self._idle_seconds = idle_seconds
        self._memory = memory
        self._load_lock = asyncio.Lock()
        self.failure: Exception | None = None  # why the default bundle could not be loaded

    @property
    def names(self) -> tuple[str, ...]:
        """All model names: the default bundle's first, if already known, then the others."""
        return tuple(dict.fromkeys(filter(None, (self.default.name, *self._named, *OPENAI_MODELS))))

    @property
    def all(self) -> tuple[ServedBundle, ...]:
        """All bundles, the default one first."""
        return (self.default, *self._named.values())

    @property
    def loaded(self) -> list[ServedBundle]:
        """The loaded bundles."""
        return [served for served in self.all if served.loaded is not None]

    async def named(self) -> tuple[str, ...]:
        """All model names; loads the default bundle if its name is unknown."""
        if not self.default.name:
            (await self.lease()).release()
        return self.names

    async def lease(self, name: str | None = None) -> ServedBundle:
        """Load a bundle (None: the default) and keep it open. Raises ApiError: 404, or 503 if loading fails."""
        served = await self.find(name)
        served.leases += 1
        served.last_used = time.monotonic()
        try:
            while served.loaded is None:
                if served.loading is None:
                    served.loading = asyncio.ensure_future(self._load(served))
                    # Retrieve the error: asyncio would log it if all clients have disconnected.
                    served.loading.add_done_callback(lambda done: done.cancelled() or done.exception())
                # A client that disconnects must not cancel loading for the others.
                await asyncio.shield(served.loading)
        except BaseException:
            served.release()
            raise
        return served

    async def find(self, name: str | None) -> ServedBundle:
        """The bundle of this name, loaded or not; None is the default. Raises ApiError (404) for an unknown name."""
        if name is None:
            return self.default
        if (known := self._canonical(name)) is None:
            await self.named()  # The default bundle's name may be unknown until it is loaded.
            known = self._canonical(name)
        if known is None:
            message = f"model: expected one of {', '.join(self.names)}, got {name!r}"
            raise ApiError(404, message, param="model", code="model_not_found")
        # Unassigned OpenAI names select the default bundle; so does its own name, even if not unique.
        return self.default if known == self.default.name else self._named.get(known, self.default)

    def _canonical(self, name: str) -> str | None:
        """The model of that name in any case, or None; other servers' names mean the default bundle."""
        if name in self.names:
            return name
        if name.lower() in _OTHER_SERVERS_MODELS:
            return OPENAI_MODELS[0]
        return next((known for known in self.names if known.lower() == name.lower()), None)

    def patch_seconds(self, voice: Voice) -> float:
        """Seconds per patch of a voice, from a loaded bundle that accepts it, otherwise from the default bundle."""
        for served in self.loaded:
            architecture = served.tts.bundle.architecture
            with contextlib.suppress(InputError):
                voice.check(architecture)
                return architecture.patch_seconds
        return self.default.tts.bundle.architecture.patch_seconds

    async def load_default(self) -> Exception | None:
        """Load the default bundle. Returns the error if that fails."""
        with contextlib.suppress(ApiError):
            (await self.lease()).release()
        return self.failure

    async def unload_idle(self) -> None:
        """Close bundles that have been idle for `idle_seconds`; runs until it is cancelled."""
        while (seconds := self._idle_seconds) is not None:
            now = time.monotonic()
            due = {served: served.last_used + seconds for served in self._closable if not served.leases}
            first = min(due, key=due.__getitem__, default=None)
            if first is None or due[first] > now:
                await asyncio.sleep(seconds if first is None else due[first] - now)
            else:
                await self._close(first)

    async def close(self) -> None:
        """Close all bundles that this server opened."""
        for served in self._closable:
            await self._close(served)

    @property
    def _closable(self) -> list[ServedBundle]:
        """The loaded bundles that this server opened."""
        return [served for served in self.loaded if served is not self.default or self._owned]

    async def _load(self, served: ServedBundle) -> None:
        try:
            async with self._load_lock:
                unloaded = await run_in_dedicated_thread(served.source)
                if served is not self.default:
                    await self._evict_until_fits(served, unloaded.size)
                served.loaded = self._with_lexicon(await run_in_dedicated_thread(unloaded.load))
                served.name = served.name or unloaded.generation
                self.is_ready = self.is_ready or served is self.default
        except ApiError:
            raise
        except Exception as error:  # noqa: BLE001 - a damaged file may cause any
            if served is self.default:
                self.failure = error
            name = served.name or "(default)"
            # Paths are logged, but not sent to clients.
            reason = error if isinstance(error, VoxCPMError) else error_location(error)
            _log.error("bundle %s: %s", name, reason)
            raise _unavailable(f"cannot load the bundle {name}; see the server's log") from None
        finally:
            served.loading = None

    def _with_lexicon(self, tts: VoxCPM) -> VoxCPM:
        if self._lexicon:
            tts.bundle = replace(tts.bundle, lexicon=self._lexicon)
        return tts

    async def _evict_until_fits(self, bundle: ServedBundle, size: int) -> None:
        """Close idle bundles until this one fits. Raises ApiError (503) if it cannot."""
        while self._max_bytes is not None and self._memory() + size > self._max_bytes:
            idle = [s for s in self.loaded if s is not self.default and not s.leases]
            if not idle:
                needs, used, maximum = (f"{n / 1e9:.1f} GB" for n in (size, self._memory(), self._max_bytes))
                raise _unavailable(
                    f"the bundle {bundle.name} needs about {needs} in addition to {used} in use, but --max-memory is "
                    f"{maximum}; try again when other bundles are idle"
                )
            await self._close(min(idle, key=lambda s: s.last_used))

    async def _close(self, served: ServedBundle) -> None:
        tts, served.loaded = served.tts, None
        await run_in_dedicated_thread(tts.close)


def _unavailable(message: str) -> ApiError:
    return ApiError(503, f"model: {message}", param="model", code=MODEL_UNAVAILABLE, headers=RETRY)


async def run_in_dedicated_thread(function: Callable[[], Result]) -> Result:
    """Run a function that may take minutes on a dedicated thread: pool shutdown would block."""
    done: concurrent.futures.Future[Result] = concurrent.futures.Future()
    # Not cancellable from here on: nothing can stop the thread.
    done.set_running_or_notify_cancel()

    def work() -> None:
        try:
            done.set_result(function())
        except BaseException as error:  # noqa: BLE001 - raised where the result is awaited
            done.set_exception(error)

    threading.Thread(target=work, name="bundle", daemon=True).start()
    return await asyncio.wrap_future(done)


def parse_named_bundles(options: list[str] | None) -> dict[str, str]:
    """Parse `--bundle NAME=BUNDLE`: bundles by name. Raises InputError for anything else, and for duplicate names."""
    named: dict[str, str] = {}
    for text in options or ():
        name, _, path = (part.strip() for part in text.partition("="))
        if not name or not path or not name.isprintable():
            raise InputError(f"--bundle: expected NAME=BUNDLE, such as calm=voxcpm-2-calm, got {text!r}")
        if name in named:
            raise InputError(f"--bundle: duplicate name {name}; give each bundle its own")
        named[name] = path
    return named


_SECONDS_OF_A_UNIT = {"s": 1, "m": 60, "h": 3600}


def parse_seconds(text: str, option: str) -> float:
    """Parse a duration such as "10m" into seconds. Raises InputError, which names the option."""
    match = re.fullmatch(r"(\d{1,6}(?:\.\d+)?) ?([smh])", text.strip())
    if match and (seconds := float(match[1]) * _SECONDS_OF_A_UNIT[match[2]]):
        return seconds
    raise InputError(f"{option}: expected a duration with a unit, such as 90s, 10m or 2h, got {text!r}")


def parse_bytes(text: str, option: str) -> int:
    """Parse an amount such as "8GB" or "7.5 GiB" into bytes. Raises InputError, which names the option."""
    with contextlib.suppress(ValidationError):
        # An amount without a unit would be bytes.
        if text.strip()[-1:].isalpha() and (amount := TypeAdapter(ByteSize).validate_python(text.strip())):
            return amount
    raise InputError(f"{option}: expected an amount with a unit, such as 8GB or 512MiB, got {text!r}")
