from __future__ import annotations

import numpy as np
import pytest

from klda import LDA
from klda.errors import KldaError
from klda_bench.data.datasets import Samples
from klda_bench.runs.protocol import run, split_classes


def blobs(n_classes=12, per_class=25, dimension=10, spread=1.6, seed=0):
    """Overlapping classes, so that a changed model changes predictions."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(n_classes, dimension)) * spread
    names = np.asarray([f"class {i:02d}" for i in range(n_classes)])

    def part(rows):
        X = np.concatenate([centre + rng.normal(size=(rows, dimension)) for centre in centres])
        return Samples(X.astype(np.float32), np.repeat(names, rows))

    return part(per_class), part(10)


class Recorder:
    """Answers with the first label it saw and writes down what it was shown."""

    def __init__(self):
        self.tasks = []

    def learn_task(self, X, y):
        self.tasks.append((np.asarray(X), np.asarray(y)))

    def predict(self, X):
        return np.full(len(X), self.tasks[0][1][0])


class JointRecorder(Recorder):
    joint = True


@pytest.mark.parametrize(
    ("classes", "tasks"), [(150, 10), (77, 7), (70, 7), (64, 8), (10, 3), (5, 5)]
)
def test_tasks_hold_every_class_once_and_their_sizes_differ_by_at_most_one(classes, tasks):
    names = [str(i) for i in range(classes)]
    split = split_classes(names, tasks, seed=3)
    assert sorted(name for task in split for name in task) == sorted(names)
    sizes = [len(task) for task in split]
    assert len(sizes) == tasks
    assert max(sizes) - min(sizes) <= 1


def test_the_seed_alone_decides_the_order_of_classes():
    names = [f"c{i}" for i in range(20)]
    assert split_classes(names, 4, 1) == split_classes(names[::-1], 4, 1)
    assert split_classes(names, 4, 1) != split_classes(names, 4, 2)


@pytest.mark.parametrize("tasks", [0, 11])
def test_a_number_of_tasks_that_does_not_fit_is_named(tasks):
    with pytest.raises(KldaError, match=f"tasks={tasks}"):
        split_classes([str(i) for i in range(10)], tasks, 0)


def test_a_method_sees_each_row_once_and_never_an_earlier_task_again():
    train, test = blobs()
    method = Recorder()
    run(method, train, test, split_classes(train.y.tolist(), 4, 0))
    rows = np.concatenate([X for X, _ in method.tasks])
    assert len(method.tasks) == 4
    assert sorted(map(tuple, rows)) == sorted(map(tuple, train.X))
    labels = [set(y.tolist()) for _, y in method.tasks]
    assert all(not labels[i] & labels[j] for i in range(4) for j in range(i))


def test_accuracy_is_over_the_classes_seen_and_the_matrix_over_their_tasks():
    train, test = blobs(n_classes=6)
    tasks = split_classes(train.y.tolist(), 3, 0)
    outcome = run(Recorder(), train, test, tasks)
    # One class of two, four, six is always right.
    assert outcome.seen_accuracy == pytest.approx([50.0, 25.0, 100 / 6])
    assert outcome.matrix == [[50.0], [50.0, 0.0], [50.0, 0.0, 0.0]]
    assert outcome.samples_seen == [50, 100, 150]
    assert outcome.correct.sum() == 10


def test_measuring_at_the_end_only_gives_the_same_end():
    train, test = blobs()
    tasks = split_classes(train.y.tolist(), 4, 0)
    each = run(LDA(), train, test, tasks)
    end = run(LDA(), train, test, tasks, each=False)
    assert end.seen_accuracy[:-1] == [None] * 3
    assert end.seen_accuracy[-1] == each.seen_accuracy[-1]
    assert end.matrix[-1] == each.matrix[-1]


def test_a_joint_method_gets_all_tasks_at_once():
    train, test = blobs()
    method = JointRecorder()
    outcome = run(method, train, test, split_classes(train.y.tolist(), 4, 0))
    assert len(method.tasks) == 1
    assert len(method.tasks[0][1]) == len(train)
    assert outcome.seen_accuracy[:-1] == [None] * 3


def test_texts_are_handed_over_as_texts():
    train = Samples(["one", "two", "three"], np.array(["a", "b", "a"]))
    assert train.of_classes(["a"]).X == ["one", "three"]
