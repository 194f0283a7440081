"""Programs that learn texts: klda, and other packages as their documentation uses them.

A program is taught by ``learn(texts, labels)``, again and again, and asked by ``predict(texts)``.
One that can't learn more keeps all texts and is trained again. All of them use the same
all-MiniLM-L6-v2, but for those that count words, and two of klda with other models.
"""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from klda import Learner
from klda.encoders import MODELS
from klda_bench.environment import require

EXTRA = "peers"
PAIRS = 2  # SetFit: contrastive pairs of each sample, of either kind
NEIGHBOURS = 5


class Program(ABC):
    """A program at work."""

    def learn(self, texts: Sequence[str], labels: Sequence[str]) -> None:
        """Learn more samples, of old classes or new ones."""
        self._learn(list(texts), list(labels))

    def predict(self, texts: Sequence[str]) -> list[str]:
        """Label texts."""
        return [str(label) for label in self._predict(list(texts))]

    def save(self, folder: Path) -> None:
        """Write all that a later process needs, but for the foundation model's own files."""
        self._save(folder)

    @abstractmethod
    def _learn(self, texts: list[str], labels: list[str]) -> None: ...

    @abstractmethod
    def _predict(self, texts: list[str]) -> Iterable[Any]: ...

    @abstractmethod
    def _save(self, folder: Path) -> None: ...


class Klda(Program):
    """A `Learner` with its own settings."""

    def __init__(self, model: str = "minilm") -> None:
        self._learner = Learner(model)

    def _learn(self, texts: list[str], labels: list[str]) -> None:
        self._learner.learn(texts, labels)

    def _predict(self, texts: list[str]) -> Iterable[Any]:
        return self._learner.predict(texts)

    def _save(self, folder: Path) -> None:
        self._learner.save(folder / "model")


class Retrained(Program):
    """A program that keeps all texts and trains on them again; a subclass says how."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._labels: list[str] = []
        self._model: Any = None

    def _learn(self, texts: list[str], labels: list[str]) -> None:
        self._texts += texts
        self._labels += labels
        self._model = self._trained()

    def _predict(self, texts: list[str]) -> Iterable[Any]:
        return self._model.predict(texts)

    def _save(self, folder: Path) -> None:
        (folder / "model.pickle").write_bytes(pickle.dumps(self._model))
        (folder / "texts.txt").write_text("\n".join([*self._texts, *self._labels]), "utf-8")

    @abstractmethod
    def _trained(self) -> Any:
        """Return a model of all texts so far, with ``predict``."""


class WordCounts(Retrained):
    """scikit-learn: tf-idf of words and logistic regression."""

    def _trained(self) -> Any:
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline

        regression = LogisticRegression(C=10.0, max_iter=1000)
        words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
        return make_pipeline(words, regression).fit(self._texts, self._labels)


class Refit(Program):
    """scikit-learn on features of sentence-transformers, all of which are kept."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make, self._rows, self._labels = make, np.empty((0, 384), np.float32), list[str]()
        package = require("sentence_transformers", EXTRA)
        self._encoder = package.SentenceTransformer(minilm(), device="cpu")

    def _learn(self, texts: list[str], labels: list[str]) -> None:
        self._rows = np.concatenate([self._rows, self._encode(texts)])
        self._labels += labels
        self._model = self._make().fit(self._rows, self._labels)

    def _predict(self, texts: list[str]) -> Iterable[Any]:
        return self._model.predict(self._encode(texts))

    def _save(self, folder: Path) -> None:
        kept = (self._model, self._rows, self._labels)
        (folder / "model.pickle").write_bytes(pickle.dumps(kept))

    def _encode(self, texts: list[str]) -> np.ndarray:
        return np.asarray(self._encoder.encode(texts, show_progress_bar=False))


def logistic_regression() -> Program:
    """Refit logistic regression."""
    from sklearn.linear_model import LogisticRegression

    return Refit(lambda: LogisticRegression(C=10.0, max_iter=1000))


def neighbours() -> Program:
    """Look up nearest neighbours by cosine."""
    from sklearn.neighbors import KNeighborsClassifier

    return Refit(lambda: KNeighborsClassifier(NEIGHBOURS, weights="distance", metric="cosine"))


class SetFit(Retrained):
    """SetFit: contrastive fine-tuning of the foundation model, then logistic regression."""

    def _trained(self) -> Any:
        setfit, datasets = require("setfit", EXTRA), require("datasets", EXTRA)
        model = setfit.SetFitModel.from_pretrained(minilm(), device="cpu")
        rows = datasets.Dataset.from_dict({"text": self._texts, "label": self._labels})
        how = setfit.TrainingArguments(
            num_iterations=PAIRS, num_epochs=1, batch_size=16, report_to="none", save_strategy="no"
        )
        setfit.Trainer(model, how, train_dataset=rows).train()
        return model

    def _save(self, folder: Path) -> None:
        self._model.save_pretrained(folder / "model")
        (folder / "texts.txt").write_text("\n".join([*self._texts, *self._labels]), "utf-8")


class AdaptiveClassifier(Program):
    """adaptive-classifier: prototypes and a small network that is trained further."""

    def __init__(self) -> None:
        package = require("adaptive_classifier", EXTRA)
        self._model = package.AdaptiveClassifier(minilm(), device="cpu", use_onnx=False)

    def _learn(self, texts: list[str], labels: list[str]) -> None:
        self._model.add_examples(texts, labels)

    def _predict(self, texts: list[str]) -> Iterable[Any]:
        return [best[0][0] for best in self._model.predict_batch(texts, k=1)]

    def _save(self, folder: Path) -> None:
        self._model.save(str(folder / "model"))


class River(Program):
    """river: naive Bayes on counts of words, one text after another."""

    def __init__(self) -> None:
        texts, bayes = (
            require(f"river.{module}", EXTRA) for module in ("feature_extraction", "naive_bayes")
        )
        words = texts.BagOfWords(lowercase=True)
        self._model = words | bayes.ComplementNB()

    def _learn(self, texts: list[str], labels: list[str]) -> None:
        for text, label in zip(texts, labels, strict=True):
            self._model.learn_one(text, label)

    def _predict(self, texts: list[str]) -> Iterable[Any]:
        return [self._model.predict_one(text) for text in texts]

    def _save(self, folder: Path) -> None:
        (folder / "model.pickle").write_bytes(pickle.dumps(self._model))


class Model2Vec(Retrained):
    """model2vec: static vectors distilled from the foundation model, and its trained head."""

    def __init__(self) -> None:
        super().__init__()
        self._static = require("model2vec.distill", EXTRA).distill(minilm(), pca_dims=256)

    def _trained(self) -> Any:
        made = require("model2vec.train", EXTRA).StaticModelForClassification
        return made.from_static_model(model=self._static).fit(
            self._texts, self._labels, device="cpu"
        )

    def _save(self, folder: Path) -> None:
        self._model.to_pipeline().save_pretrained(str(folder / "model"))
        (folder / "texts.txt").write_text("\n".join([*self._texts, *self._labels]), "utf-8")


def minilm() -> str:
    """Folder of all-MiniLM-L6-v2."""
    return str(MODELS["minilm"].locate().folder)


@dataclass(frozen=True)
class Described:
    """A program by its title, its package, how it is made, and what it keeps of the data."""

    title: str
    package: str
    make: Callable[[], Program]
    keeps: str


_STATISTICS = "statistics; a row of numbers per sample while few"
PROGRAMS = {
    "klda": Described("klda", "klda", Klda, _STATISTICS),
    "klda-multilingual": Described(
        "klda, multilingual", "klda", lambda: Klda("multilingual"), _STATISTICS
    ),
    "klda-ngrams": Described("klda, n-grams", "klda", lambda: Klda("ngrams"), _STATISTICS),
    "lr": Described("MiniLM + logistic regression", "scikit-learn", logistic_regression, "rows"),
    "knn": Described("MiniLM + nearest neighbours", "scikit-learn", neighbours, "all rows"),
    "tf-idf": Described("tf-idf + logistic regression", "scikit-learn", WordCounts, "all texts"),
    "setfit": Described("SetFit", "setfit", SetFit, "all texts, a trained network"),
    "adaptive": Described(
        "adaptive-classifier", "adaptive-classifier", AdaptiveClassifier, "texts and rows"
    ),
    "model2vec": Described("model2vec classifier", "model2vec", Model2Vec, "all texts"),
    "river": Described("river, naive Bayes", "river", River, "counts of words"),
}
