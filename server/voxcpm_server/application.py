"""The ASGI app: routes and middleware.

request ─► paths ─► errors and metrics ─► CORS ─► connection limit ─► authentication ─► body limits
        ─► route ─► queue ─► runtime
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from importlib.metadata import version
from types import MappingProxyType

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from voxcpm_runtime import InputError, VoxCPM
from voxcpm_server.api import speech_routes, status_routes
from voxcpm_server.api.openapi import SPEECH_HEADERS, DocumentedApp
from voxcpm_server.errors import add_error_handlers
from voxcpm_server.middleware.authentication import (
    PUBLIC_PATHS,
    AuthenticationMiddleware,
    Keys,
    check_exposure,
    read_keys,
)
from voxcpm_server.middleware.limits import BodyLimitMiddleware, ConnectionLimitMiddleware
from voxcpm_server.middleware.metrics import ErrorAndMetricsMiddleware
from voxcpm_server.middleware.paths import REQUEST_ID, LenientRequestMiddleware
from voxcpm_server.rooms import AllSettings, Room, doors
from voxcpm_server.settings import Settings
from voxcpm_server.speech.served_bundles import Source
from voxcpm_server.speech.service import Service
from voxcpm_server.streams import stream_route


def create_app(
    tts: VoxCPM | Source, settings: Settings | None = None, keys: Keys | None = None, *,
    named: Mapping[str, Source] = MappingProxyType({}), replicated: bool = False,
    on_loaded: Callable[[Exception | None], object] = lambda _: None,
) -> FastAPI:  # fmt: skip
    """Create the ASGI app.

    tts: the default bundle, which the app does not close, or a `Source` to load it from at startup. settings: an
    `AllSettings`. keys: default: those of the settings and the environment. named: additional bundles, loaded on first
    use. on_loaded: called once the default bundle is loaded, with the error if that failed. replicated: whether other
    replicas serve the same address. Raises InputError for contradictory settings, and for a server without a key that
    other machines could reach.

    Outside the `serve` command, run it within `count_suspicious_warnings(app.state.service.metrics)`: otherwise
    Python prints the runtime's warnings, which may quote user text.
    """
    settings = settings or AllSettings()
    settings.check()
    keys = read_keys(settings) if keys is None else keys
    check_exposure(settings, keys)
    service = Service(tts, settings, keys, named, replicated=replicated)
    by_name = {name: door(service) for name, door in doors().items()}
    rooms = by_name.values()

    async def load_default_bundle(failure: Exception | None) -> None:
        failure = failure or await service.bundles.load_default()
        if failure is None:
            for room in rooms:
                room.start()
        on_loaded(failure)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        failure = None
        try:
            for room in rooms:
                await room.open()
        except InputError as error:
            failure = error
        work = (load_default_bundle(failure), service.bundles.unload_idle())
        tasks = [asyncio.ensure_future(each) for each in work]
        yield
        for task in tasks:
            task.cancel()
        await _close(service, rooms)

    app = DocumentedApp(
        title="voxcpm-coreml", version=version("voxcpm-coreml"), lifespan=lifespan,
        # These pages load scripts from a CDN; /openapi.json stays.
        docs_url=None, redoc_url=None,
    )  # fmt: skip
    app.state.service, app.state.rooms = service, by_name
    add_error_handlers(app)
    routers = [speech_routes.speech, *(router for room in rooms for router in room.first)]
    routers += [speech_routes.lists, speech_routes.voices, stream_route.router]
    routers += [router for room in rooms for router in room.routers]
    routers.append(status_routes.about_router(service, rooms))
    # Clients may be configured with a base URL with or without /v1.
    for prefix in ("/v1", ""):
        for router in routers:
            app.include_router(router, prefix=prefix, include_in_schema=bool(prefix))
    unprefixed = [router for room in rooms for router in room.unprefixed]
    for router in (status_routes.probes, speech_routes.captioned, *unprefixed):
        app.include_router(router)
    # The last one added is the outermost.
    app.add_middleware(BodyLimitMiddleware, settings=settings)
    app.add_middleware(
        AuthenticationMiddleware,
        keys=keys,
        settings=settings,
        public_paths=PUBLIC_PATHS.union(*(room.public_paths for room in rooms)),
    )
    app.add_middleware(ConnectionLimitMiddleware, settings=settings)
    if settings.cors_origin:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origin,
            allow_methods=["GET", "POST", "DELETE"],
            # OpenAI's browser client sends a dozen of its own (x-stainless-os, …), others xi-api-key or Range.
            allow_headers=["*"],
            expose_headers=["Location", *SPEECH_HEADERS, "Retry-After", "Content-Range", REQUEST_ID],
        )
    app.add_middleware(ErrorAndMetricsMiddleware, metrics=service.metrics)
    app.add_middleware(LenientRequestMiddleware)
    return app


async def _close(service: Service, rooms: Collection[Room]) -> None:
    for stream in list(service.streams):
        await stream.aclose()
    for room in rooms:
        await room.close()
    await service.bundles.close()
