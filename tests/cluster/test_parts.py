"""Parts of rows, in this process: cut, read, learned by a worker, merged, and answered."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

pytest.importorskip("ray")
arrow = pytest.importorskip("pyarrow")

from klda.classifiers import KLDA, LDA  # noqa: E402
from klda.cluster import ClusterError  # noqa: E402
from klda.cluster.rows import cut, dataset_table  # noqa: E402
from klda.cluster.workers import Worker, packed  # noqa: E402
from klda.data import Batch, Layout  # noqa: E402
from klda.engine.engine import Engine  # noqa: E402
from klda.engine.model import Model  # noqa: E402
from klda.errors import KldaError  # noqa: E402
from klda.learner import Learner  # noqa: E402
from klda.learner.answerer import Answerer  # noqa: E402
from klda.learner.state import State  # noqa: E402
from tests.cluster.samples import assert_same, make_rows  # noqa: E402

# ---------------------------------------------------------------- learning parts and merging them


def learn_part(alone, rows, labels, device="cpu"):
    """What a worker sends of some rows, which a classifier has learned, too."""
    worker = Worker(alone.foundation, {"device": device}, threads=1)
    return worker.learn(nothing(alone), 0, Batch(rows, labels.tolist()))


def nothing(learner):
    """What workers get to learn with: the learner's feature map."""
    return packed(learner, Engine(learner.parameters, learner.engine.model.empty()), solved=False)


def merged(alone, parts):
    """What knows the parts and nothing else."""
    model = alone.engine.model.empty()
    engine = Engine(alone.parameters, model)
    for arrays, meta in parts:
        engine.merge(Model.unpack(arrays, meta, model.backend, model.map))
    return Answerer(alone.inputs, State(engine=engine))


@pytest.mark.parametrize(
    "classifier",
    [
        KLDA(n_components=96, gamma=0.05, random_state=0),
        KLDA(n_components=500, gamma=0.05, random_state=0),  # few rows: the ridge is chosen
        LDA(),
    ],
    ids=lambda classifier: f"{type(classifier).__name__}-{classifier.get_params()}"[:24],
)
def test_parts_add_up_to_one_process(classifier):
    pytest.importorskip("torch")
    rows, labels = make_rows(900)
    edges = list(itertools.pairwise([0, 300, 400, 700, 900]))
    alone = Learner("features", classifier=classifier)
    alone.learn((rows[a:b], labels[a:b]) for a, b in edges)
    parts = [
        # Every other one in torch, as on a GPU.
        learn_part(alone, rows[a:b], labels[a:b], "cpu:0" if i % 2 else "cpu")
        for i, (a, b) in enumerate(edges)
    ]
    for order in ([0, 1, 2, 3], [3, 1, 0, 2]):
        assert_same(merged(alone, [parts[i] for i in order]), alone, rows[:300])


def test_parts_bring_the_samples_that_one_process_would_have_judged():
    rows, labels = make_rows(3000)
    edges = list(itertools.pairwise([0, 512, 1024, 1536, 2048, 2560, 3000]))
    alone = Learner("features", classifier=KLDA(n_components=64, gamma=0.05, random_state=0))
    alone.learn((rows[a:b], labels[a:b]) for a, b in edges)
    parts = [learn_part(alone, rows[a:b], labels[a:b]) for a, b in reversed(edges)]

    def pending(learner):
        found = learner.engine.model.pending
        pairs = zip(found.labels, found.values, strict=True)
        return {(label, row.tobytes()) for label, row in pairs}

    assert len(pending(alone)) == 1024
    assert pending(merged(alone, parts)) == pending(alone)


# ---------------------------------------------------------------- cutting


def batches_of(count, rows=10, known=True):
    """Batches of rows that take a byte each."""
    return [
        Batch(np.zeros((rows, 1), np.uint8), None, (i + 1) / count if known else 0.0)
        for i in range(count)
    ]


def cut_up(batches, **limits):
    return list(cut(batches, lambda batch: batch, **limits))


def sizes(parts):
    return [part.n_rows for part in parts]


@pytest.mark.parametrize("known", [True, False])
def test_parts_cover_all_rows_in_order(known):
    batches = batches_of(100, known=known)
    parts = cut_up(batches, workers=2, least=20, most=200)
    assert [id(one) for part in parts for one in part.batches] == list(map(id, batches))
    assert [part.first_row for part in parts] == [0, *np.cumsum(sizes(parts))[:-1]]
    assert max(sizes(parts)) <= 200
    assert sum(part.fraction for part in parts) == pytest.approx(1 if known else 0)


def test_parts_keep_all_workers_busy_to_the_end():
    """They shrink towards an end that is known, and no part of a dataset is much of its rows."""
    found = sizes(cut_up(batches_of(100), workers=2, least=20, most=400))
    assert found == sorted(found, reverse=True)
    assert found[0] > 4 * found[-1]
    unknown = sizes(cut_up(batches_of(200, known=False), workers=2, least=20, most=10_000))
    assert max(unknown) <= 2000 / (4 * 2) + 10
    assert sizes(cut_up(batches_of(8), workers=4, least=1000, most=1000)) == [20] * 4


def test_a_part_that_is_too_large_for_the_store_gets_no_more_rows():
    found = sizes(cut_up(batches_of(10), workers=1, least=1000, most=1000, most_bytes=25))
    assert found == [30, 30, 30, 10]


# ---------------------------------------------------------------- rows of a dataset


class Dataset:
    """What klda needs of a Ray Data dataset of one block."""

    def __init__(self, block):
        self.block = block

    def iter_batches(self, *, batch_size, batch_format):
        assert batch_size >= self.block.num_rows
        assert batch_format == "pyarrow"
        yield self.block


def batch_of(block, modality, copied=(), labels=True, **given):
    table = dataset_table(Dataset(block), modality, Layout(**given))
    (batch,) = table.batches(labels=labels, keep=copied)
    return batch


def test_feature_columns_of_any_kind_are_read():
    values = np.arange(20, dtype=np.float32).reshape(10, 2)
    fixed = arrow.FixedSizeListArray.from_arrays(arrow.array(values.ravel()), 2)
    tensors = arrow.FixedShapeTensorArray.from_numpy_ndarray(values)
    for column in (arrow.array(values.tolist()), fixed, tensors, arrow.chunked_array([fixed])):
        block = arrow.table({"embedding": column, "y": list(range(10))}).slice(1, 8)
        batch = batch_of(block, "features")
        np.testing.assert_array_equal(batch.inputs, values[1:9])
        assert batch.labels == list(range(1, 9))  # integers stay integers


@pytest.mark.parametrize(
    "modality, columns, message",
    [
        ("text", {"text": ["a", ""], "y": ["b", "c"]}, "dataset, row 2: the text is empty"),
        ("text", {"text": ["a"], "y": [None]}, "row 1: the label is empty"),
        ("text", {"a": ["a"], "b": ["b"], "y": ["b"]}, "columns are: a, b, y"),
        ("text", {"text": ["a"]}, "has one column and no labels"),
        ("features", {"x": ["a"], "y": ["a"]}, "can't be features"),
    ],
)
def test_bad_rows_of_a_dataset_are_named(modality, columns, message):
    with pytest.raises(KldaError, match=message):
        batch_of(arrow.table(columns), modality)


def test_columns_of_a_dataset_that_are_not_there_are_named():
    block = arrow.table({"text": ["a"], "y": ["b"]})
    with pytest.raises(KldaError, match="no column 'body'"):
        batch_of(block, "text", input="body")
    with pytest.raises(KldaError, match=r"no column 'key'.*text, y"):
        batch_of(block, "text", copied=("key",))


def test_images_that_a_machine_does_not_see_are_named():
    learner = Learner("features").learn(*make_rows(20))
    worker = Worker(learner.foundation, {"device": "cpu"}, threads=1)
    batch = batch_of(arrow.table({"path": ["/no/such.png"], "y": ["a"]}), "image")
    with pytest.raises(KldaError, match=r"/no/such.png.*all machines of the cluster"):
        worker.learn(nothing(learner), 0, batch)


def test_predictions_have_the_columns_asked_for():
    rows, labels = make_rows(200)
    learner = Learner("features").learn(rows, labels)
    source = arrow.table({"id": [7, 8, 9], "x": rows[:3].tolist()})
    worker = Worker(learner.foundation, {"device": "cpu"}, threads=1)
    batch = batch_of(source, "features", ("id",), labels=False, input="x")
    table = worker.predict(packed(learner, learner.engine, compact=True), 0.05, 5, batch)
    assert table.column_names == ["row", "id", "label", "probability", "known"]
    assert table["row"].to_pylist() == [6, 7, 8]
    assert table["id"].to_pylist() == [7, 8, 9]
    assert table["known"].to_pylist() == [one.known for one in learner.answer_rows(rows[:3])]
    assert table["label"].to_pylist() == learner.predict(rows[:3]).tolist()


def test_a_worker_loads_its_foundation_model_with_its_first_part():
    """Being placed must not take as long as loading: a part may, and names what is missing."""
    learner = Learner("features").learn(*make_rows(20))
    missing = learner.foundation | {"name": "./no/such/model", "modality": "text"}
    worker = Worker(missing, {"device": "cpu"}, threads=1)
    with pytest.raises(ClusterError, match=r"'./no/such/model' can't be used on the machine"):
        worker.learn(nothing(learner), 0, Batch(["a"], ["b"]))
