"""Programs that learn texts: klda, and other packages as their documentation uses them.

A program learns by ``learn(texts, labels)``, again and again, answers by ``predict(texts)`` and
writes by ``save(folder)`` all that a later process needs, as a `Learner` does. All use the same
all-MiniLM-L6-v2, but for those that count words, and two of klda with other models.
"""

from __future__ import annotations

import pickle
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

from klda import Learner
from klda.encoders import MODELS
from klda_bench.environment import require

PAIRS = 2  # SetFit: contrastive pairs of each sample, of either kind
NEIGHBOURS = 5


def _package(name: str) -> Any:
    return require(name, "peers")


def _minilm() -> str:
    return str(MODELS["minilm"].locate().folder)


def _pickled(model: Any, folder: Path) -> None:
    (folder / "model.pickle").write_bytes(pickle.dumps(model))


@dataclass
class Adapted:
    """A program that can learn more, by other names."""

    learn: Callable[[list[str], list[str]], Any]
    predict: Callable[[list[str]], Iterable[Any]]
    save: Callable[[Path], Any]


class Retrained:
    """A program that can't learn more: it keeps all inputs and is trained on them again.

    `train` makes what has ``predict`` of inputs and labels, `encode` makes inputs of texts, and
    `write` writes the model into a folder.
    """

    def __init__(
        self,
        train: Callable[[list[Any], list[str]], Any],
        encode: Callable[[list[str]], Iterable[Any]] = list,
        write: Callable[[Any, Path], Any] = _pickled,
    ) -> None:
        self._train, self._encode, self._write = train, encode, write
        self._inputs: list[Any] = []
        self._labels: list[str] = []

    def learn(self, texts: list[str], labels: list[str]) -> None:
        """Train on all samples so far."""
        self._inputs.extend(self._encode(texts))
        self._labels.extend(labels)
        self._model = self._train(self._inputs, self._labels)

    def predict(self, texts: list[str]) -> Iterable[Any]:
        """Label texts."""
        return self._model.predict(self._encode(texts))

    def save(self, folder: Path) -> None:
        """Write the model, and the samples that it would be trained on again."""
        self._write(self._model, folder)
        (folder / "kept.pickle").write_bytes(pickle.dumps((self._inputs, self._labels)))


def words() -> Retrained:
    """Make scikit-learn's tf-idf of words and logistic regression."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    counts = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    return Retrained(make_pipeline(counts, LogisticRegression(C=10.0, max_iter=1000)).fit)


def regression() -> Retrained:
    """Make scikit-learn's logistic regression on features."""
    from sklearn.linear_model import LogisticRegression

    return _on_features(LogisticRegression(C=10.0, max_iter=1000))


def neighbours() -> Retrained:
    """Make scikit-learn's nearest neighbours on features."""
    from sklearn.neighbors import KNeighborsClassifier

    return _on_features(KNeighborsClassifier(NEIGHBOURS, weights="distance", metric="cosine"))


def _on_features(model: Any) -> Retrained:
    encoder = _package("sentence_transformers").SentenceTransformer(_minilm(), device="cpu")
    return Retrained(model.fit, partial(encoder.encode, show_progress_bar=False))


def setfit() -> Retrained:
    """Make SetFit: contrastive fine-tuning of the foundation model, then logistic regression."""

    def train(texts: list[str], labels: list[str]) -> Any:
        package, datasets = _package("setfit"), _package("datasets")
        model = package.SetFitModel.from_pretrained(_minilm(), device="cpu")
        rows = datasets.Dataset.from_dict({"text": texts, "label": labels})
        how = package.TrainingArguments(
            num_iterations=PAIRS, num_epochs=1, batch_size=16, report_to="none", save_strategy="no"
        )
        package.Trainer(model, how, train_dataset=rows).train()
        return model

    return Retrained(train, write=lambda model, folder: model.save_pretrained(folder))


def model2vec() -> Retrained:
    """Make model2vec's classifier: a head on vectors distilled from the foundation model."""
    static = _package("model2vec.distill").distill(_minilm(), pca_dims=256)
    classifier = _package("model2vec.train").StaticModelForClassification

    def train(texts: list[str], labels: list[str]) -> Any:
        return classifier.from_static_model(model=static).fit(texts, labels, device="cpu")

    def write(model: Any, folder: Path) -> None:
        model.to_pipeline().save_pretrained(str(folder))

    return Retrained(train, write=write)


def adaptive() -> Adapted:
    """Make adaptive-classifier: prototypes and a small network that is trained further."""
    package = _package("adaptive_classifier")
    model = package.AdaptiveClassifier(_minilm(), device="cpu", use_onnx=False)

    def predict(texts: list[str]) -> list[Any]:
        return [best[0][0] for best in model.predict_batch(texts, k=1)]

    return Adapted(model.add_examples, predict, lambda folder: model.save(str(folder / "model")))


def river() -> Adapted:
    """Make river's naive Bayes on counts of words, which learns one text after another."""
    counts = _package("river.feature_extraction").BagOfWords(lowercase=True)
    model = counts | _package("river.naive_bayes").ComplementNB()

    def learn(texts: list[str], labels: list[str]) -> None:
        for text, label in zip(texts, labels, strict=True):
            model.learn_one(text, label)

    def predict(texts: list[str]) -> list[Any]:
        return [model.predict_one(text) for text in texts]

    return Adapted(learn, predict, partial(_pickled, model))


@dataclass(frozen=True)
class Program:
    """A program by its title, its package, how it is made, and what it keeps of the data."""

    title: str
    package: str
    make: Callable[[], Any]
    keeps: str


_MAKERS = (regression, neighbours, words, setfit, adaptive, model2vec, river)
_BY_NAME: dict[str, Any] = {made.__name__: made for made in _MAKERS} | {"Learner": Learner}


def _described(title: str, package: str, make: str, keeps: str, of: str = "") -> Program:
    return Program(title, package, partial(_BY_NAME[make], *([of] if of else [])), keeps)


_TEXT = (files(__package__) / "programs.toml").read_text(encoding="utf-8")
PROGRAMS = {name: _described(**row) for name, row in tomllib.loads(_TEXT).items()}
