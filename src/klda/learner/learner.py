"""What a user holds: a frozen foundation model, a classifier on top, and a model folder."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import numpy as np
from sklearn.base import clone

from klda import encoders
from klda.classifiers import KLDA, ContinualClassifier
from klda.classifiers.validation import check_label_kind, check_labels_known
from klda.data.threads import map_behind
from klda.encoders.probes import gamma_for
from klda.encoders.progress import Show
from klda.engine.interrupts import held_back
from klda.engine.model import Model
from klda.errors import KldaError
from klda.labels import Label, check_one_each, listed, plain
from klda.learner.class_names import ClassNames, can_read_names, carry_hints
from klda.learner.inputs import InputEncoder, Labels, check_same_features, open_encoder
from klda.learner.ledger import Ledger, SampleId
from klda.learner.overlap import check_no_overlap, learned
from klda.learner.read_only import Detached, ReadOnlyLearner

# Older entries are dropped from the history: a service that learns all day must not grow forever.
HISTORY_LENGTH = 1000


class ForgetTraceWarning(UserWarning):
    """A class was dropped from the answers, but the shared covariance keeps a trace of it."""


class Learner(ReadOnlyLearner):
    """Learns classes of texts or images at any time, without forgetting the ones before.

    Parameters
    ----------
    model : str, Path or Encoder
        The frozen foundation model: a name out of ``klda.encoders.MODELS``, a hub name, a local
        folder, ``"features"`` for rows computed elsewhere, or an encoder.
    classifier : estimator, optional
        KLDA, KLDAEnsemble, LDA or NCM. By default a KLDA with fixed random features, so that
        learners trained separately can be merged, and a bandwidth that for texts depends on the
        foundation model alone, so that learning in pieces gives what learning at once gives.
    keep : {None, "features"}
        ``"features"`` keeps a ledger of the features learned, in half precision, with an id each:
        classes and single samples can then be forgotten exactly, and the classifier rebuilt with
        other parameters. By default no text and no image is kept; while there are fewer than half
        as many samples as random features, one row of numbers per sample is.
    names : bool
        For texts: the name of a class, read as words, counts as an example of it until the class
        has ten samples, if names prove to tell classes apart. Needs the default classifier.
    **options
        Passed to :func:`klda.encoders.load`: ``device``, ``layers``, ``batch_size``,
        ``modality``, ``trust_remote_code``. By default ``layers="auto"``: the layers that suit the
        named model best.

    Notes
    -----
    A call that changes the learner returns it, and changes it completely or, when it raises or is
    interrupted, not at all. Any number of threads may ask while none changes it; :meth:`frozen`
    makes a view that keeps answering meanwhile.

    Examples
    --------
    >>> import numpy as np
    >>> from klda import Learner
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
        model: str | Path | encoders.Encoder = "minilm",
        *,
        classifier: ContinualClassifier | None = None,
        keep: str | None = None,
        names: bool = True,
        **options: Any,
    ) -> None:
        if keep not in (None, "features"):
            raise KldaError(f"keep={keep!r} is not known; use None or 'features'.")
        encoder = open_encoder(model, options)
        self._inputs = InputEncoder(encoder.fingerprint(), options, encoder)
        if classifier is None:
            gamma = gamma_for(encoder) if encoder.modality == "text" else "auto"
            device, blocks = options.get("device", "auto"), self._inputs.blocks
            classifier = KLDA(gamma=gamma, blocks=blocks, random_state=0, device=device)
        self.classifier = classifier
        self.extras = {}
        self._ledger = Ledger() if keep else None
        self._names = ClassNames(enabled=bool(names))
        self._history = []
        self._origin = None

    def __repr__(self) -> str:
        return (
            f"<Learner {self.foundation['name']} + {type(self.classifier).__name__}: "
            f"{len(self.classes)} classes, {self.samples} samples>"
        )

    # ---------------------------------------------------------------- learning

    def learn(
        self,
        inputs: Any,
        labels: Labels | None = None,
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
            One label per input.
        ids : sequence of str, optional
            An id for each input, to forget it by later; needs ``keep="features"``. Without, inputs
            get running numbers. In batches it is the third of (inputs, labels, ids).
        source : str or Path, optional
            Where the samples come from, for the history.
        progress : bool
            Show a progress bar if standard error is a terminal.
        """
        if labels is not None:
            (batch,) = self._inputs.batches([(inputs, labels, ids)], progress=progress)
            return self.learn_rows(*batch, source=source)
        if ids is not None:
            raise KldaError("ids goes with labels; batches are (inputs, labels, ids).")
        draft = self.copy()
        draft.learn_batches(inputs, progress=progress)
        if draft.samples == self.samples:
            raise KldaError("inputs is empty: there is nothing to learn.")
        return self.take_over(draft, source)

    def learn_rows(
        self,
        rows: np.ndarray,
        labels: Labels,
        ids: Sequence[str | None] | None = None,
        *,
        source: str | Path | None = None,
    ) -> Self:
        """Learn samples whose features were computed before; parameters as for :meth:`learn`."""
        check_one_each(rows, labels, "rows")
        with self.changing("learn", source):
            self._learn(rows, labels, ids)
        return self

    def _learn(
        self, rows: np.ndarray, labels: Labels, ids: Sequence[str | None] | None = None
    ) -> None:
        self._check_width(rows)
        ledger = self._ledger
        if ledger is not None:
            ledger, rows = ledger.add(rows, labels, ids)  # learned as the ledger holds them
        elif ids is not None:
            raise KldaError("ids are kept only by a learner made with keep='features'.")
        self.classifier.partial_fit(rows, labels)
        self._ledger = ledger

    def learn_batches(
        self,
        batches: Iterable[Any],
        *,
        after: Callable[[], None] | None = None,
        progress: Show = False,
    ) -> None:
        """Learn batches as :meth:`learn` does, without an entry in the history, as a draft.

        `after` is called after each batch. An error leaves the batches before it learned.
        """

        def learn(batch: tuple) -> None:
            self._learn(*batch)
            if after is not None:
                after()

        for _ in map_behind(learn, self._inputs.batches(batches, progress=progress)):
            pass

    def take_over(self, draft: Learner, source: str | Path | None = None, **noted: Any) -> Self:
        """Become what a draft, a copy of this learner, has become by learning.

        What is `noted` goes into the history.
        """
        with self.changing("learn", source, **noted):
            self.classifier, self._ledger = draft.classifier, draft._ledger
        return self

    @contextmanager
    def changing(
        self, action: str, source: str | Path | None = None, **noted: Any
    ) -> Iterator[None]:
        """Note a change in the history once it is complete; an interrupt waits until then."""
        before, trouble = self.classifier.counts_, ""
        with held_back():
            yield
            if self._inputs.modality == "text":
                self._names, trouble = self._names.refreshed(self.classifier, self._inputs)
            after = self.classifier.counts_
            entry: dict[str, Any] = {
                "when": datetime.now(UTC).isoformat(timespec="seconds"),
                "action": action,
                "samples": sum(after.values()) - sum(before.values()),
                "new_classes": [label for label in after if label not in before],
                "dropped_classes": [label for label in before if label not in after],
                "source": None if source is None else str(source),
                **noted,
            }
            kept = {key: value for key, value in entry.items() if value not in (None, [])}
            self._history = [*self._history, kept][-HISTORY_LENGTH:]
        if trouble:
            warnings.warn(trouble, stacklevel=4)

    # ---------------------------------------------------------------- classes by their names

    def declare(self, classes: Label | Sequence[Label] | Mapping[Label, str | None]) -> Self:
        """Make classes known by their names, before anything is taught of them.

        Parameters
        ----------
        classes : label, sequence of labels, or mapping from labels to descriptions
            A name is read as words: ``card_arrival`` as "card arrival". A description says more.
        """
        if not can_read_names(self.classifier, self._inputs):
            raise KldaError(
                "Classes can be declared for texts only, with a KLDA classifier whose rule is "
                f"'auto'; this learner has {self._inputs.modality} inputs and {self.classifier!r}."
            )
        names = self._names.declare(classes)
        check_label_kind(np.array(list(self.classes)), list(names.declared), "classes")
        with self.changing("declare"):
            texts = names.texts(self.classifier)
            self._names = names.give_to(self.classifier, texts, self._inputs)
        return self

    # ---------------------------------------------------------------- forgetting

    def forget(
        self,
        labels: Label | Sequence[Label] | None = None,
        inputs: Any = None,
        *,
        ids: SampleId | Sequence[SampleId] | None = None,
        source: str | Path | None = None,
    ) -> Self:
        """Forget classes, or single samples of them.

        With a ledger (``keep="features"``), with the samples given, or while the model holds its
        samples, what they did is undone exactly: scores become those of a model that never learned
        them. Otherwise the classes are dropped from the answers, but the covariance that all
        classes share keeps a trace of them, and a `ForgetTraceWarning` says so.

        Parameters
        ----------
        labels : label or sequence of labels, optional
            The classes. With `inputs`: one label per input, or one for all.
        inputs : sequence, optional
            Samples that were learned; others are refused, as far as that can be told.
        ids : id or sequence of ids, optional
            Samples in the ledger, instead of `labels`: the ids they were given, or their running
            numbers.
        source : str or Path, optional
            Where the inputs come from, for the history.
        """
        if ids is not None:
            if labels is not None or inputs is not None:
                raise KldaError("ids names the samples already: leave out labels and inputs.")
            if self._ledger is None:
                raise KldaError(
                    "ids can't be used: this learner keeps no ledger. Make it with "
                    "keep='features', or give labels and the inputs that were learned."
                )
            positions = self._ledger.of_ids(listed(ids))
            with self.changing("forget", source):
                self._remove(positions)
            return self
        if labels is None:
            raise KldaError("labels is missing: name the classes to forget, or samples by ids.")
        names = listed(labels)
        if inputs is None:
            return self._forget_classes(names, source)
        rows = self.encode(inputs)
        names = names * len(rows) if len(names) == 1 else names
        return self.forget_rows(rows, names, source=source)

    def forget_rows(
        self,
        rows: np.ndarray,
        labels: Sequence[Label],
        *,
        source: str | Path | None = None,
        verify: bool = True,
    ) -> Self:
        """Forget samples given by their features; they must have been learned with these labels.

        Otherwise a `NotLearnedError` is raised. Samples in a ledger, or held by the model, are
        compared. Without a ledger the statistics are used; they can miss a few rows that resemble
        the learned ones.
        ``verify=False`` repeats a removal that was verified before: rounding on another machine
        could change the verdict of the statistics.
        """
        check_one_each(rows, labels)
        found = None if self._ledger is None else self._ledger.find(rows, labels)
        if found is None and verify:
            self.classifier.check_learned(rows, labels)
        with self.changing("forget", source):
            if found is None:
                self.classifier.remove(rows, labels)
            else:
                self._remove(found)
        return self

    def detach(self, label: Label) -> Detached:
        """Forget a class, and return what :meth:`attach` needs to bring it back exactly."""
        known, declared = self.classes, self._names.only([label]).pack()
        check_labels_known(np.array([*known]), [label], "label")
        with self.changing("forget"):
            arrays, meta = self._drop(label)
        return Detached(label, known[label], arrays, {**meta, "names": declared})

    def attach(self, detached: Detached) -> Self:
        """Bring back a class that :meth:`detach` took out.

        Samples in a ledger keep the ids they were given; the others get new running numbers.
        """
        meta = dict(detached.meta)
        names = ClassNames.unpack(meta.pop("names", None), meta.get("hints", ()))
        with self.changing("learn", "undo"):
            if "rows" in detached.arrays:
                rows, ids = detached.arrays["rows"], meta.get("ids")
                ids = ids and [one if isinstance(one, str) else None for one in ids]
                self._learn(rows, [detached.label] * len(rows), ids)
            else:
                model = self.classifier.model_
                part = Model.unpack(detached.arrays, meta, model.backend, maps=model.maps)
                self.classifier.attach(part)
            self._names = self._names.merge(names)
        return self

    def _forget_classes(self, names: list[Label], source: str | Path | None) -> Self:
        if not names:
            raise KldaError("labels is empty: name at least one class to forget.")
        names = list(dict.fromkeys(names))
        check_labels_known(np.array([*self.classes]), names, "labels")
        if traces := self.traces_of(names):
            # Before anything changes: if warnings are errors, nothing is forgotten.
            some = ", ".join(map(repr, traces[:3])) + (", ..." if len(traces) > 3 else "")
            warnings.warn(
                f"{some}: dropped from the answers, but the covariance that all classes share "
                "keeps a trace of what was learned. To leave none, give the inputs that were "
                "learned, or keep a ledger: Learner(..., keep='features').",
                ForgetTraceWarning,
                stacklevel=3,
            )
        draft = self.copy() if len(names) > 1 else self
        with self.changing("forget", source):
            for name in names:
                draft._drop(name)
            self.classifier, self._ledger = draft.classifier, draft._ledger
        return self

    def _drop(self, label: Label) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Forget a class; return arrays and values that bring it back."""
        ledger = self._ledger
        if ledger is not None and ledger.counts.get(label) == self.classes[label]:
            at = ledger.of_class(label)
            rows, ids = ledger.rows_at(at), ledger.ids_at(at)
            self._remove(at)
            if label in self.classifier.counts_:  # still known by its name
                self.classifier.forget(label)
            return {"rows": rows}, {"ids": ids}
        part = self.classifier.detach(label)
        try:
            return part.pack(maps=False)
        except BaseException:
            self.classifier.attach(part)
            raise

    def _remove(self, positions: np.ndarray) -> None:
        """Undo what samples in the ledger did, and take them out of it."""
        ledger = self._ledger
        assert ledger is not None
        left = ledger.without(positions)
        self.classifier.remove(ledger.rows_at(positions), ledger.labels_at(positions))
        self._ledger = left

    # ---------------------------------------------------------------- other changes

    def rename(self, old: Label, new: Label) -> Self:
        """Give a class another name, one that no other class has."""
        old, new = plain(old), plain(new)
        names = self._names.rename(old, new, self.classes)
        ledger = None if self._ledger is None else self._ledger.rename(old, new)
        with self.changing("rename", f"{old} -> {new}"):
            self.classifier.rename(old, new)
            self._names, self._ledger = names, ledger
        return self

    def merge(self, other: Learner, *, allow_same: bool = False) -> Self:
        """Add all that another learner knows, as if its samples had been learned here.

        Parameters
        ----------
        other : Learner
            Made with the same foundation model and the same random features; not changed. If this
            learner keeps a ledger, the other one must too.
        allow_same : bool
            Merge even if both have learned the same samples or files, which then count twice.
        """
        if not isinstance(other, Learner):
            raise KldaError(
                f"other is a {type(other).__name__}, not a Learner; to merge a classifier, give "
                "Learner('features', classifier=...)."
            )
        check_same_features(self.foundation, other.foundation, "other's")
        if not allow_same:
            check_no_overlap(self, other)
        ledger = self._ledger
        if ledger is not None:
            if other._ledger is None:
                raise KldaError(
                    "other keeps no ledger, but this learner does: samples would be missing from "
                    "it. Merge this learner into the other one instead."
                )
            ledger = ledger.merge(other._ledger)
        with self.changing("merge", other.origin, contents=list(learned(other))):
            self.classifier.merge(other.classifier)
            self._names = self._names.merge(other._names)
            self._ledger = ledger
        return self

    def rebuild(self, classifier: ContinualClassifier | None = None, **parameters: Any) -> Self:
        """Learn everything in the ledger again, with other parameters.

        Without any change this gives the model that would have learned just these samples. A
        bandwidth that was found in the first batch stays; ``gamma="auto"`` finds it again.

        Parameters
        ----------
        classifier : estimator, optional
            Another classifier; by default one like the present.
        **parameters
            Parameters of the classifier to change: ``n_components``, ``gamma``, ``ridge`` ...
        """
        ledger, learned = self._ledger, {label: n for label, n in self.classes.items() if n}
        if ledger is None or not learned or ledger.counts != learned:
            raise KldaError(
                "There is no complete ledger to rebuild from: make the learner with "
                "keep='features' before it learns anything."
            )
        fresh = clone(self.classifier if classifier is None else classifier)
        if classifier is None and hasattr(fresh, "gamma"):
            fresh.set_params(gamma=self.classifier.gamma_)
        try:
            fresh.set_params(**parameters)
        except ValueError as error:  # names the parameters there are
            raise KldaError(str(error)) from error
        for rows, labels in ledger.batches():
            fresh.partial_fit(rows, labels)
        carry_hints(self.classifier, fresh, self._inputs)
        with self.changing("rebuild"):
            self.classifier = fresh
        return self

    def copy(self) -> Learner:
        """Return an independent copy; it shares the foundation model, which never changes."""
        twin = copy.copy(self)
        twin.classifier, twin.extras = self.classifier.copy(), dict(self.extras)
        return twin

    def frozen(self) -> Learner:
        """Return a learner that answers as this one does now, and can't learn.

        It shares the solved classifier, which never changes, whatever is learned here later.
        """
        twin = copy.copy(self)
        twin.classifier = self.classifier.frozen()
        return twin
