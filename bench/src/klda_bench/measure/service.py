"""Load on a running service, measured on a model of the demonstration's intents."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from klda_bench import loadtest
from klda_bench.results import Row

Clients = Annotated[int, typer.Option(help="How many clients at once.")]
Seconds = Annotated[float, typer.Option(help="How long.")]
Kills = Annotated[int, typer.Option(help="How many kills.")]


def _measure(what: str, measure: Any, **options: Any) -> Iterator[Row]:
    with loadtest.demo_model() as (model, inputs):
        yield {"what": what, **measure(model, inputs, **options)}


def load(clients: Clients = 32, seconds: Seconds = 60.0) -> Iterator[Row]:
    """Put on 90% predicts and 10% learns with new classes: errors, losses, latency."""
    return _measure("load", loadtest.load, clients=clients, seconds=seconds)


def kill(clients: Clients = 32, kills: Kills = 100) -> Iterator[Row]:
    """Send SIGKILL at random moments under load: what was lost or counted twice."""
    return _measure("kills under load", loadtest.kill, clients=clients, times=kills)


def batching(clients: Clients = 32, seconds: Seconds = 15.0) -> Iterator[Row]:
    """Compare micro-batching with one request at a time."""
    return _measure("micro-batching", loadtest.batching, clients=clients, seconds=seconds)


def overhead() -> Iterator[Row]:
    """Compare batches of 64 texts through the service with the Learner alone."""
    return _measure("overhead of the service", loadtest.overhead)


COMMANDS = (load, kill, batching, overhead)
