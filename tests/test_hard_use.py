"""What hard use once found, through what users hold: estimators, learners and the service."""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from sklearn.datasets import load_digits

from klda import KLDA, LDA, Client, Learner
from klda.errors import KldaError

D, LEARNED, LEFT = 1000, 1200, 400  # more than D/2 samples, then fewer


def clusters(n, seed=0, classes=8, width=12):
    """Samples of classes that overlap, so that a different model gives different answers."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(size=(classes, width))
    labels = np.arange(n) % classes
    rows = centres[labels] + rng.normal(size=(n, width))
    return rows.astype(np.float32), [f"class {i}" for i in labels]


@pytest.fixture
def service(tmp_path):
    """A function that serves a learner, and returns a client of it."""
    pytest.importorskip("fastapi", reason='needs the extra: pip install "klda[server]"')
    from contextlib import ExitStack

    from tests.server.conftest import listening

    with ExitStack() as stack:

        def serve(learner):
            learner.save(tmp_path / "served")
            address = stack.enter_context(listening(tmp_path / "served"))
            return stack.enter_context(Client(address))

        yield serve


# ------------------------------------------------------------------ forgetting is exact


def learner_of(rows, labels):
    classifier = KLDA(n_components=D, gamma=0.05, random_state=0)
    return Learner("features", classifier=classifier, keep="features").learn(rows, labels)


def assert_same_answers(one, other):
    asked, _ = clusters(500, seed=5)
    assert (one.predict(asked) == other.predict(asked)).all()
    np.testing.assert_allclose(one.predict_proba(asked), other.predict_proba(asked), atol=2e-3)


@pytest.mark.parametrize("through", ["learner", "saved", "service"])
def test_a_model_that_shrinks_is_the_model_that_never_was_larger(through, service, tmp_path):
    rows, labels = clusters(LEARNED)
    grown, never = learner_of(rows, labels), learner_of(rows[:LEFT], labels[:LEFT])
    grown.predict(rows[:1])  # solved while it was large
    if through == "saved":
        grown.save(tmp_path / "grown")
        grown = Learner.load(tmp_path / "grown")
    if through == "service":
        grown = service(grown)
    grown.forget(labels[LEFT:], rows[LEFT:])
    assert grown.classes == never.classes
    assert_same_answers(grown, never)


# ------------------------------------------------------------------ threads


@pytest.mark.parametrize("through", ["learner", "estimator", "service"])
def test_threads_that_learn_at_once_lose_and_double_nothing(through, service):
    rows, labels = clusters(361 + 8)
    parts = [slice(8 + i, 8 + i + 1 + i % 3) for i in range(0, 361, 3)]
    first = Learner("features", classifier=KLDA(n_components=200, random_state=0))
    first.learn(rows[:8], labels[:8])
    learner = {
        "learner": lambda: first,
        "service": lambda: service(first),
        "estimator": lambda: KLDA(n_components=200, random_state=0).fit(rows[:8], labels[:8]),
    }[through]()
    teach = learner.partial_fit if through == "estimator" else learner.learn
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda part: teach(rows[part], labels[part]), parts))
    taught = [*labels[:8], *(label for part in parts for label in labels[part])]
    counts = learner.counts_ if through == "estimator" else learner.classes
    assert counts == {label: taught.count(label) for label in set(taught)}


# ------------------------------------------------------------------ an offset of all features


@pytest.mark.parametrize("offset", [1e5, 3e5, 1e6, 1e7])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("batches", [1, 5])
def test_an_offset_of_all_features_costs_lda_nothing(offset, dtype, batches):
    X, y = load_digits(return_X_y=True)  # integers: float32 has them exactly beside the offset
    order = np.random.default_rng(0).permutation(len(X))
    X, y = X[order].astype(np.float32), y[order]
    shifted = X + np.float32(offset)
    model = LDA(dtype=dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for part in np.array_split(np.arange(1200), batches):
            model.partial_fit(shifted[part], y[part])
        learner = Learner("features", classifier=LDA(dtype=dtype)).learn(shifted[:1200], y[:1200])
        for answers in (model.predict(shifted[1200:]), learner.predict(shifted[1200:])):
            assert (answers == y[1200:]).mean() > 0.92


# ------------------------------------------------------------------ rows that were never learned


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(1).permutation(len(X))
    return X[order].astype(np.float32), y[order]


@pytest.mark.parametrize("n", [100, 1200], ids=["rows held", "statistics alone"])
@pytest.mark.parametrize("kind", ["KLDA", "LDA", "learner", "service"])
def test_rows_that_were_never_learned_can_not_be_removed(digits, kind, n, service):
    X, y = digits
    classifier = LDA() if kind == "LDA" else KLDA(n_components=400, random_state=0)
    if kind in ("KLDA", "LDA"):
        model = classifier.partial_fit(X[:n], y[:n])
        remove = model.remove
    else:
        model = Learner("features", classifier=classifier).learn(X[:n], y[:n])
        model = service(model) if kind == "service" else model

        def remove(rows, labels):
            return model.forget(labels.tolist(), rows)

    before = model.predict(X[1300:])
    # Three rows of noise, as large as digits are, under the labels of a digit that was learned.
    foreign = np.random.default_rng(0).uniform(0, 16, (3, X.shape[1])).astype(np.float32)
    with pytest.raises(KldaError, match=r"not learned|never learned"):
        remove(foreign, np.repeat(y[:1], 3))
    assert (model.predict(X[1300:]) == before).all()
    remove(X[:3], y[:3])  # those that were can
    counts = model.counts_ if kind in ("KLDA", "LDA") else model.classes
    assert sum(counts.values()) == n - 3
