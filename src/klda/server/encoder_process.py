"""An encoder in a process of its own (``klda serve --workers N``)."""

from __future__ import annotations

import logging
import multiprocessing
import signal
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from klda.server.errors import ServerError
from klda.server.settings import ServiceSettings
from klda.server.writer import open_learner

STOP_SECONDS = 10

log = logging.getLogger("klda.server")


class EncoderProcess:
    """Encodes inputs in another process, for one thread; a process that dies is replaced."""

    def __init__(self, settings: ServiceSettings) -> None:
        self._settings = replace(settings, keys=())  # secrets, not needed there
        self._start()

    def _start(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._connection, theirs = spawn.Pipe()
        self._process = spawn.Process(target=_work, args=(theirs, self._settings), daemon=True)
        self._process.start()
        theirs.close()

    def encode(self, inputs: Any) -> np.ndarray:
        """Return the feature rows of inputs."""
        for _ in range(2):
            try:
                self._connection.send(inputs)
                outcome = self._connection.recv()
            except (EOFError, OSError):
                log.error("worker ended", extra={"code": self._process.exitcode})
                self._start()
                continue
            if isinstance(outcome, Exception):
                raise outcome
            return outcome
        raise ServerError("A worker process died while encoding: try again in a moment.", 503)

    def stop(self) -> None:
        """End the process."""
        self._connection.close()
        self._process.join(STOP_SECONDS)
        if self._process.is_alive():
            self._process.kill()


def _work(connection: Connection, settings: ServiceSettings) -> None:
    """Encode inputs until the other end is closed, by a stop or because it was killed."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # they are for the service, which then stops this
    encoder = open_learner(settings).encoder
    try:
        while True:
            inputs = connection.recv()
            try:
                outcome: Any = encoder.encode(inputs)
            except Exception as error:
                outcome = error
            connection.send(outcome)
    except (EOFError, OSError):
        return
