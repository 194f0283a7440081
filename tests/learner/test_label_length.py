"""Labels are names: what is too long for one is refused wherever labels come in."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from klda import KLDA, LDA, NCM, KLDAEnsemble, KldaError, Learner
from klda.labels import MAX_LABEL_LENGTH

LONG, LONGEST = "x" * (MAX_LABEL_LENGTH + 1), "x" * MAX_LABEL_LENGTH
X = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
SAID = rf"{MAX_LABEL_LENGTH + 1} characters.*at most {MAX_LABEL_LENGTH}"


def learners():
    return [Learner("features"), Learner("features", keep="features")]


@pytest.mark.parametrize("labels", [list, np.array, lambda y: np.array(y, object)])
def test_a_label_that_is_too_long_is_not_learned(labels):
    for learner in learners():
        learner.learn(X, ["a", "b"] * 2)
        for change in (
            lambda y, bot=learner: bot.learn(X, y),
            lambda y, bot=learner: bot.learn(iter([(X, y)])),
            lambda y, bot=learner: bot.rename("a", y[0]),
        ):
            with pytest.raises(KldaError, match=SAID):
                change(labels([LONG, "b", "a", "b"]))
        assert learner.classes == {"a": 2, "b": 2}
        assert learner.learn(X, labels([LONGEST, "b"] * 2)).classes[LONGEST] == 2


@pytest.mark.parametrize("kind", [KLDA, KLDAEnsemble, LDA, NCM])
@pytest.mark.parametrize("labels", [list, np.array, lambda y: np.array(y, object)])
def test_estimators_refuse_it_too(kind, labels):
    for verb in ("fit", "partial_fit"):
        with pytest.raises(KldaError, match=SAID):
            getattr(kind(), verb)(X, labels(["a", LONG] * 2))
    model = kind().fit(X, ["a", "b"] * 2)
    with pytest.raises(KldaError, match=SAID):
        model.partial_fit(X, labels(["a", LONG] * 2))
    with pytest.raises(KldaError, match=SAID):
        model.rename("a", LONG)
    assert model.classes_.tolist() == ["a", "b"]


def test_a_label_of_a_million_characters_is_refused_before_an_array_is_made_of_it():
    with pytest.raises(KldaError, match=r"1,000,000 characters"):
        LDA().fit(np.ones((50_000, 1), np.float32), ["x" * 1_000_000] + ["a"] * 49_999)


def test_a_file_with_it_is_refused_with_the_line(tmp_path):
    from tests.cli.conftest import Cli

    path = tmp_path / "rows.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["text", "label"], ["hello", "a"], ["good bye", LONG]])
    said = " ".join(Cli()("learn", path, "--model", tmp_path / "m", code=1).output.split())
    assert "line 3" in said
    assert f"at most {MAX_LABEL_LENGTH}" in said


def test_the_service_has_the_same_limit(tmp_path):
    pytest.importorskip("fastapi", reason='needs the extra: pip install "klda[server]"')
    from tests.server.conftest import serving

    Learner("features").learn(X, ["a", "b"] * 2).save(tmp_path / "m")
    with serving(tmp_path / "m") as client:
        for label, status in ((LONGEST, 200), (LONG, 422)):
            body = {"features": X[:1].tolist(), "labels": [label]}
            assert client.post("/v1/learn", json=body).status_code == status
