"""Classes that were declared, forgotten and brought back."""

from __future__ import annotations

import pytest

from klda.learner import Learner

CLASSES = {"cats": None, "dogs": "they bark"}


@pytest.fixture(params=[None, "features"])
def learner(request):
    return Learner("ngrams", keep=request.param).declare(CLASSES)


@pytest.mark.parametrize("taught", [False, True])
@pytest.mark.filterwarnings("ignore:.*keeps a trace")
def test_a_forgotten_class_is_declared_no_more(learner, taught):
    if taught:
        learner.learn(["it barked at me"], ["dogs"])
    learner.forget("dogs")
    assert learner.classes == {"cats": 0}
    assert learner.declared == {"cats": None}
    learner.forget("cats")
    assert learner.classes == learner.declared == {}


@pytest.mark.parametrize("taught", [False, True])
def test_a_class_comes_back_as_it_was_declared(learner, taught):
    if taught:
        learner.learn(["it barked at me"], ["dogs"])
    classes, before = learner.classes, learner.predict_proba(["who barks?", "it meows"])
    detached = learner.detach("dogs")
    assert learner.classes == learner.declared | {"cats": 0} == {"cats": 0}
    learner.attach(detached)
    assert (learner.classes, learner.declared) == (classes, CLASSES)
    assert learner.predict_proba(["who barks?", "it meows"]) == pytest.approx(before, abs=1e-3)


def test_samples_that_are_forgotten_leave_the_class_declared(learner):
    learner.learn(["it barked at me"], ["dogs"])
    learner.forget("dogs", ["it barked at me"])
    assert learner.classes == {"cats": 0, "dogs": 0}
    assert learner.declared == CLASSES


def test_a_lesson_counts_even_if_the_names_of_its_classes_cannot_be_encoded(monkeypatch):
    learner = Learner("ngrams").learn(["where is my card", "pay back"], ["card", "loan"])
    encode = learner.encoder.encode

    def fails_for_names(texts, **options):
        if list(texts) == ["fraud"]:
            raise RuntimeError("the engine gave up")
        return encode(texts, **options)

    monkeypatch.setattr(learner.encoder, "encode", fails_for_names)
    with pytest.warns(UserWarning, match="names could not be encoded .*: the engine gave up"):
        learner.learn(["somebody stole it"], ["fraud"])
    assert learner.classes["fraud"] == 1
    assert learner.history[-1]["new_classes"] == ["fraud"]
