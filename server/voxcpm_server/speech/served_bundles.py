"""The bundles of a server by name, each loaded by the first request for it.

When another bundle needs memory, the least recently used idle ones are closed. The default bundle is loaded at startup,
and stays.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import itertools
import logging
import re
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import psutil

from voxcpm_runtime import CancelToken, InputError, Voice, VoxCPM, VoxCPMError
from voxcpm_server.errors import MODEL_UNAVAILABLE, RETRY_SECONDS, ApiError, place_of
from voxcpm_server.settings import OPENAI_MODELS
from voxcpm_server.speech.speaking import Speeches

Result = TypeVar("Result")
_log = logging.getLogger("voxcpm_server")
_UNITS = {
    f"{prefix}{form}": factor
    for form, base in (("B", 1000), ("iB", 1024))
    for prefix, factor in zip("KMGT", (base, base**2, base**3, base**4), strict=True)
}


@dataclass(frozen=True)
class Unloaded:
    """A bundle that has been opened and checked, without its step models."""

    size: int
    """Bytes of its step models' files, an estimate of the memory that it needs."""
    generation: str
    load: Callable[[], VoxCPM]
    """Loads its step models."""


class NoRoomError(ApiError):
    """There is no memory for a bundle while others are in use."""


Source = Callable[[], Unloaded]
"""Opens and checks a bundle. It and `Unloaded.load` run on a thread and raise VoxCPMError."""


@dataclass(eq=False)
class Served:
    """A bundle of the server. `with` ends the lease of `Bundles.lease`."""

    name: str
    source: Source
    speeches_of: Callable[[VoxCPM], Speeches]
    opened: tuple[VoxCPM, Speeches] | None = None
    """The bundle with its step models, and what speaks with it; None while they are not loaded."""
    users: int = 0
    """Requests and speeches that use it."""
    used: int = 0
    """When it was last requested, on a logical clock."""
    loading: asyncio.Task[None] | None = field(default=None, repr=False)

    @property
    def tts(self) -> VoxCPM:
        """The bundle with its step models. Raises ApiError (503) while they are not loaded."""
        return self._opened[0]

    @property
    def speeches(self) -> Speeches:
        """What speaks with it. Raises as `tts`."""
        return self._opened[1]

    @property
    def built_in_voices(self) -> dict[str, Voice]:
        """The built-in voices that it can speak with, by name. Raises as `tts`."""
        return self.tts.built_in_voices

    @property
    def takes_instructions(self) -> bool:
        """Whether the bundle's generation has styles in words. Raises as `tts`."""
        return self.tts.bundle.architecture.traits.takes_reference

    @property
    def _opened(self) -> tuple[VoxCPM, Speeches]:
        if self.opened is None:
            raise ApiError(
                503,
                "the server is loading its voice; come again in a moment",
                code="loading",
                headers={"Retry-After": RETRY_SECONDS},
            )
        return self.opened

    def hold(self) -> Callable[[], None]:
        """Keep it open until the returned function is called; further calls are no-ops."""
        self.users += 1
        held = [None]

        def release() -> None:
            if held:
                held.pop()
                self.users -= 1

        return release

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *_: object) -> None:
        self.users -= 1

    def put(self, tts: VoxCPM) -> None:
        """Use these loaded step models."""
        self.opened = (tts, self.speeches_of(tts))


def resident_bytes() -> int:
    """Resident memory of this process in bytes, including pages of mapped bundle files."""
    return int(psutil.Process().memory_info().rss)


class Bundles:
    """All bundles of a server. It belongs to one event loop.

    default: the bundle that OpenAI's model names mean; if it is given open, it is never closed. default_name: its own
    name; None for its generation. named: the others. speeches_of: makes what speaks with a loaded bundle. max_bytes:
    limit on resident memory when loading; None for no limit. memory: measures it.
    """

    def __init__(
        self,
        default: VoxCPM | Source,
        default_name: str | None,
        named: Mapping[str, Source],
        speeches_of: Callable[[VoxCPM], Speeches],
        *,
        max_bytes: int | None = None,
        memory: Callable[[], int] = resident_bytes,
    ) -> None:
        if isinstance(default, VoxCPM):
            given = Unloaded(0, default.bundle.architecture.generation, lambda: default)
            self.default = Served(default_name or given.generation, lambda: given, speeches_of)
            self.default.put(default)
        else:
            self.default = Served(default_name or "", default, speeches_of)
        self._owned = not self.is_ready
        self._named = {name: Served(name, source, speeches_of) for name, source in named.items()}
        self._max_bytes = max_bytes
        self._memory = memory
        self._clock = itertools.count(1)
        self._one_loads = asyncio.Lock()
        self.failure: Exception | None = None
        """Why the default bundle could not be loaded."""

    @property
    def names(self) -> tuple[str, ...]:
        """All model names: the default bundle's own first, if it is known yet, then the others."""
        own = (self.default.name,) if self.default.name else ()
        return tuple(dict.fromkeys((*own, *self._named, *OPENAI_MODELS)))

    @property
    def is_ready(self) -> bool:
        """Whether the default bundle is loaded."""
        return self.default.opened is not None

    @property
    def every(self) -> tuple[Served, ...]:
        """All bundles, the default one first."""
        return (self.default, *self._named.values())

    @property
    def loaded(self) -> list[Served]:
        """The loaded bundles."""
        return [served for served in self.every if served.opened is not None]

    def may_serve(self, name: str) -> bool:
        """Whether a bundle has this name, or may have it while the default one's own is unknown."""
        return not self.default.name or name in self.names

    async def named(self) -> tuple[str, ...]:
        """All model names, once the default bundle's own is known."""
        if not self.default.name:
            with await self.lease():
                pass
        return self.names

    async def lease(self, name: str | None = None) -> Served:
        """The bundle of this name, loaded, as a context manager; None for the default one.

        Raises ApiError: 404 for an unknown name, 503 if the bundle cannot be loaded now.
        """
        served = await self._find(name)
        served.users += 1
        served.used = next(self._clock)
        try:
            while served.opened is None:
                if served.loading is None:
                    served.loading = asyncio.ensure_future(self._load(served))
                    # Retrieve the error: asyncio would report it if every client has gone away.
                    served.loading.add_done_callback(lambda done: done.cancelled() or done.exception())
                # A client that goes away must not cancel loading for the others.
                await asyncio.shield(served.loading)
        except BaseException:
            served.users -= 1
            raise
        return served

    def patch_seconds(self, generation: str) -> float:
        """Seconds of a patch in a generation, from a loaded bundle of it; without one, the default bundle's."""
        a = [served.tts.bundle.architecture for served in self.loaded]
        same = [architecture for architecture in a if architecture.generation == generation]
        return (same or [self.default.tts.bundle.architecture])[0].patch_seconds

    async def begin(self) -> Exception | None:
        """Load the default bundle; returns the error if that fails."""
        try:
            with await self.lease():
                return None
        except ApiError:
            return self.failure

    async def check(self, name: str) -> None:
        """Raises ApiError (404) for an unknown name."""
        await self._find(name)

    async def close(self) -> None:
        """Cancel all speech, and close all bundles that this server has opened."""
        for served in self.loaded:
            await served.speeches.close()
            if served is not self.default or self._owned:
                await self._close(served)

    async def _find(self, name: str | None) -> Served:
        if name is None or name == self.default.name:
            return self.default
        if name in self._named:
            return self._named[name]
        if name in OPENAI_MODELS:
            return self.default
        # The default bundle's own name is unknown before it has been opened.
        served = ", ".join(await self.named())
        if name == self.default.name:
            return self.default
        raise ApiError(
            404, f"model: expected one of {served}, got {name!r}", param="model", code="model_not_found"
        )

    async def _load(self, served: Served) -> None:
        try:
            async with self._one_loads:
                unloaded = await on_a_thread(served.source)
                if served is not self.default:
                    await self._make_room(served, unloaded.size)
                served.put(await on_a_thread(unloaded.load))
                served.name = served.name or unloaded.generation
        except ApiError:
            raise
        except Exception as error:  # noqa: BLE001 - a damaged file may cause any
            if served is self.default:
                self.failure = error
            # Paths are logged, but not sent to clients.
            reason = str(error) if isinstance(error, VoxCPMError) else place_of(error)
            name = served.name or "by default"
            _log.error("bundle %s: %s", name, reason)
            raise ApiError(
                503,
                f"model: the bundle {name} cannot be loaded; the server's log says why",
                param="model",
                code=MODEL_UNAVAILABLE,
                headers={"Retry-After": RETRY_SECONDS},
            ) from None
        finally:
            served.loading = None

    async def _make_room(self, wanted: Served, size: int) -> None:
        """Close idle bundles until this one has room. Raises NoRoomError if it has none."""
        if self._max_bytes is None:
            return
        while self._memory() + size > self._max_bytes:
            idle = [s for s in self.loaded if s is not self.default and not s.users]
            if not idle:
                gigabytes = [f"{n / 1e9:.1f}" for n in (size, self._memory(), self._max_bytes)]
                raise NoRoomError(
                    503,
                    f"model: the bundle {wanted.name} needs about {gigabytes[0]} GB beside {gigabytes[1]} GB that are "
                    f"in use, and --max-memory is {gigabytes[2]} GB; come again when the others are silent",
                    param="model",
                    code=MODEL_UNAVAILABLE,
                    headers={"Retry-After": RETRY_SECONDS},
                )
            await self._close(min(idle, key=lambda s: s.used))

    async def _close(self, served: Served) -> None:
        tts, served.opened = served.tts, None
        await on_a_thread(tts.close)


async def on_a_thread(function: Callable[[], Result]) -> Result:
    """The result of a function that may take minutes, on a dedicated thread: pool shutdown would block."""
    done: concurrent.futures.Future[Result] = concurrent.futures.Future()
    # From now on it cannot be cancelled: nothing could end the thread.
    done.set_running_or_notify_cancel()

    def work() -> None:
        try:
            result = function()
        except BaseException as error:  # noqa: BLE001 - raised where the result is awaited
            done.set_exception(error)
        else:
            done.set_result(result)

    threading.Thread(target=work, name="bundle", daemon=True).start()
    return await asyncio.wrap_future(done)


async def cancelled_with(token: CancelToken, function: Callable[[], Result]) -> Result:
    """The result of `on_a_thread`. Cancellation cancels the token, and waits for the thread."""
    working = asyncio.ensure_future(on_a_thread(function))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        token.cancel()
        # The thread may still use the caller's resources.
        with contextlib.suppress(Exception):
            await to_its_end(working)
        raise


async def to_its_end(work: Awaitable[Result]) -> Result:
    """The result of work that is not cancelled with its caller."""
    working = asyncio.ensure_future(work)
    while not working.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait({working})
    return working.result()


def read_named(given: list[str] | None) -> dict[str, str]:
    """The bundles of `--bundle NAME=PATH` by name. Raises InputError for anything else, and for a name given twice."""
    named: dict[str, str] = {}
    for text in given or ():
        name, equals, path = text.partition("=")
        if not equals or not name.strip() or not path.strip() or not name.isprintable():
            raise InputError(f"--bundle: expected NAME=PATH, such as calm=voxcpm-2-calm, got {text!r}")
        if name.strip() in named:
            raise InputError(f"--bundle: {name.strip()} is given twice; give each bundle a name of its own")
        named[name.strip()] = path.strip()
    return named


def bytes_of(text: str, option: str) -> int:
    """The bytes that an amount such as "8GB" or "7.5 GiB" means. Raises InputError, which names the option."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*", text)
    units = {unit.lower(): factor for unit, factor in _UNITS.items()}
    if found is None or found[2].lower() not in units or not float(found[1]):
        raise InputError(f"{option}: expected an amount with its unit, such as 8GB or 512MiB, got {text!r}")
    return round(float(found[1]) * units[found[2].lower()])
