"""Parts of rows, in this process: cut, read, learned by a worker, merged, and answered."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

pytest.importorskip("ray")
arrow = pytest.importorskip("pyarrow")

from klda.classifiers import KLDA, LDA, NCM, KLDAEnsemble  # noqa: E402
from klda.cluster.rows import Block, BlockReader, Part, cut  # noqa: E402
from klda.cluster.workers import Worker  # noqa: E402
from klda.data import Batch, Columns  # noqa: E402
from klda.engine.model import Model  # noqa: E402
from klda.errors import KldaError  # noqa: E402
from klda.learner import Learner  # noqa: E402
from tests.cluster.samples import CLASSES, assert_same, make_rows  # noqa: E402

# ---------------------------------------------------------------------------------------------
# Learning parts and merging them


def learn_part(alone, rows, labels, device="cpu"):
    """What a worker sends of some rows, which a classifier has learned, too."""
    worker = Worker(alone.foundation, {}, device, threads=1)
    worker.load()
    packed = alone.classifier.empty().pack(solved=False)
    reader = BlockReader("features", Columns(), labels=True)
    return worker.learn(packed, reader, part_of(rows), Batch(rows, labels.tolist()))


def part_of(rows, first_row=0):
    return Part(first_row, [Block(None, len(rows))])


def merged(alone, parts):
    """A learner that knows the parts and nothing else."""
    together = Learner("features", classifier=alone.classifier.empty())
    model = together.classifier.model_
    for arrays, meta in parts:
        part = Model.unpack(arrays, meta, model.backend, maps=model.maps)
        together.classifier.attach(part)
    return together


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

    def waiting(learner):
        found = learner.classifier.model_.waiting
        return {(label, row.tobytes()) for label, row in zip(found.labels, found.rows, strict=True)}

    assert len(waiting(alone)) == 1024
    assert waiting(merged(alone, parts)) == waiting(alone)


def test_a_part_is_sent_as_a_triangle_whatever_its_number_of_rows():
    rows, labels = make_rows(2000)
    alone = Learner("features", classifier=KLDA(n_components=100, random_state=0))
    arrays, _ = learn_part(alone.learn(rows, labels), rows, labels)
    assert arrays["learn/0/triangle"].shape == (100 * 101 // 2,)
    assert arrays["learn/0/means"].shape == (CLASSES, 100)
    others = [array for name, array in arrays.items() if not name.startswith("learn/0/")]
    assert sum(array.size for array in others) <= 1024 * rows.shape[1]  # the samples that wait


# ---------------------------------------------------------------------------------------------
# Cutting


def blocks_of(n, size=10, known=True):
    return [Block(i, size, 1, (i + 1) / n if known else None) for i in range(n)]


def sizes(parts):
    return [part.n_rows for part in parts]


@pytest.mark.parametrize("known", [True, False])
def test_parts_cover_all_rows_in_order(known):
    blocks = blocks_of(100, known=known)
    parts = list(cut(blocks, workers=2, least=20, most=200))
    assert [block for part in parts for block in part.blocks] == blocks
    assert [part.first_row for part in parts] == [0, *np.cumsum(sizes(parts))[:-1]]
    assert max(sizes(parts)) <= 200
    if known:
        assert sum(part.fraction for part in parts) == pytest.approx(1)
    else:
        assert {part.fraction for part in parts} == {None}


def test_parts_shrink_towards_an_end_that_is_known():
    found = sizes(cut(blocks_of(100), workers=2, least=20, most=400))
    assert found == sorted(found, reverse=True)
    assert found[0] > 4 * found[-1]


def test_no_part_of_a_dataset_is_much_of_all_rows():
    found = sizes(cut(blocks_of(200, known=False), workers=2, least=20, most=10_000))
    assert max(found) <= 2000 / (4 * 2) + 10


def test_few_rows_are_divided_among_the_workers():
    assert sizes(cut(blocks_of(8), workers=4, least=1000, most=1000)) == [20] * 4


def test_a_part_that_is_too_large_for_the_store_gets_no_more_rows():
    found = sizes(cut(blocks_of(10), workers=1, least=1000, most=1000, most_bytes=3))
    assert found == [30, 30, 30, 10]


# ---------------------------------------------------------------------------------------------
# Rows of a dataset, in this process


def reader_of(modality, labels=True, **given):
    columns = Columns(given.get("input"), given.get("label"))
    return BlockReader(modality, columns, labels)


def test_feature_columns_of_any_kind_are_read():
    values = np.arange(20, dtype=np.float32).reshape(10, 2)
    fixed = arrow.FixedSizeListArray.from_arrays(arrow.array(values.ravel()), 2)
    tensors = arrow.FixedShapeTensorArray.from_numpy_ndarray(values)
    for column in (arrow.array(values.tolist()), fixed, tensors, arrow.chunked_array([fixed])):
        block = arrow.table({"embedding": column, "y": list(range(10))})
        rows, labels, _ = reader_of("features").read(block, Block(None, 8, start=1))
        np.testing.assert_array_equal(rows, values[1:9])
        assert labels == list(range(1, 9))


@pytest.mark.parametrize(
    "reader, columns, message",
    [
        (reader_of("text"), {"text": ["a", ""], "y": ["b", "c"]}, "row 12: the text is empty"),
        (
            reader_of("text"),
            {"text": ["a", 3][1:], "y": ["b"]},
            "row 11: the text must be a string; got int: 3",
        ),
        (reader_of("text"), {"text": ["a"], "y": [None]}, "row 11: the label is empty"),
        (reader_of("text"), {"text": ["a"], "y": [0.5]}, "row 11: the label is 0.5"),
        (reader_of("text"), {"text": ["a"], "y": ["b" * 2000]}, "row 11: .*2,000 characters"),
        (reader_of("text"), {"a": ["a"], "b": ["b"], "y": ["b"]}, "columns are: a, b, y"),
        (reader_of("text", input="body"), {"text": ["a"]}, "input_column='body'"),
        (reader_of("text"), {"text": ["a"]}, "holds the label"),
        (reader_of("features"), {"x": [[1.0], [1.0, 2.0]], "y": ["a", "b"]}, "different lengths"),
        (reader_of("features"), {"x": [1.0], "y": ["a"]}, "can't be features"),
        (reader_of("image"), {"path": ["/no/such.png"], "y": ["a"]}, "all machines of the cluster"),
    ],
)
def test_bad_rows_of_a_dataset_are_named(reader, columns, message):
    block = arrow.table(columns)
    with pytest.raises(KldaError, match=message):
        list(reader.batches(part_of(block, 10), [block]))


def test_text_labels_of_a_dataset_are_read_as_in_files():
    block = arrow.table({"text": ["x", "y"], "label": [" a ", "a"]})
    _, labels, _ = reader_of("text").read(block, Block(None, 2))
    assert labels == ["a", "a"]


def test_predictions_have_the_columns_asked_for():
    rows, labels = make_rows(200)
    learner = Learner("features", classifier=NCM()).learn(rows, labels)
    source = arrow.table({"id": [7, 8, 9], "x": rows[:3].tolist()})
    worker = Worker(learner.foundation, {}, "cpu", threads=1)
    worker.load()
    asked = learner.classifier.pack(compact=True), reader_of("features", labels=False, input="x")
    table = worker.predict(*asked, 0.05, ("id",), part_of(source, 5), source)
    assert table.column_names == ["row", "id", "label", "probability", "known"]
    assert table["row"].to_pylist() == [6, 7, 8]
    assert table["id"].to_pylist() == [7, 8, 9]
    assert table["known"].null_count == 3  # nearest class mean can't tell
    assert table["label"].to_pylist() == learner.predict(rows[:3]).tolist()
    with pytest.raises(KldaError, match="columns names 'key'"):
        worker.predict(*asked, 0.05, ("key",), part_of(source, 5), source)
