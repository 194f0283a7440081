"""What a user holds: a frozen foundation model, an engine on top, and a model folder."""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from klda import encoders
from klda.data import Layout
from klda.encoders.encoder import gamma_for
from klda.engine.arrays import Packed
from klda.engine.engine import Engine
from klda.engine.parameters import Parameters
from klda.engine.rows import SampleId
from klda.errors import KldaError
from klda.inspection.refusal import Refusal, Tuning
from klda.labels import (
    Label,
    SimilarClassWarning,
    as_list,
    as_python,
    check_labels_known,
    check_one_each,
    checked_name,
    did_you_mean,
)
from klda.learner.answerer import Answerer
from klda.learner.class_names import ClassNames
from klda.learner.draft import Draft
from klda.learner.inputs import EncodedSamples, InputEncoder, Labels, check_same_features
from klda.learner.state import State, chosen_parameters
from klda.storage import folder
from klda.undo.log import KEPT_SECONDS, UndoLog


class ForgetTraceWarning(UserWarning):
    """A class was dropped from the answers, but the shared covariance keeps a trace of it."""


class Learner(Answerer):
    """Learns classes of texts or images at any time, without forgetting the ones before.

    A call that changes the learner returns it, and changes it completely or, when it raises or is
    interrupted, not at all. Any number of threads may ask and change it; :meth:`frozen` makes a
    view that keeps answering as before.

    Parameters
    ----------
    model : str, Path, callable or object
        The frozen foundation model: a name, a folder, the URL of a server, ``"features"`` for rows
        computed elsewhere, a function from texts to rows, or an object with ``encode``; see
        :func:`klda.encoders.load`.
    classifier : KLDA, LDA, Parameters or mapping, optional
        Whose parameters to use; or parameters that differ from the default, as ``{"ridge": 0.1}``.
        The default has fixed random features, so that learners trained separately can be merged,
        and for texts a bandwidth that depends on the foundation model alone.
    keep : {None, "features"}
        ``"features"`` keeps a ledger of the features learned, in half precision: classes and single
        samples can then be forgotten exactly, and the classifier rebuilt. By default no text and no
        image is kept, and rows of numbers only for at most half as many samples as random features.
    names : bool
        For texts: the name of a class counts beside its samples while they are few, as far as names
        prove to tell classes apart.
    undo : float
        For how many seconds a change can be undone; see :meth:`undo`. 0 keeps nothing for it.
    **options
        Passed to :func:`klda.encoders.load`: ``device``, ``layers``, ``batch_size``, ``prompt`` and
        others. By default ``layers="auto"``: the layers that suit the named model best.

    Attributes
    ----------
    extras : dict
        JSON values that other programs, such as the service, keep in the model folder. Later saves
        to that folder keep them.

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
    """

    def __init__(
        self,
        model: Any = "minilm",
        /,
        *,
        classifier: Any = None,
        keep: str | None = None,
        names: bool = True,
        undo: float = KEPT_SECONDS,
        **options: Any,
    ) -> None:
        if "model" in options and not encoders.is_url(model):  # where it is a server's model
            model = options.pop("model")
        if keep not in (None, "features"):
            raise KldaError(f"keep={keep!r} is not known; use None or 'features'.")
        inputs, device = InputEncoder.open(model, options), options.get("device", "auto")
        gamma = gamma_for(inputs.encoder) if inputs.modality == "text" else "auto"
        default = Parameters(gamma=gamma, blocks=inputs.blocks, device=device)
        parameters = chosen_parameters(classifier, default)
        state = State(
            engine=Engine(parameters, keep_all=keep is not None),
            names=ClassNames(enabled=bool(names)),
            undo=UndoLog(undo),
        )
        self._begin(inputs, state, {})

    def _begin(self, inputs: InputEncoder, state: State, extras: Mapping[str, Any]) -> None:
        """Set what a new learner has, or one that is loaded."""
        super().__init__(inputs, state)
        self.extras: dict[str, Any] = dict(extras)
        self._origin: tuple[Path, str] | None = None  # the folder, and the generation in it
        self._lock = threading.RLock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._lock = threading.RLock()

    @property
    def next_number(self) -> int:
        """Number of the next change in the history; a larger one can be set."""
        return self._state.next_number

    @next_number.setter
    def next_number(self, number: int) -> None:
        with self._lock:
            if number < (least := self._state.next_number):
                raise KldaError(
                    f"next_number={number} may be a change that there was; give at least {least}."
                )
            self._state = replace(self._state, next_number=number)

    @property
    def undo_seconds(self) -> float:
        """For how many seconds a change can be undone, which can be set; saved with the model."""
        return self._state.undo.seconds

    @undo_seconds.setter
    def undo_seconds(self, seconds: float) -> None:
        with self._lock:
            undo = replace(self._state.undo, seconds=seconds).expired()
            self._state = replace(self._state, undo=undo)

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

        A `SimilarClassWarning` says if a new class has a name that looks like that of another.

        Parameters
        ----------
        inputs : sequence, table, or iterable of (inputs, labels)
            Texts, images (paths, PIL images, arrays) or feature rows. Without `labels`: a table
            that has them (pandas, polars, pyarrow, a Hugging Face dataset), the ``Path`` of a file
            or folder, or an iterable of batches, taken one at a time, so that it may be larger than
            the memory. If any batch fails, none is learned.
        labels : sequence of str or int, optional
            One label per input.
        text, label : str, optional
            Columns of a table, where names and contents don't tell; several of text are joined.
        ids : sequence of str, optional
            An id for each input, to forget it by later; needs ``keep="features"``. Without, inputs
            get running numbers. In batches it is the third of (inputs, labels, ids).
        source : str or Path, optional
            Where the samples come from, for the history.
        ignore_case : bool
            Labels that differ only in case are one class: a known one, or else in lower case.
        progress : bool
            Show a progress bar if standard error is a terminal.
        """
        how: Any = {"ignore_case": ignore_case, "progress": progress}
        samples: Iterable[EncodedSamples] = self.inputs.encoded_batches(
            inputs, labels, Layout(text, label), self.classes, ids, **how
        )
        if labels is not None:
            samples = list(samples)  # one batch, encoded before other changes have to wait
        with self.changing("learn", source) as draft:
            draft.learn(samples)
            self._warn_of_similar(draft)
        return self

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

        With `parts`, numbers of samples, it is as many changes, which can be undone one by one.
        """
        samples = self._samples(rows, labels, ids)
        with self.changing("learn", source) as draft:
            if parts is None:
                draft.learn([samples])
            else:
                draft.learn_parts(samples, parts)
        return self

    @contextmanager
    def changing(
        self, action: str, source: str | Path | None = None, *, undo: bool = True, **noted: Any
    ) -> Iterator[Draft]:
        """Yield a draft of the state, which takes the state's place once it was edited.

        That is one step: an error or an interrupt comes before it, and then nothing was changed.
        Other changes wait meanwhile. What is `noted` goes into the history. Without `undo`, no
        undo data is left.
        """
        with self._lock:
            draft = Draft(self._state, self.inputs)
            yield draft
            if self._state is not draft.before:  # by a stream of samples, in this thread
                raise KldaError(f"The learner was changed meanwhile: the {action} was not made.")
            state = draft.finished(action, source, noted)
            if not undo:
                state.undo = state.undo.expired(float("inf"))
            self._state = state

    def _warn_of_similar(self, draft: Draft) -> None:
        """Warn of new classes that look like others: what was meant is probably the larger one."""
        counts, known = draft.engine.counts, self.classes
        new = [label for label in counts if label not in known]
        largest_first = sorted(new, key=counts.__getitem__, reverse=True)
        if new and (similar := self.similar_classes(largest_first)):
            warnings.warn(did_you_mean(similar), SimilarClassWarning, stacklevel=3)

    def declare(self, classes: Label | Sequence[Label] | Mapping[Label, str | None]) -> Self:
        """Add classes by name, without examples: one, several, or a mapping to descriptions.

        A name is read as words: ``card_arrival`` as "card arrival". A description says more.
        """
        if self.modality != "text" or self.parameters.rule != "auto":
            raise KldaError(
                "Classes can be declared for texts only, with the rule 'auto'; this learner has "
                f"{self.modality} inputs and the rule {self.parameters.rule!r}."
            )
        with self.changing("declare") as draft:
            draft.declare(classes)
            self._warn_of_similar(draft)
        return self

    # ---------------------------------------------------------------- forgetting

    def forget(
        self,
        labels: Label | Sequence[Label] | None = None,
        inputs: Any = None,
        *,
        ids: SampleId | Sequence[SampleId] | None = None,
        source: str | Path | None = None,
        undo: bool = True,
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
            Samples that were learned; others raise an error, if the model can tell.
        ids : id or sequence of ids, optional
            Samples in the ledger, instead of `labels`: ids they were given, or running numbers.
        source : str or Path, optional
            Where the inputs come from.
        undo : bool
            Whether this can be undone. ``undo=False`` also erases the undo data of all changes so
            far, which may hold the same features.
        """
        if ids is not None:
            if labels is not None or inputs is not None:
                raise KldaError("ids names the samples already: leave out labels and inputs.")
            if self.ledger is None:
                raise KldaError(
                    "ids can't be used: this learner keeps no ledger. Make it with "
                    "keep='features', or give labels and the inputs that were learned."
                )
            with self.changing("forget", source, undo=undo) as draft:
                draft.forget_ids(as_list(ids))
            return self
        if labels is None:
            raise KldaError("labels is missing: name the classes to forget, or samples by ids.")
        names = as_list(labels)
        if inputs is not None:
            rows = self.encode(inputs)
            names = names * len(rows) if len(names) == 1 else names
            return self.forget_rows(rows, names, source=source, undo=undo)
        if not names:
            raise KldaError("labels is empty: name at least one class to forget.")
        with self.changing("forget", source, undo=undo) as draft:
            check_labels_known(self.classes, names, "labels")
            if traces := self.traces_of(names):
                some = ", ".join(map(repr, traces[:3])) + (", ..." if len(traces) > 3 else "")
                warnings.warn(
                    f"{some}: removed from the answers. A small statistical trace remains; to "
                    "leave none, give the inputs that were learned, or keep a ledger: "
                    "Learner(..., keep='features').",
                    ForgetTraceWarning,
                    stacklevel=2,
                )
            draft.forget_classes(names)
        return self

    def forget_rows(
        self,
        rows: np.ndarray,
        labels: Sequence[Label],
        *,
        source: str | Path | None = None,
        verify: bool = True,
        undo: bool = True,
    ) -> Self:
        """Forget samples given by their features; they must have been learned with these labels.

        Otherwise a `NotLearnedError` is raised. Samples that the model keeps are compared. Without
        them the statistics are used; they can miss a few rows that resemble the learned ones.
        ``verify=False`` repeats a removal that was verified before: rounding on another machine
        could change the verdict of the statistics. `undo` as for :meth:`forget`.
        """
        rows, names = self._state.checked_rows(rows), [as_python(label) for label in labels]
        check_one_each(rows, names)
        with self.changing("forget", source, undo=undo) as draft:
            draft.forget_rows(rows, names, verify=verify)
        return self

    # ---------------------------------------------------------------- other changes

    def tune_unknown(
        self,
        known: Any,
        unknown: Any,
        *,
        reject: float | None = None,
        by_class: bool = False,
        progress: bool = False,
    ) -> Tuning:
        """Fit the threshold beyond which inputs are unknown to inputs of both kinds, and store it.

        ``predict(..., reject=True)``, :meth:`is_known`, :meth:`answer` and :meth:`explain` then use
        it; a fraction, as in ``reject=0.05``, still asks for that one. An undo returns to what was
        before, and ``set_refusal(None)`` to the default.

        `known` are inputs of the classes, `unknown` inputs of none; neither were learned. `reject`
        is the fraction of known inputs that may be refused, by default that with the least sum of
        known inputs refused and unknown inputs accepted, as fractions. `by_class` also fits
        thresholds of classes that at least 20 inputs of both kinds were answered with. Returns a
        table of what each choice costs; ``print`` shows it.
        """
        self._state.check_can_reject(reject)  # before the inputs are encoded
        rows = [self.encode(inputs, progress=progress) for inputs in (known, unknown)]
        with self._lock:
            refusal, tuning = self.fit_refusal(*rows, reject=reject, by_class=by_class)
            self.set_refusal(refusal)
        return tuning

    def set_refusal(self, refusal: Refusal | None) -> Self:
        """Take thresholds that were fitted, or None: return to the default."""
        with self.changing("tune") as draft:
            draft.set_refusal(refusal)
        return self

    def rename(self, old: Label, new: Label, *, merge: bool = False) -> Self:
        """Give a class another name.

        With `merge`, `new` may be another class: the two then become one, exactly as if all samples
        had been learned as that class.
        """
        with self.changing("rename", f"{old} -> {new}") as draft:
            draft.rename(*checked_name(self.classes, old, new, merge=merge))
        return self

    def merge(self, other: Learner, *, allow_same: bool = False) -> Self:
        """Add all that another learner knows, as if its samples had been learned here.

        The other one is made with the same foundation model and the same random features; it is not
        changed. If this learner keeps a ledger, the other one must too. `allow_same` merges even if
        both have learned the same samples or files, which then count twice.
        """
        if not isinstance(other, Learner):
            raise KldaError(
                f"other is a {type(other).__name__}, not a Learner; to merge a classifier, learn "
                "its samples with Learner('features')."
            )
        check_same_features(self.foundation, other.foundation, "the other's")
        given = other._state  # as it is now
        if not given.engine.is_new:
            contents = list(given.contents)
            with self.changing("merge", other.origin, contents=contents) as draft:
                draft.merge(given, allow_same)
        return self

    def undo(self, number: int | None = None) -> dict[str, Any]:
        """Undo a change: the model becomes what it would be had the change never been made.

        That is exact, also after other changes. Learning, merging, forgetting, renaming and
        declaring can be undone, for 24 hours (`Learner(undo=...)`), for the last 200 changes and
        while what undoes them takes less than 256 MiB. For that time features are kept of what was
        learned and of what was forgotten, in the model folder too; :meth:`expire_undo` erases them.
        An undo is a change like others: undo it to do again what it undid.

        `number` is that of an entry in the :attr:`history`, by default the last change that is
        neither an undo nor undone. Returns the entry of the change that was undone, or raises a
        `klda.learner.UndoError`: it is too old, or a later change has to be undone first.
        """
        with self._lock:
            change = self._state.undo.expired().find(number)
            with self.changing("undo", undoes=change.latest) as draft:
                draft.undo_or_redo(change)
            entries = {entry["number"]: entry for entry in self._state.history}
            return dict(entries.get(change.latest, {"number": change.number}))

    def expire_undo(self, before: float | None = None) -> bool:
        """Erase undo data: all of it, or what is from `before` a time in seconds since 1970.

        Returns whether there was anything. In a model folder, the next save erases it.
        """
        with self._lock:
            left = self._state.undo.expired(float("inf") if before is None else before)
            found = len(left.changes) < len(self._state.undo.changes)
            self._state = replace(self._state, undo=left)
        return found

    def rebuild(self, classifier: Any = None, **parameters: Any) -> Self:
        """Learn everything in the ledger again, with other parameters.

        These are the present ones or those of a `classifier`, with changes: ``ridge=0.1`` ...
        Without any this gives the model that would have learned just these samples. A bandwidth
        that was found in the first batch stays; ``gamma="auto"`` finds it again.
        """
        with self._lock:
            if self.ledger is None or not len(self.ledger):
                raise KldaError(
                    "There is no complete ledger to rebuild from: make the learner with "
                    "keep='features' before it learns anything."
                )
            if classifier is None:  # the bandwidth as it was found
                gamma = getattr(self.engine.model.map, "gamma", self.parameters.gamma)
                parameters = {"gamma": gamma, **parameters}
            given = chosen_parameters(classifier, self.parameters, **parameters)
            with self.changing("rebuild") as draft:
                draft.rebuild(given)
        return self

    # ---------------------------------------------------------------- copies and storage

    def copy(self) -> Self:
        """Return an independent copy; it shares all that never changes."""
        with self._lock:
            twin = copy.copy(self)
            twin.extras = dict(self.extras)
            return twin

    def ready(self) -> Self:
        """Return a copy that has solved what it learned: its next change need not wait for that."""
        twin, engine = self.copy(), self.engine.copy()
        engine.solved_rule()  # also where the solution was stored
        twin._state = replace(twin._state, engine=engine)
        return twin

    def frozen(self) -> Answerer:
        """Return what answers as this learner does now, whatever is learned here later.

        It has the methods that answer, and none that changes it.
        """
        with self._lock:
            engine = self.engine.frozen()
            return Answerer(self.inputs, replace(self._state, engine=engine))

    @property
    def origin(self) -> Path | None:
        """The model folder that this learner was loaded from or last saved to."""
        return None if self._origin is None else self._origin[0]

    def pack(self, *, compact: bool = False, solved: bool = True) -> Packed:
        """Return the arrays and the document that :meth:`save` writes.

        Later changes leave them alone, so another thread can write them with
        `klda.storage.folder.save`. With ``solved=False`` they hold only what learning needs, and
        nothing is solved.
        """
        return self._state.pack(self.foundation, compact=compact, solved=solved)

    @classmethod
    def unpack(
        cls,
        content: folder.StoredModel,
        *,
        model: str | Path | encoders.Encoder | None = None,
        **options: Any,
    ) -> Self:
        """Return the learner that `pack` described; parameters as for :meth:`load`.

        Raises `ValueError` if its parts can't belong together.
        """
        state, document = State.unpack(content, options.get("device"))
        inputs = InputEncoder.of_stored(document["foundation_model"], options, model)
        learner = object.__new__(cls)  # its own __init__ makes a new model
        learner._begin(inputs, state, document.get("extras", {}))
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
        private : bool
            Whether a new model on the hub is visible to its owner alone.
        token : str, optional
            Access token; by default the one of ``hf auth login``.
        message : str, optional
            Commit message.

        Returns the address of the commit.
        """
        from klda.export import hub

        twin = self.copy()
        # The features in it are nobody else's business.
        undo = self._state.undo
        twin._state = replace(self._state, undo=UndoLog(undo.seconds, first=undo.named))
        return hub.push(twin.save, name, private=private, token=token, message=message)

    @classmethod
    def from_pretrained(
        cls, name: str | Path, *, revision: str | None = None, token: str | None = None, **load: Any
    ) -> Self:
        """Load a model folder, or a model from the Hugging Face Hub, as ``"user/model"``.

        `revision` is a branch, tag or commit there, and `token` as for :meth:`push_to_hub`; more
        parameters are those of :meth:`load`.
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
        origin, own = self._origin or (None, folder.NOTHING)
        replaces = None if overwrite else own if origin == at else folder.NOTHING
        folder.check_replaceable(at, replaces)
        arrays, document = self.pack(compact=compact)
        # What others keep in the folder that it came from stays there.
        extras = self.extras if origin in (at, None) else {}
        if extras and not compact:
            document["extras"] = dict(extras)
        try:
            saved = folder.save(at, arrays, document, replaces=replaces)
        except folder.UnconfirmedSaveError as error:  # it may not be on the disk yet
            if not compact:
                self.extras, self._origin = extras, (at, error.generation)
            raise
        if not compact:
            self.extras, self._origin = extras, (at, saved.generation)

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
        with folder.folder_damage_named(Path(path)):
            learner = cls.unpack(content, model=model, **options)
        learner._origin = (Path(path).resolve(), content.generation)
        return learner
