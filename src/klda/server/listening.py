"""Sockets and Uvicorn's settings."""

from __future__ import annotations

import socket
from typing import Any

from klda.errors import KldaError, require

STOP_SECONDS = 30


def listen(host: str, port: int) -> socket.socket:
    """Bind a socket to a host and a port; 0 takes any port that is free."""
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
    """Return the URL of the page."""
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


def uvicorn_server(app: Any, **options: Any) -> Any:
    """Return a Uvicorn server for an application."""
    uvicorn = require("uvicorn", "server")
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        lifespan="on",
        timeout_graceful_shutdown=STOP_SECONDS,
        **options,
    )
    return uvicorn.Server(config)
