"""scikit-learn's manners: the Learner as an estimator, copies, and what print shows."""

from __future__ import annotations

import copy
import io
import pickle

import joblib
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import klda
from klda import KLDA, KldaError, Learner, TextClassifier

WORDS = {
    "card": "where is my card",
    "weather": "will it rain on",
    "refund": "give me back my money",
}
TEXTS = [f"{words} {i}" for i in range(6) for words in WORDS.values()]
LABELS = [label for _ in range(6) for label in WORDS]


def test_it_fits_predicts_and_scores_texts():
    model = TextClassifier("ngrams").fit(TEXTS, LABELS)
    assert model.classes_.tolist() == sorted(WORDS)
    assert model.score(TEXTS, LABELS) == 1
    probabilities = model.predict_proba(TEXTS)
    np.testing.assert_allclose(np.exp(model.predict_log_proba(TEXTS)), probabilities)
    assert model.classes_[probabilities.argmax(axis=1)].tolist() == LABELS


def test_fitting_in_parts_is_fitting_at_once_and_fitting_again_starts_over():
    whole = TextClassifier("ngrams").fit(TEXTS, LABELS)
    parts = (
        TextClassifier("ngrams")
        .partial_fit(TEXTS[:9], LABELS[:9])
        .partial_fit(TEXTS[9:], LABELS[9:], classes=sorted(WORDS))
    )
    np.testing.assert_allclose(parts.predict_proba(TEXTS), whole.predict_proba(TEXTS), atol=1e-6)
    assert parts.fit(TEXTS[:2], LABELS[:2]).learner_.samples == 2


def test_cross_validation_grid_search_and_pipelines():
    assert cross_val_score(TextClassifier("ngrams"), TEXTS, LABELS, cv=3).mean() > 0.9
    grid = {"classifier__ridge": [0.01, 0.1], "names": [True, False]}
    search = GridSearchCV(TextClassifier("ngrams", classifier=KLDA(n_components=200)), grid, cv=2)
    search.fit(TEXTS, LABELS)
    assert search.best_estimator_.predict(["my card"]).tolist() == ["card"]
    lower = FunctionTransformer(lambda texts: [text.lower() for text in texts])
    pipeline = make_pipeline(lower, TextClassifier("ngrams")).fit(TEXTS, LABELS)
    assert pipeline.predict(["MY CARD"]).tolist() == ["card"]


def test_parameters_are_set_and_cloned():
    model = TextClassifier("ngrams", names=False).set_params(batch_size=8)
    twin = clone(model)
    assert twin.get_params() == model.get_params()
    assert twin.get_params()["names"] is False
    with pytest.raises(NotFittedError):
        twin.predict(["a"])


@pytest.mark.parametrize("kind", ["learner", "estimator"])
def test_copies_answer_alike(kind):
    if kind == "learner":
        model = Learner("ngrams").learn(TEXTS, LABELS)
    else:
        model = TextClassifier("ngrams").fit(TEXTS, LABELS)
    file = io.BytesIO()
    joblib.dump(model, file)
    file.seek(0)
    wanted = model.predict_proba(TEXTS)
    for twin in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model), joblib.load(file)):
        np.testing.assert_array_equal(twin.predict_proba(TEXTS), wanted)


# ---------------------------------------------------------------- Python's manners


def test_labels_may_come_from_a_generator():
    learner = Learner("ngrams").learn(TEXTS, (label for label in LABELS))
    assert learner.classes == dict.fromkeys(sorted(WORDS), 6)
    assert learner.evaluate(TEXTS, iter(LABELS)).accuracy == 1


def test_a_table_without_labels_is_answered_and_not_learned():
    pandas = pytest.importorskip("pandas", reason="needs pandas")
    table = pandas.DataFrame({"id": range(18), "text": TEXTS})
    learner = Learner("ngrams").learn(TEXTS, LABELS)
    assert learner.predict(table).tolist() == LABELS
    with pytest.raises(KldaError, match="label"):
        learner.learn(table)


def test_print_reads_like_a_table():
    learner = Learner("ngrams").learn(TEXTS, LABELS)
    assert repr(learner) == "<Learner ngrams: 3 classes, 18 samples>"
    assert str(learner).splitlines()[1:3] == ["class    samples", "card           6"]
    assert "<td>weather</td><td>6</td>" in learner._repr_html_()
    wrong = learner.evaluate([*TEXTS, "my card"], [*LABELS, "<b>"])
    lines = str(wrong).splitlines()
    assert lines[0].startswith("Evaluation: accuracy 94.74% of 19 samples")
    assert lines[2].split() == ["class", "samples", "recall", "precision", "F1"]
    assert lines[3].split() == ["<b>", "1", "0.0%", "-", "0.0%"]  # it was never answered
    assert lines[-1].split() == ["<b>", "card", "1"]
    assert "&lt;b&gt;" in wrong._repr_html_()


def test_klda_shows_its_public_names_only():
    assert dir(klda) == sorted(klda.__all__)
    assert all(getattr(klda, name) is not None for name in dir(klda))
