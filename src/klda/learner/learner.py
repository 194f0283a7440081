"""What a user holds: a frozen foundation model, an engine on top, and a model folder."""

from __future__ import annotations

import copy
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from klda import encoders
from klda.checks import REFUSED
from klda.data import Layout
from klda.data.threads import map_behind
from klda.encoders.bandwidth import gamma_for
from klda.engine.arrays import add_prefix, strip_prefix
from klda.engine.checks import (
    check_label_kind,
    check_labels_known,
    check_removable,
    check_same_parameters,
    checked_name,
)
from klda.engine.engine import Engine
from klda.engine.model import Model
from klda.engine.parameters import Parameters
from klda.engine.rows import Rows, SampleId
from klda.errors import KldaError
from klda.inspection.refusal import Refusal, Tuning, fit_refusal
from klda.inspection.tables import html_table, text_table
from klda.labels import (
    CaseFolder,
    Label,
    as_list,
    as_python,
    check_one_each,
    label_list,
    plain_labels,
    similar_names,
)
from klda.learner.answering import Answering
from klda.learner.class_names import ClassNames
from klda.learner.history import (
    HISTORY_LENGTH,
    check_no_overlap,
    entry,
    learned,
    mark_undone,
    next_number,
    numbered,
)
from klda.learner.inputs import InputEncoder, Labels, check_same_features, open_encoder
from klda.progress import Show
from klda.storage import folder, stored
from klda.undo.log import KEPT_SECONDS, Change, UndoError, UndoLog
from klda.undo.parts import TaughtRows, are_few, part_of, part_of_classes

__all__ = ["ForgetTraceWarning", "Learner", "SimilarClassWarning", "UndoError"]


class SimilarClassWarning(UserWarning):
    """A class is about to be made whose name looks like that of another."""


class ForgetTraceWarning(UserWarning):
    """A class was dropped from the answers, but the shared covariance keeps a trace of it."""


@dataclass
class Draft:
    """A change that is being made: what takes the place of the learner's when it is complete."""

    engine: Engine
    names: ClassNames
    parameters: Parameters
    undo: UndoLog
    history: list[dict[str, Any]]
    # Of each entry that it makes in the history: how many samples each class has then, and the
    # fields of a `Change`, with what undoes it.
    changes: list[tuple[Mapping[Label, int] | None, dict[str, Any]]] = field(default_factory=list)

    def undone_by(self, **fields: Any) -> None:
        """Note what undoes the change: the fields of a `Change`."""
        self.changes.append((None, fields))


class Learner(Answering):
    """Learns classes of texts or images at any time, without forgetting the ones before.

    Parameters
    ----------
    foundation : str, Path, callable or object
        The frozen foundation model, also as ``model=``: a name out of ``klda.encoders.MODELS``, a
        hub name, a local folder, the URL of a server of embeddings, ``"features"`` for rows
        computed elsewhere, a function from texts to rows, or an object with ``encode``; see
        :func:`klda.encoders.load`.
    classifier : KLDA, LDA or Parameters, optional
        Whose parameters to use. By default those of a KLDA with fixed random features, so that
        learners trained separately can be merged, and a bandwidth that for texts depends on the
        foundation model alone, so that learning in pieces gives what learning at once gives.
    keep : {None, "features"}
        ``"features"`` keeps a ledger of the features learned, in half precision, with an id each:
        classes and single samples can then be forgotten exactly, and the classifier rebuilt with
        other parameters. By default no text and no image is kept; while there are fewer than half
        as many samples as random features, one row of numbers per sample is.
    names : bool
        For texts: the name of a class, read as words, counts beside its samples while they are
        few, as far as names prove to tell classes apart.
    undo : float
        For how many seconds a change can be undone; see :meth:`undo`. 0 keeps nothing for it.
    **options
        Passed to :func:`klda.encoders.load`: ``device``, ``layers``, ``batch_size``,
        ``modality``, ``prompt``, ``model``, ``name`` and others. By default ``layers="auto"``: the
        layers that suit the named model best.

    Attributes
    ----------
    engine : Engine
        All that was learned.
    parameters : Parameters
        How it is solved.
    extras : dict
        JSON-able values of others, saved in the folder beside the model and kept by later saves.

    Notes
    -----
    A call that changes the learner returns it, and changes it completely or, when it raises or is
    interrupted, not at all. Any number of threads may ask and change it; :meth:`frozen` makes a
    view that keeps answering as before.

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
        foundation: Any = "minilm",
        /,
        *,
        classifier: Any = None,
        keep: str | None = None,
        names: bool = True,
        undo: float = KEPT_SECONDS,
        **options: Any,
    ) -> None:
        if "model" in options and not encoders.is_url(foundation):  # where it is a server's model
            foundation = options.pop("model")
        if keep not in (None, "features"):
            raise KldaError(f"keep={keep!r} is not known; use None or 'features'.")
        encoder = open_encoder(foundation, options)
        self._inputs = InputEncoder(encoder.fingerprint(), options, encoder)
        if classifier is None:
            gamma = gamma_for(encoder) if encoder.modality == "text" else "auto"
            blocks, device = self._inputs.blocks, options.get("device", "auto")
            classifier = Parameters(gamma=gamma, blocks=blocks, device=device)
        self.parameters = _parameters_of(classifier)
        self.engine = Engine()
        self.keeps_all = keep is not None
        self.extras: dict[str, Any] = {}
        self._names = ClassNames(enabled=bool(names))
        self._history: list[dict[str, Any]] = []
        self._undo = UndoLog()
        self.undo_seconds = undo
        self._taught = TaughtRows()
        self._origin: tuple[Path, str] | None = None
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        return (
            f"<Learner {self.foundation['name']}: {len(self.classes)} classes, "
            f"{self.samples} samples>"
        )

    def __str__(self) -> str:
        return f"{self!r}\n{text_table(('class', 'samples'), self._class_rows())}"

    def _repr_html_(self) -> str:
        return html_table(repr(self), ("class", "samples"), self._class_rows())

    def _class_rows(self) -> list[tuple[Label, str]]:
        return [(label, f"{count:,}") for label, count in self.classes.items()]

    @property
    def declared(self) -> dict[Label, str | None]:
        """Classes that were declared, each with its description, if it was given one."""
        return dict(self._names.declared)

    @property
    def history(self) -> list[dict[str, Any]]:
        """What was learned, forgotten and merged, and when; the latest last.

        Each entry has a ``number``, and whether it is ``undoable``.
        """
        undoable = self._undo.expired().undoable
        return [{**entry, "undoable": entry["number"] in undoable} for entry in self._history]

    @property
    def undo_seconds(self) -> float:
        """For how many seconds a change can be undone; set it to keep them longer, or not at all.

        It is saved with the model.
        """
        return self._undo.seconds

    @undo_seconds.setter
    def undo_seconds(self, seconds: float) -> None:
        if not (isinstance(seconds, int | float) and 0 <= seconds < float("inf")):
            raise KldaError(f"undo={seconds!r} can't be used; give seconds, or 0 for no undo.")
        self._undo = replace(self._undo, seconds=float(seconds)).expired()

    @property
    def origin(self) -> Path | None:
        """The model folder that this learner was loaded from or last saved to."""
        return None if self._origin is None else self._origin[0]

    # ---------------------------------------------------------------- learning

    def learn(
        self,
        inputs: Any,
        labels: Labels | None = None,
        *,
        text: str | Sequence[str] | None = None,
        label: str | None = None,
        ids: Sequence[str] | None = None,
        source: str | Path | None = None,
        ignore_case: bool = False,
        progress: bool = False,
    ) -> Self:
        """Learn samples of new classes, or more of old ones.

        Parameters
        ----------
        inputs : sequence, table, or iterable of (inputs, labels)
            Texts, images (paths, PIL images, arrays) or feature rows. Without `labels`: a table
            that has them (pandas, polars, pyarrow, a Hugging Face dataset), the ``Path`` of a file
            or folder, or an iterable of batches, taken one at a time, so that it may be larger than
            the memory. While one is encoded, the one before is learned and the next is tokenised,
            in threads. If any batch fails, none is learned.
        labels : sequence of str or int, optional
            One label per input.
        text, label : str, optional
            Columns of a table, where names and contents don't tell; several columns of text are
            joined.
        ids : sequence of str, optional
            An id for each input, to forget it by later; needs ``keep="features"``. Without, inputs
            get running numbers. In batches it is the third of (inputs, labels, ids).
        source : str or Path, optional
            Where the samples come from, for the history.
        ignore_case : bool
            Take ``Refund`` for ``refund``: write labels as known classes, or as they first came.
        progress : bool
            Show a progress bar if standard error is a terminal.

        Warns
        -----
        SimilarClassWarning
            Before a class is made whose name looks like that of another; see
            :meth:`similar_classes`.
        """
        batches = self._inputs.given(inputs, labels, Layout(text, label), self.classes, ids)
        if ignore_case:
            fold = CaseFolder(self.classes)
            batches = ((some, fold(plain_labels(named)), *more) for some, named, *more in batches)
        if labels is not None:
            (batch,) = self._inputs.batches(batches, progress=progress)
            self._warn_of_similar(label_list(batch[1]))
            return self.learn_rows(*batch, source=source)
        with self._lock:  # what others taught meanwhile would be lost
            draft = self.copy()
            draft.learn_batches(batches, progress=progress)
            if draft.samples == self.samples:
                raise KldaError("inputs is empty: there is nothing to learn.")
            return self.commit(draft, source)

    def learn_rows(
        self,
        rows: np.ndarray,
        labels: Labels,
        ids: Sequence[str | None] | None = None,
        *,
        source: str | Path | None = None,
        parts: Sequence[int] | None = None,
    ) -> Self:
        """Learn samples whose features were computed before; parameters as for :meth:`learn`.

        With `parts`, numbers of samples, it is one update of the model, but as many changes in the
        history, which can be undone one by one.
        """
        with self._changing("learn", source) as draft:
            rows, names = self._add(draft.engine, rows, labels, ids)
            if parts is None:
                taught = TaughtRows()
                taught.add(draft.engine.model, rows, names, ids)
                draft.undone_by(adds=True, part=self._part(draft, taught))
                return self
            counts, ends = Counter(self.classes), np.cumsum(parts).tolist()
            if ends[-1:] != [len(rows)]:
                raise KldaError(f"parts={list(parts)} are not numbers that add up to {len(rows)}.")
            for start, end in zip([0, *ends], ends, strict=False):
                own = slice(start, end)
                counts.update(names[own])
                part = part_of(draft.engine.model, rows[own], names[own], ids and ids[own])
                fields = {"adds": True, "part": part if self.undo_seconds else None}
                draft.changes.append((dict(sorted(counts.items())), fields))
        return self

    def _add(
        self,
        engine: Engine,
        rows: np.ndarray,
        labels: Labels,
        ids: Sequence[str | None] | None = None,
    ) -> tuple[np.ndarray, list[Label]]:
        """Check samples, and let an engine learn them; return them as they were learned."""
        check_one_each(rows, labels, "rows")
        names = label_list(labels)
        rows = self._checked_rows(rows)
        check_label_kind(np.array([*engine.counts][:1]), names, "labels")
        if ids is not None and not self.keeps_all:
            raise KldaError("ids are kept only by a learner made with keep='features'.")
        parameters, keep_all = self.parameters, self.keeps_all
        engine.add(rows, names, ids, parameters=parameters, keep_all=keep_all)
        return rows, names

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
            rows, names = self._add(self.engine, *batch)
            if self.undo_seconds:
                self._taught.add(self.engine.model, rows, names, batch[2])
            if after is not None:
                after()

        for _ in map_behind(learn, self._inputs.batches(batches, progress=progress)):
            pass

    def commit(self, draft: Learner, source: str | Path | None = None, **noted: Any) -> Self:
        """Become what a draft, a copy of this learner, has become by learning.

        What is `noted` goes into the history.
        """
        self._warn_of_similar(draft.classes)
        with self._changing("learn", source, **noted) as change:
            change.engine = draft.engine.copy()
            change.undone_by(adds=True, part=self._part(change, draft._taught))
        return self

    def _part(self, draft: Draft, taught: TaughtRows) -> Model | None:
        """Return what undoes a learn, if it is to be kept."""
        before = None if self.engine.is_new else self.engine.model
        return taught.part(before, draft.engine.model) if self.undo_seconds else None

    @contextmanager
    def _changing(
        self, action: str, source: str | Path | None = None, **noted: Any
    ) -> Iterator[Draft]:
        """Yield a draft of the learner to be changed; once that is done, it takes its place.

        Engine, names, parameters, history and what undoes the change: all in one step.
        """
        with self._lock:
            draft = Draft(
                self.engine.copy(), self._names, self.parameters, self._undo, list(self._history)
            )
            yield draft
            engine, history = draft.engine, draft.history
            before: Mapping[Label, int] = self.classes
            names, trouble = draft.names.only(engine.counts).given_to(
                engine, self._inputs, draft.parameters, self.keeps_all
            )
            known = None if self.engine.is_new else self.engine.model
            for after, fields in draft.changes or [(None, {})]:
                counts = engine.counts if after is None else after
                history.append(entry(action, before, counts, source, noted, history))
                if fields:
                    change = Change.of(history[-1]["number"], **fields)
                    draft.undo = draft.undo.add(change, known, engine.model)
                before, known = counts, None
            vars(self).update(
                engine=engine,
                parameters=draft.parameters,
                _names=names,
                _history=history[-HISTORY_LENGTH:],
                _undo=draft.undo,
            )
        if trouble:
            warnings.warn(trouble, stacklevel=4)

    def similar_classes(self, labels: Iterable[Label]) -> dict[Label, Label]:
        """Return labels that look like a class written differently, each with that class.

        As ``{"card arival": "card_arrival"}``: learned or declared, they would be new classes.
        """
        return similar_names(map(as_python, labels), self.classes)

    def _warn_of_similar(self, labels: Iterable[Label]) -> None:
        """Say which new classes look like others; before they are made."""
        if similar := self.similar_classes(labels):
            some = [
                f"{new!r} is a new class. Did you mean {old!r}?" for new, old in similar.items()
            ]
            warnings.warn(
                f"{' '.join(some[:3])} A rename with merge=True (klda rename --merge) makes one "
                "class of two, and an undo takes the change back.",
                SimilarClassWarning,
                stacklevel=3,
            )

    def declare(self, classes: Label | Sequence[Label] | Mapping[Label, str | None]) -> Self:
        """Add classes by name, without examples.

        Parameters
        ----------
        classes : label, sequence of labels, or mapping from labels to descriptions
            A name is read as words: ``card_arrival`` as "card arrival". A description says more.
        """
        if self.modality != "text" or self.parameters.rule != "auto":
            raise KldaError(
                "Classes can be declared for texts only, with the rule 'auto'; this learner has "
                f"{self.modality} inputs and the rule {self.parameters.rule!r}."
            )
        with self._lock:
            names = self._names.declare(classes)
            self._warn_of_similar(names.declared)
            check_label_kind(np.array([*self.classes][:1]), list(names.declared), "classes")
            with self._changing("declare") as draft:
                draft.names = names
                names.hint(draft.engine, self._inputs, self.parameters, self.keeps_all)
                before = self._names.declared
                new = {k: v for k, v in names.declared.items() if before.get(k, ...) != v}
                draft.undone_by(declared=new)
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

        With a ledger (``keep="features"``), with the samples given, or while the model still keeps
        its samples, what they did is undone exactly: scores become those of a model that never
        learned them. Otherwise the classes are removed from the answers, but a small statistical
        trace remains in the covariance that all classes share, and a `ForgetTraceWarning` says so.

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
            if self.ledger is None:
                raise KldaError(
                    "ids can't be used: this learner keeps no ledger. Make it with "
                    "keep='features', or give labels and the inputs that were learned."
                )
            with self._changing("forget", source) as draft:
                self._remove_at(draft, (self.engine.model.rows or Rows()).of_ids(as_list(ids)))
            return self
        if labels is None:
            raise KldaError("labels is missing: name the classes to forget, or samples by ids.")
        names = as_list(labels)
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

        Otherwise a `NotLearnedError` is raised. Samples that the model keeps are compared. Without
        them the statistics are used; they can miss a few rows that resemble the learned ones.
        ``verify=False`` repeats a removal that was verified before: rounding on another machine
        could change the verdict of the statistics.
        """
        check_one_each(rows, labels)
        names = [as_python(label) for label in labels]
        rows = self._checked_rows(rows)
        with self._changing("forget", source) as draft:
            engine, model = draft.engine, draft.engine.model
            check_removable(engine.counts, names)
            if model.rows is not None:
                self._remove_at(draft, model.rows.find(rows, names))
                return self
            if verify:
                engine.check_learned(rows, names, self.parameters)
            engine.remove(rows, names)
            few = are_few(model, len(rows))
            part = part_of(model, rows, names) if few else model.since(engine.model)
            draft.undone_by(removes=True, part=part)
        return self

    def _remove_at(self, draft: Draft, positions: np.ndarray) -> None:
        """Forget samples given by their positions among those kept."""
        model = draft.engine.model
        assert model.rows is not None
        draft.engine.remove_at(positions)
        part = replace(model.empty(), rows=model.rows.at(positions))
        draft.undone_by(removes=True, part=part)

    def traces_of(self, labels: Iterable[Label]) -> list[Label]:
        """Return those of some classes that would leave a trace in the covariance if forgotten."""
        known = self.classes
        return [label for label in labels if known[label]] if self.leaves_trace else []

    def _forget_classes(self, names: list[Label], source: str | Path | None) -> Self:
        if not names:
            raise KldaError("labels is empty: name at least one class to forget.")
        names = list(dict.fromkeys(names))
        with self._lock:
            check_labels_known(np.array([*self.classes]), names, "labels")
            if traces := self.traces_of(names):
                # Before anything changes: if warnings are errors, nothing is forgotten.
                some = ", ".join(map(repr, traces[:3])) + (", ..." if len(traces) > 3 else "")
                warnings.warn(
                    f"{some}: removed from the answers. A small statistical trace remains; to "
                    "leave none, give the inputs that were learned, or keep a ledger: "
                    "Learner(..., keep='features').",
                    ForgetTraceWarning,
                    stacklevel=3,
                )
            with self._changing("forget", source) as draft:
                part, in_use = self._part_of_classes(draft, names)
                for name in names:
                    draft.engine.drop(name)
                draft.undone_by(removes=True, part=part, dropped=tuple(names), in_use=in_use)
        return self

    def _part_of_classes(
        self, draft: Draft, labels: list[Label]
    ) -> tuple[Model, Mapping[Label, str]]:
        """Return what brings classes back: a model of them alone, and what their hints say."""
        return part_of_classes(draft.engine.model, labels), self._names.only(labels).in_use

    # ---------------------------------------------------------------- other changes

    def tune_unknown(
        self,
        known: Any,
        unknown: Any,
        *,
        most_refused: float | None = None,
        by_class: bool = False,
        progress: bool = False,
    ) -> Tuning:
        """Fit the threshold beyond which inputs are unknown to inputs of both kinds, and store it.

        ``predict(..., reject=True)``, :meth:`is_known`, :meth:`answer` and :meth:`explain` then use
        it; a fraction, as in ``reject=0.05``, still asks for that one. Set ``refusal = None`` to
        return to the default.

        Parameters
        ----------
        known, unknown : sequence or table
            Inputs of the classes, and inputs that belong to none; not among those learned.
        most_refused : float, optional
            Fraction of known inputs that may be refused. By default the threshold with the least
            sum of known inputs refused and unknown inputs accepted, as fractions.
        by_class : bool
            Also fit thresholds of single classes, where at least 20 inputs of both kinds were
            answered with the class.

        Returns
        -------
        Tuning
            A table of what each choice costs; ``print`` shows it.
        """
        self._check_can_reject(most_refused)
        with self._lock:
            solution, answered = self.solution, []
            if solution.calibration is None or self.threshold(REFUSED) is None:
                raise KldaError("Too little was learned to tell known inputs from unknown ones.")
            for inputs in (known, unknown):
                found = solution.answer(self.encode(inputs, progress=progress), novelty=True)
                answered += [found.novelty / solution.calibration.unit, found.labels[:, 0]]
            refusal, tuning = fit_refusal(
                *answered[::2], *answered[1::2], most_refused=most_refused, by_class=by_class
            )
            with self._changing("tune", refused=tuning.chosen.known_refused):
                pass
            self.refusal = refusal
        return tuning

    def rename(self, old: Label, new: Label, *, merge: bool = False) -> Self:
        """Give a class another name.

        Parameters
        ----------
        old, new : label
            The class, and its new name.
        merge : bool
            Whether `new` may be another class: the two then become one, exactly as if all samples
            had been learned as that class.
        """
        with self._lock:
            old = as_python(old)
            new = checked_name(np.array([*self.classes]), old, new, merge=merge)
            joined = new in self.classes
            names = self._names if joined else self._names.rename(old, new, self.classes)
            with self._changing("rename", f"{old} -> {new}") as draft:
                draft.names = names
                part, in_use = self._part_of_classes(draft, [old])
                draft.engine.rename(old, new)
                moved = {"renamed": (old, new), "joined": joined, "in_use": in_use}
                draft.undone_by(adds=True, removes=True, part=part, **moved)
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
                f"other is a {type(other).__name__}, not a Learner; to merge a classifier, learn "
                "its samples with Learner('features')."
            )
        check_same_features(self.foundation, other.foundation, "other's")
        other = other.copy()  # as it is now
        if other.engine.is_new:
            return self
        with self._lock:
            if not allow_same:
                check_no_overlap(self, other)
            _warn_of_others(self.parameters, other.parameters)
            with self._changing("merge", other.origin, contents=list(learned(other))) as draft:
                model = other.engine.model
                if draft.engine.is_new:
                    check_same_parameters(self.parameters, other.parameters)
                    draft.engine = Engine(Model.new(model.map, keep_all=self.keeps_all))
                before = draft.engine.model
                draft.engine.merge(model)
                draft.names = self._names.merge(other._names)
                part = replace(before.empty(), rows=model.rows)
                if model.rows is None:
                    part = draft.engine.model.since(before)
                declared = draft.names.declared
                new = {k: declared[k] for k in declared if k not in self._names.declared}
                draft.undone_by(adds=True, part=part, declared=new)
        return self

    def undo(self, number: int | None = None) -> dict[str, Any]:
        """Undo a change: the model becomes what it would be had the change never been made.

        That is exact, also after other changes. Learning, merging, forgetting, renaming and
        declaring can be undone, for 24 hours (`Learner(undo=...)`), for the last 200 changes and
        while what undoes them takes less than 256 MiB. For that time features are kept of what was
        learned and of what was forgotten, in the model folder too; :meth:`expire_undo` erases them.
        An undo is a change like others: undo it to do again what it undid.

        Parameters
        ----------
        number : int, optional
            Number of the entry in the :attr:`history`; by default the last change that is neither
            an undo nor undone.

        Returns
        -------
        dict
            The entry of the change that was undone.

        Raises
        ------
        klda.learner.UndoError
            If it can't be undone: it is too old, or a later change has to be undone first.
        """
        with self._lock:
            self._undo = self._undo.expired()
            change = self._undo.find(number)
            with self._changing("undo", undoes=UndoLog.latest(change)) as draft:
                at = next_number(draft.history)
                draft.undo, model = self._undo.toggle(change, at, self.engine.model)
                draft.engine.become(model)
                in_use = {**change.in_use, **self._names.in_use}
                draft.names = replace(self._names, declared=draft.undo.declares(), in_use=in_use)
                if draft.names.declared.keys() - model.counts.keys():
                    draft.names.hint(draft.engine, self._inputs, self.parameters, self.keeps_all)
                undone = mark_undone(draft.history, change, at)
        return undone

    def expire_undo(self, before: float | None = None) -> bool:
        """Erase what undoes changes: all of it, or what is older than a time.

        `before` is in seconds since 1970. Returns whether there was anything. In a model folder,
        the next save erases it.
        """
        with self._lock:
            left = self._undo.expired(time.time() + 1 if before is None else before)
            found, self._undo = len(left.changes) < len(self._undo.changes), left
        return found

    def rebuild(self, classifier: Any = None, **parameters: Any) -> Self:
        """Learn everything in the ledger again, with other parameters.

        Without any change this gives the model that would have learned just these samples. A
        bandwidth that was found in the first batch stays; ``gamma="auto"`` finds it again.

        Parameters
        ----------
        classifier : KLDA, LDA or Parameters, optional
            Whose parameters to use; by default the present ones.
        **parameters
            Parameters to change: ``n_components``, ``gamma``, ``ridge`` ...
        """
        with self._lock:
            self._rebuild(classifier, parameters)
        return self

    def _rebuild(self, classifier: Any, parameters: Mapping[str, Any]) -> None:
        ledger = self.ledger
        if ledger is None or not len(ledger):
            raise KldaError(
                "There is no complete ledger to rebuild from: make the learner with "
                "keep='features' before it learns anything."
            )
        given = self.parameters if classifier is None else _parameters_of(classifier)
        changes: dict[str, Any] = dict(parameters)
        if classifier is None:
            changes.setdefault("gamma", getattr(self.engine.model.map, "gamma", given.gamma))
        try:
            given = replace(given, **changes)
        except TypeError as error:  # names the parameter
            raise KldaError(f"{error}; parameters are those of klda.KLDA.") from error
        fresh = Engine()
        for rows, labels, ids in ledger.columns():
            fresh.add(rows, labels, ids, parameters=given, keep_all=True)
        hints = self.engine.model.hints
        if len(hints):
            fresh.hint(hints.values, hints.labels.tolist(), parameters=given)
        with self._changing("rebuild") as draft:
            draft.engine, draft.parameters = fresh, given

    def copy(self) -> Learner:
        """Return an independent copy; it shares all that never changes."""
        with self._lock:
            twin = copy.copy(self)
            twin.engine, twin.extras = self.engine.copy(), dict(self.extras)
            twin._taught = TaughtRows()
            return twin

    def frozen(self) -> Learner:
        """Return a learner that answers as this one does now, and can't learn.

        It shares the solved classifier, which never changes, whatever is learned here later.
        """
        with self._lock:
            twin = copy.copy(self)
            twin.engine = self.engine.frozen(self.parameters)
            return twin

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._lock = threading.RLock()

    def __copy__(self) -> Self:
        twin = object.__new__(type(self))
        twin.__setstate__(self.__getstate__())
        return twin

    # ---------------------------------------------------------------- in a model folder

    def pack(
        self, *, compact: bool = False, solved: bool = True
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return the arrays and the document that :meth:`save` writes.

        Later changes leave them alone, so another thread can write them with
        `klda.storage.folder.save`. With ``solved=False`` they hold only what learning needs, and
        nothing is solved.
        """
        with self._lock:
            arrays, meta = self.engine.pack(self.parameters, compact=compact, solved=solved)
            counts = self.classes
            document = {
                "compact": compact,
                "foundation_model": dict(self._inputs.fingerprint),
                "samples": sum(counts.values()),
                "classes": {str(label): count for label, count in counts.items()},
                "parameters": self.parameters.stored(),
                "keep": "features" if self.keeps_all else None,
                "engine": meta,
                "history": list(self._history),
                "names": self._names.pack(),
            }
            if self.refusal is not None:
                document["refusal"] = self.refusal.pack()
            undo = self._undo.expired()
            if (undo.changes or undo.seconds != KEPT_SECONDS) and not compact:
                own, document["undo"] = undo.pack()
                arrays |= add_prefix("undo/", own)
            if solved:
                document["quality"] = self.quality().summary()
        return arrays, document

    @classmethod
    def unpack(
        cls,
        content: folder.StoredModel,
        *,
        model: str | Path | encoders.Encoder | None = None,
        **options: Any,
    ) -> Self:
        """Return the learner that `pack` described; parameters as for :meth:`load`."""
        document, arrays = stored.current(content)
        learner = object.__new__(cls)
        learner._history = numbered(document["history"])
        learner._taught = TaughtRows()
        device = {"device": options["device"]} if "device" in options else {}
        learner.parameters = stored.parameters(document["parameters"] | device)
        learner.keeps_all = document["keep"] is not None
        learner.engine = Engine.unpack(arrays, document["engine"], learner.parameters)
        counts = learner.classes
        named = {str(label): count for label, count in counts.items()}
        found = (document["classes"], document["samples"], document["compact"])
        if found != (named, sum(counts.values()), document["engine"]["compact"]):
            raise ValueError("its parts do not agree with each other")
        learner.extras = dict(document.get("extras", {}))
        learner._origin, learner._lock = None, threading.RLock()
        fingerprint = dict(document["foundation_model"])
        learner._inputs = InputEncoder.of_stored(fingerprint, options, model)
        hints = document["engine"].get("model", {}).get("hints", {})
        learner._names = ClassNames.unpack(document.get("names"), hints.get("labels", ()))
        if "refusal" in document:
            learner.refusal = Refusal.unpack(document["refusal"])
        learner._undo = UndoLog(declared=learner._names.declared)
        if "undo" in document:
            learner._undo = UndoLog.unpack(strip_prefix("undo/", arrays), document["undo"])
        return learner

    def push_to_hub(
        self,
        name: str,
        *,
        private: bool = True,
        token: str | None = None,
        message: str | None = None,
    ) -> str:
        """Upload the learner to the Hugging Face Hub, with a model card.

        Parameters
        ----------
        name : str
            Name on the hub, as ``"user/model"``. What is there is replaced in one commit.
        private : bool, default=True
            Whether a new model on the hub is visible to its owner alone.
        token : str, optional
            Access token; by default the one of ``hf auth login``.
        message : str, optional
            Commit message.

        Returns
        -------
        str
            Address of the commit.
        """
        from klda.export import hub

        hub.check_name(name)
        with tempfile.TemporaryDirectory() as beside:
            place = Path(beside, "model")
            twin = self.copy()
            twin.expire_undo()  # features are nobody else's business
            twin.save(place)
            return hub.push(place, name, private=private, token=token, message=message)

    @classmethod
    def from_pretrained(
        cls, name: str | Path, *, revision: str | None = None, token: str | None = None, **load: Any
    ) -> Learner:
        """Load a model folder, or a model from the Hugging Face Hub.

        Parameters
        ----------
        name : str or Path
            A folder, or a name on the hub as ``"user/model"``.
        revision : str, optional
            Branch, tag or commit on the hub.
        token : str, optional
            Access token; by default the one of ``hf auth login``.
        **load
            More parameters of :meth:`load`.
        """
        from klda.export import hub

        if not Path(name).is_dir():
            name = hub.download(str(name), revision=revision, token=token)
        return cls.load(name, **load)

    def save(self, path: str | Path, *, compact: bool = False, overwrite: bool = False) -> None:
        """Save to a model folder, atomically.

        Parameters
        ----------
        path : str or Path
            The folder; created if it does not exist.
        compact : bool
            Write only what answering needs: small, but it can't learn any more. A ledger is left
            out too. Not to a folder that holds a model that can learn.
        overwrite : bool
            Replace whatever model the folder holds. By default only the one that this learner was
            loaded from or saved as, and not if someone else has saved it since.
        """
        at = Path(path).resolve()
        if not self.classes:
            raise KldaError("This learner has no classes: learn something before saving it.")
        if compact and folder.exists(at) and not folder.load(at).document.get("compact"):
            raise folder.ModelExistsError(
                f"compact=True: {at} holds a model that can learn, and a compact one in its place "
                "could not. Save the compact one to another folder."
            )
        from_here = self.origin == at
        own = self._origin[1] if self._origin and from_here else folder.NOTHING
        replaces = None if overwrite else own
        folder.check_replaceable(at, replaces)
        arrays, document = self.pack(compact=compact)
        if from_here and not compact and self.extras:
            document["extras"] = self.extras
        saved: folder.StoredModel | folder.UnconfirmedSaveError
        try:
            saved = folder.save(at, arrays, document, replaces=replaces)
        except folder.UnconfirmedSaveError as error:
            saved = error
        if not compact:
            if not from_here:  # what others keep in the folder that it came from stays there
                self.extras = {}
            self._origin = (at, saved.generation)
        if isinstance(saved, Exception):
            raise saved

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        model: str | Path | encoders.Encoder | None = None,
        verify: bool = False,
        **options: Any,
    ) -> Self:
        """Load a learner as it was saved: arrays are mapped, and the encoder is opened when used.

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
            Passed to :func:`klda.encoders.load`: ``device``, ``batch_size``,
            ``trust_remote_code`` (never taken from the model folder).
        """
        content = folder.load(path, verify=verify)
        with folder.damage_named(Path(path)):
            learner = cls.unpack(content, model=model, **options)
        learner._origin = (Path(path).resolve(), content.generation)
        return learner


def _warn_of_others(ours: Parameters, theirs: Parameters) -> None:
    """Warn if another learner's model is solved with other parameters, which a merge leaves out."""
    names = ("ridge", "rule", "priors", "calibrated", "small_sample_correction")
    different = [
        f"{name}={getattr(theirs, name)!r}, not {getattr(ours, name)!r}"
        for name in names
        if getattr(theirs, name) != getattr(ours, name)
    ]
    if different:
        warnings.warn(
            f"The other model was made with {'; '.join(different)}. This one's are kept.",
            stacklevel=3,
        )


def _parameters_of(classifier: Any) -> Parameters:
    """Return the parameters of a classifier."""
    if isinstance(classifier, Parameters):
        return classifier
    if type(classifier).__name__ not in ("KLDA", "LDA") or not hasattr(classifier, "get_params"):
        raise KldaError(
            f"classifier={classifier!r} can't be used; give a klda.KLDA or klda.LDA, whose "
            "parameters are taken."
        )
    return Parameters.of(classifier.get_params())
