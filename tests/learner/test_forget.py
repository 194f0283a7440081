"""Forgetting: all of it or nothing, and only what was learned."""

from __future__ import annotations

import tracemalloc
import warnings

import numpy as np
import pytest

from klda import KLDA, LDA, NCM, KLDAEnsemble, KldaError, Learner
from klda.learner import ForgetTraceWarning

CENTRES = np.random.default_rng(5).normal(size=(4, 12)) * 2


def drawn(label, n=30, seed=0):
    rng = np.random.default_rng([seed, ord(label)])
    return (CENTRES["abcd".index(label)] + rng.normal(size=(n, 12))).astype(np.float32)


def klda(**changes):
    return KLDA(**({"n_components": 400, "gamma": 0.02, "random_state": 0} | changes))


def taught(labels="abcd", n=30, classifier=None, keep=None):
    learner = Learner("features", classifier=classifier or klda(), keep=keep)
    for label in labels:
        learner.learn(drawn(label, n), [label] * n)
    return learner


PROBE = np.concatenate([drawn(label, 20, seed=50) for label in "abcd"])


def test_with_warnings_as_errors_a_class_is_not_dropped_halfway():
    learner = taught(classifier=klda(n_components=50))
    scores, history = learner.scores(PROBE), learner.history
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ForgetTraceWarning):
            learner.forget("a")
    assert list(learner.classes) == ["a", "b", "c", "d"]
    assert learner.history == history
    np.testing.assert_array_equal(learner.scores(PROBE), scores)
    with pytest.warns(ForgetTraceWarning, match="'a'"):
        learner.forget("a")
    assert learner.history[-1]["dropped_classes"] == ["a"]


def test_a_large_class_is_found_in_the_ledger_in_little_memory():
    """A matrix of all pairs took 8 bytes each: 20 GB for a class of 50,000."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(6000, 6)).astype(np.float32)
    rows[:500] = rows[0]  # the same sample learned many times
    learner = Learner("features", classifier=NCM(), keep="features")
    learner.learn(rows, ["a"] * 5999 + ["b"])
    again = rows[:5999] * (1 + 1e-4 * rng.normal(size=(5999, 1))).astype(np.float32)
    again[:250] = rows[:250]
    tracemalloc.start()
    learner.forget("a", again[rng.permutation(5999)])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1e8  # all pairs: 2.9e8, several times over
    assert learner.classes == {"b": 1}
    assert len(learner.ledger) == 1


def test_a_sample_learned_twice_can_be_forgotten_twice_and_no_more():
    learner = Learner("features", classifier=NCM(), keep="features")
    learner.learn(np.repeat(PROBE[:1], 3, axis=0), ["a"] * 3).learn(PROBE[1:5], ["a"] * 4)
    learner.forget("a", np.repeat(PROBE[:1], 2, axis=0))
    with pytest.raises(KldaError, match="'a'"):
        learner.forget("a", np.repeat(PROBE[:1], 2, axis=0))
    assert learner.classes == {"a": 5}


# ---------------------------------------------------------------- only what was learned

KINDS = {
    "KLDA": klda,
    "few components": lambda: klda(n_components=60),  # a square scatter
    "ensemble": lambda: KLDAEnsemble(n_components=200, gamma=0.02, n_members=2, random_state=0),
    "LDA": LDA,
}
NOT_LEARNED = "were not learned by this model"


@pytest.fixture(params=KINDS)
def learner(request):
    return taught(classifier=KINDS[request.param]())


def strangers():
    """Rows that were never learned, each with the labels that someone may claim for them."""
    rng = np.random.default_rng(9)
    return {
        "a whole class": (drawn("a", 30, seed=7), ["a"] * 30),
        "part of a class": (drawn("a", 20, seed=7), ["a"] * 20),
        "rows of another class": (drawn("b", 10), ["a"] * 10),
        "noise": (rng.normal(size=(5, 12)).astype(np.float32) * 5, ["a", "b", "c", "d", "a"]),
        "one row": (rng.normal(size=(1, 12)).astype(np.float32) * 5, ["a"]),
    }


@pytest.mark.parametrize("which", strangers())
def test_rows_that_were_never_learned_are_refused(learner, which):
    if isinstance(learner.classifier, LDA) and which == "part of a class":
        pytest.skip("twelve features hold nothing that tells a few rows of a class from others")
    rows, labels = strangers()[which]
    scores, history = learner.scores(PROBE), learner.history
    with pytest.raises(KldaError, match=NOT_LEARNED):
        learner.forget(labels, rows)
    assert learner.classes == dict.fromkeys("abcd", 30)
    assert learner.history == history
    np.testing.assert_array_equal(learner.scores(PROBE), scores)


def test_rows_that_were_learned_are_forgotten_whatever_their_number_and_order(learner):
    rng = np.random.default_rng(1)
    X = np.concatenate([drawn(label) for label in "abcd"])
    y = np.repeat(list("abcd"), 30)
    order = rng.permutation(120)
    learner.forget(y[order[:1]], X[order[:1]])
    learner.forget(y[order[1:60]], X[order[1:60]])
    learner.forget(y[order[60:119]], X[order[60:119]])
    assert learner.samples == 1
    learner.forget(y[order[119:]], X[order[119:]])
    assert learner.samples == 0


def test_rows_encoded_a_little_differently_are_the_same_rows(learner):
    noise = 1 + 1e-5 * np.random.default_rng(2).normal(size=(30, 12))
    learner.forget("a", (drawn("a") * noise).astype(np.float32))
    assert list(learner.classes) == ["b", "c", "d"]


def test_after_a_class_was_dropped_the_others_are_still_forgotten_exactly(learner):
    if learner.classifier.leaves_trace:
        with pytest.warns(ForgetTraceWarning):
            learner.forget("a")
    else:
        learner.forget("a")
    learner.forget("b", drawn("b"))
    assert list(learner.classes) == ["c", "d"]


def test_without_a_scatter_the_mean_of_a_class_tells():
    learner = taught(classifier=NCM())
    with pytest.raises(KldaError, match=NOT_LEARNED):
        learner.forget("a", drawn("a", seed=7))
    learner.forget("a", drawn("a"))
    assert list(learner.classes) == ["b", "c", "d"]


def test_a_ledger_says_it_in_the_same_words():
    learner = taught(keep="features")
    for rows in (drawn("a", seed=7), drawn("a", 1, seed=7)):
        with pytest.raises(KldaError, match=NOT_LEARNED):
            learner.forget("a", rows)
    assert learner.classes == dict.fromkeys("abcd", 30)


def test_the_command_and_the_service_say_it_in_the_same_words(learner, tmp_path):
    pytest.importorskip("fastapi", reason='needs the extra: pip install "klda[server]"')
    from tests.cli.conftest import Cli
    from tests.server.conftest import serving

    learner.save(tmp_path / "m")
    before = sorted(path.name for path in (tmp_path / "m").rglob("*"))
    rows, labels = strangers()["part of a class"]
    np.savez(tmp_path / "rows.npz", features=rows, labels=np.array(labels))
    words = ("forget", "a", "--model", tmp_path / "m", "--rows", tmp_path / "rows.npz", "--partly")
    said = " ".join(Cli()(*words, code=1).output.split())
    assert NOT_LEARNED in said
    assert "rows.npz" in said
    assert sorted(path.name for path in (tmp_path / "m").rglob("*")) == before
    with serving(tmp_path / "m") as client:
        body = {"features": rows.tolist(), "labels": labels}
        answer = client.post("/v1/forget", json=body)
        assert answer.status_code == 409, answer.text
        assert NOT_LEARNED in answer.text
        assert client.get("/v1/classes").json()["classes"][0]["samples"] == 30
        body = {"features": drawn("a").tolist(), "labels": ["a"] * 30}
        assert client.post("/v1/forget", json=body).status_code == 200
