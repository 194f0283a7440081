"""Several processes that answer, and one that writes (``klda serve --workers N``).

The parent holds the model folder, teaches, and serves the whole application on a socket that only
its children reach. Each child accepts connections on the public port, answers predicts and explains
from snapshots that the parent publishes, and forwards everything else to the parent.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from klda.errors import KldaError, require
from klda.learner import Learner
from klda.learner import folder as storage
from klda.server import logs
from klda.server.app import create_app
from klda.server.errors import BusyError
from klda.server.gate import FORWARDED
from klda.server.listening import uvicorn_server
from klda.server.metrics import MULTIPROCESS
from klda.server.reader import Reader
from klda.server.service import Service
from klda.server.settings import Settings
from klda.server.shared_snapshots import Publisher, Subscriber, folder_for
from klda.server.snapshot import Snapshot

ANSWERED_HERE = frozenset({("POST", "/v1/predict"), ("POST", "/v1/explain")})
STOP_SECONDS = 40
START_SECONDS = 300
FORWARD_SECONDS = 600.0
_HOP_HEADERS = frozenset({b"connection", b"keep-alive", b"transfer-encoding", b"te", b"upgrade"})

log = logging.getLogger("klda.server")


@dataclass(frozen=True)
class WorkerOptions:
    """What a child needs to know."""

    settings: Settings
    new: str | None
    options: dict[str, Any]
    snapshots: Path
    parent_socket: str
    parent: int


def serve_many(
    settings: Settings,
    listener: socket.socket,
    workers: int,
    new: str | None,
    options: dict[str, Any],
    ready: Callable[[], None],
) -> None:
    """Serve with several processes until a signal ends it; see :func:`klda.server.run.serve`."""
    if not hasattr(socket, "AF_UNIX") or not hasattr(os, "getuid"):
        raise KldaError("--workers needs Unix sockets, which this system does not have.")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    listener.listen(2048)
    listener.set_inheritable(True)
    parent = _Parent(settings, new, options)
    try:
        parent.start()
        ready()
        worker = WorkerOptions(settings, new, options, parent.folder, parent.address, os.getpid())
        _supervise(worker, listener, workers, stop, parent)
    finally:
        parent.stop()


class _Parent:
    """The writer, and the application on its own socket."""

    def __init__(self, settings: Settings, new: str | None, options: dict[str, Any]) -> None:
        # Clients are counted where they connect; here they all look alike.
        self._service = Service(replace(settings, rate=0.0), new=new, options=options)
        self._server: Any = None
        self._thread: threading.Thread | None = None
        self.folder = Path()
        self.address = ""

    def start(self) -> None:
        service = self._service
        service.start()
        self.folder = folder_for(service.settings.model)  # the lock is held now
        publisher = Publisher(self.folder)
        publisher.publish(service.snapshot)
        service.writer.publish = publisher.publish
        (self.folder / "metrics").mkdir()
        os.environ[MULTIPROCESS] = str(self.folder / "metrics")  # before the metrics are imported
        self.address = str(self.folder / "writer.sock")
        self._server = uvicorn_server(create_app(service), uds=self.address)
        self._thread = threading.Thread(target=self._server.run, name="parent", daemon=True)
        self._thread.start()
        deadline = time.monotonic() + START_SECONDS
        while not self._server.started:
            if not self.alive or time.monotonic() > deadline:
                raise KldaError("The service could not start; the log above says why.")
            time.sleep(0.02)

    @property
    def alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def stop(self) -> None:
        if self._thread is not None:
            self._server.should_exit = True
            self._thread.join()
            shutil.rmtree(self.folder, ignore_errors=True)


def _supervise(
    worker: WorkerOptions,
    listener: socket.socket,
    workers: int,
    stop: threading.Event,
    parent: _Parent,
) -> None:
    """Keep the children running; end them before the parent."""
    spawn = multiprocessing.get_context("spawn")

    def begin() -> Any:
        child = spawn.Process(target=_work, args=(worker, listener), daemon=True)
        child.start()
        return child

    children = [begin() for _ in range(workers)]
    while not stop.wait(0.2) and parent.alive:
        for i, child in enumerate(children):
            if not child.is_alive():
                log.error("worker ended", extra={"code": child.exitcode})
                stop.wait(1.0)
                children[i] = begin()
    for child in children:
        child.terminate()
    for child in children:
        child.join(STOP_SECONDS)
        if child.is_alive():
            child.kill()


# ------------------------------------------------------------------ a child


class WorkerReader(Reader):
    """Answers from published snapshots."""

    def __init__(self, worker: WorkerOptions) -> None:
        super().__init__(worker.settings)
        self._worker = worker
        self._lock = threading.Lock()

    def start(self) -> None:
        """Load the foundation model. Blocks."""
        worker = self._worker
        if storage.exists(worker.settings.model):
            learner = Learner.load(worker.settings.model, **worker.options)
        else:
            assert worker.new is not None
            learner = Learner(worker.new, **worker.options)
        self._subscriber = Subscriber(worker.snapshots, learner)
        self.begin(learner)

    @property
    def snapshot(self) -> Snapshot:
        """What was published last."""
        with self._lock:
            return self._subscriber.current()


def _work(worker: WorkerOptions, listener: socket.socket) -> None:
    logs.configure(worker.settings.quiet)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    threading.Thread(target=_end_with, args=(worker.parent,), daemon=True).start()
    app = create_app(WorkerReader(worker), lambda inner: Forward(inner, worker.parent_socket))
    uvicorn_server(app).run(sockets=[listener])


def _end_with(parent: int) -> None:
    """End when the parent is gone: without it nothing can be taught."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


class Forward:
    """ASGI application that answers some requests and forwards the others to the parent.

    Parameters
    ----------
    app : ASGI application
        Answers here.
    address : str
        The parent's socket.
    """

    def __init__(self, app: Any, address: str) -> None:
        self._app, self._address = app, address
        self._transport: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle one request."""
        if scope["type"] == "lifespan":
            async with self.connected():
                await self._app(scope, receive, send)
        elif (scope["method"], scope["path"]) in ANSWERED_HERE:
            await self._app(scope, receive, send)
        else:
            await self._forward(scope, receive, send)

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        """Keep connections to the parent open."""
        # A transport, not a client: a client would store one user's cookies and send them with
        # another user's requests.
        httpx = require("httpx", "server")
        async with httpx.AsyncHTTPTransport(uds=self._address) as self._transport:
            yield

    async def _forward(self, scope: Any, receive: Any, send: Any) -> None:
        httpx = require("httpx", "server")
        request = Request(scope, receive)
        try:
            body = await request.body()
        except ClientDisconnect:
            return
        target = scope.get("raw_path", scope["path"].encode())
        if scope.get("query_string"):
            target += b"?" + scope["query_string"]
        forwarded = httpx.Request(
            scope["method"],
            httpx.URL("http://parent").copy_with(raw_path=target),
            content=body,
            headers=[(k, v) for k, v in scope["headers"] if k.lower() not in _HOP_HEADERS],
            extensions={
                "timeout": dict.fromkeys(("connect", "read", "write", "pool"), FORWARD_SECONDS)
            },
        )
        try:
            answer = await self._transport.handle_async_request(forwarded)
            content = await answer.aread()
        except httpx.TransportError as error:
            log.warning("not forwarded", extra={"error": str(error)})
            raise BusyError(
                "The service is starting or stopping: try again in a moment."
            ) from error
        scope[FORWARDED] = True
        response = Response(content, answer.status_code)
        dropped = _HOP_HEADERS | {b"content-encoding", b"content-length"}
        response.raw_headers += [(k, v) for k, v in answer.headers.raw if k.lower() not in dropped]
        await response(scope, receive, send)
