"""Tables in memory are read as files are: columns, labels, errors."""

from __future__ import annotations

import numpy as np
import pytest

from klda import Learner
from klda.data import Layout, TableError
from klda.data.frames import is_frame, open_frame
from klda.errors import KldaError

COLUMNS = {"id": [1, 2, 3], "Message": ["a b", "c d", "e f"], "Queue": ["x", "y", "x"]}


def made(kind, columns):
    if kind == "pyarrow":
        return pytest.importorskip("pyarrow").table(columns)
    if kind == "datasets":
        return pytest.importorskip("datasets").Dataset.from_dict(columns)
    return pytest.importorskip(kind).DataFrame(columns)


@pytest.fixture(params=["pandas", "polars", "pyarrow", "datasets"])
def kind(request):
    return request.param


def test_every_kind_of_table_gives_the_same_rows_in_any_batches(kind):
    table = open_frame(made(kind, COLUMNS))
    for rows in (1, 2, 100):
        batches = list(table.batches(rows=rows, keep=["id"]))
        assert [text for batch in batches for text in batch.inputs] == COLUMNS["Message"]
        assert [label for batch in batches for label in batch.labels] == COLUMNS["Queue"]
        assert [i for batch in batches for i in batch.cells["id"]] == [1, 2, 3]
        assert batches[-1].fraction == 1


def test_integers_are_labels_of_their_own(kind):
    (batch,) = open_frame(made(kind, COLUMNS), layout=Layout(label="id")).batches()
    assert batch.labels == [1, 2, 3]


@pytest.mark.parametrize("labels", [[1.0, 2.0, 1.0], [True, False, True]])
def test_numbers_are_labels_as_in_a_list(kind, labels):
    table, other = made(kind, {"text": ["a b", "c d", "e f"], "label": labels}), Learner("ngrams")
    assert Learner("ngrams").learn(table).classes == other.learn(["a", "c", "e"], labels).classes


@pytest.mark.parametrize("name", ["Message", "Queue"])
def test_what_is_missing_is_named_by_its_row(kind, name):
    table = made(kind, COLUMNS | {name: [*COLUMNS[name][:2], None]})
    with pytest.raises(TableError, match=r"^the table, row 3: the (text|label) is empty"):
        list(open_frame(table).batches())


def test_rows_of_numbers_are_features(kind):
    rows = np.arange(6.0).reshape(3, 2)
    wide = {"a": rows[:, 0].tolist(), "b": rows[:, 1].tolist(), "label": ["x", "y", "z"]}
    lists = {"embedding": rows.tolist(), "label": ["x", "y", "z"]}
    for columns in (wide, lists):
        (batch,) = open_frame(made(kind, columns), modality="features").batches()
        np.testing.assert_array_equal(batch.inputs, rows)


def test_numbers_that_stand_for_names_become_the_names():
    datasets = pytest.importorskip("datasets")
    label = datasets.ClassLabel(names=["no", "yes"])
    features = datasets.Features({"text": datasets.Value("string"), "label": label})
    dataset = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [1, 0]}, features=features)
    (batch,) = open_frame(dataset.select([1, 0])).batches()
    assert (batch.inputs, batch.labels) == (["b", "a"], ["no", "yes"])


def test_what_is_no_table_says_what_to_do():
    polars, pandas = pytest.importorskip("polars"), pytest.importorskip("pandas")
    assert not any(map(is_frame, ([1], np.eye(2), pandas.Series([1]))))
    with pytest.raises(KldaError, match=r"inputs\.collect\(\)"):
        open_frame(polars.LazyFrame(COLUMNS))
    twice = pandas.DataFrame([["a", "b"]], columns=["text", "text"])
    with pytest.raises(KldaError, match="inputs, a DataFrame, can't be read"):
        open_frame(twice)


def test_columns_whose_names_are_no_texts_are_named():
    pandas = pytest.importorskip("pandas")
    for names in ([0, 1], pandas.MultiIndex.from_tuples([("a", "text"), ("a", "label")])):
        table = pandas.DataFrame([["a b", "x"], ["c d", "y"]], columns=names)
        with pytest.raises(KldaError, match=r"a column called .*: name the columns"):
            open_frame(table)
