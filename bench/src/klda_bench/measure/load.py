"""Load on a running service, and what must hold under it.

Each measurement starts ``klda serve`` as a process of its own.
"""

from __future__ import annotations

import json
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from klda import KldaError, Learner
from klda_bench.demo import examples
from klda_bench.results import Row

START_SECONDS = 120.0


class Server:
    """``klda serve`` as a process, with more options of the command."""

    def __init__(self, model: Path, *options: str) -> None:
        self.port = _free_port()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (held as long as the process)
        klda = "from klda.cli import main; main()"
        command = [sys.executable, "-c", klda, "serve", "--model", str(model), "--quiet"]
        self._process = subprocess.Popen(
            [*command, "--port", str(self.port), *options], stderr=self._log
        )

    def wait(self) -> None:
        """Wait until it answers."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise KldaError(f"The service ended: {self.log()}")
            with suppress(OSError, ValueError):
                self.get("/v1/health")
                return
            time.sleep(0.05)
        raise KldaError(f"The service did not start: {self.log()}")

    def get(self, path: str) -> Any:
        """Return what the service answers to a single question."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}") as answer:
            return json.load(answer)

    def counts(self) -> dict[str, int]:
        """Return the classes of the service and their numbers of samples."""
        classes = self.get("/v1/classes?limit=10000")["classes"]
        return {entry["label"]: entry["samples"] for entry in classes}

    def log(self) -> str:
        """Return what it logged so far."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-4000:]

    def kill(self) -> None:
        """End it without warning."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        """End it gracefully; returns its exit code."""
        if self._process.poll() is None:
            self._process.terminate()
        return self._process.wait(timeout=120)


@contextmanager
def serving(model: Path, *options: str) -> Iterator[Server]:
    """Run a service for a while, ready to answer."""
    server = Server(model, *options)
    try:
        server.wait()
        yield server
    finally:
        server.stop()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _ask(connection: HTTPConnection, path: str, body: Any, **headers: str) -> tuple[int, Any]:
    """Post a request on a kept-alive connection; returns the status and what the answer says."""
    headers["Content-Type"] = "application/json"
    connection.request("POST", path, json.dumps(body).encode(), headers)
    answer = connection.getresponse()
    return answer.status, json.load(answer)


@dataclass
class Record:
    """What the clients saw."""

    predicts: list[float] = field(default_factory=list)
    learns: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    acknowledged: Counter[str] = field(default_factory=Counter)
    unsure: dict[str, tuple[str, int]] = field(default_factory=dict)


class Clients:
    """Clients that ask, and now and then teach a new class.

    `inputs` are ``{"texts": [...]}`` or ``{"features": [...]}`` to choose from.
    """

    def __init__(self, port: int, inputs: dict[str, list], seed: int = 0) -> None:
        self.port = port
        ((self._kind, self._inputs),) = inputs.items()
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._made = 0
        self._version = 0  # of the last learn that was acknowledged
        self._run = f"{seed}-{time.time_ns():x}"

    def go(self, clients: int, seconds: float, learn_share: float, record: Record) -> None:
        """Keep a number of clients busy for a while; `learn_share` of the requests teach."""
        until = time.monotonic() + seconds
        with ThreadPoolExecutor(clients) as pool:
            for _ in range(clients):
                pool.submit(self._client, until, learn_share, record)

    def _client(self, until: float, learn_share: float, record: Record) -> None:
        connection = HTTPConnection("127.0.0.1", self.port)
        try:
            while time.monotonic() < until:
                if self._random.random() < learn_share:
                    self._learn(connection, record)
                else:
                    self._predict(connection, record)
        except Exception as error:  # of the network, or of an answer that is none
            record.errors.append(repr(error))
        finally:
            connection.close()

    def _predict(self, connection: HTTPConnection, record: Record) -> None:
        known, began = self._version, time.perf_counter()
        body = {self._kind: [self._random.choice(self._inputs)]}
        status, answer = _ask(connection, "/v1/predict", body)
        record.predicts.append(time.perf_counter() - began)
        if status != 200:
            record.errors.append(f"predict: {status} {answer}")
        elif answer["version"] < known:
            record.errors.append(f"predict: answers without change {known}, acknowledged before")

    def _learn(self, connection: HTTPConnection, record: Record) -> None:
        """Teach one to three samples, of a new class four times out of five."""
        with self._lock:
            self._made += 1
            label, n = f"new-{self._run}-{self._made}", self._random.randint(1, 3)
            if self._made % 5 == 0:
                label = f"new-{self._run}-{self._made - 1}"
            key = f"{self._run}-{self._made}"
            record.unsure[key] = (label, n)
        body = {self._kind: self._random.sample(self._inputs, n), "labels": [label] * n}
        began = time.perf_counter()
        status, answer = _ask(connection, "/v1/learn", body, **{"Idempotency-Key": key})
        record.learns.append(time.perf_counter() - began)
        with self._lock:
            del record.unsure[key]
            if status == 200:
                record.acknowledged[label] += n
                self._version = max(self._version, answer["version"])
            else:
                record.errors.append(f"learn: {status} {answer}")


def lost_or_doubled(found: dict[str, int], record: Record) -> list[str]:
    """Compare what a service has with what it acknowledged; return what is wrong.

    A learn that got no answer may or may not have been made.
    """
    possible = {label: {n} for label, n in record.acknowledged.items()}
    for label, n in record.unsure.values():
        known = possible.setdefault(label, {0})
        known |= {p + n for p in known}
    return [
        f"{label}: {found.get(label, 0)} samples, {sorted(numbers)} expected"
        for label, numbers in sorted(possible.items())
        if found.get(label, 0) not in numbers
    ]


def under_load(model: Path, inputs: dict[str, list], clients: int, seconds: float) -> Row:
    """Put load on a service: first predicts alone, then with learns.

    With learns it lasts so many `seconds`, without, before, a third of that. Latencies are in
    milliseconds.
    """
    with serving(model) as server:
        before = server.counts()
        crowd = Clients(server.port, inputs)
        warm, quiet, mixed = Record(), Record(), Record()
        crowd.go(clients, min(3.0, seconds / 4), 0.1, warm)
        crowd.go(clients, seconds / 3, 0.0, quiet)
        crowd.go(clients, seconds, 0.1, mixed)
        after = server.counts()
    both = Record(acknowledged=warm.acknowledged + mixed.acknowledged)
    wrong = lost_or_doubled(after, both)
    extra = sum(after.values()) - sum(before.values()) - sum(both.acknowledged.values())
    ratio = _ms(mixed.predicts, 99) / _ms(quiet.predicts, 99)
    errors = [*warm.errors, *quiet.errors, *mixed.errors]
    return {
        "predict_p50_ms": [_ms(quiet.predicts, 50), _ms(mixed.predicts, 50)],
        "predict_p99_ms": [_ms(quiet.predicts, 99), _ms(mixed.predicts, 99)],
        "learn_p50_p99_ms": [_ms(mixed.learns, 50), _ms(mixed.learns, 99)],
        "p99_ratio": round(ratio, 2),
        "predicts": [len(quiet.predicts), len(mixed.predicts)],
        "learns": len(mixed.learns),
        "classes_taught": len(both.acknowledged),
        "errors": len(errors),
        "lost_or_doubled": len(wrong) + (extra != 0),
        "ok": not errors and not wrong and extra == 0 and ratio <= 3,
        "first_problems": [*errors[:3], *wrong[:3]],
    }


def killed(model: Path, inputs: dict[str, list], clients: int, times: int) -> Row:
    """Kill a service at random moments under load; compare what it has with what it said."""
    chance = random.Random(0)
    total = Record()
    wrong: list[str] = []
    retried = 0
    for turn in range(times):
        server = Server(model, "--checkpoint-interval", "0.3")
        server.wait()
        found = server.counts()
        wrong += [f"after kill {turn}: {text}" for text in lost_or_doubled(found, total)]
        retried += len(total.unsure)
        # What a restarted service has is the truth about learns that got no answer.
        for label, _ in total.unsure.values():
            if label in found:
                total.acknowledged[label] = found[label]
        total.unsure.clear()
        threading.Timer(chance.uniform(0.02, 1.5), server.kill).start()
        Clients(server.port, inputs, turn).go(clients, 60.0, 0.1, total)
    with serving(model) as server:
        found = server.counts()
    wrong += lost_or_doubled(found, total)
    return {
        "kills": times,
        "acknowledged_classes": len(total.acknowledged),
        "acknowledged_samples": sum(total.acknowledged.values()),
        "unanswered_when_killed": retried + len(total.unsure),
        "lost_or_doubled": len(wrong),
        "ok": not wrong and bool(total.acknowledged),
        "first_problems": wrong[:3],
    }


def _ms(seconds: list[float], percentile: float) -> float:
    return round(float(np.percentile(seconds, percentile)) * 1000, 1) if seconds else 0.0


@contextmanager
def demo_model() -> Iterator[tuple[Path, dict[str, list]]]:
    """Make a model of the demonstration's intents, and texts to ask about."""
    data = examples()
    learned = [e for e in data if e.part == "learn"]
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "bot"
        learner = Learner("minilm")
        learner.learn([e.text for e in learned], [e.intent for e in learned])
        learner.save(model)
        yield model, {"texts": [e.text for e in data]}


NumberOfClients = Annotated[int, typer.Option(help="How many clients at once.")]


def load(
    clients: NumberOfClients = 32,
    seconds: Annotated[float, typer.Option(help="How long.")] = 60.0,
) -> Iterator[Row]:
    """Put on 90% predicts and 10% learns with new classes: errors, losses, latency."""
    with demo_model() as model:
        yield {"what": "load", **under_load(*model, clients, seconds)}


def kill(
    clients: NumberOfClients = 32,
    kills: Annotated[int, typer.Option(help="How many kills.")] = 100,
) -> Iterator[Row]:
    """Send SIGKILL at random moments under load: what was lost or counted twice."""
    with demo_model() as model:
        yield {"what": "kills under load", **killed(*model, clients, kills)}
