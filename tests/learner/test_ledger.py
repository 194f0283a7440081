"""The ledger: ids, half precision, storage, and rebuilding from it."""

from __future__ import annotations

import numpy as np
import pytest

from klda import LDA, KldaError, Learner
from klda.engine.rows import CHUNK_ROWS, Rows, halve
from klda.inspection.explanation import nearest_samples
from klda.storage import folder as storage
from tests.factories import (
    PROBE,
    assert_same_scores,
    rows_of,
    samples,
    small,
    taught,
)


def keeper(labels="", **changes):
    return taught(labels, keep="features", **changes)


def ids_of(learner):
    return learner.ledger.ids_at(np.arange(len(learner.ledger)))


@pytest.mark.parametrize("scale", [1e-30, 1e-6, 0.0, 1.0, 1e30])
def test_half_precision_keeps_three_digits_at_any_scale(scale):
    rows = (rows_of("a", 50) * scale).astype(np.float32)
    back = Rows.halved().add(rows, ["a"] * 50).values
    largest = np.abs(rows).max(axis=1, keepdims=True)
    assert (np.abs(back - rows) <= 2.0**-11 * largest).all()


def test_what_is_learned_is_what_the_ledger_holds():
    learner = keeper("abcd", n_components=400)
    held = learner.ledger
    plain = Learner("features", classifier=learner.parameters)
    assert_same_scores(learner, plain.learn(held.values, held.labels.tolist()), rtol=1e-5)


def test_samples_are_forgotten_by_the_ids_they_were_given_or_by_their_numbers():
    learner = keeper("a").learn(rows_of("b", 3), ["b"] * 3, ids=["x", "ü,1", 'q"2'])
    learner.forget(ids="ü,1").forget(ids=np.int64(3)).forget(ids=np.array([4, 5]))
    assert ids_of(learner) == [0, 1, 2, 6, 7, 8, 9, 10, 11, "x", 'q"2']
    assert learner.classes == learner.ledger.counts == {"a": 9, "b": 2}
    left = rows_of("a")[[0, 1, 2, 6, 7, 8, 9, 10, 11]]
    never = keeper().learn(left, ["a"] * 9).learn(rows_of("b", 3)[[0, 2]], ["b"] * 2)
    assert_same_scores(learner, never)
    learner.learn(rows_of("c", 1), ["c"])
    assert ids_of(learner)[-1] == 15  # no number is given twice


WRONG = {
    "ids without a ledger": lambda _: taught("a").forget(ids=[0]),
    "ids to keep without a ledger": lambda _: taught("a").learn(PROBE[:1], ["a"], ids=["x"]),
    "an id that is not there": lambda bot: bot.forget(ids=["nobody"]),
    "a number that is not there": lambda bot: bot.forget(ids=[0, 999]),
    "a number below all": lambda bot: bot.forget(ids=[-1]),
    "a number far below all": lambda bot: bot.forget(ids=[-(2**70)]),
    "a number far above all": lambda bot: bot.forget(ids=[2**70]),
    "an id twice": lambda bot: bot.forget(ids=[1, 1]),
    "no ids": lambda bot: bot.forget(ids=[]),
    "ids and labels": lambda bot: bot.forget("a", ids=[0]),
    "nothing": lambda bot: bot.forget(),
    "a row twice": lambda bot: bot.forget("a", rows_of("a")[[0, 0]]),
    "a taken id": lambda bot: bot.learn(PROBE[:1], ["c"], ids=["taken"]),
    "too few ids": lambda bot: bot.learn(PROBE[:2], ["c"] * 2, ids=["x"]),
    "ids that are no texts": lambda bot: bot.learn(PROBE[:1], ["c"], ids=[7]),
    "an unknown parameter": lambda bot: bot.rebuild(bandwidth=3),
    "a wrong parameter": lambda bot: bot.rebuild(n_components=-1),
    "merging one without a ledger": lambda bot: bot.merge(taught("c", n=30)),
    "merging one with a taken id": lambda bot: bot.merge(
        keeper("c").learn(PROBE[:1], ["c"], ids=["taken"])
    ),
    "rebuilding without a ledger": lambda _: taught("a").rebuild(),
    "keeping something else": lambda _: Learner("features", keep="texts"),
}


def test_forgetting_from_a_ledger_updates_the_factor(monkeypatch):
    learner = keeper("abcdefgh", n_components=400)
    for seed in range(10):  # beyond what the exact kernel is used for
        learner.learn(*samples("abcdefgh", 12, seed=seed + 1))
    learner.predict(PROBE)
    monkeypatch.setattr(type(learner.engine.model.backend), "factorise", None)
    learner.forget(ids=[3]).predict(PROBE)


@pytest.mark.parametrize("call", WRONG.values(), ids=WRONG.keys())
def test_wrong_calls_name_the_parameter_and_change_nothing(call):
    learner = keeper("ab").learn(PROBE[:1], ["b"], ids=["taken"])
    scores, ids, history = learner.scores(PROBE), ids_of(learner), learner.history
    with pytest.raises(KldaError, match=r"ids|labels|rows|bandwidth|n_components|ledger|keep"):
        call(learner)
    np.testing.assert_array_equal(learner.scores(PROBE), scores)
    assert (ids_of(learner), learner.history) == (ids, history)


def test_merging_and_undoing_keep_the_ids_that_were_given():
    learner = keeper("a").learn(rows_of("x", 1), ["x"], ids=["mine"])
    learner.merge(keeper("b").learn(rows_of("y", 1), ["y"], ids=["other"]))
    assert ids_of(learner)[-1] == "other"
    assert len(set(ids_of(learner))) == len(learner.ledger) == 26
    learner.forget("x").undo()
    assert learner.ledger.counts == learner.classes == {"a": 12, "b": 12, "x": 1, "y": 1}
    assert learner.forget(ids="mine").classes == {"a": 12, "b": 12, "y": 1}


def test_batches_may_bring_ids():
    learner = keeper().learn([(rows_of("a", 2), ["a"] * 2, ["1", "2"]), (rows_of("b", 1), ["b"])])
    assert ids_of(learner) == ["1", "2", 2]


def test_nearest_samples_are_those_with_the_largest_cosine():
    ledger = keeper("abc").ledger
    lengths = np.linalg.norm(ledger.values, axis=1) * np.linalg.norm(PROBE[0])
    cosines = ledger.values @ PROBE[0] / lengths
    found = nearest_samples(ledger, PROBE[0], 4)
    assert [one.id for one in found] == np.argsort(-cosines)[:4].tolist()
    likest = np.sort(cosines)[::-1][:4]
    np.testing.assert_allclose([one.similarity for one in found], likest, rtol=1e-5)
    assert nearest_samples(Rows.halved(), PROBE[0], 4) == []


# ---------------------------------------------------------------- rebuilding


def test_rebuilding_gives_the_model_that_had_those_parameters_from_the_start():
    learner = keeper("abcd").forget("b").rebuild(n_components=200, gamma=0.02, ridge=0.1)
    assert_same_scores(learner, keeper("acd", n_components=200, gamma=0.02, ridge=0.1))
    learner.rebuild(LDA(ridge=1e-2))
    assert_same_scores(learner, keeper("acd", n_components=None, rule="lda", ridge=1e-2))
    assert [entry["action"] for entry in learner.history][-2:] == ["rebuild", "rebuild"]


def test_rebuilding_keeps_a_bandwidth_that_was_found_unless_asked_to_find_it_again():
    learner = keeper("a", gamma="auto").learn(3 * rows_of("b"), ["b"] * 12)
    found = learner.engine.model.map.gamma
    assert learner.rebuild(ridge=0.1).engine.model.map.gamma == found
    assert learner.rebuild(gamma="auto").engine.model.map.gamma != found
    assert learner.rebuild(small(gamma=0.5)).engine.model.map.gamma == 0.5


def test_rebuilding_gathers_the_evidence_again():
    learner = keeper("abcdef", n=60)
    learner.predict_proba(PROBE)
    for label in "bdf":
        learner.forget(label)
    never = keeper("ace", n=60)
    learner.rebuild()
    chances = learner.predict_proba(PROBE), never.predict_proba(PROBE)
    np.testing.assert_allclose(*chances, rtol=0, atol=1e-4)
    np.testing.assert_array_equal(learner.is_known(PROBE), never.is_known(PROBE))


# ---------------------------------------------------------------- storage


def test_ids_survive_a_save_and_a_compact_save_has_no_ledger(tmp_path):
    learner = keeper("a").learn(rows_of("b", 2), ["b"] * 2, ids=["ü,1", 'q"2'])
    learner.save(tmp_path / "m")
    loaded = Learner.load(tmp_path / "m")
    assert ids_of(loaded) == ids_of(learner)
    assert loaded.forget(ids=["ü,1"]).classes == {"a": 12, "b": 1}
    learner.save(tmp_path / "small", compact=True)
    assert Learner.load(tmp_path / "small").ledger is None
    halved = halve(rows_of("a"))[0].tobytes()[: 2 * PROBE.shape[1]]
    for name, is_there in (("m", True), ("small", False)):
        files = (tmp_path / name).glob("*.safetensors")
        assert any(halved in path.read_bytes() for path in files) is is_there


def test_a_save_writes_only_what_is_new_of_the_ledger(tmp_path):
    rng = np.random.default_rng(0)
    n = CHUNK_ROWS + 500
    learner = keeper().learn(rng.normal(size=(n, 8)), rng.integers(0, 3, n).astype(str))
    learner.save(tmp_path / "m")
    (full,) = (tmp_path / "m").glob("learn_rows_features_000000-*")
    before = full.stat().st_ino
    learner.learn(*samples("x")).save(tmp_path / "m")
    assert full.stat().st_ino == before
    assert len(Learner.load(tmp_path / "m", verify=True).ledger) == n + 12


def test_without_being_asked_a_learner_keeps_no_ledger(tmp_path):
    learner = taught("abc")
    assert learner.ledger is None
    learner.expire_undo()
    learner.save(tmp_path / "m")
    loaded = storage.load(tmp_path / "m")
    assert loaded.document["keep"] is None
    assert not any("/rows/" in name for name in loaded.arrays)
