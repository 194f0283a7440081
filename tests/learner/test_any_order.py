"""Any sequence of changes leaves the model that would have learned just what is left."""

from __future__ import annotations

import copy
import os
import pickle
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from klda import KldaError, Learner
from klda.engine import ridge as engine_ridge
from klda.engine import sizes
from klda.engine import solve as engine_solve
from klda.engine.rows import halve
from klda.inspection.refusal import Refusal
from klda.learner import UndoError
from tests.factories import LetterCounts, assert_same_scores, rows_of, small
from tests.learner.known import Change, UnreachableError, known_after

# More for a longer search, such as 5000.
EXAMPLES = int(os.environ.get("KLDA_EXAMPLES", "250"))
CLASSES = ["ant", "bee", "cat fish", "dog"]
FRESH = ["elk", "fox", "gnu"]
MODELS = {
    "auto": {},
    "rarely judged": {},
    "lda": {"rule": "lda", "ridge": 0.1},
    "identity": {"rule": "lda", "n_components": None},
    "uncalibrated": {"calibrated": False},
}
WORDS = np.array(
    ["".join(chr(97 + x) for x in np.random.default_rng(i).integers(0, 26, 9)) for i in range(997)]
)
A_CLASS, NUMBERS = st.sampled_from(CLASSES), st.integers(1, 24)


class AnyOrder(RuleBasedStateMachine):
    """A learner, and beside it the changes that were made, in plain Python."""

    def __init__(self):
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        # A model changes its ways after few samples: at 9, at 21, and when 16 are pending.
        self.patch.setattr(sizes, "EXACT_KERNEL_ROWS", 8)
        self.patch.setattr(sizes, "MOST_PENDING", 16)
        self.scratch = tempfile.TemporaryDirectory()
        self.changes, self.inputs, self.rows, self.ids = [], [], [], []
        self.latest, self.views = 0, []

    def teardown(self):
        try:
            if self.changes and self.sound:
                self.check_scores()
                for view, classes, probe, scores in self.views:
                    assert view.classes == classes
                    if scores is not None:
                        assert np.array_equal(view.scores(probe), scores)
        finally:
            self.patch.undo()
            self.scratch.cleanup()

    @initialize(
        kind=st.sampled_from(list(MODELS)),
        encoder=st.sampled_from(["features", "text"]),
        keep=st.sampled_from([None, None, "features"]),
        names=st.booleans(),
        asked=st.booleans(),
    )
    def begin(self, kind, encoder, keep, names, asked):
        if encoder == "text" and kind == "identity":
            kind = "auto"
        self.kind, self.keep, self.names = kind, keep, names
        self.asked = asked  # after each change, as a service is
        self.encoder = LetterCounts() if encoder == "text" else encoder
        self.is_text = encoder == "text"
        if kind == "rarely judged":  # the ridge stands for a while
            self.patch.setattr(sizes, "ALWAYS_JUDGED", 8)
            self.patch.setattr(engine_ridge, "LARGEST_CHANGE", 30.0)
        self.parameters = small(dtype="float64", **MODELS[kind])
        self.learner = self.new()
        self.known = known_after([])

    def new(self, keep=..., **options):
        parameters = (
            replace(self.parameters, **self.known.parameters)
            if hasattr(self, "known")
            else self.parameters
        )
        return Learner(
            self.encoder,
            classifier=parameters,
            keep=self.keep if keep is ... else keep,
            names=self.names,
            **options,
        )

    # ------------------------------------------------------------ changes

    def fresh(self, labels, *, ids=False):
        """New samples: their numbers, and what a learner is given."""
        numbers = list(range(len(self.inputs), len(self.inputs) + len(labels)))
        for i, label in zip(numbers, labels, strict=True):
            if self.is_text:
                given = f"{label} {WORDS[i % len(WORDS)]}"
                row = self.encoder.encode([given])[0]
            else:  # a ledger rounds it no more
                halves, exponents = halve(rows_of(label, 1, seed=i))
                given = row = np.ldexp(halves.astype(np.float32), exponents[:, None])[0]
            self.inputs.append(given)
            self.rows.append(row.astype(np.float64))
            self.ids.append(f"id{i}" if ids else None)
        given = [self.inputs[i] for i in numbers]
        return numbers, given if self.is_text else np.stack(given)

    def made(self, *changes):
        """Take note of changes that the learner has made."""
        before = self.known.classes
        for each in changes:
            self.latest += 1
            each.number = self.latest
            self.changes.append(each)
        self.known = known_after(self.changes)
        self.check_entries(before, len(changes))

    def check_entries(self, before, n):
        """The last entries of the history tell which classes came and went."""
        entries, after = self.learner.history[-n:], self.known.classes
        for key, wanted in (
            ("new_classes", after.keys() - before),
            ("dropped_classes", before.keys() - after),
        ):
            found = [label for entry in entries for label in entry.get(key, ())]
            assert sorted(found) == sorted(wanted)
        sizes = sum(after.values()) - sum(before.values())
        assert sum(entry.get("samples", 0) for entry in entries) == sizes

    def refused(self, call, *wanted):
        """It raises a KldaError, and leaves the learner as it was."""
        before = self.learner.history, self.learner.classes, self.learner._state
        with pytest.raises(wanted or KldaError):
            call()
        assert (self.learner.history, self.learner.classes, self.learner._state) == before

    @rule(
        labels=st.lists(A_CLASS, min_size=1, max_size=4),
        n=NUMBERS,
        ids=st.booleans(),
        how=st.sampled_from(["inputs", "rows", "stream"]),
    )
    def learn(self, labels, n, ids, how):
        labels = (labels * n)[: max(n, len(labels))]
        numbers, given = self.fresh(labels, ids=ids and self.keep)
        own = [self.ids[i] for i in numbers] if ids and self.keep else None
        if how == "rows":
            self.learner.learn_rows(np.stack([self.rows[i] for i in numbers]), labels, own)
        elif how == "inputs":
            self.learner.learn(given, labels, ids=own)
        else:
            parts = [slice(i, i + 5) for i in range(0, len(labels), 5)]
            batches = ((given[at], labels[at], own and own[at]) for at in parts)
            self.learner.learn(batches)
        self.made(Change("learn", (dict(zip(numbers, labels, strict=True)),)))

    @rule(labels=st.lists(A_CLASS, min_size=2, max_size=8), cut=st.integers(1, 7))
    def learn_parts(self, labels, cut):
        cut = min(cut, len(labels) - 1)
        numbers, _ = self.fresh(labels)
        rows = np.stack([self.rows[i] for i in numbers])
        self.learner.learn_rows(rows, labels, parts=[cut, len(labels) - cut])
        pairs = list(zip(numbers, labels, strict=True))
        self.made(*(Change("learn", (dict(some),)) for some in (pairs[:cut], pairs[cut:])))

    @rule(
        labels=st.lists(A_CLASS, min_size=1, max_size=3),
        n=st.integers(1, 24),
        ledger=st.booleans(),
        ids=st.booleans(),
        declares=st.booleans(),
    )
    def merge(self, labels, n, ledger, ids, declares):
        keep = "features" if ledger or self.keep else None
        labels = (labels * n)[:n]
        numbers, given = self.fresh(labels, ids=ids and self.keep)
        own = [f"id{i}" for i in numbers] if ids and keep else None
        other = self.new(keep).learn(given, labels, ids=own)
        declared = {}
        if declares and self.is_text and self.parameters.rule == "auto":
            declared = {"dog": "a hound", "gnu": None}
            other.declare(declared)
        self.learner.merge(other)
        self.made(Change("learn", (dict(zip(numbers, labels, strict=True)), declared)))

    @rule(
        labels=st.dictionaries(
            st.sampled_from(CLASSES + FRESH),
            st.sampled_from([None, "a hound", "wings"]),
            min_size=1,
            max_size=2,
        )
    )
    def declare(self, labels):
        if not self.is_text or self.parameters.rule != "auto":
            self.refused(lambda: self.learner.declare(labels))
            return
        self.learner.declare(labels)
        self.made(Change("declare", (labels,)))

    @precondition(lambda self: self.known.samples)
    @rule(
        data=st.data(),
        n=NUMBERS,
        by=st.sampled_from(["inputs", "rows", "ids"]),
        all_of_them=st.booleans(),
    )
    def forget_samples(self, data, n, by, all_of_them):
        numbers = list(self.known.samples)
        if not all_of_them:
            start = data.draw(st.integers(0, len(numbers) - 1))
            numbers = [numbers[(start + 3 * i) % len(numbers)] for i in range(n)]
            numbers = list(dict.fromkeys(numbers))
        labels = [self.known.samples[i] for i in numbers]
        if by == "ids" and self.keep:
            self.learner.forget(ids=self.ids_of(numbers))
        elif by == "rows":
            self.learner.forget_rows(np.stack([self.rows[i] for i in numbers]), labels)
        else:
            given = [self.inputs[i] for i in numbers]
            self.learner.forget(labels, given if self.is_text else np.stack(given))
        self.made(Change("forget_samples", (set(numbers),)))

    def ids_of(self, numbers):
        """What the ledger calls samples."""
        ledger = self.learner.ledger
        places = {row.astype(np.float64).tobytes(): i for i, row in enumerate(ledger.values)}
        return ledger.ids_at(np.array([places[self.rows[i].tobytes()] for i in numbers]))

    @precondition(lambda self: self.known.classes)
    @rule(data=st.data(), several=st.booleans(), undo=st.sampled_from([True, True, True, False]))
    def forget_classes(self, data, several, undo):
        labels = data.draw(
            st.lists(
                st.sampled_from(list(self.known.classes)),
                min_size=1,
                max_size=1 + several,
                unique=True,
            )
        )
        self.learner.forget(labels, undo=undo)
        self.made(Change("forget_classes", (labels,), traced=self.learner.leaves_trace))
        if not undo:
            self.expire()

    @precondition(lambda self: self.known.classes)
    @rule(data=st.data(), new=st.sampled_from(CLASSES + FRESH), merge=st.booleans())
    def rename(self, data, new, merge):
        old = data.draw(st.sampled_from(list(self.known.classes)))
        if (new == old and merge) or (new in self.known.classes and not merge):
            self.refused(lambda: self.learner.rename(old, new, merge=merge))
            return
        self.learner.rename(old, new, merge=merge)
        self.made(Change("rename", (old, new, new in self.known.classes)))

    @precondition(lambda self: self.changes)
    @rule(limit=st.floats(0.5, 2), limits=st.dictionaries(A_CLASS, st.floats(0.5, 2), max_size=2))
    def tune(self, limit, limits):
        limits = {label: value for label, value in limits.items() if label in self.known.classes}
        self.learner.set_refusal(Refusal(limit, limits))
        self.made(Change("tune", (limit, limits)))

    @precondition(lambda self: self.keep and self.known.samples)
    @rule(gamma=st.sampled_from([0.02, 0.04]), ridge=st.sampled_from(["auto", 0.1]))
    def rebuild(self, gamma, ridge):
        given = {"gamma": gamma, "ridge": ridge}
        self.learner.rebuild(**given)
        self.made(Change("rebuild", (given,)))

    # ------------------------------------------------------------ undo

    @precondition(lambda self: self.changes)
    @rule(data=st.data())
    def undo_some(self, data):
        self.turn(data.draw(st.integers(1, self.latest)))

    @precondition(lambda self: self.changes)
    @rule(times=st.integers(1, 3))
    def undo_latest(self, times):
        """Undo it; more times, undo that undo, and so on."""
        for _ in range(times):
            self.turn(self.latest)

    def turn(self, number):
        """Undo what an entry in the history did, or do it again; only some can be."""
        change = next(one for one in self.changes if number in (one.number, *one.undos))
        entry = next(one for one in self.learner.history if one["number"] == number)
        stands = (number == change.number and change.active) or number in change.undos[-1:]
        assert entry["undoable"] <= (stands and not change.expired)
        if not entry["undoable"]:
            self.refused(lambda: self.learner.undo(number))
            return
        try:
            change.active = not change.active
            known = known_after(self.changes)
        except UnreachableError:
            known = None
        if known is None:
            change.active = not change.active
            self.refused(lambda: self.learner.undo(number))
            return
        had = self.learner._state
        try:
            self.learner.undo(number)
        except UndoError as error:  # it may ask for more than is necessary
            change.active = not change.active
            assert self.learner._state is had
            refused = str(error)
        else:
            refused = ""
        if refused:
            assert "first" in refused
            assert number != self.latest
            return
        self.latest += 1
        change.undos.append(self.latest)
        change.traced = self.learner.leaves_trace
        before, self.known = self.known.classes, known_after(self.changes)
        self.check_entries(before, 1)

    @rule()
    def expire(self):
        self.learner.expire_undo()
        for each in self.changes:
            each.expired = True

    # ------------------------------------------------------------ what leaves it as it is

    @precondition(lambda self: self.known.classes)
    @rule()
    def ask(self):
        probabilities = self.learner.predict_proba(self.probe())
        assert np.isfinite(probabilities).all()
        np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-9)
        assert set(self.learner.predict(self.probe()).tolist()) <= self.known.classes.keys()

    @precondition(lambda self: self.known.classes)
    @rule()
    def save_and_load(self):
        scores = self.learner.scores(self.probe())
        folder = Path(self.scratch.name) / "model"
        self.learner.save(folder, overwrite=True)
        encoder = {"model": self.encoder} if self.is_text else {}
        self.learner = Learner.load(folder, **encoder)
        assert np.array_equal(self.learner.scores(self.probe()), scores)

    @precondition(lambda self: self.known.classes)
    @rule(
        how=st.sampled_from(
            [copy.deepcopy, Learner.copy, lambda one: pickle.loads(pickle.dumps(one))]
        )
    )
    def go_on_with_a_copy(self, how):
        """What is left behind answers as it did."""
        probe, scores = self.probe(), self.learner.scores(self.probe())
        frozen, classes = self.learner.frozen(), self.learner.classes
        # What was loaded may be solved again, and then rounds in another way.
        left = [(self.learner, classes, probe, None), (frozen, classes, probe, scores)]
        self.views = [*self.views[-2:], *left]
        self.learner = how(self.learner)

    @rule(label=A_CLASS)
    def give_what_cannot_be_used(self, label):
        width = len(self.rows[0]) if self.rows else 8
        rows = np.zeros((2, width))
        self.refused(lambda: self.learner.learn_rows(rows, [label, 5]))
        self.refused(lambda: self.learner.learn_rows(rows, [label]))
        self.refused(lambda: self.learner.learn_rows(rows * np.nan, [label] * 2))
        self.refused(lambda: self.learner.forget("never heard of"))
        self.refused(lambda: self.learner.rename("never heard of", label))
        self.refused(lambda: self.learner.undo(self.latest + 1))
        if self.known.samples:
            self.refused(lambda: self.learner.merge(self.learner))
            self.refused(lambda: self.learner.learn_rows(np.zeros((2, width + 1)), [label] * 2))
            if not self.learner.leaves_trace:  # else the statistics judge, which can miss some
                self.refused(lambda: self.learner.forget_rows(rows + 100, [label] * 2))

    # ------------------------------------------------------------ what has to hold

    def probe(self):
        if self.is_text:
            return ["ant hill", "a bee", "zzz", "cat and dog"]
        return rows_of("q", 4)

    @invariant()
    def knows_what_is_left(self):
        learner, known, self.sound = self.learner, self.known, False
        assert learner.classes == known.classes
        assert learner.declared == known.declared
        assert len(learner.history) == self.latest == learner.next_number - 1
        found = learner.refusal
        assert (found and found.limit) == known.limit
        limits = dict(found.classes) if found else {}
        assert limits.keys() <= known.classes.keys()
        if not any(each.undos for each in self.changes):
            assert limits == known.limits
        if self.keep and self.changes:
            ledger = learner.ledger
            mine = zip(ledger.labels.tolist(), ledger.given.tolist(), ledger.values, strict=True)
            theirs = [
                (label, self.ids[i], self.rows[i].tobytes()) for i, label in known.samples.items()
            ]
            found = [(label, name, row.astype(np.float64).tobytes()) for label, name, row in mine]
            assert sorted(found, key=repr) == sorted(theirs, key=repr)
        if not learner.leaves_trace:  # it has all rows, so no trace either
            for each in self.changes:
                each.traced = False
        if self.asked and known.classes:
            assert np.isfinite(learner.scores(self.probe())).all()
        self.sound = True

    @precondition(lambda self: self.known.classes)
    @rule()
    def check_scores(self):
        if not self.known.classes:
            return
        known = known_after(self.changes)
        labels = list(known.samples.values())
        never, numbers = self.new(), list(known.samples)
        traces = [own for own in known.traces if own]
        for k, own in enumerate(traces):
            numbers, labels = numbers + own, labels + [f"trace {k}"] * len(own)
        if numbers:
            never.learn_rows(np.stack([self.rows[i] for i in numbers]), labels)
        if known.declared:
            never.declare(known.declared)
        if self.learner.leaves_trace and not never.leaves_trace:
            # It once had too many samples to keep, and does not know them any more.
            model = never.engine.model
            never.engine.model = replace(model, rows=None, counted=model.statistics)
        for k in range(len(traces)):
            never.engine.drop(f"trace {k}")
        rule = self.learner.engine.solved_rule()
        with pytest.MonkeyPatch.context() as patch:
            if self.kind == "rarely judged":  # when it was last judged, there were others
                patch.setattr(engine_solve, "find_ridge", lambda *_, **__: (rule.rho, rule.choice))
            # The ridge is at least sqrt(eps) of the mean eigenvalue, hence the condition at most
            # D / sqrt(eps), and rounding by eps becomes D sqrt(eps).
            assert_same_scores(self.learner, never, self.probe(), rtol=1e-6)


@pytest.mark.filterwarnings("ignore::klda.learner.ForgetTraceWarning")
@pytest.mark.filterwarnings("ignore::klda.labels.SimilarClassWarning")
def test_what_is_left_is_all_that_counts():
    run_state_machine_as_test(
        AnyOrder,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=20,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize("keep", [None, "features"])
def test_threads_that_learn_at_once_leave_what_one_after_the_other_leaves(keep):
    shared, alone = (
        Learner("features", classifier=small(dtype="float64"), keep=keep) for _ in range(2)
    )
    shared.learn(rows_of("q", 3), ["q"] * 3)
    alone.learn(rows_of("q", 3), ["q"] * 3)

    def change(learner, label):
        for seed in range(0, 6, 2):
            learner.learn(rows_of(label, 2, seed), [label] * 2)
            learner.learn([(rows_of(label, 2, seed + 1), [label] * 2)])
            learner.predict(rows_of("q", 2))
        learner.forget(label, rows_of(label, 2, seed=3))
        learner.rename(label, label.upper())

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(lambda label: change(shared, label), "abcdef"))
    for label in "abcdef":
        change(alone, label)
    assert shared.classes == dict.fromkeys("ABCDEF", 10) | {"q": 3}
    assert len(shared.history) == 1 + 6 * 8
    assert_same_scores(shared, alone, rtol=1e-6)
