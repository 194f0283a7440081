"""Forgetting: exact where the samples are known, all of it or nothing, only what was learned."""

from __future__ import annotations

import tracemalloc
import warnings

import numpy as np
import pytest

from klda import KldaError, Learner
from klda.engine.inverse import RidgeRaisedWarning
from klda.learner import ForgetTraceWarning
from tests.factories import PROBE, assert_same_scores, rows_of, samples, small, taught

NOT_LEARNED = "were not learned by this model"
KINDS = {
    "samples kept": {"n_components": 400},
    "a ledger": {"keep": "features"},
    "statistics": {},
    "LDA": {"n_components": None, "rule": "lda"},
}


@pytest.fixture(params=KINDS)
def learner(request):
    return taught(n=30, **KINDS[request.param])


def test_declared_classes_still_answer_when_every_sample_is_forgotten():
    learner = Learner("ngrams", classifier={"n_components": 300, "random_state": 0})
    texts = [f"{word} {i}" for word in ("parcel", "password") for i in range(100)]
    labels = ["delivery"] * 100 + ["account"] * 100
    learner.learn(texts, labels).declare(["card", "refund"])
    learner.predict(["my card"])  # what was chosen for the samples is not used without them
    learner.forget("delivery", texts[:100]).forget("account", texts[100:])
    assert learner.predict(["my card", "a refund"]).tolist() == ["card", "refund"]


def test_forgetting_a_class_with_its_rows_equals_never_having_learned_it(learner):
    never = Learner("features", classifier=learner.parameters, keep=learner.ledger and "features")
    assert_same_scores(learner.forget("b", rows_of("b", 30)), never.learn(*samples("acd", 30)))
    assert learner.history[-1]["dropped_classes"] == ["b"]


@pytest.mark.parametrize("kind", ["samples kept", "a ledger"])
def test_a_class_whose_samples_are_kept_leaves_no_trace(kind):
    learner = taught(n=30, **KINDS[kind])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learner.forget(["d", "a"])
    assert_same_scores(learner, taught("bc", n=30, **KINDS[kind]))


def test_a_class_without_its_samples_leaves_a_trace_and_a_warning():
    learner = taught(n=30)
    assert learner.traces_of("ab") == ["a", "b"]
    with pytest.warns(ForgetTraceWarning, match="'a'"):
        learner.forget("a")
    assert list(learner.classes) == ["b", "c", "d"]
    assert "a" not in learner.predict(PROBE)
    difference = learner.scores(PROBE) - taught("bcd", n=30).scores(PROBE)
    assert np.abs(difference).max() > 1e-3 * np.abs(learner.scores(PROBE)).max()
    learner.forget("b", rows_of("b", 30))  # the others are still forgotten exactly
    assert list(learner.classes) == ["c", "d"]


def test_with_warnings_as_errors_nothing_is_forgotten():
    learner = taught(n=30)
    scores, history = learner.scores(PROBE), learner.history
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ForgetTraceWarning):
            learner.forget("a")
    assert list(learner.classes) == ["a", "b", "c", "d"]
    assert learner.history == history
    np.testing.assert_array_equal(learner.scores(PROBE), scores)


def test_of_150_classes_30_are_forgotten_one_by_one():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(150, 1, 48)) + 0.7 * rng.normal(size=(150, 40, 48))
    rows = (rows / np.linalg.norm(rows, axis=2, keepdims=True)).reshape(6000, 48)
    labels = np.repeat([f"class {i}" for i in range(150)], 40)
    questions = rows[rng.permutation(6000)[:300]] + 0.05

    def learner():
        parameters = small(n_components=600, gamma=0.3, rule="lda", ridge=0.01)
        return Learner("features", classifier=parameters, keep="features")

    learned = learner()
    for part in np.array_split(rng.permutation(6000), 10):
        learned.learn(rows[part], labels[part])
    gone = rng.permutation(np.unique(labels))[:30].tolist()
    for label in gone:
        learned.forget(label)
        learned.predict(questions[:1])  # the model is solved in between, as in use
    left = ~np.isin(labels, gone)
    assert_same_scores(learned, learner().learn(rows[left], labels[left]), questions)


def test_nothing_of_a_forgotten_sample_is_left_in_the_folder(tmp_path):
    """Neither in a ledger nor among the few samples that a model keeps."""
    secret = rows_of("secret")

    def content(learner):
        learner.predict_proba(PROBE)
        learner.save(tmp_path / "m", overwrite=True)
        files = b"".join(path.read_bytes() for path in (tmp_path / "m").glob("*.safetensors"))
        return {secret[4].tobytes() in files, halved[4].tobytes() in files}

    ledger = taught("abc", keep="features")
    ledger.learn(secret, ["secret"] * 12, ids=[f"id {i}" for i in range(12)])
    halved = ledger.ledger.chunks[0][-12:]
    few = taught("abc", n_components=400).learn(secret, ["secret"] * 12)
    for learner in (ledger, few):
        assert content(learner) == {True, False}
        learner.forget("secret", undo=False)
        assert content(learner) == {False}
    assert "id 4" not in ledger.ledger.numbers_by_id


# ---------------------------------------------------------------- only what was learned

STRANGERS = {
    "a whole class": (rows_of("a", 30, seed=7), ["a"] * 30),
    "part of a class": (rows_of("a", 20, seed=7), ["a"] * 20),
    "rows of another class": (rows_of("b", 30)[:10], ["a"] * 10),
    "noise": (10 * rows_of("z", 5), ["a", "b", "c", "d", "a"]),
    "one row": (10 * rows_of("z", 1), ["a"]),
}


@pytest.mark.parametrize("which", STRANGERS)
def test_rows_that_were_never_learned_are_refused(learner, which):
    if learner.parameters.n_components is None and which == "part of a class":
        pytest.skip("eight features hold nothing that tells a few rows of a class from others")
    rows, labels = STRANGERS[which]
    scores, history = learner.scores(PROBE), learner.history
    with pytest.raises(KldaError, match=NOT_LEARNED):
        learner.forget(labels, rows)
    assert learner.classes == dict.fromkeys("abcd", 30)
    assert learner.history == history
    np.testing.assert_array_equal(learner.scores(PROBE), scores)


def test_rows_that_were_learned_are_forgotten_whatever_their_number_and_order(learner):
    rows, labels = samples("abcd", 30)
    order = np.random.default_rng(1).permutation(120)
    for part in np.split(order, [1, 60, 119]):
        learner.forget(np.array(labels)[part], rows[part])
    assert learner.classes == {}


def test_rows_encoded_a_little_differently_are_the_same_rows(learner):
    noise = 1 + 1e-5 * np.random.default_rng(2).normal(size=(30, 1))
    learner.forget("a", (rows_of("a", 30) * noise).astype(np.float32))
    assert list(learner.classes) == ["b", "c", "d"]


@pytest.mark.parametrize("seed", [12, 17, 22])
def test_a_model_that_has_forgotten_what_it_never_learned_still_answers(seed):
    """The statistics, which can miss that, are then those of no samples: solved with more ridge."""
    rng, letters = np.random.default_rng(seed), list("abcdefghijklmnopqrstuvwxyz ")
    labels = rng.choice(["ant", "bee", "cat fish", "dog", "elk", "fox"], 26).tolist()
    texts = [f"{label} {''.join(rng.choice(letters, 12))}" for label in labels]
    learner = Learner("ngrams", classifier=small()).learn(texts, labels)
    learner.predict(texts)
    learner.forget("ant", ["never learned this one"])
    with pytest.warns(RidgeRaisedWarning):
        assert np.isfinite(learner.predict_proba(texts)).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.filterwarnings("ignore::klda.learner.ForgetTraceWarning")
def test_what_little_is_left_of_rows_encoded_a_little_differently_can_be_solved(dtype):
    learner = taught("a", 1, dtype=dtype).learn(rows_of("b", 20), ["b"] * 20)
    learner.forget("a").forget(["b"] * 20, rows_of("b", 20) * 1.003)
    learner.learn(rows_of("c", 1), ["c"])
    with pytest.warns(RidgeRaisedWarning, match="not positive definite"):
        assert learner.predict(rows_of("c", 2)).tolist() == ["c", "c"]


@pytest.mark.parametrize("keep", [None, "features"])
def test_a_sample_learned_twice_can_be_forgotten_twice_and_no_more(keep):
    learner = taught("a", n=4, keep=keep).learn(np.repeat(PROBE[:1], 3, axis=0), ["a"] * 3)
    learner.forget("a", np.repeat(PROBE[:1], 2, axis=0))
    with pytest.raises(KldaError, match="'a'"):
        learner.forget("a", np.repeat(PROBE[:1], 2, axis=0))
    assert learner.classes == {"a": 5}


def test_a_large_class_is_found_in_the_ledger_in_little_memory():
    """A matrix of all pairs took 8 bytes each: 20 GB for a class of 50,000."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(6000, 6)).astype(np.float32)
    rows[:500] = rows[0]  # the same sample learned many times
    learner = Learner("features", classifier=small(n_components=None), keep="features")
    learner.learn(rows, ["a"] * 5999 + ["b"])
    again = rows[:5999] * (1 + 1e-4 * rng.normal(size=(5999, 1))).astype(np.float32)
    again[:250] = rows[:250]
    tracemalloc.start()
    learner.forget("a", again[rng.permutation(5999)])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1e8  # all pairs: 2.9e8, several times over
    assert learner.classes == learner.ledger.counts == {"b": 1}


def test_the_command_and_the_service_say_it_in_the_same_words(tmp_path):
    pytest.importorskip("fastapi", reason='needs the extra: pip install "klda[server]"')
    from tests.factories import Cli
    from tests.server.conftest import serving

    taught(n=30).save(tmp_path / "m")
    before = sorted(path.name for path in (tmp_path / "m").rglob("*"))
    rows, labels = STRANGERS["part of a class"]
    np.savez(tmp_path / "rows.npz", features=rows, labels=np.array(labels))
    words = ("forget", "a", "--model", tmp_path / "m", "--rows", tmp_path / "rows.npz", "--partly")
    assert NOT_LEARNED in " ".join(Cli()(*words, code=1).output.split())
    assert sorted(path.name for path in (tmp_path / "m").rglob("*")) == before
    with serving(tmp_path / "m") as client:
        answer = client.post("/v1/forget", json={"features": rows.tolist(), "labels": labels})
        assert answer.status_code == 409, answer.text
        assert NOT_LEARNED in answer.text
        body = {"features": rows_of("a", 30).tolist(), "labels": ["a"] * 30}
        assert client.post("/v1/forget", json=body).status_code == 200
