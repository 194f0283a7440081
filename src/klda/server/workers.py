"""Several processes that answer, and one that writes (``klda serve --workers N``).

The parent holds the model folder, teaches, and serves the whole application on a socket that only
its children reach. Each child accepts connections on the public port, answers predicts and explains
itself from snapshots that the parent publishes, and passes everything else on to the parent.
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

from klda.errors import KldaError, require
from klda.learner import Learner
from klda.server import logs
from klda.server.errors import BusyError
from klda.server.inference import Inference
from klda.server.metrics import MULTIPROCESS
from klda.server.publish import Publisher, Subscriber, folder_for
from klda.server.security import COUNTED
from klda.server.service import Service
from klda.server.settings import Settings
from klda.server.snapshot import PreparedEncoder, Snapshot

ANSWERED_HERE = frozenset({("POST", "/v1/predict"), ("POST", "/v1/explain")})
STOP_SECONDS = 40
START_SECONDS = 300
_HOP = frozenset({b"connection", b"keep-alive", b"transfer-encoding", b"te", b"upgrade"})

log = logging.getLogger("klda.server")


@dataclass(frozen=True)
class Plan:
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
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Serve with several processes until a signal ends it.

    Parameters
    ----------
    settings : Settings
        How it runs.
    listener : socket
        Bound to the public port.
    workers : int
        Processes that answer.
    new : str or None
        Foundation model of a new model.
    options : dict
        For :meth:`klda.learner.Learner.load`.
    ready : callable
        Called once the model is loaded.
    """
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
        plan = Plan(settings, new, options, parent.folder, parent.address, os.getpid())
        _supervise(plan, listener, workers, stop, parent)
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
        import uvicorn

        from klda.server.run import uvicorn_config

        service = self._service
        service.start()
        self.folder = folder_for(service.settings.model)  # the lock is held now
        publisher = Publisher(self.folder)
        publisher.publish(service.snapshot)
        service.writer.on_swap = publisher.publish
        (self.folder / "metrics").mkdir()
        os.environ[MULTIPROCESS] = str(self.folder / "metrics")  # before the metrics are imported
        from klda.server.app import create_app

        self.address = str(self.folder / "writer.sock")
        self._server = uvicorn.Server(uvicorn_config(create_app(service), uds=self.address))
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
    plan: Plan, listener: socket.socket, workers: int, stop: threading.Event, parent: _Parent
) -> None:
    """Keep the children running; end them before the parent."""
    spawn = multiprocessing.get_context("spawn")

    def begin() -> Any:
        child = spawn.Process(target=_work, args=(plan, listener), daemon=True)
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


class Reader(Service):
    """A service that answers from published snapshots.

    Parameters
    ----------
    plan : Plan
        What the parent said.
    """

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan.settings, new=plan.new, options=plan.options)
        self._plan = plan
        self._lock = threading.Lock()
        self.inference = Inference(
            self._encode,
            lambda: self.snapshot,
            max_batch=plan.settings.max_batch,
            wait=plan.settings.batch_wait,
            max_queue=plan.settings.max_queue,
        )

    def start(self) -> None:
        """Load the foundation model. Blocks."""
        plan = self._plan
        if plan.settings.model.joinpath("model.json").exists():
            learner = Learner.load(plan.settings.model, **plan.options)
        else:
            assert plan.new is not None
            learner = Learner(plan.new, **plan.options)
        self.modality, self.foundation = learner.modality, learner.foundation
        self._encoder = PreparedEncoder(learner.encoder)
        learner = Learner(self._encoder, classifier=learner.classifier)
        self._subscriber = Subscriber(plan.snapshots, learner)
        self.inference.start()
        self.ready = True

    def stop(self) -> None:
        """Finish what waits. Blocks."""
        self.ready = False
        self.inference.stop()
        self.close_aside()

    @property
    def snapshot(self) -> Snapshot:
        """What was published last."""
        with self._lock:
            return self._subscriber.current()


def _work(plan: Plan, listener: socket.socket) -> None:
    import uvicorn

    from klda.server.app import create_app
    from klda.server.run import uvicorn_config

    logs.configure(plan.settings.quiet)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    threading.Thread(target=_end_with, args=(plan.parent,), daemon=True).start()
    app = create_app(Reader(plan), around=lambda inner: Forward(inner, plan.parent_socket))
    uvicorn.Server(uvicorn_config(app)).run(sockets=[listener])


def _end_with(parent: int) -> None:
    """End when the parent is gone, however it went: a port without a writer helps nobody."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


class Forward:
    """Answers some requests here and passes the others on to the parent.

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
            async with self._connected():
                await self._app(scope, receive, send)
        elif (scope["method"], scope["path"]) in ANSWERED_HERE:
            await self._app(scope, receive, send)
        else:
            await self._pass_on(scope, receive, send)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[None]:
        # A transport and not a client: a client would keep one's cookies and send them for another.
        httpx = require("httpx", "server")
        async with httpx.AsyncHTTPTransport(uds=self._address) as self._transport:
            yield

    async def _pass_on(self, scope: Any, receive: Any, send: Any) -> None:
        httpx = require("httpx", "server")
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        target = scope.get("raw_path", scope["path"].encode())
        if scope.get("query_string"):
            target += b"?" + scope["query_string"]
        asked = httpx.Request(
            scope["method"],
            httpx.URL("http://parent").copy_with(raw_path=target),
            content=bytes(body),
            headers=[(k, v) for k, v in scope["headers"] if k.lower() not in _HOP],
            extensions={"timeout": dict.fromkeys(("connect", "read", "write", "pool"), 600.0)},
        )
        try:
            answer = await self._transport.handle_async_request(asked)
            content = await answer.aread()
        except httpx.TransportError as error:
            log.warning("not passed on", extra={"error": str(error)})
            raise BusyError(
                "The service is starting or stopping: try again in a moment."
            ) from error
        scope[COUNTED] = True
        kept = [
            (k, v)
            for k, v in answer.headers.raw
            if k.lower() not in _HOP | {b"content-encoding", b"content-length"}
        ]
        kept.append((b"content-length", str(len(content)).encode()))
        start = {"type": "http.response.start", "status": answer.status_code, "headers": kept}
        await send(start)
        await send({"type": "http.response.body", "body": content})
