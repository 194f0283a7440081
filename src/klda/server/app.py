"""The ASGI application: API, page and gate around a service."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, RedirectResponse, Response
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware

import klda
from klda.data import BadRowError
from klda.engine.engine import PredictionOnlyError
from klda.errors import KldaError, is_lack_of_memory, require
from klda.server import api, label_studio, page
from klda.server.errors import INTERNAL, PREDICTS_ONLY, ServerError
from klda.server.gate import API, Gate, Keys
from klda.server.schemas import FIXES
from klda.server.service import Service
from klda.server.update import STORAGE_ERRORS

log = logging.getLogger("klda.server")

# What is said where Starlette has two words at most.
_SAID = {
    400: "The body can't be read as JSON: check its brackets, and encode it as UTF-8.",
    404: "There is no such path; /docs lists those of the API.",
    405: "This path has other methods; /docs lists them.",
}
_NO_LABEL = ("string_type", "int_type")
_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


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
    app.state.page.start()
    yield
    await app.state.page.stop()


async def _error_response(request: Request, error: Exception) -> Response:
    path = request.scope["path"]
    is_form = "json" not in request.headers.get("content-type", "")
    answer = _service_error(error, is_form)
    if path.startswith("/page/"):
        return page.page_error(request, answer)
    if answer.status == 401 and not path.startswith(API):
        return RedirectResponse("/login", 303)
    headers = {**answer.headers, **(getattr(error, "headers", None) or {})}
    return JSONResponse(answer.body, answer.status, headers=headers)


def _wrong_value(errors: Sequence[Mapping[str, Any]]) -> ServerError:
    """Return what a client is told of a value that Pydantic rejects: its place, and the fix.

    What was sent is not repeated: it may be large, secret, or not even valid JSON (NaN).
    """
    # A label is a string or an integer: where it is one of them, only the other error counts.
    found = next((one for one in errors if one["type"] not in _NO_LABEL), errors[0])
    if found["type"] == "json_invalid":
        where, why = found["loc"][-1], found["ctx"]["error"]
        return ServerError(f"The body is not valid JSON at character {where}: {why}.", 400)
    # Pydantic names beside the value's place which check of several failed, and "[key]".
    parts = [str(part) for part in found["loc"] if part not in ("body", "", "[key]")]
    place = ".".join(one for one in parts if not one.startswith(("function-", "constrained-")))
    return ServerError(f"{place[:200] or 'body'}: {_fix(found)[:300]}")


def _fix(found: Mapping[str, Any]) -> str:
    """Return what to do about a value: Pydantic says what it should be."""
    match found["type"]:
        case "value_error" if "UploadFile" in found["msg"]:
            return "send a file, as curl -F file=@NAME does."
        case "value_error":
            return str(found["msg"].removeprefix("Value error, "))
        case _ if found["loc"] == ("body",):
            return "give a JSON object, with Content-Type: application/json."
        case "extra_forbidden":
            return "there is no such field; /docs lists those of each request."
        case "missing":
            return "it is missing; /docs lists the fields of each request."
        case "string_pattern_mismatch":
            return FIXES[found["ctx"]["pattern"]]
        case "dict_type" | "model_attributes_type":
            return "give a JSON object."
        case "string_type" if any("function-" in str(part) for part in found["loc"]):
            return "give a string or an integer."
    said = re.sub(r"be (?=greater|less)", "be a number ", found["msg"])
    said = re.sub(r"^\w+ should (be|have)", "give", said.replace(" after validation", ""))
    return f"{said}."


def _service_error(error: Exception, is_form: bool) -> ServerError:
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
            return _wrong_value(error.errors())
        case PredictionOnlyError():
            return ServerError(PREDICTS_ONLY, 409)
        case BadRowError():
            return ServerError(f"{error} To leave such rows out, send skip_bad=true.")
        case KldaError():
            return ServerError(str(error))
        case HTTPException(status_code=400) if is_form:
            return ServerError(f"The form can't be read: {error.detail}")
        case HTTPException(status_code=status):
            return ServerError(_SAID.get(status, str(error.detail)), status)
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
