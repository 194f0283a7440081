from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest

from klda import KLDA, LDA
from klda.errors import KldaError
from klda.learner import Learner
from klda.server.changes import Key
from klda.server.service import Service
from klda.server.settings import ServiceSettings

from .conftest import CENTRES, Running, fails, journaled, samples, wait_for


def test_a_snapshot_never_changes(features_model):
    with Running(features_model) as running:
        x = np.concatenate([samples(label, 5, seed=1) for label in CENTRES])
        snapshot = running.service.snapshot
        before = snapshot.answer(x, 3)
        for i in range(5):
            running.learn(samples(f"new{i}", 4), [f"new{i}"] * 4)
            running.learn(samples("ants", 4, seed=i + 5), ["ants"] * 4)
        running.forget(["bees"])
        assert snapshot.answer(x, 3) == before
        assert set(snapshot.counts) == set(CENTRES)


def test_served_learning_equals_learning_with_the_learner_alone(features_model):
    reference = Learner.load(features_model)
    with Running(features_model) as running:
        for i in range(4):
            x, y = samples(f"class{i}", 5), [f"class{i}"] * 5
            running.learn(x, y)
            reference.learn(x, y)
        x = samples("bees", 10, seed=3)
        got = [dict(answer.top)["bees"] for answer in running.ask(x)]
    expected = [dict(top)["bees"] for top in reference.predict_top(x, 7)]
    np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-5)
    np.testing.assert_array_equal(Learner.load(features_model).predict(x), reference.predict(x))


@pytest.mark.parametrize("saves", [False, True])
def test_all_changes_survive_a_kill(features_model, saves):
    running = Running(features_model, checkpoint_interval=0.0 if saves else 1e9)
    running.learn(samples("dogs", 6), ["dogs"] * 6, Key("key-1", "content"))
    running.rename("ants", "emmets")
    gone = running.forget(["bees"])
    running.forget(["dogs"] * 2, samples("dogs", 6)[:2])
    running.forget(["cats"])
    counts = running.counts
    if saves:
        wait_for(lambda: not running.service.writer.pending)
    running.abandon()
    with Running(features_model) as again:
        assert again.counts == counts == {"emmets": 40, "dogs": 4}
        repeated = again.learn(samples("dogs", 6), ["dogs"] * 6, Key("key-1", "content"))
        assert repeated.repeated
        assert again.counts == counts
        again.undo(gone.number)
        assert again.counts["bees"] == 40
        assert again.ask(samples("bees", 1, seed=2))[0].top[0][0] == "bees"


@pytest.mark.parametrize(
    "classifier",
    [LDA(), KLDA(n_components=60, random_state=1)],
    ids=["LDA", "KLDA"],
)
def test_forget_and_undo_leave_the_answers_as_they_were(tmp_path, classifier):
    learner = Learner("features", classifier=classifier)
    for label in CENTRES:
        learner.learn(samples(label, 30), [label] * 30)
    learner.save(tmp_path / "m")
    x = np.concatenate([samples(label, 5, seed=1) for label in CENTRES])
    with Running(tmp_path / "m") as running:
        before = running.ask(x)
        gone = running.forget(["bees", "cats"])
        assert {answer.top[0][0] for answer in running.ask(x)} == {"ants"}
        running.undo(gone.number)
        after = running.ask(x)
        assert [a.top[0][0] for a in after] == [a.top[0][0] for a in before]
        np.testing.assert_allclose(
            [a.top[0][1] for a in after], [a.top[0][1] for a in before], rtol=1e-3
        )
        with fails(404, match="undo"):
            running.undo(gone.number)


def test_classes_that_are_all_forgotten_leave_the_folder_too(features_model):
    with Running(features_model) as running:
        gone = running.forget(list(CENTRES))
    assert Learner.load(features_model).classes == {}
    with pytest.raises(KldaError, match="no classes"):
        Learner.load(features_model).predict(samples("ants", 1))
    with Running(features_model) as running:
        running.undo(gone.number)
        assert running.ask(samples("ants", 1))[0].top[0][0] == "ants"
        running.forget(list(CENTRES))
        running.learn(samples("dogs", 6), ["dogs"] * 6)
    assert Learner.load(features_model).classes == {"dogs": 6}


def test_a_key_counts_once_even_when_sent_at_once(features_model):
    with Running(features_model) as running:

        async def both():
            service, x = running.service, samples("dogs", 3)
            learns = [service.learn(x, ["dogs"] * 3, Key("same", "1")) for _ in range(8)]
            return await asyncio.gather(*learns)

        done = asyncio.run(both())
        assert sum(not d.repeated for d in done) == 1
        assert running.counts["dogs"] == 3
        with fails(409, match="Idempotency-Key"):
            running.learn(samples("dogs", 3), ["dogs"] * 3, Key("same", "2"))


def test_a_new_model_begins_with_its_first_class(tmp_path):
    service = Service(ServiceSettings(model=tmp_path / "new", new="features"))
    with fails(409, match="no classes yet"):
        asyncio.run(service.predict(samples("ants", 1), 1))
    with fails(409, match="no classes yet"):
        asyncio.run(service.tune_unknown(samples("ants", 1), samples("bees", 1)))
    assert Learner.load(tmp_path / "new").classes == {}
    for label in ("ants", "bees"):
        asyncio.run(service.learn(samples(label, 10), [label] * 10))
    assert journaled(tmp_path / "new") == [1, 2]
    service.stop()
    assert Learner.load(tmp_path / "new").classes == {"ants": 10, "bees": 10}


def test_predicts_go_on_while_a_learn_takes_long(features_model, monkeypatch):
    with Running(features_model) as running:
        real, begun, release = Learner.learn_rows, threading.Event(), threading.Event()

        def slow(self, *args, **options):
            begun.set()
            assert release.wait(20)
            return real(self, *args, **options)

        monkeypatch.setattr(Learner, "learn_rows", slow)
        learning = threading.Thread(
            target=lambda: running.learn(samples("dogs", 5), ["dogs"] * 5), daemon=True
        )
        learning.start()
        assert begun.wait(20)
        for _ in range(10):
            assert running.ask(samples("ants", 1))[0].top[0][0] == "ants"
        assert "dogs" not in running.counts
        release.set()
        learning.join(20)
        assert running.counts["dogs"] == 5


def test_a_service_whose_foundation_model_cannot_be_opened_releases_the_folder(
    features_model, monkeypatch
):
    def broken(self):
        raise KldaError("the foundation model is not here")

    with monkeypatch.context() as here:
        here.setattr("klda.learner.inputs.InputEncoder.encoder", property(broken))
        with pytest.raises(KldaError, match="is not here"):
            Service(ServiceSettings(model=features_model))
    with Running(features_model) as running:  # nobody holds the folder any more
        assert set(running.counts) == set(CENTRES)
