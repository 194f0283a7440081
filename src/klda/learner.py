"""What a user holds: a frozen foundation model, a classifier on top, and a model folder."""

from __future__ import annotations

import copy
import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import numpy as np
from sklearn.base import clone

from klda import features, model_document, state, storage
from klda.bandwidth import gamma_for
from klda.classifiers import KINDS, KLDA, from_state
from klda.errors import KldaError
from klda.evaluation import Evaluation
from klda.explanation import Explanation
from klda.inputs import checked_inputs
from klda.labels import Label, listed, plain, plain_labels
from klda.ledger import Ledger, SampleId
from klda.pipeline import Behind

Batch = tuple[Any, Sequence[Label] | np.ndarray]
Parts = tuple[Any, Sequence[Label] | np.ndarray, Sequence[str] | None]
Encoded = tuple[np.ndarray, Sequence[Label] | np.ndarray, Sequence[str] | None]

# What `predict` answers for inputs that are refused, where classes are texts or integers. -1 is
# what scikit-learn's detectors of outliers say.
UNKNOWN = "unknown"
UNKNOWN_INTEGER = -1
REFUSED = 0.05  # share of known inputs that may be taken for unknown
KEEP = (None, "features")
LEDGER = "ledger/"  # what its arrays are called in a model folder
SERVICE = "service"  # what a service keeps in a folder beside the model: the last change it has

# Older entries are dropped from the history: a service that learns all day must not grow for ever.
HISTORY_LENGTH = 1000


class FoundationModelError(KldaError):
    """The foundation model at hand is not the one that a model was made with."""


class InterruptedChangeError(KldaError):
    """A learner was interrupted in the middle of a change, and can't be used any more."""


class ForgetTraceWarning(UserWarning):
    """A class was dropped from the answers, but the shared covariance keeps a trace of it."""


class Lesson:
    """A learn under way: a classifier and a ledger that a learner takes over in the end.

    Parameters
    ----------
    classifier : estimator
        Learns the batches.
    ledger : Ledger or None
        Keeps their features.
    """

    def __init__(self, classifier: Any, ledger: Ledger | None) -> None:
        self.classifier = classifier
        self.ledger = ledger

    def take(self, batch: Encoded) -> None:
        """Learn a batch of features, labels and ids; one that fails changes nothing."""
        rows, labels, ids = batch
        ledger = self.ledger
        if ledger is not None:
            ledger, rows = ledger.add(rows, labels, ids)
        elif ids is not None:
            raise KldaError("ids are kept only by a learner made with keep='features'.")
        self.classifier.partial_fit(rows, labels)
        self.ledger = ledger

    def to_state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return all that learning on needs, as arrays and JSON-able values."""
        arrays, meta = state.pack_progress(self.classifier)
        document: dict[str, Any] = {"classifier": meta}
        if self.ledger is not None:
            pages, document["ledger"] = self.ledger.to_state()
            arrays |= {LEDGER + name: page for name, page in pages.items()}
        return arrays, document

    @classmethod
    def from_state(cls, stored: storage.StoredModel, device: str | None = None) -> Self:
        """Return the lesson that was stored; it learns on as if there had been no pause."""
        meta = stored.document["classifier"]
        classifier = state.unpack_progress(KINDS, stored.arrays, meta, device)
        return cls(classifier, _stored_ledger(stored))


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
    keep : {None, "features"}
        ``"features"`` keeps a ledger of the features learned, in half precision, with an id each:
        classes and single samples can then be forgotten exactly, and the classifier rebuilt with
        other parameters. By default no text and no image is kept, and of features only sums:
        counts, means and one scatter. While there are fewer samples than half of the random
        features (2,500 by default), a row of features of each stands for the scatter.
    **options
        Passed to :func:`klda.features.load`: ``device``, ``layers``, ``batch_size``, ``cache``,
        ``modality``, ``trust_remote_code``. By default ``layers="auto"``: the layers that suit the
        named model best.

    Notes
    -----
    A call that changes the learner does so completely or, when it raises, not at all. Where an
    interrupt (Ctrl-C) leaves no way to either, the learner refuses every call after it and has to
    be loaded again. Any number of threads may ask while none changes it; :meth:`copy` makes another
    one to be changed meanwhile.

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

    _halfway = False  # whether a change is under way, or was cut off in the middle

    def __init__(
        self,
        model: str | Path | features.Encoder = "minilm",
        *,
        classifier: Any = None,
        keep: str | None = None,
        **options: Any,
    ) -> None:
        if keep not in KEEP:
            raise KldaError(f"keep={keep!r} is not known; use None or 'features'.")
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
        self._ledger: Ledger | None = Ledger() if keep else None
        self._service: tuple[dict[str, np.ndarray], dict[str, Any]] = ({}, {})

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
        return _classes_of(self.classifier)

    @property
    def samples(self) -> int:
        """Number of samples learned."""
        return sum(self.classes.values())

    @property
    def ledger(self) -> Ledger | None:
        """Features, labels and ids of the samples learned, if it keeps them."""
        return self._ledger

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
        ids: Sequence[str] | None = None,
        source: str | Path | None = None,
        progress: bool = False,
    ) -> Self:
        """Learn samples of new classes, or more of old ones.

        Parameters
        ----------
        inputs : sequence, or iterable of (inputs, labels)
            Texts, images (paths, PIL images, arrays) or feature rows. Without `labels`: an iterable
            of batches, taken one at a time, so that it may be larger than the memory. While one is
            encoded, the one before is learned and the next is tokenised, in threads. If any batch
            fails, none is learned; for that, a second set of statistics is held meanwhile.
        labels : sequence of str or int, optional
            One label an input.
        ids : sequence of str, optional
            An id for each input, to forget it by later; needs ``keep="features"``. Without, inputs
            get running numbers. In batches it is the third of (inputs, labels, ids).
        source : str or Path, optional
            Where the samples come from, for the history.
        progress : bool
            Show a progress bar if standard error is a terminal.

        Returns
        -------
        self
        """
        if labels is None and ids is not None:
            raise KldaError("ids goes with labels; batches are (inputs, labels, ids).")
        batches: Iterable[Any] = inputs if labels is None else [(inputs, labels, ids)]
        self._learn(batches, source=None if source is None else str(source), progress=progress)
        return self

    def _learn(
        self,
        batches: Iterable[Any],
        *,
        source: str | None,
        progress: bool = False,
        lesson: Lesson | None = None,
        after: Callable[[Lesson], None] | None = None,
        noted: dict[str, Any] | None = None,
    ) -> None:
        """Learn batches, or what is left of them for a lesson that was begun before.

        `after` is called after each batch of several, `noted` goes into the history.
        """
        before = self.classes
        encoded = self._encode_batches(batches, progress)
        if lesson is None:
            begun = [*itertools.islice(encoded, 2)]
            if not begun:
                raise KldaError("inputs is empty: there is nothing to learn.")
            if len(begun) == 1:  # fails as a whole: no copy is needed
                with self._undivided():
                    lesson = Lesson(self.classifier, self._ledger)
                    lesson.take(begun.pop())
                    self._take_over(lesson, "learn", before, source, noted)
                return
            lesson = Lesson(_copy(self.classifier), self._ledger)
            encoded = itertools.chain(iter(begun), encoded)
            del begun  # each batch is let go once it is learned
        self._teach(lesson, encoded, after)
        self._take_over(lesson, "learn", before, source, noted)

    def _teach(
        self,
        lesson: Lesson,
        encoded: Iterable[Encoded],
        after: Callable[[Lesson], None] | None,
    ) -> None:
        """Take batches one after the other.

        A batch is learned in a thread while the foundation model encodes the next. Features need
        no encoding: they take turns.
        """

        def take(batch: Encoded) -> None:
            lesson.take(batch)
            if after is not None:
                after(lesson)

        if self.modality == "features":
            for batch in encoded:
                take(batch)
            return
        with Behind(take) as behind:
            for batch in encoded:
                behind.put(batch)

    def forget(
        self,
        labels: Label | Sequence[Label] | None = None,
        inputs: Any = None,
        *,
        ids: SampleId | Sequence[SampleId] | None = None,
        source: str | Path | None = None,
        verify: bool = True,
    ) -> Self:
        """Forget classes, or single samples of them.

        With a ledger (``keep="features"``), or with the samples given, what they did is undone
        exactly: scores become those of a model that never learned them. With neither, the classes
        are dropped from the answers, but the covariance that all classes share keeps a trace of
        them, and a `ForgetTraceWarning` says so.

        Parameters
        ----------
        labels : label or sequence of labels, optional
            The classes. With `inputs`: one label an input, or one for all.
        inputs : sequence, optional
            Samples that were learned; others are refused, as far as that can be told.
        ids : id or sequence of ids, optional
            Samples in the ledger, instead of `labels`: the ids they were given, or their running
            numbers.
        source : str or Path, optional
            Where the inputs come from, for the history.
        verify : bool
            Whether to find out if the inputs were learned. False is for those that
            :meth:`check_learned` was asked about before.

        Returns
        -------
        self
        """
        before = self.classes
        if ids is not None and (labels is not None or inputs is not None):
            raise KldaError("ids names the samples already: leave out labels and inputs.")
        if ids is None and labels is None:
            raise KldaError("labels is missing: name the classes to forget, or samples by ids.")
        rows = None if inputs is None else self._encode(inputs)
        names = [] if labels is None else _one_each(listed(labels), rows)
        if rows is not None and verify and self._ledger is None:
            self.classifier.check_learned(rows, names)
        with self._undivided():
            if ids is not None:
                self._forget_ids(listed(ids))
            elif rows is not None:
                self._forget_rows(rows, names)
            else:
                self._forget_classes(names, before)
            self._record("forget", before, None if source is None else str(source))
        return self

    def check_learned(self, labels: Label | Sequence[Label], inputs: Any) -> None:
        """Raise if inputs were not learned, as far as that can be told.

        A ledger knows each sample. Without one, the statistics tell strangers apart unless they
        are few and like much that was learned.

        Parameters
        ----------
        labels : label or sequence of labels
            One label an input, or one for all.
        inputs : sequence
            Texts, images or feature rows.

        Raises
        ------
        NotLearnedError
            If they were not.
        """
        rows = self._encode(inputs)
        names = _one_each(listed(labels), rows)
        if self._ledger is None:
            self.classifier.check_learned(rows, names)
        else:
            self._ledger.find(rows, names)

    def _forget_ids(self, ids: list[SampleId]) -> None:
        if self._ledger is None:
            raise KldaError(
                "ids can't be used: this learner keeps no ledger. Make it with keep='features', or "
                "give labels and the inputs that were learned."
            )
        if not ids:
            raise KldaError("ids is empty: name at least one sample to forget.")
        self._forget_positions(self._ledger, self._ledger.of_ids(ids))

    def _forget_rows(self, rows: np.ndarray, labels: list[Label]) -> None:
        if self._ledger is None:
            self.classifier.remove(rows, labels)
            return
        self._forget_positions(self._ledger, self._ledger.find(rows, labels))

    def _forget_classes(self, names: list[Label], known: dict[Label, int]) -> None:
        unknown = [name for name in names if name not in known]
        if unknown or not names:
            raise KldaError(_unknown_classes(unknown, known))
        held = self._ledger.counts if self._ledger is not None else {}
        exact = [name for name in dict.fromkeys(names) if held.get(name) == known[name]]
        dropped = [name for name in dict.fromkeys(names) if name not in exact]
        if dropped and self.classifier._keeps_scatter:
            # Before anything changes: where warnings are errors, nothing is forgotten.
            some = ", ".join(map(repr, dropped[:3])) + (", ..." if len(dropped) > 3 else "")
            warnings.warn(
                f"{some}: dropped from the answers, but the covariance that all classes share "
                "keeps a trace of what was learned. To leave none, give the inputs that were "
                "learned, or keep a ledger: Learner(..., keep='features').",
                ForgetTraceWarning,
                stacklevel=3,
            )
        if self._ledger is not None and exact:
            of_class = [self._ledger.of_class(name) for name in exact]
            self._forget_positions(self._ledger, np.concatenate(of_class))
        for name in dropped:
            self.classifier.forget(name)

    def _forget_positions(self, ledger: Ledger, positions: np.ndarray) -> None:
        self.classifier.remove(ledger.rows_at(positions), ledger.labels_at(positions))
        self._ledger = ledger.without(positions)

    def rebuild(self, classifier: Any = None, **parameters: Any) -> Self:
        """Learn everything in the ledger anew, with other parameters.

        Without any change this leaves the model that would have learned just these samples, also
        in what depends on the order of events: temperature and threshold. A bandwidth that was
        found in the first batch stays; ``gamma="auto"`` finds it anew.

        Parameters
        ----------
        classifier : estimator, optional
            Another classifier; by default one like the present.
        **parameters
            Parameters of the classifier to change: ``n_components``, ``gamma``, ``ridge`` ...

        Returns
        -------
        self
        """
        self._check_whole()
        if self._ledger is None or not len(self._ledger):
            raise KldaError(
                "There is no ledger to rebuild from: make the learner with keep='features' and "
                "let it learn."
            )
        if self._ledger.counts != self.classes:
            raise KldaError("The ledger does not hold all that was learned: it can't be rebuilt.")
        before = self.classes
        fresh = clone(self.classifier if classifier is None else classifier)
        unknown = sorted(set(parameters) - set(fresh.get_params()))
        if unknown:
            raise KldaError(
                f"{unknown[0]!r} is not a parameter of {type(fresh).__name__}; it has: "
                f"{', '.join(fresh.get_params())}."
            )
        if classifier is None and hasattr(fresh, "gamma"):
            fresh.set_params(gamma=self.classifier.gamma_)
        fresh.set_params(**parameters)
        for rows, labels in self._ledger.batches():
            fresh.partial_fit(rows, labels)
        self._take_over(Lesson(fresh, self._ledger), "rebuild", before, None)
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
        old, new = plain(old), plain(new)
        with self._undivided(counted=False):
            self.classifier.rename(old, new)
            if self._ledger is not None:
                self._ledger = self._ledger.rename(old, new)
            self._record("rename", before, f"{old} -> {new}")
        return self

    def merge(self, other: Learner) -> Self:
        """Add all that another learner knows, as if its samples had been learned here.

        Parameters
        ----------
        other : Learner
            Made with the same foundation model and the same random features; left as it is. If
            this learner keeps a ledger, the other one must, too.

        Returns
        -------
        self
        """
        if not isinstance(other, Learner):
            raise KldaError(
                f"other is a {type(other).__name__}, not a Learner; to merge a classifier, give "
                "Learner('features', classifier=...)."
            )
        other._check_whole()
        if not features.same_features(self._foundation, other._foundation):
            raise FoundationModelError(
                f"other was made with {_name(other._foundation)}, this learner with "
                f"{_name(self._foundation)}: only learners with the same foundation model merge."
            )
        before, ledger = self.classes, self._ledger
        if ledger is not None:
            if other._ledger is None:
                raise KldaError(
                    "other keeps no ledger, but this learner does: samples would be missing from "
                    "it. Merge this learner into the other one instead."
                )
            ledger = ledger.merge(other._ledger)
        with self._undivided():
            self.classifier.merge(other.classifier)
            self._ledger = ledger
            self._record("merge", before, str(other._origin[0]) if other._origin else None)
        return self

    def copy(self) -> Learner:
        """Make an independent copy, for instance to change it while this one keeps answering.

        Returns
        -------
        Learner
            Shares the foundation model, nothing else that changes.
        """
        self._check_whole()
        twin = object.__new__(Learner)
        twin.__dict__.update(self.__dict__)
        twin.classifier = _copy(self.classifier)
        twin._history = list(self._history)
        return twin

    # ---------------------------------------------------------------- answers

    def predict(
        self,
        inputs: Any,
        *,
        reject: float | None = None,
        by_class: bool = False,
        progress: bool = False,
    ) -> np.ndarray:
        """Answer with the likeliest class of each input.

        Parameters
        ----------
        inputs : sequence
            Texts, images or feature rows.
        reject : float, optional
            Answer ``"unknown"`` (-1 where classes are integers) for inputs unlike anything
            learned, at the cost of refusing this share of the known ones; 0.05 is a fair choice.
        by_class : bool
            Refuse by a threshold for each class, where enough of it was learned.
        progress : bool
            Show a progress bar if standard error is a terminal.

        Returns
        -------
        ndarray of shape (n,)
            Labels.
        """
        rows = self._ask(inputs, progress)
        answers = self.classifier.predict(rows)
        if reject is None:
            return answers
        known = self._is_known(rows, reject, by_class, "reject")
        return np.where(known, answers, UNKNOWN if answers.dtype.kind == "U" else UNKNOWN_INTEGER)

    def novelty(self, inputs: Any, *, progress: bool = False) -> np.ndarray:
        """Say how unlike anything learned inputs are; the larger, the less known.

        The distance from the nearest class, less that from all classes together.

        Parameters
        ----------
        inputs : sequence
            Texts, images or feature rows.
        progress : bool
            Show a progress bar if standard error is a terminal.

        Returns
        -------
        ndarray of shape (n,)
        """
        rows = self._ask(inputs, progress)
        self._check_knows_novelty()
        return self.classifier.novelty(rows)

    def threshold(self, refused: float = REFUSED) -> float | None:
        """Return the novelty beyond which an input is taken for unknown.

        Parameters
        ----------
        refused : float
            Share of inputs of known classes that may be taken for unknown.

        Returns
        -------
        float or None
            None where the classifier can't tell: it knows no novelty, was made with
            ``calibrated=False``, or has learned too little.
        """
        _check_share("refused", refused)
        if not getattr(self.classifier, "calibrated", False):
            return None
        limit = self.classifier.threshold(refused)
        return float(limit) if np.isfinite(limit) else None

    def is_known(
        self,
        inputs: Any,
        *,
        refused: float = REFUSED,
        by_class: bool = False,
        progress: bool = False,
    ) -> np.ndarray:
        """Say whether inputs are like anything learned.

        The threshold needs no examples of unknown inputs: it comes from the samples learned, each
        judged as if it had not been.

        Parameters
        ----------
        inputs : sequence
            Texts, images or feature rows.
        refused : float
            Share of inputs of known classes that may be taken for unknown.
        by_class : bool
            Use a threshold for each class, where enough of it was learned.
        progress : bool
            Show a progress bar if standard error is a terminal.

        Returns
        -------
        ndarray of bool, shape (n,)
        """
        return self._is_known(self._ask(inputs, progress), refused, by_class, "refused")

    def explain(
        self, value: Any, *, top: int = 5, samples: int = 5, refused: float = REFUSED
    ) -> Explanation:
        """Say why an input gets the answer it gets.

        Parameters
        ----------
        value : input
            One text, image or feature row.
        top : int
            How many classes to name.
        samples : int
            How many learned samples to name, if the learner keeps a ledger.
        refused : float
            Share of known inputs that may be taken for unknown.

        Returns
        -------
        Explanation
            Nearest classes with distances, the margin, whether it is known, nearest samples.
        """
        if self.modality == "text" and not isinstance(value, str):
            raise KldaError(f"value={value!r} is not a text; explain_all takes several inputs.")
        inputs = np.atleast_2d(np.asarray(value)) if self.modality == "features" else [value]
        if len(inputs) != 1:
            raise KldaError(f"value holds {len(inputs)} rows; explain_all takes several inputs.")
        return self.explain_all(inputs, top=top, samples=samples, refused=refused)[0]

    def explain_all(
        self, inputs: Any, *, top: int = 5, samples: int = 5, refused: float = REFUSED
    ) -> list[Explanation]:
        """Say for each of several inputs why it gets the answer it gets.

        Parameters
        ----------
        inputs : sequence
            Texts, images or feature rows.
        top, samples, refused
            As for :meth:`explain`.

        Returns
        -------
        list of Explanation
            One an input.
        """
        _check_count("top", top, 1)
        _check_count("samples", samples, 0)
        rows = self._ask(inputs, False)
        classifier = self.classifier
        labels = classifier.classes_.tolist()
        scores, probabilities = classifier.scores(rows), classifier.predict_proba(rows)
        knows = hasattr(classifier, "novelty")
        novelty = classifier.novelty(rows).tolist() if knows else [None] * len(rows)
        threshold = self.threshold(refused)
        return [
            Explanation.of(
                labels,
                scores[i],
                probabilities[i],
                temperature=getattr(classifier, "temperature_", 1.0),
                novelty=novelty[i],
                threshold=threshold,
                samples=self._ledger.nearest(row, samples) if self._ledger is not None else [],
                top=top,
            )
            for i, row in enumerate(rows)
        ]

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
        self, inputs: Any, k: int = 3, *, reject: float | None = None, progress: bool = False
    ) -> list[list[tuple[Label, float]]]:
        """Answer with the likeliest classes and their probabilities.

        Parameters
        ----------
        inputs : sequence
            Texts, images or feature rows.
        k : int
            How many classes, at most.
        reject : float, optional
            As for :meth:`predict`. Of an input that is refused the first answer is ``"unknown"``
            (or -1), with NaN for a probability; the likeliest classes follow.
        progress : bool
            Show a progress bar if standard error is a terminal.

        Returns
        -------
        list of list of (label, probability)
            For each input, the likeliest class first.
        """
        _check_count("k", k, 1)
        rows = self._ask(inputs, progress)
        labels, shares = self.classifier.predict_top(rows, k)
        answers = [
            list(zip(names, values, strict=True))
            for names, values in zip(labels.tolist(), shares.tolist(), strict=True)
        ]
        if reject is None:
            return answers
        refusal = (UNKNOWN if labels.dtype.kind == "U" else UNKNOWN_INTEGER, float("nan"))
        known = self._is_known(rows, reject, False, "reject")
        return [
            answer if is_known else [refusal, *answer[: k - 1]]
            for answer, is_known in zip(answers, known, strict=True)
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
        return self.classifier.scores(self._ask(inputs, progress))

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
            Accuracy, results by class, confusion, and how far probabilities can be trusted.
        """
        batches: Iterable[Batch] = inputs if labels is None else [(inputs, labels)]
        truth: list[np.ndarray] = []
        answers: list[np.ndarray] = []
        sure: list[np.ndarray] = []
        for rows, names, _ in self._encode_batches(batches, progress):
            found, shares = self.classifier.predict_top(rows, 1)
            truth.append(np.asarray(names))
            answers.append(found[:, 0])
            sure.append(shares[:, 0])
        if not truth:
            raise KldaError("inputs is empty: there is nothing to evaluate.")
        return Evaluation.of(np.concatenate(truth), np.concatenate(answers), np.concatenate(sure))

    # ---------------------------------------------------------------- model folders

    def save(self, path: str | Path, *, compact: bool = False, overwrite: bool = False) -> None:
        """Save to a model folder, atomically.

        Parameters
        ----------
        path : str or Path
            The folder; created if it does not exist.
        compact : bool
            Write only what answering needs: small, but it can't learn any more. A ledger is left
            out, too. Not to a folder that holds a model that can learn.
        overwrite : bool
            Replace whatever model the folder holds. By default only the one that this learner was
            loaded from or saved as, and not if someone else has saved it since.
        """
        folder = Path(path).resolve()
        self._check_whole()
        if not self.classes:
            raise KldaError("This learner has no classes: learn something before saving it.")
        if compact:
            _check_compact(folder)
        new = not overwrite and not self._is_from(folder)
        if new:
            storage.check_new(folder)
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
        if self._ledger is not None and not compact:
            pages, document["ledger"] = self._ledger.to_state()
            arrays |= {LEDGER + name: page for name, page in pages.items()}
        if self._is_from(folder) and not compact and SERVICE not in meta:
            arrays, document["classifier"] = self._with_service(arrays, meta)
        replaces = self._origin[1] if self._origin and not new and not overwrite else None
        stored = storage.save(folder, arrays, document, replaces=replaces, new=new)
        if not compact:
            self._origin = (folder, stored.generation)

    def _with_service(
        self, arrays: dict[str, np.ndarray], meta: dict[str, Any]
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Add what a service kept in the folder: without, it would count its journal twice."""
        kept, noted = self._service
        return (arrays | kept, meta | {SERVICE: noted}) if noted else (arrays, meta)

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
            Read every file and compare its checksum; by default files of up to 1 MiB only.
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
        with model_document.checked(path):
            model_document.check_model(stored.document)
            learner._foundation = dict(stored.document["foundation_model"])
            learner._history = list(stored.document["history"])
            learner._ledger = _stored_ledger(stored)
            learner._service = _stored_service(stored)
            learner.classifier = from_state(
                stored.arrays, stored.document["classifier"], device=options.get("device")
            )
        learner._encoder = None
        if model is not None:
            encoder = _open_stored(model, learner._foundation, options)
            _check_same(learner._foundation, encoder, learner._origin)
            learner._encoder = encoder
        return learner

    # ---------------------------------------------------------------- inside

    def _is_from(self, folder: Path) -> bool:
        """Whether this learner was loaded from a folder, or last saved to it."""
        return self._origin is not None and self._origin[0] == folder.resolve()

    def _encode(self, inputs: Any, progress: bool = False) -> np.ndarray:
        return self._features(self._checked(inputs), progress)

    def _checked(self, inputs: Any) -> Any:
        inputs = checked_inputs(inputs, self.modality)
        if self.modality == "text":
            _check_texts(inputs)
        return inputs

    def _features(self, inputs: Any, progress: bool) -> np.ndarray:
        rows = self.encoder.encode(inputs, progress=progress)
        expected = getattr(self.classifier, "n_features_in_", rows.shape[1])
        if rows.shape[1] != expected:
            raise KldaError(
                f"inputs has rows of {rows.shape[1]} features, but this learner's have {expected}: "
                "compute them with the same foundation model."
            )
        return rows

    def _ask(self, inputs: Any, progress: bool) -> np.ndarray:
        self._check_whole()
        # Not `self.classes`: that names every class, and one answer needs none of their names.
        if not getattr(self.classifier, "n_classes_", 0):
            raise KldaError("This learner has no classes yet: learn something before asking it.")
        return self._encode(inputs, progress)

    def _encode_batches(self, batches: Iterable[Any], progress: bool) -> Iterator[Encoded]:
        if isinstance(batches, str | bytes | np.ndarray):
            raise KldaError("labels is missing: give one label for each input.")
        self._check_whole()
        # Features are not encoded, and a stream may lay the next ones over those of this batch.
        overlaid = self.modality == "features" and not isinstance(batches, Sequence)
        for inputs, labels, ids in self._prepared(map(_parts, batches)):
            rows = self._features(inputs, progress)
            if overlaid:
                rows = rows.copy()
            if len(labels) != len(rows):
                raise KldaError(
                    f"inputs has {len(rows)} samples and labels has {len(labels)}; give one label "
                    "for each input."
                )
            yield rows, labels, ids

    def _prepared(self, batches: Iterable[Parts]) -> Iterator[Parts]:
        """Check batches, and tokenise the next one while one is encoded, if the encoder can."""
        prepare = getattr(self.encoder, "prepare", None)
        if prepare is None:
            for inputs, labels, ids in batches:
                yield self._checked(inputs), labels, ids
            return
        waiting: tuple[Future, Any, Any] | None = None
        with ThreadPoolExecutor(1, "prepare") as pool:
            for inputs, labels, ids in batches:
                # A copy: the caller may use its list again for the batch after this.
                ready = pool.submit(prepare, list(self._checked(inputs)))
                if waiting is not None:
                    yield waiting[0].result(), *waiting[1:]
                waiting = ready, labels, ids
            if waiting is not None:
                yield waiting[0].result(), *waiting[1:]

    def _check_knows_novelty(self) -> None:
        if not hasattr(self.classifier, "novelty"):
            raise KldaError(
                f"{type(self.classifier).__name__} can't tell known inputs from unknown ones; use "
                "a KLDA, KLDAEnsemble or LDA."
            )

    def _is_known(
        self, rows: np.ndarray, refused: float, by_class: bool, parameter: str
    ) -> np.ndarray:
        self._check_knows_novelty()
        _check_share(parameter, refused)
        if not self.classifier.calibrated:
            raise KldaError(
                "This classifier was made with calibrated=False: it has no threshold to refuse by."
            )
        return self.classifier.is_known(rows, refused=float(refused), by_class=by_class)

    @contextmanager
    def _undivided(self, *, counted: bool = True) -> Iterator[None]:
        """Change the learner in place; an interrupt that leaves its parts out of step is noted.

        `counted` says whether the change shows in the numbers of samples and classes: if these are
        as they were, an interrupt came before anything was changed.
        """
        self._check_whole()
        before = self._sizes()
        self._halfway = True
        try:
            yield
        except Exception:
            self._halfway = False  # an error leaves everything as it was
            raise
        except BaseException:
            self._halfway = not counted or self._sizes() != before
            raise
        self._halfway = False

    def _sizes(self) -> list[tuple[int, int]]:
        """Return samples and classes of each member, and samples of the ledger."""
        members = getattr(self.classifier, "_members", [])
        sizes = [(member.n_samples, len(member.labels)) for member in members]
        return [*sizes, (0 if self._ledger is None else len(self._ledger), 0)]

    def _check_whole(self) -> None:
        if self._halfway:
            where = f" from {self._origin[0]}" if self._origin else ", or make it anew"
            raise InterruptedChangeError(
                "This learner was interrupted in the middle of a change: what it has learned is "
                f"out of step. Load it again{where}."
            )

    def _take_over(
        self,
        lesson: Lesson,
        action: str,
        before: dict[Label, int],
        source: str | None,
        noted: dict[str, Any] | None = None,
    ) -> None:
        """Take over what a lesson made, and record it, in one step that nothing interrupts."""
        after = _classes_of(lesson.classifier)
        history = self._recorded(action, before, after, source, noted)
        self.__dict__.update(classifier=lesson.classifier, _ledger=lesson.ledger, _history=history)

    def _record(self, action: str, before: dict[Label, int], source: str | None) -> None:
        self._history = self._recorded(action, before, self.classes, source)

    def _recorded(
        self,
        action: str,
        before: dict[Label, int],
        after: dict[Label, int],
        source: str | None,
        noted: dict[str, Any] | None = None,
    ) -> list[dict[str, Any]]:
        """Return the history with another entry."""
        entry: dict[str, Any] = {
            "when": _now(),
            "action": action,
            "samples": sum(after.values()) - sum(before.values()),
            "new_classes": [label for label in after if label not in before],
            "dropped_classes": [label for label in before if label not in after],
        }
        if source is not None:
            entry["source"] = source
        entry |= noted or {}
        kept = {key: value for key, value in entry.items() if value != []}
        return [*self._history, kept][-HISTORY_LENGTH:]


def _check_count(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        what = "a positive integer" if least else "an integer from 0 on"
        raise KldaError(f"{name}={value!r} must be {what}.")


def _one_each(labels: list[Label], rows: np.ndarray | None) -> list[Label]:
    """Return one label for each row, where one may stand for all."""
    if rows is None:
        return labels
    if len(labels) == 1:
        return labels * len(rows)
    if len(labels) != len(rows):
        raise KldaError(f"labels has {len(labels)} labels for {len(rows)} inputs.")
    return labels


def _check_share(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, float | int | np.number):
        raise KldaError(f"{name}={value!r} can't be used; give a share such as 0.05.")
    if not 0 < value < 1:
        raise KldaError(f"{name}={value!r} must be a share between 0 and 1.")


def _classes_of(classifier: Any) -> dict[Label, int]:
    if not hasattr(classifier, "n_features_in_"):
        return {}
    labels, counts = classifier.classes_, classifier.class_count_
    return dict(zip(labels.tolist(), counts.tolist(), strict=True))


def _check_compact(folder: Path) -> None:
    if storage.exists(folder) and not storage.load(folder).document.get("compact"):
        raise storage.ModelExistsError(
            f"compact=True: {folder} holds a model that can learn, and a compact one in its place "
            "could not. Save the compact one to another folder."
        )


def _stored_ledger(stored: storage.StoredModel) -> Ledger | None:
    if "ledger" not in stored.document:
        return None
    pages = {
        name.removeprefix(LEDGER): array
        for name, array in stored.arrays.items()
        if name.startswith(LEDGER)
    }
    return Ledger.from_state(pages, stored.document["ledger"])


def _stored_service(
    stored: storage.StoredModel,
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    arrays = {name: a for name, a in stored.arrays.items() if name.startswith(f"{SERVICE}/")}
    return arrays, dict(stored.document["classifier"].get(SERVICE, {}))


def _parts(batch: Any) -> Parts:
    if not isinstance(batch, tuple | list) or len(batch) not in (2, 3):
        raise KldaError(
            "labels is missing: give one label for each input, or an iterable of "
            "(inputs, labels) pairs."
        )
    ids = batch[2] if len(batch) == 3 else None
    return batch[0], plain_labels(batch[1]), None if ids is None else list(ids)


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
    if not hasattr(classifier, "n_features_in_"):
        return twin
    try:
        return twin.merge(classifier)
    except state.PredictionOnlyError:
        return copy.copy(classifier)  # a compact one never changes: its parts may be shared


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
