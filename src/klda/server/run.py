"""Runs the service with Uvicorn until a signal ends it."""

from __future__ import annotations

import json
import logging
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from klda.errors import KldaError, require
from klda.server.settings import STOP_SECONDS, ServiceSettings

_STANDARD = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName", "color_message"}

log = logging.getLogger("klda.server")


def serve(settings: ServiceSettings, on_listen: Callable[[str], None]) -> None:
    """Serve a model folder; `on_listen` is called with the address once the model is loaded."""
    settings.check()
    for module in ("fastapi", "uvicorn", "jinja2"):
        require(module, "server")
    from klda.server.app import create_app
    from klda.server.service import Service

    configure_logs(settings.quiet)
    with listen(settings.host, settings.port) as listener:
        service = Service(settings)
        try:
            on_listen(address_of(listener))
            # Uvicorn sends itself the signal again once it has stopped; by then there is nothing to
            # end.
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: None)
            server = uvicorn_server(create_app(service), service.watchers.close)
            with suppress(SystemExit):  # how newer versions of Uvicorn say that they can't start
                server.run(sockets=[listener])
        finally:
            service.stop()
            log.info("stopped")
    if not server.started:
        raise KldaError("The service could not start; the log above says why.")


def listen(host: str, port: int) -> socket.socket:
    """Bind a socket to a host and a port; port 0 takes any that is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        made = socket.create_server((host, port), family=family)
        # Named as TCP: only then does asyncio set TCP_NODELAY. Without it, every response on a
        # connection that is kept alive waits 40 ms for the client's acknowledgement.
        return socket.socket(family, made.type, socket.IPPROTO_TCP, fileno=made.detach())
    except OSError as error:
        raise KldaError(
            f"Listening on {host} port {port} failed: {error.strerror or error}. Give another "
            "--port, or --port 0 for any that is free."
        ) from error


def address_of(listener: socket.socket) -> str:
    """Return the URL of the page."""
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


def uvicorn_server(app: Any, end_streams: Callable[[], None], **limits: Any) -> Any:
    """Return a Uvicorn server for an application; `limits` of connections other than usual.

    `end_streams` is called when it stops, before it waits for the responses under way.
    """
    uvicorn = require("uvicorn", "server")
    from klda.server.connections import Connection, Limits, Server, free_descriptors

    allowed = Limits(**limits).fitted(free_descriptors())
    config = uvicorn.Config(
        app,
        http=Connection.limited(allowed),
        backlog=allowed.backlog,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        lifespan="on",
        timeout_graceful_shutdown=STOP_SECONDS,
    )
    return Server(config, end_streams)


class PlainFormatter(logging.Formatter):
    """A log record as a person reads it."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and the lines of an error."""
        moment = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        values = "".join(f" {name}={value}" for name, value in _extras(record).items())
        text = f"{moment} {record.levelname.lower()} {record.getMessage()}{values}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


class JsonFormatter(logging.Formatter):
    """A log record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **_extras(record),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False, default=str)


def _extras(record: logging.LogRecord) -> dict[str, Any]:
    return {k: v for k, v in vars(record).items() if k not in _STANDARD and k[0] != "_"}


def configure_logs(quiet: bool) -> None:
    """Send the logs of klda and Uvicorn to standard error; `quiet`: no info messages.

    They are JSON, one object per line, unless a person looks at them.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(PlainFormatter() if sys.stderr.isatty() else JsonFormatter())
    for name in ("klda", "klda.data", "uvicorn", "py.warnings"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.WARNING if quiet or name == "uvicorn" else logging.INFO)
    logging.captureWarnings(True)
