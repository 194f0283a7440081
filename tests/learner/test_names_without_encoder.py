"""Changes where the foundation model is not at hand: no class that is known by its name is lost."""

from __future__ import annotations

import contextlib
import warnings

import numpy as np
import pytest

from klda.classifiers import NCM
from klda.errors import KldaError
from klda.learner import Learner

TEXTS, LABELS = ["it barked at me", "a good dog"], ["dogs", "dogs"]


@contextlib.contextmanager
def no_encoder(*learners):
    """Let encoding fail, as where the foundation model is not installed."""

    def fails(texts, **options):
        raise RuntimeError("the foundation model is not here")

    with pytest.MonkeyPatch.context() as patch:
        for learner in learners:
            patch.setattr(learner.encoder, "encode", fails)
        yield


@contextlib.contextmanager
def no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def hint_of(learner, label):
    return learner.classifier.model_.hints.by_label()[label]


def is_name(learner, label, text):
    """Whether the hint of a class is this text."""
    return np.array_equal(hint_of(learner, label), learner.encode([text])[0])


@pytest.mark.parametrize("keep", [None, "features"])
def test_a_described_class_is_renamed_without_encoding(keep, tmp_path):
    learner = Learner("ngrams", keep=keep).declare({"cats": None, "dogs": "they bark"})
    with no_encoder(learner), no_warning():
        learner.rename("dogs", "hounds")
    learner.save(tmp_path / "m")
    loaded = Learner.load(tmp_path / "m")
    assert loaded.classes == {"cats": 0, "hounds": 0}
    assert loaded.declared == {"cats": None, "hounds": "they bark"}


def test_a_class_known_by_its_name_alone_survives_a_rename(tmp_path):
    learner = Learner("ngrams").declare(["cats", "dogs"])
    with no_encoder(learner), pytest.warns(UserWarning, match="could not be encoded"):
        learner.rename("dogs", "hounds")
    assert learner.classes == {"cats": 0, "hounds": 0}
    assert is_name(learner, "hounds", "dogs")  # better than none
    learner.save(tmp_path / "m")
    loaded = Learner.load(tmp_path / "m")
    for one in (learner, loaded):
        one.declare("eels")
        assert one.classes == {"cats": 0, "eels": 0, "hounds": 0}
        assert is_name(one, "hounds", "hounds")


def test_a_class_without_samples_is_not_renamed_to_a_name_without_a_word():
    learner = Learner("ngrams").declare(["cats", "dogs"])
    before = learner.predict_proba(TEXTS)
    with pytest.raises(KldaError, match=r"new='!!!' has no word .* declare\(\{'dogs': "):
        learner.rename("dogs", "!!!")
    assert learner.classes == {"cats": 0, "dogs": 0}
    assert len(learner.history) == 1
    assert np.array_equal(learner.predict_proba(TEXTS), before)
    assert learner.declare({"dogs": "they bark"}).rename("dogs", "!!!").classes["!!!"] == 0
    assert learner.learn(TEXTS, ["cats"] * 2).rename("cats", "???").classes["???"] == 2


def test_merged_models_keep_their_declared_classes():
    learner, other = Learner("ngrams").declare("cats"), Learner("ngrams").declare("dogs")
    with no_encoder(learner), no_warning():
        learner.merge(other)
    assert learner.classes == {"cats": 0, "dogs": 0}


def test_a_merge_that_brings_a_new_description_is_complete():
    learner = Learner("ngrams").learn(TEXTS, LABELS)
    other = Learner("ngrams").declare({"dogs": "they bark", "cats": None})
    with no_encoder(learner), pytest.warns(UserWarning, match="could not be encoded"):
        learner.merge(other)
    assert learner.classes == {"cats": 0, "dogs": 2}
    assert learner.declared == {"dogs": "they bark", "cats": None}
    assert [entry["action"] for entry in learner.history] == ["learn", "merge"]
    assert is_name(learner, "dogs", "dogs")
    learner.learn(["meow"], ["cats"])
    assert is_name(learner, "dogs", "they bark")


@pytest.mark.parametrize("keep", [None, "features"])
def test_a_declared_class_comes_back(keep):
    learner = Learner("ngrams", keep=keep).declare({"cats": None, "dogs": "they bark"})
    with no_encoder(learner), no_warning():
        learner.attach(learner.detach("dogs"))
    assert learner.classes == {"cats": 0, "dogs": 0}


@pytest.mark.filterwarnings("ignore:.*keeps a trace")
def test_a_class_that_was_forgotten_is_learned_again():
    learner = Learner("ngrams").declare(["cats", "dogs"])
    row = learner.encode(["woof"])
    learner.forget("dogs")
    with no_encoder(learner), pytest.warns(UserWarning, match="could not be encoded"):
        learner.learn_rows(row, ["dogs"])
    assert learner.classes == {"cats": 0, "dogs": 1}


def test_a_rebuilt_model_keeps_its_declared_classes():
    learner = Learner("ngrams", keep="features").declare({"cats": None, "dogs": "they bark"})
    learner.learn(TEXTS, LABELS)
    before = learner.predict_proba(TEXTS)
    with no_encoder(learner), no_warning():
        learner.rebuild()
    assert learner.classes == {"cats": 0, "dogs": 2}
    assert learner.declared == {"cats": None, "dogs": "they bark"}
    assert learner.predict_proba(TEXTS) == pytest.approx(before, abs=1e-3)


@pytest.mark.parametrize("change", [{"rule": "lda"}, {"classifier": NCM()}])
def test_a_rebuild_that_would_lose_declared_classes_is_refused(change):
    learner = Learner("ngrams", keep="features").declare(["cats", "dogs"]).learn(TEXTS, LABELS)
    with pytest.raises(KldaError, match=r"'cats' .*forget.*rule='auto'"):
        learner.rebuild(**change)
    assert learner.classes == {"cats": 0, "dogs": 2}
    learner.forget("cats").rebuild(**change)
    assert learner.classes == {"dogs": 2}
