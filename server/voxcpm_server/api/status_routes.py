"""Liveness, readiness and metrics for supervisors; `/about` for clients that adapt to the server."""

from __future__ import annotations

from collections.abc import Collection
from importlib.metadata import version
from typing import Any, get_args, get_type_hints

from fastapi import APIRouter, Request
from prometheus_client import generate_latest
from pydantic import BaseModel, create_model
from starlette.responses import JSONResponse, Response

from voxcpm_runtime import GenerationOptions
from voxcpm_server.api.openapi import ERROR_RESPONSES
from voxcpm_server.errors import ApiError
from voxcpm_server.rooms import Room
from voxcpm_server.speech.encoding import FORMATS
from voxcpm_server.speech.served_bundles import ServedBundle
from voxcpm_server.speech.service import Service, get_service

_PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
probes = APIRouter(tags=["probes"])


@probes.get("/healthz")
async def healthz() -> dict[str, str]:
    """Liveness: 200 while the process responds."""
    return {"status": "ok"}


@probes.get("/ready", responses={503: {"description": "Loading the default bundle, or shutting down."}})
async def ready(request: Request) -> Response:
    """Readiness: 503 while the default bundle loads at startup and during shutdown."""
    service = get_service(request)
    status = "ready" if service.bundles.is_ready else "loading"
    status = "draining" if service.draining else status
    queue, loaded_bundles = service.queue, len(service.bundles.loaded)
    counts = {"waiting": queue.waiting, "speaking": queue.busy, "loaded_bundles": loaded_bundles}
    return JSONResponse({"status": status, **counts}, 200 if status == "ready" else 503)


@probes.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {}}}, 501: ERROR_RESPONSES[501]},
)
async def metrics(request: Request) -> Response:
    """Metrics in Prometheus' text format."""
    service = get_service(request)
    if service.replicated:
        message = "metrics are per process, so unavailable with --ray, where several share this address"
        raise ApiError(501, message)
    return Response(generate_latest(service.metrics.registry), media_type=_PROMETHEUS)


class Range(BaseModel):
    """Default and bounds of a numeric option."""

    default: float
    min: float
    max: float


class ModelFacts(BaseModel):
    """Facts about a bundle that clients need; None if unknown until it is loaded."""

    id: str
    sample_rate: int | None
    takes_instructions: bool | None  # whether `instructions` has an effect
    needs_transcript: bool | None  # whether a new voice needs a transcript


def about_router(service: Service, rooms: Collection[Room]) -> APIRouter:
    """The route `/about`, with the fields of the optional rooms."""
    settings = service.settings
    limits = {
        "characters": settings.max_characters,
        **{name: value for room in rooms for name, value in room.limits().items()},
        "audio_seconds": float(settings.max_audio_seconds),
        "recording_seconds": float(settings.max_recording_seconds), "upload_bytes": settings.max_upload_bytes,
    }  # fmt: skip
    types: dict[str, Any] = {name: type(value) for name, value in limits.items()}
    fields: dict[str, Any] = {
        "version": str, "needs_key": bool, "models": list[ModelFacts], "formats": list[str],
        "options": dict[str, Range],
        "limits": create_model("Limits", __doc__="Limits of a request.", **types),
        **{name: type(value) for room in rooms for name, value in room.about().items()},
    }  # fmt: skip
    # An option's default and bounds are in the runtime's table.
    declared = get_type_hints(GenerationOptions, include_extras=True)
    options = {
        name: (getattr(GenerationOptions(), name), *get_args(declared[name])[1].bounds)
        for name in ("speed", "cfg_value", "inference_timesteps")
    }
    router = APIRouter(tags=["lists"])

    @router.get("/about", response_model=create_model("About", __doc__="What this server offers.", **fields))
    async def about() -> dict[str, Any]:
        """Describe the server to clients: models, formats, options, limits. Needs no key."""
        # The default bundle's name may be unknown until it is loaded.
        await service.bundles.named()
        return {
            "version": version("voxcpm-coreml"), "needs_key": service.needs_key, "formats": list(FORMATS),
            "models": [_facts(served) for served in service.bundles.all],
            "options": {n: Range(default=d, min=l, max=h) for n, (d, l, h) in options.items()},
            "limits": limits,
            **{name: value for room in rooms for name, value in room.about().items()},
        }  # fmt: skip

    return router


def _facts(served: ServedBundle) -> ModelFacts:
    rate, styles, needs = None, None, None
    if served.loaded is not None:
        rate, styles, needs = served.tts.sample_rate, served.takes_instructions, not served.takes_instructions
    return ModelFacts(id=served.name, sample_rate=rate, takes_instructions=styles, needs_transcript=needs)
