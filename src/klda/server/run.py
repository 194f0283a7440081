"""Runs the service with Uvicorn until a signal ends it."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

from klda.errors import KldaError, require
from klda.server import logs
from klda.server.listening import address_of, listen, uvicorn_server
from klda.server.settings import Settings


def serve(
    settings: Settings,
    *,
    new: str | None = None,
    workers: int = 1,
    options: dict[str, Any] | None = None,
    on_listen: Callable[[str], None] = lambda address: None,
) -> None:
    """Serve a model folder.

    Parameters
    ----------
    settings : Settings
        How it runs.
    new : str, optional
        Foundation model of a new model, if the folder has none yet.
    workers : int
        Processes that encode.
    options : dict, optional
        Options of :meth:`klda.learner.Learner.load`.
    on_listen : callable
        Called with the address once the model is loaded.
    """
    settings.check()
    for module in ("fastapi", "uvicorn", "jinja2"):
        require(module, "server")
    from klda.server.app import create_app
    from klda.server.service import Service

    logs.configure(settings.quiet)
    listener = listen(settings.host, settings.port)
    service = Service(settings, new=new, options=options, workers=workers)
    service.start()  # before Uvicorn, which would print a stack trace if the folder is busy
    on_listen(address_of(listener))
    # Uvicorn sends itself the signal again once it has stopped; by then there is nothing to end.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    server = uvicorn_server(create_app(service))
    server.run(sockets=[listener])
    if not server.started:
        raise KldaError("The service could not start; the log above says why.")
