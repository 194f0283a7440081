"""Any sequence of changes leaves the model that would have learned just what is left."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from klda import Learner
from klda.engine import sizes
from tests.factories import assert_same_scores, rows_of, small

MODELS = {
    "auto": small(dtype="float64"),
    "lda": small(dtype="float64", rule="lda", ridge=0.1),
    "identity": small(dtype="float64", rule="lda", n_components=None),
}


@pytest.fixture(autouse=True)
def switches(monkeypatch):
    """Let a model change its ways after few samples: at 9, at 21, and when 16 are pending."""
    monkeypatch.setattr(sizes, "EXACT_KERNEL_ROWS", 8)
    monkeypatch.setattr(sizes, "MOST_PENDING", 16)


class Story:
    """A learner, and beside it the list of what it should know."""

    def __init__(self, parameters, keep, folder):
        self.parameters, self.keep, self.folder = parameters, keep, folder
        self.learner = self.new()
        self.known = []  # (label, row), in the order of the ledger
        self.turns = itertools.count()

    def new(self):
        return Learner("features", classifier=self.parameters, keep=self.keep)

    def fresh(self, label, n):
        rows = rows_of(label, n, seed=next(self.turns))
        self.known += [(label, row) for row in rows]
        return rows, [label] * n

    def learn(self, label, n):
        self.learner.learn(*self.fresh(label, n))

    def merge(self, label, n):
        self.learner.merge(self.new().learn(*self.fresh(label, n)))

    def forget_class(self, label, _):
        """Forget it with its rows: without them and a ledger, it would leave a trace."""
        rows = [row for name, row in self.known if name == label]
        if rows and self.learner.leaves_trace:
            self.learner.forget(label, np.stack(rows))
        elif rows:
            self.learner.forget(label)
        self.known = [one for one in self.known if one[0] != label]

    def forget_samples(self, _, n):
        n = min(n, len(self.known))
        if n and self.learner.ledger is not None:
            at = np.arange(n) * 3 % len(self.known)
            at = np.unique(at)
            self.learner.forget(ids=self.learner.ledger.ids_at(at))
            self.known = [one for i, one in enumerate(self.known) if i not in at]
        elif n:
            gone, self.known = self.known[:n], self.known[n:]
            self.learner.forget([label for label, _ in gone], np.stack([row for _, row in gone]))

    def rename(self, label, _):
        new = f"{label}{next(self.turns)}"
        if label in self.learner.classes:
            self.learner.rename(label, new)
            self.known = [(new if name == label else name, row) for name, row in self.known]

    def undo(self, label, _):
        """Bring back a class that was forgotten; its samples are now the last."""
        if label in self.learner.classes:
            self.learner.forget(label).undo()
            self.known.sort(key=lambda one: one[0] == label)

    def save_and_load(self, *_):
        if self.known:
            self.learner.save(self.folder, overwrite=True)
            self.learner = Learner.load(self.folder)

    def ask(self, *_):
        """Solve, so that the next change finds a factor and evidence."""
        if self.known:
            self.learner.predict_proba(rows_of("q", 2))

    def check(self):
        labels = [label for label, _ in self.known]
        if self.keep:
            assert self.learner.ledger.labels.tolist() == labels
        if not labels:
            assert self.learner.classes == {}
            return
        never = self.new().learn(np.stack([row for _, row in self.known]), labels)
        if self.learner.leaves_trace and not never.leaves_trace:
            # It once had too many samples to keep, and does not know them any more.
            model = never.engine.model
            never.engine.model = replace(model, rows=None, counted=model.statistics)
        assert_same_scores(self.learner, never, rtol=1e-6)
        assert np.isfinite(self.learner.predict_proba(rows_of("q", 2))).all()


STEPS = ["learn", "learn", "merge", "forget_class", "forget_samples", "rename", "undo"]
STEPS += ["save_and_load", "ask"]


@pytest.mark.parametrize("keep", [None, "features"])
@pytest.mark.parametrize("kind", MODELS)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(STEPS), st.sampled_from("abcd"), st.integers(1, 11)), max_size=14
    )
)
def test_what_is_left_is_all_that_counts(tmp_path_factory, kind, keep, steps):
    story = Story(MODELS[kind], keep, tmp_path_factory.mktemp("story") / "m")
    story.learn("a", 5)
    for verb, label, number in steps:
        getattr(story, verb)(label, number)
    story.check()


@pytest.mark.parametrize("keep", [None, "features"])
def test_threads_that_learn_at_once_leave_what_one_after_the_other_leaves(keep):
    shared, alone = (Learner("features", classifier=MODELS["auto"], keep=keep) for _ in range(2))
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
