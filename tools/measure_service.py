"""Measure what TCP_NODELAY changes: a service without it, and one as it is, loaded in turns.

    python tools/measure_service.py [SECONDS]

Prints milliseconds per request (median, 99th percentile) on connections that are kept alive, for
a model of MiniLM with twenty classes and 5,000 random features. Every tenth request of the crowd
teaches; a request that fails ends the measurement.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

import numpy as np

import klda_bench
from klda import Client, Learner

SECONDS = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0
TURNS, CROWD = 4, 32
INTENTS = Path(klda_bench.__file__).parent / "demo" / "intents.csv"
ASKED = "where is my card?"
SERVE = "from klda.cli import main; main()"
WITHOUT = (
    "import socket, klda.server.run as run; run.listen = lambda *at: socket.create_server(at);"
)


@contextmanager
def serving(model, patch):
    command = [sys.executable, "-c", patch + SERVE, "serve", "--model", model, "--port", "0"]
    process = subprocess.Popen([*command, "--quiet"], stderr=subprocess.PIPE, text=True)
    try:
        yield re.search(r"http://(\S+)/ ", process.stderr.readline())[1]
    finally:
        process.terminate()
        process.wait()


def request(connection, method, path, **body):
    headers = {"Content-Type": "application/json"} if body else {}
    connection.request(method, path, json.dumps(body) if body else None, headers)
    answer = connection.getresponse()
    answer.read()
    assert answer.status == 200, answer.status


def repeat(call):
    """Call again and again; return how long each call took."""
    taken, until = [], time.perf_counter() + SECONDS
    while (began := time.perf_counter()) < until:
        call()
        taken.append(time.perf_counter() - began)
    return taken


def one_of_many(place, number):
    connection, left = HTTPConnection(place), iter(range(number, 10**9))

    def call():
        if next(left) % 10:
            request(connection, "POST", "/v1/predict", text=ASKED)
        else:
            request(connection, "POST", "/v1/learn", texts=[ASKED], labels=["card_arrival"])

    return repeat(call)


def measure(place):
    connection, client = HTTPConnection(place), Client(f"http://{place}")
    yield "health", repeat(lambda: request(connection, "GET", "/v1/health"))
    yield "predict", repeat(lambda: request(connection, "POST", "/v1/predict", text=ASKED))
    yield "klda.Client.predict", repeat(lambda: client.predict([ASKED]))
    with ThreadPoolExecutor(CROWD) as pool:
        crowd = pool.map(lambda number: one_of_many(place, number), range(CROWD))
        yield f"{CROWD} clients, 10% learns", [one for taken in crowd for one in taken]


found = defaultdict(list)
with tempfile.TemporaryDirectory() as folder:
    Learner("minilm").learn(INTENTS, text="text", label="intent").save(folder + "/model")
    for turn in range(2 * TURNS):
        with serving(folder + "/model", WITHOUT if turn % 2 == 0 else "") as place:
            for what, taken in measure(place):
                found[what, turn % 2].append(np.percentile(taken, [50, 99]) * 1000)
print("| | without | with TCP_NODELAY |\n|---|---|---|")
for what in dict.fromkeys(what for what, _ in found):
    cells = (np.median(found[what, which], axis=0) for which in (0, 1))
    print(f"| {what} |", " | ".join(f"{p50:.1f} ({p99:.1f})" for p50, p99 in cells), "|")
