"""An encoder in pipelines of scikit-learn."""

from __future__ import annotations

import pickle
from dataclasses import dataclass

import numpy as np
import pandas
import pytest
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from tests.factories import examples

from klda import KLDA, Vectorizer, encoders
from klda.errors import KldaError

SAMPLES = [one for one in examples("learn") if one.task == examples()[0].task]
TEXTS = [one.text for one in SAMPLES]
LABELS = [one.intent for one in SAMPLES]


def lengths(texts):
    return [[len(text), 1] for text in texts]


@pytest.fixture(scope="module")
def rows():
    return encoders.load("ngrams").encode(TEXTS)


def test_it_gives_the_features_of_the_encoder(rows):
    vectorizer = Vectorizer("ngrams")
    np.testing.assert_array_equal(vectorizer.transform(TEXTS), rows)
    np.testing.assert_array_equal(vectorizer.fit_transform(pandas.Series(TEXTS)), rows)
    assert vectorizer.get_feature_names_out()[:2].tolist() == ["vectorizer0", "vectorizer1"]
    framed = clone(vectorizer).set_output(transform="pandas").fit_transform(TEXTS)
    assert framed.shape == rows.shape
    again = pickle.loads(pickle.dumps(vectorizer))
    np.testing.assert_array_equal(again.transform(TEXTS), rows)


def test_clones_share_the_foundation_model_and_a_changed_parameter_changes_it(tiny_models):
    vectorizer = Vectorizer(str(tiny_models("bert-base")), layers=[1, 2], device="cpu")
    assert clone(vectorizer).encoder is vectorizer.encoder
    assert vectorizer.set_params(layers="last").transform(["hello"]).shape == (1, 32)
    assert Vectorizer(lengths).transform(["abc"]).tolist() == [[3, 1]]
    with pytest.raises(KldaError, match="layers="):
        vectorizer.set_params(layers=9).fit(TEXTS)


@dataclass  # which compares by value, so that it has no hash
class Lengths:
    unit: int = 1

    def encode(self, texts):
        return [[len(text), self.unit] for text in texts]


def test_an_own_encoder_need_not_be_hashable():
    assert Vectorizer(Lengths(2)).fit_transform(["abc"]).tolist() == [[3, 2]]


def test_texts_are_searched_and_cross_validated(tiny_models):
    pipeline = make_pipeline(Vectorizer("ngrams"), KLDA(n_components=200))
    assert cross_val_score(pipeline, TEXTS, LABELS, cv=2).mean() > 0.5
    grid = {"vectorizer__model": ["ngrams", lengths], "klda__ridge": [0.01, 0.1]}
    search = GridSearchCV(pipeline, grid, cv=2).fit(TEXTS, LABELS)
    assert search.best_params_["vectorizer__model"] == "ngrams"
    assert search.predict(TEXTS[:1]).tolist() == LABELS[:1]


def test_a_column_of_a_table_is_encoded_beside_others(rows):
    table = pandas.DataFrame({"text": TEXTS, "amount": range(len(TEXTS))})
    columns = make_column_transformer((Vectorizer("ngrams"), "text"), ("passthrough", ["amount"]))
    joined = columns.fit_transform(table)
    np.testing.assert_allclose(joined[:, :-1], rows)
    model = make_pipeline(columns, KLDA(n_components=200)).fit(table, LABELS)
    assert (model.predict(table) == LABELS).mean() > 0.9
