"""How a learner changes: a draft of its state is edited, then takes the place of the state.

Each edit also notes what undoes it. An edit that fails, or is interrupted, leaves only a draft that
nobody uses.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from klda.data.threads import map_behind
from klda.engine.arrays import choose_backend
from klda.engine.checks import check_same_parameters
from klda.engine.engine import Engine
from klda.engine.model import Model
from klda.engine.parameters import Parameters
from klda.engine.rows import Rows, SampleId
from klda.errors import KldaError
from klda.inspection.refusal import Refusal
from klda.labels import Label, as_list, as_python, check_label_kind, check_labels_known
from klda.learner.inputs import EncodedSamples, InputEncoder
from klda.learner.state import State
from klda.undo.change import UndoableChange, are_few, learned_again, part_of, part_of_classes

# Older entries are dropped: a service that learns all day must not grow forever.
HISTORY_LENGTH = 1000
MUST_AGREE = ("ridge", "rule", "priors", "calibrated", "small_sample_correction")  # when merged

Counts = Mapping[Label, int]


class Draft(State):
    """A copy of a state, to be changed."""

    def __init__(self, before: State, inputs: InputEncoder) -> None:
        super().__init__(**vars(before) | {"engine": before.engine.copy()})
        self.before, self._inputs = before, inputs
        # The changes made to it, each with the number of samples per class after it.
        self._done: list[tuple[UndoableChange, Counts]] = []

    def finished(self, action: str, source: str | Path | None, noted: Mapping[str, Any]) -> State:
        """Return the state that takes the place of the one before, with its history written."""
        self._read_names()
        counts, left = self.before.engine.counts, self.engine.counts
        self.refusal = self.refusal and self.refusal.only(left)
        known = self.before.model
        for change, known_then in self._done:
            after = {label: n for label, n in known_then.items() if label in left}
            entry = {
                "number": self.next_number,
                "when": datetime.now(UTC).isoformat(timespec="seconds"),
                "action": action,
                "samples": sum(after.values()) - sum(counts.values()),
                "new_classes": [label for label in after if label not in counts],
                "dropped_classes": [label for label in counts if label not in after],
                "source": None if source is None else str(source),
                **noted,
            }
            told = {key: value for key, value in entry.items() if value not in (None, [])}
            self.history = [*self.history, told][-HISTORY_LENGTH:]
            if action != "undo":  # which turns a change that has an entry
                new = entry["new_classes"]
                change = replace(change, number=self.next_number, new_classes=new)
                self.undo = self.undo.add(change, known, self.engine.model)
            self.next_number += 1
            counts, known = after, None
        return State(**{one.name: getattr(self, one.name) for one in fields(State)})

    def _note(
        self, kind: str, part: Model | None = None, after: Counts | None = None, **what: Any
    ) -> None:
        """Take note of a change and of the part that undoes it."""
        packed = None if part is None else part.pack(with_map=kind == "rebuild")
        change = UndoableChange(kind=kind, part=packed, **what)
        self._done.append((change, after or self.engine.counts))

    # ---------------------------------------------------------------- learning

    def add(self, rows: Any, labels: Sequence[Label], ids: Any = None) -> None:
        """Learn samples, without a note of what undoes it."""
        if ids is not None and not self.engine.keep_all:
            raise KldaError("ids are kept only by a learner made with keep='features'.")
        check_label_kind(self.engine.counts, labels, "labels")
        self.engine.add(self.checked_rows(rows), labels, ids)

    def learn(
        self, batches: Iterable[EncodedSamples], after: Callable[[], None] | None = None
    ) -> None:
        """Learn samples batch by batch, of a stream while it makes the next.

        `after` is called after each.
        """
        taught: Rows | None = Rows()  # the samples; None if they take more than the statistics

        def add(samples: EncodedSamples) -> None:
            nonlocal taught
            self.add(*samples)
            if taught is not None and not self.engine.keep_all:  # a ledger has them all
                few = are_few(self.engine.model, len(taught) + len(samples.rows))
                taught = taught.add(samples.rows, samples.labels) if few else None
            if after is not None:
                after()

        several = not isinstance(batches, list)
        for _ in map_behind(add, batches) if several else map(add, batches):
            pass
        self.note_learned(taught)

    def note_learned(self, taught: Rows | None = None) -> None:
        """Take note of all that was learned since the state before, maybe `taught` here."""
        if self.engine.is_new:
            raise KldaError("inputs is empty: there is nothing to learn.")
        after, part = self.engine.model, None
        before = self.before.model or after.empty()
        if not (learned := sum(after.counts.values()) - sum(before.counts.values())):
            raise KldaError("inputs is empty: there is nothing to learn.")
        if not self.undo.seconds:
            pass
        elif after.rows is None and taught is not None and len(taught) == learned:
            part = replace(after.empty(), rows=taught)
        elif after.rows is not None or any(before.counts.values()):
            part = after.beyond(before)
        self._note("learn", part)  # without one, if it is all of the model, and large

    def learn_parts(self, samples: EncodedSamples, sizes: Sequence[int]) -> None:
        """Learn samples as so many changes, each of so many of them."""
        rows, labels, ids = samples
        counts, ends = Counter(self.engine.counts), np.cumsum(sizes).tolist()
        if ends[-1:] != [len(rows)] or min(sizes) < 1:
            raise KldaError(f"parts={list(sizes)} must be positive and add up to {len(rows)} rows.")
        self.add(rows, labels, ids)
        for start, end in zip([0, *ends], ends, strict=False):
            own = slice(start, end)
            counts.update(labels[own])
            own_ids = None if ids is None else ids[own]
            part = part_of(self.engine.model, rows[own], labels[own], own_ids)
            after = dict(sorted(counts.items()))
            self._note("learn", part if self.undo.seconds else None, after)

    def merge(self, other: State, allow_same: bool) -> None:
        """Add all that another one knows; `allow_same` even if it has learned the same."""
        known = other.contents
        shared = {key: source for key, source in self.contents.items() if key in known}
        if not allow_same and (shared or self.has_same_samples(other)):
            what = ", ".join(dict.fromkeys(shared.values())) or "the same samples"
            raise KldaError(
                f"Nothing was merged: both models have learned {what}, which would count twice. "
                "To merge them anyway, use allow_same (--allow-same)."
            )
        theirs = other.engine.model
        if self.engine.is_new:
            check_same_parameters(self.engine.parameters, other.engine.parameters)
            seed = other.engine.parameters.random_state
            self.engine.parameters = replace(self.engine.parameters, random_state=seed)
            self.engine.model = Model.new(theirs.map, keep_all=self.engine.keep_all)
        ours, others = vars(self.engine.parameters), vars(other.engine.parameters)
        differ = [f"{n}={others[n]!r}, not {ours[n]!r}" for n in MUST_AGREE if others[n] != ours[n]]
        if differ:
            warnings.warn(
                f"The other model was made with {'; '.join(differ)}. This one's are kept.",
                stacklevel=3,
            )
        before = self.engine.model
        self.engine.merge(theirs)
        self.names = self.names.merge(other.names)
        if (rows := theirs.rows) is None:
            part = self.engine.model.beyond(before)
        else:
            if not self.engine.keep_all:  # it took no ids
                rows = replace(rows, given=np.full(len(rows), None))
            part = replace(before.empty(), rows=rows)
        self._note("learn", part, declared=dict(other.names.declared))

    # ---------------------------------------------------------------- names

    def declare(self, classes: Any) -> None:
        """Add classes by name, some of them with descriptions."""
        given = dict(classes) if isinstance(classes, Mapping) else dict.fromkeys(as_list(classes))
        given = {as_python(label): description for label, description in given.items()}
        self.names = self.names.declare(given)
        check_label_kind(self.engine.counts, given, "classes")
        self._set_name_rows(self._inputs)
        self._note("declare", declared=given)

    def _read_names(self) -> None:
        """Give the engine the names of its classes; warn of those that can't be read."""
        self.names = self.names.only(self.engine.counts)
        can_read = self._inputs.modality == "text" and self.engine.parameters.rule == "auto"
        if not can_read or self.engine.is_new or self.engine.predicts_only:
            return
        try:
            self._set_name_rows(self._inputs)
        except Exception as error:  # rows may be learned where the foundation model is not at hand
            # The name rows that it has stay, even of former names: nothing is left to encode.
            self._set_name_rows(None)
            reason = (str(error) or type(error).__name__).rstrip(".")
            warnings.warn(
                f"Some class names could not be encoded and are not used as examples: {reason}. "
                "The next change encodes them, once the foundation model can be loaded.",
                stacklevel=6,  # whoever called the Learner
            )

    def _set_name_rows(self, inputs: InputEncoder | None) -> None:
        """Encode names that the model has no rows of; with None, only take those that it has."""
        engine = self.engine
        rows = Rows() if engine.is_new else engine.model.name_rows
        known = dict(zip(rows.labels.tolist(), rows.values, strict=True))
        names, rows_by_label = self.names.name_rows(engine.counts, known, inputs)
        if rows_by_label is not None:
            given = np.array(list(rows_by_label.values()))
            engine.set_name_rows(given, list(rows_by_label))
        self.names = names

    def rename(self, old: Label, new: Label) -> None:
        """Give a class another name; that of another class joins the two."""
        joined, encoded = new in self.engine.counts, self.names.only([old]).encoded
        if not joined:
            self.names = self.names.rename(old, new, self.engine.counts)
            self.refusal = self.refusal and self.refusal.rename(old, new)
        part = part_of_classes(self.engine.model, [old])
        self.engine.rename(old, new)
        what: dict[str, Any] = {
            "renamed": (old, new),
            "joined": joined,
            "dropped": [old] if joined else [],
        }
        self._note("rename", part, encoded=encoded, **what)

    # ---------------------------------------------------------------- forgetting

    def forget_ids(self, ids: Sequence[SampleId]) -> None:
        """Forget samples in the ledger."""
        model = self.engine.model
        self.engine.model = model.remove_at((model.rows or Rows()).of_ids(ids))
        self._note("forget", model.beyond(self.engine.model))

    def forget_rows(self, rows: np.ndarray, labels: Sequence[Label], *, verify: bool) -> None:
        """Forget samples given by their features."""
        model = self.engine.model
        check_labels_known(model.counts, labels, "labels")
        self.engine.remove(rows, labels, verify=verify)
        if model.rows is None and are_few(model, len(rows)):
            part = part_of(model, rows, labels)
        else:
            part = model.beyond(self.engine.model)
        self._note("forget", part)

    def forget_classes(self, labels: Iterable[Label]) -> None:
        """Forget whole classes."""
        dropped = list(dict.fromkeys(labels))
        part = part_of_classes(self.engine.model, dropped)
        for label in dropped:
            self.engine.drop(label)
        self._note("forget", part, encoded=self.names.only(dropped).encoded, dropped=dropped)

    # ---------------------------------------------------------------- what is set, not learned

    def set_refusal(self, refusal: Refusal | None) -> None:
        """Take thresholds, or None for the default."""
        self._note("tune", refusal=refusal and refusal.pack())
        self.refusal = refusal

    def rebuild(self, parameters: Parameters) -> None:
        """Learn all samples in the ledger again, with other parameters."""
        model = self.engine.model
        assert model.rows is not None
        first, _, _ = next(model.rows.columns())
        backend = choose_backend(parameters.device, parameters.dtype, first)
        empty = Model.new(parameters.feature_map(first, backend), keep_all=True)
        self._note("rebuild", model.empty(), parameters=self.engine.parameters.stored())
        self.engine = Engine(parameters, learned_again(model, empty), keep_all=True)

    # ---------------------------------------------------------------- undoing

    def undo_or_redo(self, change: UndoableChange) -> None:
        """Undo a change, or do it again."""
        number, parameters = self.next_number, self.engine.parameters
        undo = self.undo.expired()
        log, model = undo.undo_or_redo(change, number, self.engine.model, parameters.stored())
        self.undo, self.refusal = log, log.named.refusal
        self.engine.model = model
        if change.kind == "rebuild":  # nothing solved before is of use
            before = Parameters.of_stored({**change.parameters, "device": parameters.device})
            self.engine = Engine(before, model, keep_all=True)
        encoded = {**change.encoded, **self.names.encoded}
        self.names = replace(self.names, declared=log.named.declared, encoded=encoded)
        if self.names.declared.keys() - model.counts.keys():
            self._set_name_rows(self._inputs)
        marks = {change.number: {}, change.latest: {"undone_by": number}}
        self.history = [
            {key: value for key, value in entry.items() if key != "undone_by"} | marks[at]
            if (at := entry["number"]) in marks
            else entry
            for entry in self.history
        ]
        self._done.append((change, self.engine.counts))
