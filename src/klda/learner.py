"""What a user holds: a frozen foundation model, a classifier on top, and a model folder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import numpy as np
from sklearn.base import clone

from klda import features, storage
from klda.bandwidth import gamma_for
from klda.classifiers import KLDA, from_state
from klda.errors import KldaError
from klda.evaluation import Evaluation

Label = str | int
Batch = tuple[Any, Sequence[Label] | np.ndarray]

# Older entries are dropped from the history: a service that learns all day must not grow for ever.
HISTORY_LENGTH = 1000


class FoundationModelError(KldaError):
    """The foundation model at hand is not the one that a model was made with."""


class Learner:
    """Learns classes of texts or images at any time, without forgetting the ones before.

    Parameters
    ----------
    model : str, Path or Encoder
        The frozen foundation model: a name out of ``klda.features.MODELS``, a hub name, a local
        folder, ``"features"`` for rows computed elsewhere, or an encoder.
    classifier : estimator, optional
        KLDA, KLDAEnsemble, LDA or NCM. By default a KLDA with fixed random features, so that
        learners made apart can be merged, and a bandwidth that for texts depends on the foundation
        model alone, so that learning in pieces gives what learning at once gives.
    **options
        Passed to :func:`klda.features.load`: ``device``, ``layers``, ``batch_size``, ``cache``,
        ``modality``, ``trust_remote_code``. By default ``layers="auto"``: the layers that suit the
        named model best.

    Notes
    -----
    A call that changes the learner does so completely or, when it raises, not at all. Any number of
    threads may ask while none changes it; :meth:`copy` makes another one to be changed meanwhile.

    Examples
    --------
    >>> import numpy as np
    >>> from klda.learner import Learner
    >>> rng = np.random.default_rng(0)
    >>> learner = Learner("features")
    >>> learner = learner.learn(rng.normal(0, 1, (20, 8)), ["cats"] * 20)
    >>> learner = learner.learn(rng.normal(3, 1, (20, 8)), ["dogs"] * 20)
    >>> learner.predict(rng.normal(3, 1, (2, 8))).tolist()
    ['dogs', 'dogs']
    >>> learner.classes
    {'cats': 20, 'dogs': 20}
    """

    def __init__(
        self,
        model: str | Path | features.Encoder = "minilm",
        *,
        classifier: Any = None,
        **options: Any,
    ) -> None:
        encoder = _open_encoder(model, options)
        if classifier is None:
            device = options.get("device", "auto")
            classifier = KLDA(gamma=gamma_for(encoder), random_state=0, device=device)
        self.classifier = classifier
        self._encoder: features.Encoder | None = encoder
        self._options: dict[str, Any] = options
        self._foundation: dict[str, Any] = encoder.fingerprint()
        self._history: list[dict[str, Any]] = []
        self._origin: tuple[Path, str] | None = None

    def __repr__(self) -> str:
        return (
            f"<Learner {self._foundation['name']} + {type(self.classifier).__name__}: "
            f"{len(self.classes)} classes, {self.samples} samples>"
        )

    # ---------------------------------------------------------------- what it is

    @property
    def encoder(self) -> features.Encoder:
        """The frozen foundation model; one of a loaded learner is opened when first needed."""
        if self._encoder is None:
            encoder = _open_stored(self._foundation["name"], self._foundation, self._options)
            _check_same(self._foundation, encoder, self._origin)
            self._encoder = encoder
        return self._encoder

    @property
    def modality(self) -> str:
        """What it takes: ``"text"``, ``"image"`` or ``"features"``."""
        return str(self._foundation["modality"])

    @property
    def foundation(self) -> dict[str, Any]:
        """Fingerprint of the foundation model."""
        return dict(self._foundation)

    @property
    def classes(self) -> dict[Label, int]:
        """Number of samples learned of each class."""
        if not hasattr(self.classifier, "n_features_in_"):
            return {}
        labels, counts = self.classifier.classes_, self.classifier.class_count_
        return dict(zip(labels.tolist(), counts.tolist(), strict=True))

    @property
    def samples(self) -> int:
        """Number of samples learned."""
        return sum(self.classes.values())

    @property
    def history(self) -> list[dict[str, Any]]:
        """What was learned, forgotten and merged, and when; the latest last."""
        return [dict(entry) for entry in self._history]

    # ---------------------------------------------------------------- changes

    def learn(
        self,
        inputs: Any,
        labels: Sequence[Label] | np.ndarray | None = None,
        *,
        source: str | None = None,
        progress: bool = False,
    ) -> Self:
        """Learn samples of new classes, or more of old ones.

        Parameters
        ----------
        inputs : sequence, or iterable of (inputs, labels)
            Texts, images (paths, PIL images, arrays) or feature rows. Without `labels`: an iterable
            of batches, taken one at a time, so that it may be larger than the memory. If any batch
            fails, none is learned; for that, a second set of statistics is held meanwhile.
        labels : sequence of str or int, optional
            One label an input.
        source : str, optional
            Where the samples come from, for the history.
        progress : bool
            Show a progress bar if standard error is a terminal.

        Returns
        -------
        self
        """
        batches: Iterable[Batch] = inputs if labels is None else [(inputs, labels)]
        before = self.classes
        encoded = self._encode_batches(batches, progress)
        first = next(encoded, None)
        if first is None:
            raise KldaError("inputs is empty: there is nothing to learn.")
        second = next(encoded, None)
        if second is None:
            self.classifier.partial_fit(*first)
        else:
            classifier = _copy(self.classifier).partial_fit(*first).partial_fit(*second)
            for batch in encoded:
                classifier.partial_fit(*batch)
            self.classifier = classifier
        self._record("learn", before, source)
        return self

    def forget(self, labels: Label | Sequence[Label], inputs: Any = None) -> Self:
        """Forget classes, or single samples of them.

        Parameters
        ----------
        labels : label or sequence of labels
            The classes. With `inputs`: one label an input, or one for all.
        inputs : sequence, optional
            Samples that were learned: their effect is undone exactly, as if they had never been
            learned. Without them the classes are dropped from the answers, but the covariance that
            all classes share keeps a trace of them.

        Returns
        -------
        self
        """
        names = [labels] if isinstance(labels, str | int) else list(labels)
        before = self.classes
        if inputs is not None:
            rows = self._encode(inputs)
            self.classifier.remove(rows, names * len(rows) if len(names) == 1 else names)
        else:
            unknown = [name for name in names if name not in before]
            if unknown or not names:
                raise KldaError(_unknown_classes(unknown, before))
            for name in dict.fromkeys(names):
                self.classifier.forget(name)
        self._record("forget", before, None)
        return self

    def rename(self, old: Label, new: Label) -> Self:
        """Give a class another name.

        Parameters
        ----------
        old, new : label
            The class, and a name that no other class has.

        Returns
        -------
        self
        """
        before = self.classes
        self.classifier.rename(old, new)
        self._record("rename", before, f"{old} -> {new}")
        return self

    def merge(self, other: Learner) -> Self:
        """Add all that another learner knows, as if its samples had been learned here.

        Parameters
        ----------
        other : Learner
            Made with the same foundation model and the same random features; left as it is.

        Returns
        -------
        self
        """
        if not features.same_features(self._foundation, other._foundation):
            raise FoundationModelError(
                f"other was made with {_name(other._foundation)}, this learner with "
                f"{_name(self._foundation)}: only learners with the same foundation model merge."
            )
        before = self.classes
        self.classifier.merge(other.classifier)
        self._record("merge", before, str(other._origin[0]) if other._origin else None)
        return self

    def copy(self) -> Learner:
        """Make an independent copy, for instance to change it while this one keeps answering.

        Returns
        -------
        Learner
            Shares the foundation model, nothing else that changes.
        """
        twin = object.__new__(Learner)
        twin.__dict__.update(self.__dict__)
        twin.classifier = _copy(self.classifier)
        twin._history = list(self._history)
        return twin

    # ---------------------------------------------------------------- answers

    def predict(self, inputs: Any, *, progress: bool = False) -> np.ndarray:
        """Answer with the likeliest class of each input.

        Parameters
        ----------
        inputs : sequence
            Texts, images or feature rows.
        progress : bool
            Show a progress bar if standard error is a terminal.

        Returns
        -------
        ndarray of shape (n,)
            Labels.
        """
        return self.classifier.predict(self._ask(inputs, progress))

    def predict_proba(self, inputs: Any, *, progress: bool = False) -> np.ndarray:
        """Answer with the probability of every class.

        Parameters
        ----------
        inputs : sequence
            Texts, images or feature rows.
        progress : bool
            Show a progress bar if standard error is a terminal.

        Returns
        -------
        ndarray of shape (n, n_classes)
            Columns in the order of :attr:`classes`.
        """
        return self.classifier.predict_proba(self._ask(inputs, progress))

    def predict_top(
        self, inputs: Any, k: int = 3, *, progress: bool = False
    ) -> list[list[tuple[Label, float]]]:
        """Answer with the likeliest classes and their probabilities.

        Parameters
        ----------
        inputs : sequence
            Texts, images or feature rows.
        k : int
            How many classes, at most.
        progress : bool
            Show a progress bar if standard error is a terminal.

        Returns
        -------
        list of list of (label, probability)
            For each input, the likeliest class first.
        """
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise KldaError(f"k={k!r} must be a positive integer.")
        probabilities = self.predict_proba(inputs, progress=progress)
        labels = self.classifier.classes_.tolist()
        top = np.argsort(-probabilities, axis=1, kind="stable")[:, :k]
        chosen = np.take_along_axis(probabilities, top, axis=1)
        return [
            [(labels[i], float(p)) for i, p in zip(row, values, strict=True)]
            for row, values in zip(top, chosen, strict=True)
        ]

    def scores(self, inputs: Any, *, progress: bool = False) -> np.ndarray:
        """Answer with the discriminant score of every class: the larger, the likelier.

        Parameters
        ----------
        inputs : sequence
            Texts, images or feature rows.
        progress : bool
            Show a progress bar if standard error is a terminal.

        Returns
        -------
        ndarray of shape (n, n_classes)
            Columns in the order of :attr:`classes`, also where there are only two.
        """
        return self.classifier._scores(self._ask(inputs, progress), None)

    def evaluate(
        self,
        inputs: Any,
        labels: Sequence[Label] | np.ndarray | None = None,
        *,
        progress: bool = False,
    ) -> Evaluation:
        """Compare the answers with the true labels.

        Parameters
        ----------
        inputs : sequence, or iterable of (inputs, labels)
            Texts, images or feature rows; without `labels`, an iterable of batches.
        labels : sequence of str or int, optional
            One label an input; classes never learned count as wrong.
        progress : bool
            Show a progress bar if standard error is a terminal.

        Returns
        -------
        Evaluation
            Accuracy, results by class, confusion.
        """
        batches: Iterable[Batch] = inputs if labels is None else [(inputs, labels)]
        truth: list[np.ndarray] = []
        answers: list[np.ndarray] = []
        for rows, names in self._encode_batches(batches, progress):
            truth.append(np.asarray(names))
            answers.append(self.classifier.predict(rows))
        if not truth:
            raise KldaError("inputs is empty: there is nothing to evaluate.")
        return Evaluation.of(np.concatenate(truth), np.concatenate(answers))

    # ---------------------------------------------------------------- model folders

    def save(self, path: str | Path, *, compact: bool = False, overwrite: bool = False) -> None:
        """Save to a model folder, atomically.

        Parameters
        ----------
        path : str or Path
            The folder; created if it does not exist.
        compact : bool
            Write only what answering needs: small, but it can't learn any more.
        overwrite : bool
            Save even if someone else has saved to this learner's folder since it was loaded.
        """
        folder = Path(path).resolve()
        if not self.classes:
            raise KldaError("This learner has no classes: learn something before saving it.")
        arrays, meta = self.classifier.to_state(compact=compact)
        document = {
            "saved": _now(),
            "compact": compact,
            "foundation_model": self._foundation,
            "samples": self.samples,
            "classes": {str(label): count for label, count in self.classes.items()},
            "classifier": meta,
            "history": self._history,
        }
        same_folder = self._origin is not None and self._origin[0] == folder
        replaces = self._origin[1] if self._origin and same_folder and not overwrite else None
        stored = storage.save(folder, arrays, document, replaces=replaces)
        if not compact:
            self._origin = (folder, stored.generation)

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        model: str | Path | features.Encoder | None = None,
        verify: bool = False,
        **options: Any,
    ) -> Self:
        """Load a model folder. Fast: arrays are mapped, the foundation model is opened when used.

        Parameters
        ----------
        path : str or Path
            The folder.
        model : str, Path or Encoder, optional
            Where to find the foundation model, if not where the model folder says. It must be the
            same one: its weights are compared.
        verify : bool
            Read every file and compare its checksum.
        **options
            Passed to :func:`klda.features.load`: ``device``, ``batch_size``, ``cache``,
            ``trust_remote_code`` (never taken from the model folder).

        Returns
        -------
        Learner
            As it was saved.
        """
        stored = storage.load(path, verify=verify)
        learner = object.__new__(cls)
        learner._origin = (Path(path).resolve(), stored.generation)
        learner._options = options
        try:
            learner._foundation = dict(stored.document["foundation_model"])
            learner._history = list(stored.document["history"])
            learner.classifier = from_state(
                stored.arrays, stored.document["classifier"], device=options.get("device")
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise storage.ModelFolderError(
                f"{Path(path) / storage.DOCUMENT} is damaged: {type(error).__name__}: {error}."
            ) from error
        learner._encoder = None
        if model is not None:
            encoder = _open_stored(model, learner._foundation, options)
            _check_same(learner._foundation, encoder, learner._origin)
            learner._encoder = encoder
        return learner

    # ---------------------------------------------------------------- inside

    def _encode(self, inputs: Any, progress: bool = False) -> np.ndarray:
        if isinstance(inputs, str | bytes):
            raise KldaError(f"inputs={inputs!r} is one text; give a list of texts: [{inputs!r}].")
        if not isinstance(inputs, Sequence) and not hasattr(inputs, "shape"):
            inputs = list(inputs)
        if len(inputs) == 0:
            raise KldaError("inputs is empty: give at least one.")
        if self.modality == "text":
            _check_texts(inputs)
        rows = self.encoder.encode(inputs, progress=progress)
        expected = getattr(self.classifier, "n_features_in_", rows.shape[1])
        if rows.shape[1] != expected:
            raise KldaError(
                f"inputs has rows of {rows.shape[1]} features, but this learner's have {expected}: "
                "compute them with the same foundation model."
            )
        return rows

    def _ask(self, inputs: Any, progress: bool) -> np.ndarray:
        if not self.classes:
            raise KldaError("This learner has no classes yet: learn something before asking it.")
        return self._encode(inputs, progress)

    def _encode_batches(self, batches: Iterable[Batch], progress: bool) -> Iterator[Batch]:
        if isinstance(batches, str | bytes | np.ndarray):
            raise KldaError("labels is missing: give one label for each input.")
        for batch in batches:
            if not isinstance(batch, tuple | list) or len(batch) != 2:
                raise KldaError(
                    "labels is missing: give one label for each input, or an iterable of "
                    "(inputs, labels) pairs."
                )
            inputs, labels = batch
            rows = self._encode(inputs, progress)
            if len(labels) != len(rows):
                raise KldaError(
                    f"inputs has {len(rows)} samples and labels has {len(labels)}; give one label "
                    "for each input."
                )
            yield rows, labels

    def _record(self, action: str, before: dict[Label, int], source: str | None) -> None:
        after = self.classes
        entry: dict[str, Any] = {
            "when": _now(),
            "action": action,
            "samples": sum(after.values()) - sum(before.values()),
            "new_classes": [label for label in after if label not in before],
            "dropped_classes": [label for label in before if label not in after],
        }
        if source is not None:
            entry["source"] = source
        kept = {key: value for key, value in entry.items() if value != []}
        self._history = [*self._history, kept][-HISTORY_LENGTH:]


def _open_encoder(
    model: str | Path | features.Encoder, options: dict[str, Any]
) -> features.Encoder:
    if not isinstance(model, str | Path):
        return model
    if str(model) not in features.MODELS and Path(model).is_dir():
        model = Path(model).resolve()  # the model folder must find it from any working directory
    return features.load(model, **({"layers": "auto"} | options))


def _check_texts(inputs: Sequence[Any]) -> None:
    for i, text in enumerate(inputs):
        if isinstance(text, str) and not text.strip():
            raise KldaError(f"inputs[{i}] is an empty text: leave it out.")


def _open_stored(
    model: str | Path | features.Encoder, foundation: dict[str, Any], options: dict[str, Any]
) -> features.Encoder:
    """Open a foundation model with the layers and the modality that a model was made with."""
    fixed = {"layers": foundation["layers"], "modality": foundation["modality"]}
    return _open_encoder(model, fixed | options)


def _check_same(
    stored: dict[str, Any], encoder: features.Encoder, origin: tuple[Path, str] | None
) -> None:
    found = encoder.fingerprint()
    if not features.same_features(stored, found):
        raise FoundationModelError(
            f"The model in {origin[0] if origin else 'memory'} was made with the foundation model "
            f"{_name(stored)}, but the one at hand is {_name(found)}. Its features would mean "
            "nothing to the classifier; give the same foundation model."
        )


def _name(fingerprint: dict[str, Any]) -> str:
    parts = ", ".join(
        f"{key} {fingerprint.get(key)}" for key in ("revision", "pooling", "layers", "dimension")
    )
    return f"{fingerprint.get('name')!r} ({parts})"


def _unknown_classes(unknown: list[Label], known: dict[Label, int]) -> str:
    if not unknown:
        return "labels is empty: name at least one class to forget."
    some = ", ".join(repr(label) for label in list(known)[:5])
    more = f" and {len(known) - 5} more" if len(known) > 5 else ""
    return f"labels names class {unknown[0]!r}, which was never learned; known are: {some}{more}."


def _copy(classifier: Any) -> Any:
    twin = clone(classifier)
    return twin.merge(classifier) if hasattr(classifier, "n_features_in_") else twin


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
