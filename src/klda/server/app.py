"""The application: API, page and gate around a service."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

import klda
from klda.errors import KldaError
from klda.server import api, page
from klda.server.errors import MalformedError, ServiceError
from klda.server.journal import JournalError
from klda.server.metrics import Metrics
from klda.server.run import STOP_SECONDS
from klda.server.security import Gate, Keys, error_body, error_headers, internal_error
from klda.server.service import Service
from klda.storage import ModelFolderError

log = logging.getLogger("klda.server")

_CODES = {400: "malformed", 404: "not_found", 405: "method"}


def create_app(service: Service, around: Callable[[Any], Any] = lambda app: app) -> Any:
    """Return the ASGI application of a service.

    Parameters
    ----------
    service : Service
        Started when the application starts, stopped when it stops.
    around : callable
        Puts something between the gate and the application.

    Returns
    -------
    ASGI application
    """
    app = FastAPI(
        title="klda",
        version=klda.__version__,
        summary="Teach a classifier new classes for ever, without forgetting.",
        lifespan=_lifespan,
        docs_url=None,  # its page loads scripts from a CDN
        redoc_url=None,
        openapi_url="/v1/openapi.json",
    )
    app.state.service = service
    app.state.keys = Keys(service.settings.keys)
    app.state.metrics = metrics = Metrics(service)
    app.include_router(api.router)
    app.include_router(page.router)
    app.mount("/static", page.STATIC)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(ServiceError, _on_service)
    app.add_exception_handler(JournalError, _on_storage)
    app.add_exception_handler(ModelFolderError, _on_storage)
    app.add_exception_handler(KldaError, _on_klda)
    app.add_exception_handler(Exception, _on_unforeseen)

    def observe(method: str, path: str, status: int, seconds: float) -> None:
        metrics.requests.labels(method, path, str(status)).inc()
        metrics.seconds.labels(path).observe(seconds)

    def announce(by: int) -> None:
        service.inference.announced += by

    return Gate(around(app), service.settings, app.state.keys, observe, announce)


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    service: Service = app.state.service
    loop = asyncio.get_running_loop()
    await loop.run_in_executor(None, service.start)
    log.info("ready", extra={"classes": len(service.snapshot.counts)})
    try:
        yield
    finally:
        await page.finish_uploads(app.state, STOP_SECONDS)
        await loop.run_in_executor(None, service.stop)
        log.info("stopped")


def _answer(error: ServiceError, request: Request | None = None) -> Response:
    if request is not None and request.url.path.startswith("/page/"):
        return page.page_error(request, error)
    return JSONResponse(error_body(error), error.status, headers=error_headers(error))


async def _on_service(request: Request, error: Exception) -> Response:
    assert isinstance(error, ServiceError)
    return _answer(error, request)


async def _on_klda(request: Request, error: Exception) -> Response:
    return _answer(ServiceError(str(error)), request)


async def _on_storage(request: Request, error: Exception) -> Response:
    log.error("storage", extra={"error": str(error)})
    refused = ServiceError("It could not be written to disk, and nothing was changed.")
    refused.status, refused.code = 503, "storage"
    return _answer(refused, request)


async def _on_unforeseen(request: Request, error: Exception) -> Response:
    return _answer(internal_error(), request)


async def _on_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 400 and request.url.path.startswith("/page/"):
        return _answer(ServiceError(f"The form can't be read: {error.detail}"), request)
    if error.status_code == 400:
        return _answer(MalformedError("The body can't be read as JSON."), request)
    code = _CODES.get(error.status_code, "refused")
    body = {"error": {"code": code, "message": str(error.detail)}}
    return JSONResponse(body, error.status_code, headers=error.headers)


async def _on_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return _answer(MalformedError("The body can't be read as JSON."), request)
    # What was sent is not repeated: it may be large, secret, or not even valid JSON (NaN).
    place = ".".join(str(part) for part in first["loc"] if part != "body") or "body"
    return _answer(ServiceError(f"{place[:200]}: {first['msg'][:300]}"), request)
