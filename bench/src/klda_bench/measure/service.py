"""Load on a running service, measured on a model of the demonstration's intents."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from klda_bench import loadtest
from klda_bench.results import Row

Clients = Annotated[int, typer.Option(help="How many clients at once.")]
Seconds = Annotated[float, typer.Option(help="How long.")]


def load(clients: Clients = 32, seconds: Seconds = 60.0) -> Iterator[Row]:
    """Put on 90% predicts and 10% learns with new classes: errors, losses, latency."""
    with loadtest.demo_model() as (model, inputs):
        yield {"what": "load", **loadtest.load(model, inputs, clients, seconds)}


def kill(
    clients: Clients = 32, kills: Annotated[int, typer.Option(help="How many kills.")] = 100
) -> Iterator[Row]:
    """Send SIGKILL at random moments under load: what was lost or counted twice."""
    with loadtest.demo_model() as (model, inputs):
        yield {"what": "kills under load", **loadtest.kill(model, inputs, clients, kills)}


def batching(clients: Clients = 32, seconds: Seconds = 15.0) -> Iterator[Row]:
    """Compare micro-batching with one request at a time."""
    with loadtest.demo_model() as (model, inputs):
        yield {"what": "micro-batching", **loadtest.batching(model, inputs, clients, seconds)}


def overhead() -> Iterator[Row]:
    """Compare batches of 64 texts through the service with the Learner alone."""
    with loadtest.demo_model() as (model, inputs):
        yield {"what": "overhead of the service", **loadtest.overhead(model, inputs)}
