from __future__ import annotations

import json
import shutil
import signal
import threading
from functools import partial

import numpy as np
import pytest
from klda.engine.fitted import PredictionOnlyError

from klda import KLDA, LDA, NCM, KLDAEnsemble, KldaError, encoders
from klda.encoders.probes import gamma_for
from klda.engine.model import Member
from klda.engine.statistics import ClassStatistics
from klda.learner import FoundationModelError, Learner, array_files
from klda.learner.folder import ModelChangedError, ModelExistsError, ModelFolderError
from klda.learner.learner import HISTORY_LENGTH
from tests import model_json
from tests.factories import examples


def blobs(labels, *, rows=30, dimension=12, seed=0):
    """Feature rows around one centre per class; the centre depends on the label alone."""
    parts = []
    for label in labels:
        centre = np.random.default_rng(sum(map(ord, str(label)))).normal(size=dimension)
        noise = np.random.default_rng(seed + 1).normal(size=(rows, dimension))
        parts.append(centre * 2 + noise)
    return np.concatenate(parts).astype(np.float32), [
        label for label in labels for _ in range(rows)
    ]


def assert_close(scores, expected):
    """Equal but for rounding, relative to the largest score: most scores are differences."""
    np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-4 * np.abs(expected).max())


def small(**changes):
    return KLDA(**({"n_components": 400, "gamma": 0.02, "random_state": 0} | changes))


def taught(labels="abcd", **changes):
    return Learner("features", classifier=small(**changes)).learn(*blobs(labels))


PROBE = blobs("abcdef", rows=20, seed=50)[0]


@pytest.fixture(scope="module")
def minilm():
    return encoders.load("minilm", layers="auto")


@pytest.fixture(scope="module")
def texts():
    data = examples()
    return {
        part: ([e.text for e in data if e.part == part], [e.intent for e in data if e.part == part])
        for part in ("learn", "test")
    }


# ------------------------------------------------------------------------------- learning


@pytest.fixture(scope="module")
def at_once(minilm, texts):
    return Learner(minilm).learn(*texts["learn"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "pieces, streamed",
    [(7, True), (77, False), ("class by class", False), ("class by class", True)],
)
def test_learning_texts_in_pieces_gives_what_learning_at_once_gives(
    minilm, texts, at_once, pieces, streamed
):
    inputs, labels = texts["learn"]
    if pieces == "class by class":
        groups = [[i for i, name in enumerate(labels) if name == each] for each in set(labels)]
    else:
        order = np.random.default_rng(0).permutation(len(inputs))
        groups = np.array_split(order, pieces)
    batches = [([inputs[i] for i in group], [labels[i] for i in group]) for group in groups]
    learner = Learner(minilm)
    if streamed:
        learner.learn(iter(batches))
    else:
        for batch in batches:
            learner.learn(*batch)
    assert learner.classes == at_once.classes
    questions = texts["test"][0]
    np.testing.assert_array_equal(learner.predict(questions), at_once.predict(questions))
    assert_close(learner.scores(questions), at_once.scores(questions))


def test_texts_are_learned_well(at_once, texts):
    assert at_once.evaluate(*texts["test"]).accuracy > 0.9


def test_the_bandwidth_of_texts_depends_on_the_foundation_model_alone(minilm, at_once):
    other = Learner(minilm).learn(["a text of another kind, and longer", "1 2 3"], ["x", "y"])
    assert other.classifier.gamma_ == at_once.classifier.gamma_ == gamma_for(minilm)
    assert gamma_for(encoders.load("minilm", layers="last")) != gamma_for(minilm)
    assert 0.01 < gamma_for(minilm) < 0.5
    assert Learner("features").classifier.gamma == "auto"


@pytest.mark.parametrize(
    "classifier",
    [small(), KLDAEnsemble(n_components=200, gamma=0.02, random_state=0), LDA(), NCM()],
    ids=lambda classifier: type(classifier).__name__,
)
def test_every_classifier_learns_is_saved_and_loaded(tmp_path, classifier):
    learner = Learner("features", classifier=classifier).learn(*blobs("abcdef"))
    learner.save(tmp_path / "m")
    loaded = Learner.load(tmp_path / "m", verify=True)
    assert type(loaded.classifier) is type(classifier)
    np.testing.assert_allclose(loaded.scores(PROBE), learner.scores(PROBE), rtol=1e-6)
    loaded.learn(*blobs("g"))
    learner.learn(*blobs("g"))
    assert_close(loaded.scores(PROBE), learner.scores(PROBE))


def test_integer_labels_survive_a_save(tmp_path):
    rows, labels = blobs([3, 10, 2])
    Learner("features", classifier=small()).learn(rows, labels).save(tmp_path / "m")
    loaded = Learner.load(tmp_path / "m")
    assert loaded.classes == {2: 30, 3: 30, 10: 30}
    assert loaded.predict(rows[:1]).tolist() == [3]


# ------------------------------------------------------------------------------- all or nothing

BAD_CALLS = {
    "fewer labels": lambda bot: bot.learn(PROBE, ["a"] * 3),
    "no rows": lambda bot: bot.learn(PROBE[:0], []),
    "no batches": lambda bot: bot.learn(iter([])),
    "labels missing": lambda bot: bot.learn(PROBE),
    "not a number": lambda bot: bot.learn(np.full((1, 12), np.nan), ["a"]),
    "other width": lambda bot: bot.learn(np.ones((1, 5)), ["a"]),
    "other kind of label": lambda bot: bot.learn(PROBE[:2], [1, 2]),
    "second batch broken": lambda bot: bot.learn(iter([(PROBE[:9], ["n"] * 9), (PROBE, ["x"])])),
    "third batch broken": lambda bot: bot.learn(
        iter([(PROBE[:9], ["n"] * 9), (PROBE[9:12], list("opq")), (PROBE[:1, :4], ["x"])])
    ),
    "forget a stranger": lambda bot: bot.forget("zebra"),
    "forget one of two": lambda bot: bot.forget(["a", "zebra"]),
    "forget nothing": lambda bot: bot.forget([]),
    "forget too many rows": lambda bot: bot.forget("a", np.tile(blobs("a")[0], (2, 1))),
    "rename to a class": lambda bot: bot.rename("a", "b"),
    "merge another width": lambda bot: bot.merge(
        Learner("features", classifier=small()).learn(np.ones((3, 5)), ["a"] * 3)
    ),
    "merge other random features": lambda bot: bot.merge(taught("ab", random_state=1)),
    "predict one text": lambda bot: bot.predict("hello"),
    "top 0": lambda bot: bot.predict_top(PROBE, 0),
}


@pytest.mark.parametrize("case", BAD_CALLS)
def test_a_failed_call_leaves_the_learner_as_it_was(case):
    bot = taught()
    scores, history = bot.scores(PROBE), bot.history
    with pytest.raises(KldaError):
        BAD_CALLS[case](bot)
    assert bot.classes == dict.fromkeys("abcd", 30)
    assert bot.history == history
    np.testing.assert_array_equal(bot.scores(PROBE), scores)


def test_a_stream_that_raises_leaves_the_learner_as_it_was():
    bot = taught()
    scores = bot.scores(PROBE)

    def stream():
        yield blobs("e")
        yield blobs("f")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bot.learn(stream())
    np.testing.assert_array_equal(bot.scores(PROBE), scores)


def kept(labels, classifier=None):
    learner = Learner("features", classifier=classifier or small(), keep="features")
    return learner.learn(*blobs(labels))


def ensemble():
    return KLDAEnsemble(n_members=2, n_components=100, gamma=0.02, random_state=0)


CHANGES = {
    "learn": lambda bot: bot.learn(*blobs("c")),
    "learn batches": lambda bot: bot.learn([blobs("c"), blobs("d")]),
    "forget": lambda bot: bot.forget("a"),
    "forget samples": lambda bot: bot.forget(ids=[0, 1]),
    "detach": lambda bot: bot.detach("a"),
    "merge": lambda bot: bot.merge(kept("c")),
    "rename": lambda bot: bot.rename("a", "c"),
    "rebuild": lambda bot: bot.rebuild(ridge=0.5),
}
VERBS = ("partial_fit", "remove", "forget", "rename", "merge")


def happens_in_every_verb(monkeypatch, kind, event, *, after):
    """Let something happen before or after a classifier changes."""

    def wrap(verb):
        def method(classifier, *arguments):
            if not after:
                event()
            result = verb(classifier, *arguments)
            if after:
                event()
            return result

        return method

    for name in VERBS:
        monkeypatch.setattr(kind, name, wrap(getattr(kind, name)))


def told(bot):
    """All that a learner says of itself, but for the times in the history."""
    history = [{**entry, "when": ""} for entry in bot.history]
    return bot.classes, bot.ledger.counts, bot.ledger.ids, history, bot.scores(PROBE)


def assert_same(bot, expected):
    *values, scores = told(bot)
    *wanted, expected_scores = told(expected)
    assert values == wanted
    assert_close(scores, expected_scores)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("name", CHANGES)
def test_an_interrupted_change_is_complete_or_has_not_happened(monkeypatch, tmp_path, name, after):
    bot, untouched, changed = kept("ab"), kept("ab"), kept("ab")
    CHANGES[name](changed)
    with monkeypatch.context() as patched:
        interrupt = partial(signal.raise_signal, signal.SIGINT)
        happens_in_every_verb(patched, KLDA, interrupt, after=after)
        with pytest.raises(KeyboardInterrupt):
            CHANGES[name](bot)
    assert bot.classes == bot.ledger.counts
    happened = len(bot.history) > len(untouched.history)
    assert_same(bot, changed if happened else untouched)
    bot.learn(*blobs("z"))
    bot.save(tmp_path / "m")
    assert Learner.load(tmp_path / "m", verify=True).classes == bot.classes


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_that_fails_has_not_happened(monkeypatch, name):
    bot, untouched = kept("ab"), kept("ab")

    def out_of_memory():
        raise MemoryError

    with monkeypatch.context() as patched:
        happens_in_every_verb(patched, KLDA, out_of_memory, after=False)
        with pytest.raises(MemoryError):
            CHANGES[name](bot)
    assert_same(bot, untouched)
    CHANGES[name](bot)
    assert bot.classes == bot.ledger.counts


@pytest.fixture
def between_members(monkeypatch):
    """An ensemble of two to which something happens once the first has learned a class."""
    bot = kept("ab", ensemble())
    first, second = bot.classifier.model_.members
    change, happened = Member.change, []

    def learn_while(action):
        def steps(member, *arguments):
            if member is second and not happened:
                happened.append(first.statistics.labels == ["a", "b", "c"])
                assert second.statistics.labels == ["a", "b"]
                action()
            change(member, *arguments)

        with monkeypatch.context() as patched:
            patched.setattr(Member, "change", steps)
            bot.learn(*blobs("c"))

    yield bot, learn_while
    assert happened == [True]


def test_an_interrupt_between_members_leaves_nothing(between_members):
    bot, learn_while = between_members
    with pytest.raises(KeyboardInterrupt):
        learn_while(lambda: signal.raise_signal(signal.SIGINT))
    assert_same(bot, kept("ab", ensemble()))


def test_a_failure_between_members_is_undone(between_members):
    bot, learn_while = between_members

    def out_of_memory():
        raise MemoryError

    with pytest.raises(MemoryError):
        learn_while(out_of_memory)
    assert_same(bot, kept("ab", ensemble()))
    assert_same(bot.learn(*blobs("c")), kept("ab", ensemble()).learn(*blobs("c")))


def test_a_merge_that_fails_between_members_has_not_happened(monkeypatch):
    bot, other = kept("ab", ensemble()), kept("bc", ensemble())
    merge, calls = ClassStatistics.merge, []

    def fail_at_the_last(statistics, added):
        calls.append(added)
        if added is other.classifier.model_.members[1].statistics:
            raise MemoryError
        merge(statistics, added)

    with monkeypatch.context() as patched:
        patched.setattr(ClassStatistics, "merge", fail_at_the_last)
        with pytest.raises(MemoryError):
            bot.merge(other)
    assert other.classifier.model_.members[0].statistics in calls
    assert_same(bot, kept("ab", ensemble()))


def test_an_interrupted_stream_teaches_nothing():
    def stream():
        yield blobs("c")
        yield blobs("d")
        raise KeyboardInterrupt

    bot = kept("ab")
    scores = bot.scores(PROBE)
    with pytest.raises(KeyboardInterrupt):
        bot.learn(stream())
    np.testing.assert_array_equal(bot.scores(PROBE), scores)
    assert bot.classes == bot.ledger.counts == {"a": 30, "b": 30}


def test_a_failed_first_call_leaves_a_new_learner_empty():
    bot = Learner("features", classifier=small())
    with pytest.raises(KldaError):
        bot.learn(iter([blobs("a"), (PROBE, ["x"])]))
    assert bot.classes == {}
    assert bot.learn(*blobs("ab")).classes == {"a": 30, "b": 30}


@pytest.mark.parametrize("inputs", [[""], ["fine", "  "], [3], "one text", [None]])
def test_texts_that_are_none(minilm, inputs):
    bot = Learner(minilm, classifier=NCM())
    with pytest.raises(KldaError):
        bot.learn(inputs, ["a"] * len(inputs))
    assert bot.classes == {}


# ------------------------------------------------------------------------------- other verbs


def test_forgetting_with_the_rows_is_as_if_they_had_never_been_learned():
    bot = taught("abcdef").forget("e", blobs("e")[0])
    never = Learner("features", classifier=small()).learn(*blobs("abcdf"))
    assert bot.classes == never.classes
    assert_close(bot.scores(PROBE), never.scores(PROBE))


def test_forgetting_without_rows_drops_the_classes_from_the_answers():
    bot = taught("abcdef").forget(["a", "b"])
    assert list(bot.classes) == list("cdef")
    assert not set(bot.predict(PROBE)) & {"a", "b"}


def test_only_learners_merge():
    with pytest.raises(KldaError, match=r"other is a KLDA, not a Learner"):
        taught().merge(small())


def test_a_learner_is_merged_with_itself_or_an_equal_one_only_if_asked_to():
    for other in (lambda bot: bot, Learner.copy, lambda bot: taught("ab")):
        bot = taught("ab")
        with pytest.raises(KldaError, match=r"same samples, which would count twice.*allow_same"):
            bot.merge(other(bot))
        assert bot.classes == {"a": 30, "b": 30}
    assert bot.merge(bot.copy(), allow_same=True).classes == {"a": 60, "b": 60}


def test_merging_gives_what_learning_everything_gives():
    north, south = taught("abc"), taught("cdef")
    both = Learner("features", classifier=small()).learn(*blobs("abccdef"))
    merged = north.merge(south)
    assert merged.classes == both.classes
    assert_close(merged.scores(PROBE), both.scores(PROBE))
    assert list(south.classes) == list("cdef")


def test_learners_with_different_foundation_models_do_not_merge(minilm):
    texts = Learner(minilm, classifier=NCM()).learn(["hello"], ["a"])
    rows = Learner("features", classifier=NCM()).learn(np.ones((1, minilm.dimension)), ["a"])
    with pytest.raises(FoundationModelError, match="same foundation model"):
        rows.merge(texts)


def test_batches_may_come_in_lists_that_are_used_again(minilm, texts):
    """Tokenising, encoding and learning overlap: each must have its own batch."""
    inputs, labels = (values[::6] for values in texts["learn"])

    def fresh():
        for start in range(0, len(inputs), 8):
            yield inputs[start : start + 8], labels[start : start + 8]

    def reused():
        here, names = [], []
        for some, theirs in fresh():
            here[:], names[:] = some, theirs
            yield here, names

    once, again = (Learner(minilm, classifier=small(gamma=0.2)) for _ in range(2))
    once.learn(fresh())
    again.learn(reused())
    assert again.classes == once.classes
    np.testing.assert_array_equal(again.classifier.means_, once.classifier.means_)


def test_features_may_come_in_a_buffer_that_is_filled_again():
    fresh = [(*blobs("ab", seed=seed), [f"{seed}-{i}" for i in range(60)]) for seed in range(3)]

    def reused():
        rows, labels, ids = np.empty_like(fresh[0][0]), np.empty(60, "U1"), []
        for some, theirs, names in fresh:
            rows[:], labels[:], ids[:] = some, theirs, names
            yield rows, labels, ids

    once, again = (Learner("features", classifier=small(), keep="features") for _ in range(2))
    once.learn(fresh)
    again.learn(reused())
    assert again.ledger.ids == once.ledger.ids
    assert again.classes == once.classes
    np.testing.assert_array_equal(again.classifier.means_, once.classifier.means_)


def test_numpy_scalars_name_classes_and_samples():
    rows, _ = blobs("ab", rows=10)
    bot = Learner("features", classifier=small(), keep="features")
    bot.learn(rows, [np.int64(i // 10) for i in range(20)])
    bot.forget(ids=np.int64(3)).forget(ids=np.array([4, 5]))
    assert bot.classes == {0: 7, 1: 10}
    bot.forget(bot.predict(rows[:1])[0])
    assert bot.classes == {1: 10}
    bot.rename(np.int64(1), np.int64(7))
    assert [type(label) for label in bot.classes] == [int]
    assert bot.ledger.counts == {7: 10}


@pytest.mark.parametrize(
    "labels",
    [
        [np.str_("a"), np.str_("b")],
        np.array([np.str_("a"), np.str_("b")], dtype=object),
        [np.str_("a"), "b"],
        ("a", "b"),
    ],
)
def test_labels_may_be_numpy_texts(labels, tmp_path):
    bot = Learner("features", classifier=NCM(), keep="features").learn(PROBE[:2], labels)
    assert bot.classes == bot.ledger.counts == {"a": 1, "b": 1}
    bot.save(tmp_path / "m")


@pytest.mark.parametrize(
    "labels",
    [np.array([np.int64(3), np.int64(4)], dtype=object), [np.int32(3), 4], np.array([3, 4], "u1")],
)
def test_labels_may_be_numpy_integers(labels):
    bot = Learner("features", classifier=NCM(), keep="features").learn(PROBE[:2], labels)
    assert bot.classes == bot.ledger.counts == {3: 1, 4: 1}


@pytest.mark.parametrize(
    "missing",
    [
        ["a", "b", float("nan")],
        [1, 2, np.nan],
        np.array([1.0, 2.0, np.nan]),
        np.array(["a", "b", np.nan], dtype=object),
        ["a", "b", None],
    ],
)
def test_a_missing_label_is_named_with_its_row(missing):
    bot = taught("ab")
    with pytest.raises(KldaError, match=r"labels\[2\] is (nan|None): it is missing"):
        bot.learn(PROBE[:3], missing)
    assert bot.classes == {"a": 30, "b": 30}


def test_a_missing_label_of_a_table_is_named_with_its_row():
    pandas = pytest.importorskip("pandas")
    for kind in ("object", "string", "category"):
        with pytest.raises(KldaError, match=r"labels\[1\] is .*: it is missing"):
            taught("ab").learn(PROBE[:3], pandas.Series(["a", None, "b"], dtype=kind))
    bot = taught("ab").learn(PROBE[:2], pandas.Series(["a", "b"], dtype="string", index=[5, 6]))
    assert bot.classes == {"a": 31, "b": 31}


@pytest.mark.parametrize("labels", [["a", 1], "ab", 7])
def test_labels_that_are_no_list_of_one_kind_are_refused(labels):
    with pytest.raises(KldaError, match=r"labels.*(one label for each|strings only)"):
        taught("ab").learn(PROBE[:2], labels)


def test_a_source_may_be_a_path(tmp_path):
    bot = taught("ab").learn(*blobs("c"), source=tmp_path / "c.csv")
    bot.save(tmp_path / "m")
    assert Learner.load(tmp_path / "m").history[-1]["source"] == str(tmp_path / "c.csv")


def test_a_copy_goes_its_own_way():
    bot = taught("ab")
    twin = bot.copy().learn(*blobs("c"))
    assert list(bot.classes) == ["a", "b"]
    assert list(twin.classes) == ["a", "b", "c"]
    assert len(bot.history) == 1
    assert len(twin.history) == 2


def test_a_copy_answers_alike():
    """Also where few samples, of classes that little tells apart, ask for a large ridge."""
    rows, labels = blobs("abcdef", rows=8)
    bot = Learner("features", classifier=small()).learn(rows, labels[1:] + labels[:1])
    noise = np.random.default_rng(5).normal(size=(60, 12))
    bot.learn(noise, list("ghi") * 20)
    bot.scores(PROBE)
    twin = bot.copy()
    assert twin.classifier.ridge_ == bot.classifier.ridge_
    assert_close(twin.scores(PROBE), bot.scores(PROBE))
    probabilities = bot.predict_proba(PROBE)
    np.testing.assert_allclose(twin.predict_proba(PROBE), probabilities, atol=1e-4)


@pytest.mark.parametrize("loaded", [False, True])
def test_a_copy_knows_as_well_what_is_unknown(tmp_path, loaded):
    bot = taught("abcd")
    if loaded:
        bot.save(tmp_path / "m")
        bot = Learner.load(tmp_path / "m")
    threshold, probabilities = bot.threshold(), bot.predict_proba(PROBE)
    twin = bot.copy()
    assert twin.threshold() == pytest.approx(threshold, rel=1e-5)
    np.testing.assert_allclose(twin.predict_proba(PROBE), probabilities, atol=1e-5)


def test_learning_in_batches_keeps_what_was_known_of_the_unknown():
    batches = [blobs("ef"), blobs("gh")]
    bot, streamed = taught("abcd"), taught("abcd")
    assert bot.threshold() == streamed.threshold()
    for batch in batches:
        bot.learn(*batch)
    streamed.learn(batches)
    assert streamed.threshold() == pytest.approx(bot.threshold(), rel=1e-5)


def test_renaming_keeps_the_rest():
    bot = taught("abc")
    expected = np.where(bot.predict(PROBE) == "a", "z", bot.predict(PROBE))
    np.testing.assert_array_equal(bot.rename("a", "z").predict(PROBE), expected)


def test_the_likeliest_classes_come_first():
    bot = taught("abcd")
    tops = bot.predict_top(PROBE, 3)
    probabilities = bot.predict_proba(PROBE)
    assert [top[0][0] for top in tops] == bot.predict(PROBE).tolist()
    np.testing.assert_allclose([top[0][1] for top in tops], probabilities.max(axis=1))
    assert all(a >= b >= c for (_, a), (_, b), (_, c) in tops)
    assert all(len(top) == 4 for top in bot.predict_top(PROBE, 99))


@pytest.mark.parametrize("labels", ["a", "ab", "abc"])
def test_scores_have_one_column_per_class(labels):
    assert taught(labels).scores(PROBE).shape == (len(PROBE), len(labels))


def test_many_threads_may_ask_at_once():
    bot = taught()
    expected = bot.predict(PROBE)
    wrong = []

    def ask():
        for _ in range(20):
            if (bot.predict(PROBE) != expected).any():
                wrong.append(1)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# ------------------------------------------------------------------------------- evaluation


def test_evaluation_counts_what_it_should():
    bot = taught("abc")
    rows, labels = blobs("abcz", rows=10, seed=9)
    answers = bot.predict(rows)
    result = bot.evaluate(rows, labels)
    assert result.labels == ["a", "b", "c", "z"]
    assert result.samples == 40
    assert result.accuracy == np.mean(answers == np.array(labels)) <= 0.75
    assert result.confusion[3].sum() == 10
    by_label = {each.label: each for each in result.classes}
    assert by_label["z"].recall == 0
    assert np.isnan(by_label["z"].precision)
    assert by_label["a"].predicted == np.sum(answers == "a")
    assert sum(count for *_, count in result.confused(None)) == 40 - np.trace(result.confusion)
    assert json.loads(json.dumps(result.to_dict(), allow_nan=False))["accuracy"] == result.accuracy


def test_evaluation_in_batches_is_the_same():
    bot = taught("abc")
    rows, labels = blobs("abc", seed=9)
    batches = ((rows[i : i + 7], labels[i : i + 7]) for i in range(0, len(rows), 7))
    np.testing.assert_array_equal(
        bot.evaluate(batches).confusion, bot.evaluate(rows, labels).confusion
    )


def test_labels_of_another_kind_are_not_silently_wrong():
    with pytest.raises(KldaError, match="type that was learned"):
        taught("abc").evaluate(PROBE[:2], [1, 2])


# ------------------------------------------------------------------------------- model folders


def test_history_tells_what_was_learned_when(tmp_path):
    bot = Learner("features", classifier=small()).learn(*blobs("ab"), source="first.csv")
    bot.save(tmp_path / "m")
    again = Learner.load(tmp_path / "m").learn(*blobs("bc")).forget("a")
    again.save(tmp_path / "m")
    history = json.loads((tmp_path / "m" / "model.json").read_text())["history"]
    assert [entry["action"] for entry in history] == ["learn", "learn", "forget"]
    assert history[0] | {"when": ""} == {
        "when": "",
        "action": "learn",
        "samples": 60,
        "new_classes": ["a", "b"],
        "source": "first.csv",
    }
    assert history[1]["new_classes"] == ["c"]
    assert history[2]["dropped_classes"] == ["a"]
    assert history[2]["samples"] == -30


def test_history_does_not_grow_forever():
    bot = Learner("features", classifier=NCM())
    for _ in range(HISTORY_LENGTH + 5):
        bot.learn(np.ones((1, 2)), ["a"])
    assert len(bot.history) == HISTORY_LENGTH


def test_a_compact_model_of_150_classes_is_small_and_answers_alike(tmp_path):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(300, 384)).astype(np.float32)
    labels = [f"class {i % 150}" for i in range(300)]
    bot = Learner("features", classifier=KLDA(gamma=1e-3, random_state=0)).learn(rows, labels)
    bot.save(tmp_path / "full")
    bot.save(tmp_path / "compact", compact=True)
    size = sum(path.stat().st_size for path in (tmp_path / "compact").iterdir())
    assert size <= 25e6
    compact = Learner.load(tmp_path / "compact")
    np.testing.assert_allclose(compact.scores(rows[:20]), bot.scores(rows[:20]), rtol=1e-6)
    assert compact.classes == bot.classes
    with pytest.raises(PredictionOnlyError, match="compact"):
        compact.learn(rows[:2], labels[:2])


def test_answering_reads_nothing_that_only_learning_needs(tmp_path, monkeypatch):
    monkeypatch.setattr(array_files, "VERIFIED_UP_TO", 0)  # files that a user would see mapped
    bot = taught(n_components=220)
    bot.save(tmp_path / "m")
    expected = bot.scores(PROBE)
    spoilt = 0
    for path in (tmp_path / "m").glob("learn_*"):
        content = bytearray(path.read_bytes())
        content[-4000:] = b"\xff" * 4000
        path.write_bytes(bytes(content))
        spoilt += 1
    assert spoilt
    np.testing.assert_array_equal(Learner.load(tmp_path / "m").scores(PROBE), expected)


def test_what_others_keep_beside_a_learner_is_not_shared_with_its_copy():
    bot = taught()
    bot.extras["note"] = 1
    bot.copy().extras["note"] = 2
    assert bot.extras == {"note": 1}


def test_an_empty_learner_says_so():
    with pytest.raises(KldaError, match="no classes yet"):
        Learner("features").predict(PROBE)


def test_evaluate_checks_what_the_other_questions_check():
    with pytest.raises(KldaError, match="no classes yet"):
        Learner("features").evaluate(PROBE, ["a"] * len(PROBE))
    learner = Learner("features").learn(PROBE, ["a"] * len(PROBE))
    with pytest.raises(KldaError, match="inputs has rows of 3 features, but this learner's have"):
        learner.evaluate(PROBE[:, :3], ["a"] * len(PROBE))


def test_an_empty_learner_is_not_saved(tmp_path):
    with pytest.raises(KldaError, match="no classes"):
        Learner("features").save(tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_a_save_does_not_undo_what_someone_else_saved(tmp_path):
    taught("ab").save(tmp_path / "m")
    mine, theirs = Learner.load(tmp_path / "m"), Learner.load(tmp_path / "m")
    theirs.learn(*blobs("c")).save(tmp_path / "m")
    with pytest.raises(ModelChangedError):
        mine.learn(*blobs("d")).save(tmp_path / "m")
    assert list(Learner.load(tmp_path / "m").classes) == ["a", "b", "c"]
    mine.save(tmp_path / "m", overwrite=True)
    assert list(Learner.load(tmp_path / "m").classes) == ["a", "b", "d"]


def test_a_save_replaces_no_model_that_it_did_not_come_from(tmp_path):
    taught("ab").save(tmp_path / "m")
    other = taught("cd")
    other.save(tmp_path / "other")
    with pytest.raises(ModelExistsError, match=r"m holds a model already.*overwrite=True"):
        other.save(tmp_path / "m")
    assert list(Learner.load(tmp_path / "m").classes) == ["a", "b"]
    other.save(tmp_path / "other")
    other.save(tmp_path / "m", overwrite=True)
    other.learn(*blobs("e")).save(tmp_path / "m")
    assert list(Learner.load(tmp_path / "m").classes) == ["c", "d", "e"]


def test_a_compact_save_takes_the_place_of_no_model_that_can_learn(tmp_path):
    bot = taught("ab")
    bot.save(tmp_path / "m")
    for overwrite in (False, True):
        with pytest.raises(ModelExistsError, match=r"compact=True: .*m holds.* another folder"):
            bot.save(tmp_path / "m", compact=True, overwrite=overwrite)
    bot.learn(*blobs("c")).save(tmp_path / "m")
    assert Learner.load(tmp_path / "m").learn(*blobs("d")).samples == 120
    bot.save(tmp_path / "small", compact=True)
    bot.save(tmp_path / "small", compact=True, overwrite=True)


def test_a_copy_of_a_compact_model_answers_alike_and_can_not_learn(tmp_path):
    taught("abc").save(tmp_path / "small", compact=True)
    bot = Learner.load(tmp_path / "small")
    twin = bot.copy()
    np.testing.assert_array_equal(twin.scores(PROBE), bot.scores(PROBE))
    np.testing.assert_array_equal(twin.is_known(PROBE), bot.is_known(PROBE))
    for learner in (bot, twin):
        with pytest.raises(PredictionOnlyError, match="saved compact"):
            learner.learn(*blobs("d"))
        with pytest.raises(PredictionOnlyError, match="saved compact"):
            learner.learn([blobs("d"), blobs("e")])
        assert learner.classes == {"a": 30, "b": 30, "c": 30}


@pytest.mark.parametrize("change", [{"revision": "0" * 64}, {"layers": "last"}, {"dimension": 5}])
def test_a_model_made_with_another_foundation_model_is_refused(tmp_path, minilm, change):
    Learner(minilm, classifier=NCM()).learn(["hello"], ["a"]).save(tmp_path / "m")
    model_json.edit(tmp_path / "m", lambda document: document["foundation_model"].update(change))
    with pytest.raises(FoundationModelError, match=r"was made with the foundation model 'minilm'"):
        Learner.load(tmp_path / "m", model=minilm)


def test_a_loaded_learner_opens_its_foundation_model_when_it_needs_it(
    tmp_path, minilm, monkeypatch
):
    bot = Learner(minilm, classifier=NCM()).learn(["hello", "goodbye"], ["a", "b"])
    bot.save(tmp_path / "m")
    load, opened = encoders.load, []
    monkeypatch.setattr(
        encoders, "load", lambda name, **options: opened.append(name) or load(name, **options)
    )
    loaded = Learner.load(tmp_path / "m")
    assert loaded.classes == {"a": 1, "b": 1}
    assert opened == []
    assert loaded.predict(["hello", "goodbye"]).tolist() == ["a", "b"]
    assert opened == ["minilm"]
    assert encoders.same_features(loaded.encoder.fingerprint(), minilm.fingerprint())


def test_a_moved_folder_is_the_same_model(tmp_path):
    bot = taught()
    bot.save(tmp_path / "m")
    shutil.move(tmp_path / "m", tmp_path / "n")
    moved = Learner.load(tmp_path / "n")
    np.testing.assert_array_equal(moved.scores(PROBE), bot.scores(PROBE))
    moved.learn(*blobs("e")).save(tmp_path / "n")


def change_document(folder, change):
    model_json.edit(folder, lambda document: change(document["classifier"]))


@pytest.mark.parametrize(
    "damage",
    [
        lambda classifier: classifier.pop("members"),
        lambda classifier: classifier["classes"].pop(),
        lambda classifier: classifier["counts"].pop(),
        lambda classifier: (classifier["classes"].pop(), classifier["counts"].pop()),
        lambda classifier: classifier["members"].clear(),
    ],
)
def test_a_damaged_document_is_named(tmp_path, damage):
    taught().save(tmp_path / "m")
    change_document(tmp_path / "m", damage)
    with pytest.raises(ModelFolderError, match=r"model\.json is truncated or damaged.*Restore"):
        Learner.load(tmp_path / "m")


def test_a_parameter_of_a_newer_version_says_to_upgrade(tmp_path):
    taught().save(tmp_path / "m")
    change_document(tmp_path / "m", lambda found: found["parameters"].update(warp=9))
    with pytest.raises(KldaError, match=r"newer version of klda.*'warp'.*Upgrade"):
        Learner.load(tmp_path / "m")


def test_a_single_row_is_told_from_a_wrong_number_of_labels():
    for labels in (["a"], ["a"] * PROBE.shape[1]):
        with pytest.raises(KldaError, match="2-D array, one feature row per sample"):
            Learner("features").learn(PROBE[0], labels)


@pytest.mark.parametrize("keep", [None, "features"])
def test_rows_without_a_label_each_are_refused_by_the_names_they_were_given_under(keep):
    learner = Learner("features", keep=keep)
    with pytest.raises(KldaError, match="rows has 3 samples and labels has 2"):
        learner.learn_rows(PROBE[:3], ["a", "b"])
    assert learner.classes == {}
