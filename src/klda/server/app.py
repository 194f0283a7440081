"""The ASGI application: API, page and gate around a service."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware

import klda
from klda.errors import KldaError, is_lack_of_memory, require
from klda.server import api, label_studio, page
from klda.server.errors import INTERNAL, ServerError
from klda.server.gate import Gate, Keys
from klda.server.service import Service
from klda.server.update import STORAGE_ERRORS

log = logging.getLogger("klda.server")

_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
MALFORMED = "The body is not valid JSON."


def create_app(service: Service) -> Gate:
    """Return the ASGI application of a service."""
    app = FastAPI(
        title="klda",
        version=klda.__version__,
        summary="Teach a classifier new classes forever, without forgetting.",
        lifespan=_lifespan,
        docs_url=None,  # its page loads scripts from a CDN
        redoc_url=None,
        openapi_url="/v1/openapi.json",
    )
    app.state.service = service
    app.state.keys = Keys(service.settings.keys)
    app.state.page = page.PageState(service)
    app.state.label_studio = asyncio.Lock()
    app.state.metrics = Metrics(service)
    app.add_middleware(GZipMiddleware, minimum_size=1000, compresslevel=5)
    paths: set[str] = set()
    for router in (api.router, api.open_router, label_studio.router, page.router):
        app.include_router(router)
        paths.update(getattr(route, "path", "") for route in router.routes)
    app.mount(page.STATIC_URL, page.STATIC)
    for kind in (RequestValidationError, ValidationError, HTTPException, KldaError, Exception):
        app.add_exception_handler(kind, _error_response)
    return Gate(app, paths, _error_response)


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    log.info("ready", extra={"classes": len(app.state.service.snapshot.counts)})
    yield
    await app.state.page.stop()


async def _error_response(request: Request, error: Exception) -> Response:
    is_page = request.scope["path"].startswith("/page/")
    answer = _service_error(error, is_page)
    if is_page:
        return page.page_error(request, answer)
    headers = {**answer.headers, **(getattr(error, "headers", None) or {})}
    return JSONResponse(answer.body, answer.status, headers=headers)


def _service_error(error: Exception, is_page: bool) -> ServerError:
    """Return what a client may see of an error."""
    match error:
        case ServerError():
            return error
        case _ if is_lack_of_memory(error):
            return ServerError(
                "The service is short of memory; nothing was changed.", 503, "memory"
            )
        case _ if isinstance(error, STORAGE_ERRORS):
            log.error("storage", extra={"error": str(error)})
            said = "The model's files could not be read or written; nothing was changed."
            return ServerError(said, 503, "storage")
        case RequestValidationError() | ValidationError():
            first = error.errors()[0]
            if first["type"] == "json_invalid":
                return ServerError(MALFORMED, 400)
            # What was sent is not repeated: it may be large, secret, or not even valid JSON (NaN).
            parts = [str(part) for part in first["loc"] if part != "body"]
            # Pydantic names the function that checked a value beside the value's place.
            place = ".".join(part for part in parts if not part.startswith("function-")) or "body"
            return ServerError(f"{place[:200]}: {first['msg'].removeprefix('Value error, ')[:300]}")
        case KldaError():
            return ServerError(str(error))
        case HTTPException(status_code=400):
            said = f"The form can't be read: {error.detail}"
            return ServerError(said) if is_page else ServerError(MALFORMED, 400)
        case HTTPException():
            return ServerError(str(error.detail), error.status_code)
    return ServerError(INTERNAL, 500)


class Metrics:
    """Counters of a service, and gauges that are computed when the metrics are read."""

    def __init__(self, service: Service) -> None:
        self._prometheus = prometheus = require("prometheus_client", "server")
        self._registry = prometheus.CollectorRegistry()
        self.is_used = False  # whether a program has asked
        own = {"registry": self._registry}
        labels = ["method", "path", "status"]
        self._requests = prometheus.Counter("klda_requests", "Requests answered.", labels, **own)
        self._seconds = prometheus.Histogram(
            "klda_request_seconds", "Seconds per request.", ["path"], buckets=_SECONDS, **own
        )
        batches = prometheus.Histogram(
            "klda_batch_inputs", "Inputs encoded together.", buckets=_SIZES, **own
        )
        service.batcher.on_batch = batches.observe
        for name, meaning, value in (
            ("klda_classes", "Classes known.", lambda: len(service.snapshot.counts)),
            ("klda_samples", "Samples learned.", lambda: service.snapshot.samples),
            ("klda_version", "Number of the last change.", lambda: service.snapshot.version),
            ("klda_journal_pending", "Only in the journal.", lambda: service.writer.pending),
            ("klda_refused", "Changes refused at a start.", lambda: service.writer.refused),
        ):
            prometheus.Gauge(name, meaning, **own).set_function(value)
        healthy = prometheus.Gauge("klda_healthy", "Whether a part works.", ["part"], **own)
        for part in service.problems:
            healthy.labels(part).set_function(lambda part=part: not service.problems[part])
        queue = prometheus.Gauge("klda_queue", "Requests that wait.", ["kind"], **own)
        queue.labels("inference").set_function(lambda: service.batcher.waiting)
        queue.labels("changes").set_function(lambda: service.writer.waiting)

    def observe(self, method: str, path: str, status: int, seconds: float) -> None:
        """Count a request."""
        self.is_used |= path == "/v1/predict" and status == 200
        self._requests.labels(method, path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def response(self) -> Response:
        """Return the metrics in Prometheus' text format."""
        headers = {"Content-Type": self._prometheus.CONTENT_TYPE_LATEST}
        return Response(self._prometheus.generate_latest(self._registry), headers=headers)
