"""Probes for a supervisor: liveness, readiness and metrics."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from voxcpm_server.errors import DOCUMENTED
from voxcpm_server.middleware.metrics import CONTENT_TYPE
from voxcpm_server.speech.service import service_of

router = APIRouter(tags=["probes"])


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """Whether the server lives: it answers."""
    return {"status": "ok"}


@router.get("/ready", responses={503: {"description": "It loads its voice, or it ends."}})
async def ready(request: Request) -> Response:
    """Whether it takes requests: 503 while it loads the default bundle, and while it ends."""
    service = service_of(request)
    state = {"waiting": service.queue.waiting, "speaking": service.queue.busy}
    if service.draining:
        return JSONResponse({"status": "draining", **state}, 503)
    if not service.bundles.is_ready:
        return JSONResponse({"status": "loading", **state}, 503)
    return JSONResponse({"status": "ready", **state})


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {}}}, 501: DOCUMENTED[501]},
)
async def metrics(request: Request) -> Response:
    """Counters in Prometheus' text format."""
    service_of(request).check_alone("metrics count what one process does")
    return Response(service_of(request).metrics.exposition(), media_type=CONTENT_TYPE)
