"""Labels that are probably wrong, and samples that are there twice."""

from __future__ import annotations

import numpy as np
import pytest

from klda import KLDA, Learner
from klda.errors import KldaError
from klda.inspection.suspects import TIMES_AS_LIKELY, label_chances
from tests import reference


@pytest.fixture
def flipped():
    """Samples of six classes; the labels of 15 were changed."""
    X, y = reference.blobs(300, 10, 6)
    wrong = np.random.default_rng(0).permutation(len(X))[:15]
    labels = np.array([f"class {i}" for i in y])
    labels[wrong] = [f"class {(i + 1) % 6}" for i in y[wrong]]
    return X, labels, np.array([f"class {i}" for i in y]), set(wrong.tolist())


def unlikely(found):
    return [one for one in found if one.problem == "label"]


@pytest.mark.parametrize("components", [100, 5000])  # statistics alone, and samples that are kept
def test_changed_labels_are_found_and_mended(flipped, components):
    X, labels, truth, wrong = flipped
    learner = Learner("features", classifier=KLDA(n_components=components))
    found = unlikely(learner.suspects(X, labels))
    assert not learner.classes  # nothing was learned
    rows = [one.row for one in found]
    assert wrong <= set(rows)
    assert len(rows) < 2 * len(wrong)
    assert [one.suggested for one in found if one.row in wrong] == [
        truth[row] for row in rows if row in wrong
    ]
    assert all(0.5 < one.confidence <= 1 for one in found if one.row in wrong)


@pytest.mark.parametrize("components", [100, 5000])
def test_suspects_are_the_same_before_and_after_learning(flipped, components):
    X, labels, _, _ = flipped
    fresh, taught = (
        Learner("features", classifier=KLDA(n_components=components, gamma=0.01, random_state=0))
        for _ in "ab"
    )
    taught.learn(X, labels)
    before = taught.scores(X)
    expected, found = fresh.suspects(X, labels), taught.suspects(X, labels)
    assert [one.row for one in found] == [one.row for one in expected]
    np.testing.assert_array_equal(taught.scores(X), before)


def test_new_samples_are_judged_by_what_was_learned(flipped):
    X, labels, truth, wrong = flipped
    some = np.array([*sorted(wrong), *range(20)])
    taught = Learner("features").learn(X[100:], truth[100:])
    found = unlikely(taught.suspects(X[some], labels[some]))
    new = {i for i, row in enumerate(some) if row in wrong and row < 100}
    assert new <= {one.row for one in found}


def test_new_samples_are_not_taken_for_learned_ones_that_they_are_like():
    X, y = reference.blobs(900, 10, 6)
    labels, new = [f"class {i}" for i in y], slice(30)
    taught = Learner("features", classifier=KLDA(n_components=400, gamma=0.3, random_state=0))
    taught.learn(X[30:], labels[30:])
    found = taught.suspects(X[new], labels[new])
    taught.learn(X[new], labels[new])
    chance, _, confidence = label_chances(taught.engine, X[new].astype(np.float32), labels[new])
    wrong = np.flatnonzero(np.array(confidence) >= TIMES_AS_LIKELY * chance)
    assert {one.row for one in unlikely(found)} == {*wrong.tolist()}


def test_a_file_that_was_learned_is_one_if_a_sample_of_it_was_corrected(flipped):
    X, labels, truth, wrong = flipped
    taught = Learner("features", classifier=KLDA(n_components=100, random_state=0))
    taught.learn(X, labels)
    one, *others = sorted(wrong)
    taught.forget(labels[one], X[[one]])
    taught.learn(X[[one]], truth[[one]])
    found = {one.row for one in unlikely(taught.suspects(X, labels))}
    assert set(others) <= found


def test_duplicates_and_near_duplicates():
    texts = ["where is my card", "my card is late", "what is the rate", "rate of the dollar"]
    labels = ["card", "card", "rate", "rate"]
    found = Learner("ngrams").suspects([*texts, texts[1], texts[2]], [*labels, "card", "card"])
    assert [(one.row, one.like) for one in found if one.problem == "duplicate"] == [(4, 1)]
    # One of the two texts with two labels is named, beside the other.
    (named,) = [one for one in found if one.problem != "duplicate"]
    assert {named.row, named.like} == {2, 5}


def test_the_only_sample_of_a_class_is_no_suspect():
    X, y = reference.blobs(40, 10, 4)
    labels = [f"class {i}" for i in y] + ["alone"]
    found = Learner("features").suspects(np.concatenate([X, X.mean(0, keepdims=True)]), labels)
    assert 40 not in {one.row for one in found}


def test_tables_and_refusals(tmp_path):
    path = tmp_path / "tickets.csv"
    path.write_text("text,label\nwhere is my card,card\nwhere is my card,card\nhello,greeting\n")
    found = Learner("ngrams").suspects(path)
    assert [one.to_dict()["problem"] for one in found] == ["duplicate"]
    learner = Learner("ngrams").learn(["hello"], ["greeting"])
    with pytest.raises(KldaError, match="labels: the label 3 is an integer"):
        learner.suspects(["hello"], [3])
    with pytest.raises(KldaError, match="one label for each"):
        learner.suspects(["hello"], ["a", "b"])
