"""Running the service with Uvicorn."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable
from functools import partial
from typing import Any

from klda.errors import KldaError, require
from klda.server import logs
from klda.server.settings import Settings

STOP_SECONDS = 30


def serve(
    settings: Settings,
    *,
    new: str | None = None,
    workers: int = 1,
    options: dict[str, Any] | None = None,
    on_listen: Callable[[str], None] | None = None,
) -> None:
    """Serve a model folder until a signal ends it.

    Parameters
    ----------
    settings : Settings
        How it runs.
    new : str, optional
        Foundation model of a new model, if the folder holds none yet.
    workers : int
        Processes that answer.
    options : dict, optional
        For :meth:`klda.learner.Learner.load`.
    on_listen : callable, optional
        Called with the address once the port is taken.
    """
    settings.check()
    for module in ("fastapi", "uvicorn", "jinja2"):
        require(module, "server")
    import uvicorn

    from klda.server.app import create_app
    from klda.server.service import Service

    logs.configure(settings.quiet)
    listener = listen(settings.host, settings.port)
    ready = partial(on_listen or (lambda address: None), address_of(listener))
    if workers > 1:
        from klda.server.workers import serve_many

        serve_many(settings, listener, workers, new, options or {}, ready)
        return
    service = Service(settings, new=new, options=options)
    service.start()  # before Uvicorn, which would make a stack trace of a folder that is busy
    app = create_app(service)
    ready()
    # Uvicorn sends itself the signal again once it has stopped; by then there is nothing to end.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    server = uvicorn.Server(uvicorn_config(app))
    server.run(sockets=[listener])
    if not server.started:
        raise KldaError("The service could not start; the log above says why.")


def uvicorn_config(app: Any, **more: Any) -> Any:
    """Return Uvicorn's settings for an application."""
    import uvicorn

    return uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        lifespan="on",
        timeout_graceful_shutdown=STOP_SECONDS,
        **more,
    )


def listen(host: str, port: int) -> socket.socket:
    """Take a port.

    Parameters
    ----------
    host : str
        Name or address.
    port : int
        0 for any that is free.

    Returns
    -------
    socket
        Bound; Uvicorn listens on it.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        raise KldaError(
            f"Listening on {host} port {port} failed: {error.strerror or error}. Give another "
            "--port, or --port 0 for any that is free."
        ) from error
    return listener


def address_of(listener: socket.socket) -> str:
    """Return the address of the page."""
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"
