"""A change is complete or has not happened, whatever stops it and whoever asks meanwhile."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import klda
from klda import KldaError, Learner
from tests.factories import PROBE, LetterCounts, assert_same_scores, rows_of, samples, small, taught

BAD_CALLS = {
    "fewer labels": lambda bot: bot.learn(PROBE, ["a"] * 3),
    "no rows": lambda bot: bot.learn(PROBE[:0], []),
    "no batches": lambda bot: bot.learn(iter([])),
    "labels missing": lambda bot: bot.learn(PROBE),
    "not a number": lambda bot: bot.learn(np.full((1, 8), np.nan), ["a"]),
    "other width": lambda bot: bot.learn(np.ones((1, 5)), ["a"]),
    "other kind of label": lambda bot: bot.learn(PROBE[:2], [1, 2]),
    "second batch broken": lambda bot: bot.learn(iter([(PROBE[:9], ["n"] * 9), (PROBE, ["x"])])),
    "third batch broken": lambda bot: bot.learn(
        iter([(PROBE[:9], ["n"] * 9), (PROBE[9:12], list("opq")), (PROBE[:1, :4], ["x"])])
    ),
    "forget a stranger": lambda bot: bot.forget("zebra"),
    "forget one of two": lambda bot: bot.forget(["a", "zebra"]),
    "forget nothing": lambda bot: bot.forget([]),
    "forget too many rows": lambda bot: bot.forget("a", np.tile(rows_of("a"), (2, 1))),
    "rename to a class": lambda bot: bot.rename("a", "b"),
    "merge another width": lambda bot: bot.merge(
        Learner("features", classifier=small()).learn(np.ones((3, 5)), ["a"] * 3)
    ),
    "merge other random features": lambda bot: bot.merge(taught("ef", random_state=1)),
    "merge no learner": lambda bot: bot.merge(klda.KLDA()),
    "merge the same samples": lambda bot: bot.merge(bot.copy()),
    "declare for features": lambda bot: bot.declare("e"),
    "predict one text": lambda bot: bot.predict("hello"),
    "top 0": lambda bot: bot.predict_top(PROBE, 0),
}


@pytest.mark.parametrize("case", BAD_CALLS)
def test_a_failed_call_leaves_the_learner_as_it_was(case):
    bot = taught()
    scores, history = bot.scores(PROBE), bot.history
    with pytest.raises(KldaError):
        BAD_CALLS[case](bot)
    assert bot.classes == dict.fromkeys("abcd", 12)
    assert bot.history == history
    np.testing.assert_array_equal(bot.scores(PROBE), scores)


def test_a_stream_that_ends_in_an_interrupt_teaches_nothing():
    def stream():
        yield samples("c")
        yield samples("d")
        raise KeyboardInterrupt

    for bot in (taught("ab", keep="features"), taught("")):
        before = bot.classes
        with pytest.raises(KeyboardInterrupt):
            bot.learn(stream())
        assert bot.classes == before
        assert bot.learn(*samples("c")).classes == before | {"c": 12}


# ---------------------------------------------------------------- interrupts at any moment


class Interrupt:
    """Raises at the n-th moment at which Python would notice a signal while klda's code runs."""

    def __init__(self, at=None):
        self.moments, self.at = 0, at

    def __enter__(self):
        sys.setprofile(self.follow)
        return self

    def __exit__(self, *_):
        sys.setprofile(None)

    def follow(self, frame, event, _):
        if event in ("call", "c_return") and frame.f_code.co_filename.startswith(SOURCE):
            self.moments += 1
            if self.moments == self.at:
                raise KeyboardInterrupt


SOURCE = str(Path(klda.__file__).parent)
OTHER = taught("cd", keep="features", ridge=0.1)
CHANGES = {
    "learn": lambda bot: bot.learn(*samples("c")),
    "learn batches": lambda bot: bot.learn([samples("c"), samples("d")]),
    "forget": lambda bot: bot.forget("a"),
    "forget samples": lambda bot: bot.forget(ids=[0, 1]),
    "forget rows": lambda bot: bot.forget("a", rows_of("a")[:3]),
    "undo": lambda bot: bot.forget("a").undo(),
    "merge": lambda bot: bot.merge(OTHER),
    "rename": lambda bot: bot.rename("a", "c"),
    "rebuild": lambda bot: bot.rebuild(ridge=0.5),
    "ask": lambda bot: bot.predict_proba(PROBE),
    "declare": lambda bot: bot.declare("night"),
    "learn texts": lambda bot: bot.learn(["sand and sea"], ["beach"]),
}


def begun(name):
    if name in ("declare", "learn texts"):
        bot = Learner(LetterCounts(), classifier=small(ridge=0.1), keep="features")
        return bot.learn(["a day at sea", "an old zoo"], ["beach", "zoo"])
    return taught("ab", keep="features", ridge=0.1)


def state(bot):
    """All that a learner says, but for the times in the history."""
    history = [{**entry, "when": ""} for entry in bot.history]
    probe = ["sea", "zoo"] if bot.modality == "text" else PROBE
    said = bot.classes, bot.declared, bot.parameters, bot.ledger.counts, bot.ledger.labels.tolist()
    return *said, history, bot.scores(probe).tolist()


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_change_that_is_interrupted_is_complete_or_has_not_happened(name):
    start = begun(name)
    steps = [state(start)]
    if name == "undo":  # two changes
        half = start.copy()
        half.forget("a")
        steps.append(state(half))
    complete = start.copy()
    with Interrupt() as run:
        CHANGES[name](complete)
    steps.append(state(complete))
    stopped = 0
    for at in np.unique(np.linspace(1, run.moments, 150).astype(int)):
        bot = begun(name) if name == "ask" else start.copy()  # a copy has what is solved
        try:
            with Interrupt(at):
                CHANGES[name](bot)
        except KeyboardInterrupt:
            stopped += 1
        assert state(bot) in steps
        # Nothing is left locked: another thread can change it.
        other = threading.Thread(target=bot.rename, args=([*bot.classes][-1], "z"), daemon=True)
        other.start()
        other.join(60)
        assert bot.history[-1]["action"] == "rename"
    assert stopped > 75


@pytest.mark.skipif(sys.platform != "linux", reason="limits its address space as Linux does")
def test_a_learn_without_memory_for_it_leaves_the_model_whole():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# A process of its own: the limit is real, and holds for all that runs in it.
SCRIPT = """
import resource, sys
import numpy as np
from klda import KLDA, Learner

rng = np.random.default_rng(0)
small = rng.normal(size=(40, 8)).astype(np.float32)
large = rng.normal(size=(4000, 8)).astype(np.float32)
learner = Learner("features", classifier=KLDA(gamma=0.02, random_state=0, device="cpu"))
learner.learn(small, ["a", "b"] * 20)
before = learner.scores(small)
pages = int(open("/proc/self/statm").read().split()[0])
_, hard = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (8 << 20), hard))
try:
    learner.learn(large, ["c"] * len(large))
except MemoryError:
    pass
else:
    sys.exit("the limit was not reached")
finally:
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
assert learner.classes == {"a": 20, "b": 20}
np.testing.assert_array_equal(learner.scores(small), before)
assert learner.learn(large, ["c"] * len(large)).classes["c"] == len(large)
"""


# ---------------------------------------------------------------- threads


def test_answers_are_those_before_a_change_or_after_it():
    bot, stop, wrong = taught("ab", n_components=400), threading.Event(), []
    before = bot.predict_proba(PROBE)
    after = bot.copy().learn(*samples("c")).predict_proba(PROBE)

    def ask():
        while not stop.is_set():
            found = bot.predict_proba(PROBE)
            expected = before if found.shape == before.shape else after
            if not np.allclose(found, expected, atol=1e-4):
                wrong.append(found)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(15):
        bot.learn(*samples("c")).forget("c", rows_of("c"))
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong
    assert_same_scores(bot, taught("ab", n_components=400))


def test_a_frozen_learner_goes_on_answering_as_before():
    bot = taught("abc")
    frozen, expected = bot.frozen(), bot.predict_proba(PROBE)
    bot.learn(*samples("d")).forget("a", rows_of("a"))
    np.testing.assert_array_equal(frozen.predict_proba(PROBE), expected)
    assert frozen.classes == dict.fromkeys("abc", 12)
    assert not {"learn", "forget", "merge", "undo"} & {*dir(frozen)}
    assert pickle.loads(pickle.dumps(frozen)).classes == frozen.classes
