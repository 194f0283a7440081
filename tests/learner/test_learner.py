"""Learning: in any pieces, from any kind of inputs and labels that can be told apart."""

from __future__ import annotations

import csv
import json
import re

import numpy as np
import pytest

from klda import KLDA, LDA, NCM, KLDAEnsemble, KldaError, Learner, encoders
from klda.data import open_table
from klda.encoders.encoder import gamma_for
from klda.engine import sizes
from klda.labels import MAX_LABEL_LENGTH
from klda.learner import FoundationModelError
from klda.learner.draft import HISTORY_LENGTH
from tests.factories import (
    PROBE,
    LetterCounts,
    assert_same_scores,
    edit_document,
    examples,
    rows_of,
    samples,
    small,
    taught,
)

LEARN = [(one.text, one.intent) for one in examples("learn")]
TEST = [(one.text, one.intent) for one in examples("test")]


def columns(pairs):
    return [text for text, _ in pairs], [label for _, label in pairs]


@pytest.fixture(scope="module")
def at_once():
    return Learner("ngrams").learn(*columns(LEARN))


# ---------------------------------------------------------------- in any pieces


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("pieces", [7, "class by class"])
def test_learning_texts_in_pieces_gives_what_learning_at_once_gives(at_once, pieces, streamed):
    if pieces == "class by class":
        names = dict.fromkeys(label for _, label in LEARN)
        groups = [[one for one in LEARN if one[1] == name] for name in names]
    else:
        order = np.random.default_rng(0).permutation(len(LEARN))
        groups = [[LEARN[i] for i in part] for part in np.array_split(order, pieces)]
    learner = Learner("ngrams")
    if streamed:
        learner.learn(columns(group) for group in groups)
        learned = [len(LEARN)]
    else:
        for group in groups:
            learner.learn(*columns(group))
        learned = [len(group) for group in groups]
    assert [entry["samples"] for entry in learner.history] == learned
    assert_same_scores(learner, at_once, columns(TEST)[0])


def test_learning_in_batches_keeps_what_was_known_of_the_unknown(monkeypatch):
    monkeypatch.setattr(sizes, "EXACT_KERNEL_ROWS", 8)
    bot, streamed, batches = taught(), taught(), [samples("ef"), samples("gh")]
    assert bot.threshold() == streamed.threshold()
    for batch in batches:
        bot.learn(*batch)
    assert streamed.learn(batches).threshold() == pytest.approx(bot.threshold(), rel=1e-5)


def test_the_bandwidth_of_texts_depends_on_the_foundation_model_alone(at_once):
    other = Learner("ngrams").learn(["a text of another kind, and longer", "1 2 3"], ["x", "y"])
    found = at_once.engine.model.map.gamma
    assert other.engine.model.map.gamma == found == gamma_for(at_once.encoder)
    if encoders.MODELS["minilm"].available_offline():
        by_layers = {gamma_for(encoders.load("minilm", layers=name)) for name in ("auto", "last")}
        assert len(by_layers) == 2
        assert all(0.01 < gamma < 0.5 for gamma in by_layers)
    assert Learner("features").parameters.gamma == "auto"


def test_batches_may_come_in_memory_that_is_used_again():
    """Tokenising, encoding and learning overlap: each must have its own batch."""
    fresh = [(*samples("ab", seed=seed), [f"{seed}-{i}" for i in range(24)]) for seed in range(3)]

    def arrays():
        rows, labels, ids = np.empty_like(fresh[0][0]), np.empty(24, "U1"), []
        for some, theirs, names in fresh:
            rows[:], labels[:], ids[:] = some, theirs, names
            yield rows, labels, ids

    once, again = (taught("", keep="features").learn(some) for some in (fresh, arrays()))
    assert again.ledger.numbers_by_id == once.ledger.numbers_by_id
    assert_same_scores(again, once)

    def lists():
        texts, labels = [], []
        for start in range(0, 80, 8):
            texts[:], labels[:] = columns(LEARN[start : start + 8])
            yield texts, labels

    assert_same_scores(
        Learner("ngrams").learn(lists()), Learner("ngrams").learn(*columns(LEARN[:80])), ["pin"]
    )


def test_merging_gives_what_learning_everything_gives():
    north, south = taught("abc"), taught("cdef")
    south.learn(*samples("c", seed=1)).forget("c", rows_of("c"))
    both = taught("abdef").learn(*samples("c")).learn(*samples("c", seed=1))
    assert_same_scores(north.merge(south), both)
    assert list(south.classes) == list("cdef")


@pytest.mark.parametrize(
    "options",
    [{}, {"keep": "features"}, {"n_components": 400}],
    ids=["statistics", "ledger", "few"],
)
def test_a_learner_is_merged_with_itself_or_an_equal_one_only_if_asked_to(options):
    def asked(_):
        other = taught("ab", **options)
        other.predict_proba(PROBE)
        return other

    for other in (lambda bot: bot, Learner.copy, lambda _: taught("ab", **options), asked):
        bot = taught("ab", **options)
        with pytest.raises(KldaError, match=r"same samples, which would count twice.*allow_same"):
            bot.merge(other(bot))
        assert bot.classes == {"a": 12, "b": 12}
    assert bot.merge(bot.copy(), allow_same=True).classes == {"a": 24, "b": 24}


def test_learners_with_different_foundation_models_do_not_merge():
    texts = Learner(LetterCounts()).learn(["hello"], ["a"])
    rows = Learner("features").learn(np.ones((1, 26)), ["a"])
    with pytest.raises(FoundationModelError, match="same foundation model"):
        rows.merge(texts)


def test_a_copy_answers_alike_and_goes_its_own_way():
    bot = taught("abcd", n=30)
    bot.predict_proba(PROBE)
    twin = bot.copy()
    assert twin.threshold() == bot.threshold()
    np.testing.assert_array_equal(twin.predict_proba(PROBE), bot.predict_proba(PROBE))
    twin.learn(*samples("e"))
    assert (list(bot.classes), list(twin.classes)) == (list("abcd"), list("abcde"))
    assert (len(bot.history), len(twin.history)) == (1, 2)


def test_history_does_not_grow_forever():
    bot = Learner("features", classifier=small())
    for _ in range(HISTORY_LENGTH + 5):
        bot.learn(np.ones((1, 2)), ["a"])
    assert len(bot.history) == HISTORY_LENGTH


# ---------------------------------------------------------------- inputs


@pytest.mark.parametrize("inputs", [[""], ["fine", "  "], [3], "one text", [None], {"a": "text"}])
def test_texts_that_are_none(inputs):
    bot = Learner("ngrams")
    with pytest.raises(KldaError, match="inputs"):
        bot.learn(inputs, ["a"] * len(inputs))
    assert bot.classes == {}


def test_a_table_is_taught_and_asked_as_a_whole():
    pd = pytest.importorskip("pandas", reason="needs: pip install pandas")
    texts, labels = columns(LEARN[:32])
    table = pd.DataFrame({"Message": texts, "Queue": labels}, index=range(40, 8, -1))
    expected = Learner("ngrams").learn(texts, labels)
    bot = Learner("ngrams").learn(table)
    assert bot.classes == expected.classes
    assert Learner("ngrams").learn(table, labels).classes == expected.classes
    for verb in ("predict", "predict_proba", "novelty", "is_known", "encode"):
        for given in (table, table[["Message"]], table["Message"]):
            np.testing.assert_array_equal(getattr(bot, verb)(given), getattr(expected, verb)(texts))
    assert bot.evaluate(table).accuracy == bot.evaluate(table, labels).accuracy
    swapped = Learner("ngrams").learn(table, text="Queue", label="Message")
    assert set(swapped.classes) == set(texts)
    for wrong in ({"text": "body"}, {"label": "team"}, {"labels": labels, "label": "Queue"}):
        with pytest.raises(KldaError):
            bot.learn(table, **wrong)
    with pytest.raises(KldaError, match="name columns of a table, and inputs is a list"):
        bot.learn(texts, labels, text="Message")
    assert bot.samples == 32


def test_a_table_of_features_is_taught_by_its_numbers():
    pd = pytest.importorskip("pandas", reason="needs: pip install pandas")
    rows, names = samples("ab")
    numbers = Learner("features").learn(pd.DataFrame(rows), names)
    assert numbers.predict(pd.DataFrame(rows)).tolist() == names
    table = pd.DataFrame(rows).rename(columns=str).assign(label=names)
    assert Learner("features").learn(table).classes == numbers.classes


def test_rows_that_can_not_be_are_refused_by_the_names_they_were_given_under():
    for labels in (["a"], ["a"] * PROBE.shape[1]):
        with pytest.raises(KldaError, match="2-D array, one feature row per sample"):
            Learner("features").learn(PROBE[0], labels)
    for keep in (None, "features"):
        with pytest.raises(KldaError, match="rows has 3 items, labels has 2"):
            Learner("features", keep=keep).learn_rows(PROBE[:3], ["a", "b"])


def test_texts_are_counted_before_they_are_encoded():
    encoded = []

    def encode(texts):
        encoded.extend(texts)
        return np.ones((len(texts), 2))

    with pytest.raises(KldaError, match="inputs has 3 items, labels has 2"):
        Learner(encode).learn(["a card", "a cat", "a dog"], ["x", "y"])
    assert "a card" not in encoded


def test_a_learner_that_knows_nothing_says_so():
    learner = Learner("features")
    for ask in (learner.frozen, learner.ready, lambda: learner.forget("a", PROBE[:1])):
        with pytest.raises(KldaError, match="learn something first"):
            ask()
    with pytest.raises(KldaError, match="there are no classes yet"):
        learner.forget("a")


class WithoutLayers(LetterCounts):
    def fingerprint(self):
        return {key: value for key, value in super().fingerprint().items() if key != "layers"}


@pytest.mark.parametrize(
    "model, lacks",
    [
        (17, "it has no encode.*'features'"),
        (lambda texts: [0.0, 1.0], "<lambda>.*must return one row for each"),
        (WithoutLayers(), "its fingerprint has no 'layers'"),
    ],
)
def test_what_an_encoder_lacks_is_said(model, lacks, tmp_path):
    with pytest.raises(KldaError, match=lacks):
        Learner(model)
    Learner(LetterCounts()).learn(["a", "bb"], ["x", "y"]).save(tmp_path / "m")
    if not isinstance(model, LetterCounts):
        with pytest.raises(KldaError, match=lacks):
            Learner.load(tmp_path / "m", model=model)


@pytest.mark.parametrize("classifier", [NCM(), KLDAEnsemble(), "KLDA", 3])
def test_a_classifier_that_a_learner_does_not_hold_is_refused(classifier):
    with pytest.raises(KldaError, match=r"classifier=.* can't be used; give a klda\.KLDA or"):
        Learner("features", classifier=classifier)


@pytest.mark.parametrize("kind", [KLDA, LDA])
def test_a_learner_answers_as_the_classifier_whose_parameters_it_has(kind):
    classifier = kind(
        **{"n_components": 40, "gamma": 0.1, "random_state": 0} if kind is KLDA else {}
    )
    learner = Learner("features", classifier=classifier).learn(*samples("abc"))
    fitted = classifier.fit(*samples("abc"))
    np.testing.assert_array_equal(learner.predict(PROBE), fitted.predict(PROBE))
    np.testing.assert_allclose(learner.predict_proba(PROBE), fitted.predict_proba(PROBE), atol=1e-6)


# ---------------------------------------------------------------- labels


@pytest.mark.parametrize(
    "labels",
    [
        [np.str_("a"), "b"],
        np.array([np.str_("a"), np.str_("b")], dtype=object),
        ("a", "b"),
        iter(["a", "b"]),
        np.array([3, 4], "u1"),
        np.array([np.int64(3), np.int64(4)], dtype=object),
        [np.int32(3), 4],
    ],
)
def test_labels_may_come_as_any_sequence_of_strings_or_of_integers(labels, tmp_path):
    bot = Learner("features", classifier=small(), keep="features").learn(PROBE[:2], labels)
    assert bot.classes == bot.ledger.counts
    assert list(bot.classes) in (["a", "b"], [3, 4])
    assert {type(label) for label in bot.classes} <= {str, int}
    bot.save(tmp_path / "m")
    bot.rename(bot.predict(PROBE[:1])[0], np.int64(7) if 3 in bot.classes else np.str_("c"))
    assert bot.classes == bot.ledger.counts
    assert 7 in bot.classes or "c" in bot.classes


MISSING = [
    (["a", "b", float("nan")], r"labels\[2\] is nan: it is missing"),
    (np.array([1.0, 2.0, np.nan]), r"labels\[2\] is nan: it is missing"),
    (np.array(["a", "b", np.nan], dtype=object), r"labels\[2\] is nan: it is missing"),
    (["a", "b", None], r"labels\[2\] is None: it is missing"),
    (["a", 1, "b"], "strings only"),
    (np.array([[1, 2], [3, 4], [5, 6]]), "one label for each"),
    ([0.5, 1.5, 2.5], "integers only"),
    (np.array([b"a", b"b", b"c"]), "strings only"),
    ("abc", "one label for each"),
    (7, "one label for each"),
]


@pytest.mark.parametrize("labels, message", MISSING)
def test_labels_that_are_missing_or_mixed_are_named(labels, message):
    bot = taught("ab")
    with pytest.raises(KldaError, match=message):
        bot.learn(PROBE[:3], labels)
    with pytest.raises(KldaError, match="type that was learned"):
        bot.evaluate(PROBE[:2], [1, 2])
    assert bot.classes == {"a": 12, "b": 12}


@pytest.mark.parametrize("kind", ["object", "string", "category"])
def test_a_missing_label_of_a_table_is_named_with_its_row(kind):
    pandas = pytest.importorskip("pandas")
    with pytest.raises(KldaError, match=r"labels\[1\] is .*: it is missing"):
        taught("ab").learn(PROBE[:3], pandas.Series(["a", None, "b"], dtype=kind))


LONG, LONGEST = "x" * (MAX_LABEL_LENGTH + 1), "x" * MAX_LABEL_LENGTH
RULE = rf"A label is one line of visible text, of at most {MAX_LABEL_LENGTH} characters\."
REFUSED = {
    LONG: rf"the label '{'x' * 20}'\.\.\. has {MAX_LABEL_LENGTH + 1} characters\. {RULE}",
    "": r"the label is empty\.",
    " ": r"the label is empty\.",
    "two\nlines": rf"the label 'two\\nlines' contains '\\n'\. {RULE}",
    "\x1b[31mred": rf"the label '\\x1b\[31mred' contains '\\x1b'\. {RULE}",
    "\u200b": r"the label is empty\.",
    "a\u202eb": rf"the label 'a\\u202eb' contains '\\u202e'\. {RULE}",
    "a\x00": rf"the label 'a\\x00' contains '\\x00'\. {RULE}",
}


@pytest.mark.parametrize("bad", REFUSED)
def test_what_can_not_be_a_name_is_refused_in_the_same_words_wherever_labels_come_in(bad):
    learner, texts = taught("ab", keep="features"), Learner("ngrams").learn(["x", "y"], ["a", "b"])
    models = [kind().fit(*samples("ab")) for kind in (KLDA, KLDAEnsemble, LDA, NCM)]
    # An array of strings loses a NUL at their ends.
    kinds = [list, iter, lambda y: np.array(y, object), *([] if "\x00" in bad else [np.array])]
    for labels in kinds:
        names = [bad, "b", "a", "b"]
        for change in (
            lambda given: learner.learn(PROBE[:4], given),
            lambda given: learner.learn(iter([(PROBE[:4], given)])),
            lambda given: learner.rename("a", next(iter(given))),
            lambda given: texts.declare(dict.fromkeys(list(given)[:1], "a greeting")),
            *(lambda given, one=one: one.partial_fit(PROBE[:4], given) for one in models),
            lambda given: models[0].rename("a", next(iter(given))),
        ):
            with pytest.raises(KldaError, match=REFUSED[bad]):
                change(labels(names))
    assert learner.classes == {"a": 12, "b": 12}
    assert list(texts.classes) == models[0].classes_.tolist() == ["a", "b"]
    assert LONGEST in learner.learn(PROBE[:1], [LONGEST]).classes


def test_a_label_of_a_million_characters_is_refused_before_an_array_is_made_of_it():
    with pytest.raises(KldaError, match=r"1,000,000 characters"):
        LDA().fit(np.ones((50_000, 1), np.float32), ["x" * 1_000_000] + ["a"] * 49_999)


def write(path, labels):
    if path.suffix == ".csv":
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([["text", "label"], *(["hello", label] for label in labels)])
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps({"text": "x", "label": one}) + "\n" for one in labels))
    elif path.suffix == ".npz":
        np.savez(path, features=np.ones((len(labels), 2), np.float32), labels=np.array(labels))
    else:
        arrow = pytest.importorskip("pyarrow", reason='needs: pip install "klda[parquet]"')
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(arrow.table({"text": ["x"] * len(labels), "label": labels}), path)


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "npz", "parquet"])
def test_a_file_with_it_is_refused_with_the_place_and_blanks_around_a_label_are_left_out(
    tmp_path, suffix
):
    path = tmp_path / f"rows.{suffix}"
    place = {"csv": "line 3", "jsonl": "line 2"}.get(suffix, "row 2")
    for bad, message in REFUSED.items():
        if (suffix, bad) != ("npz", "a\x00"):  # an array of strings loses a NUL at their ends
            write(path, ["a", bad])
            with pytest.raises(KldaError, match=f"{place}: {message}"):
                list(open_table(path).batches())
    write(path, [" pin", "pin ", "\tpin"])
    (batch,) = open_table(path).batches(labels=True)
    assert batch.labels == ["pin"] * 3


@pytest.mark.parametrize("bad", REFUSED)
def test_the_service_refuses_it_too(tmp_path, bad):
    pytest.importorskip("fastapi", reason='needs the extra: pip install "klda[server]"')
    from tests.server.conftest import serving

    taught("ab").save(tmp_path / "m")
    with serving(tmp_path / "m") as client:
        for path, body in {
            "/v1/learn": {"features": PROBE[:1].tolist(), "labels": [bad]},
            "/v1/rename": {"old": "a", "new": bad},
            "/v1/declare": {"classes": {bad: None}},
        }.items():
            answer = client.post(path, json=body)
            assert answer.status_code == 422
            assert re.search(REFUSED[bad], answer.json()["error"]["message"])


def test_a_model_that_has_such_a_class_shows_it_escaped_and_can_rename_it(tmp_path):
    from tests.factories import Cli

    folder, escape = tmp_path / "m", "\x1b[31mred"
    taught("ab").save(folder)
    path = folder / "model.json"
    path.write_text(path.read_text().replace('"a"', json.dumps(escape)))
    edit_document(folder, lambda _: None)
    assert escape in Learner.load(folder).classes
    shown = Cli()("show", "--model", folder).output
    assert "\x1b" not in shown
    assert "\\x1b[31mred" in shown
    Cli()("rename", escape, "red", "--model", folder)
    assert list(Learner.load(folder).classes) == ["b", "red"]


def test_changes_get_the_numbers_that_were_set():
    learner = Learner("features")
    learner.learn(np.eye(8, dtype=np.float32), list("abcdefgh"))
    learner.next_number = 17
    learner.forget("a")
    assert [entry["number"] for entry in learner.history] == [1, 17]
    learner.undo(17)
    assert learner.history[-1]["number"] == learner.next_number - 1 == 18
    assert learner.history[1]["undone_by"] == 18
    with pytest.raises(KldaError, match="at least 19"):
        learner.next_number = 18


def test_an_option_that_is_none_is_refused_where_it_is_given(tmp_path):
    learner = taught("ab", keep="features")
    learner.save(tmp_path / "m")
    for make in (
        lambda **wrong: Learner("features", **wrong),
        lambda **wrong: Learner.load(tmp_path / "m", **wrong),
    ):
        with pytest.raises(KldaError, match="foo is not an option; use device, layers"):
            make(foo=1)
    for give in (
        lambda: Learner("features", classifier={"foo": 1}),
        lambda: learner.rebuild(foo=1),
    ):
        with pytest.raises(KldaError, match=r"foo is not a parameter .* n_components, gamma"):
            give()
