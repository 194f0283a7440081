"""Labels are names: what can't be one is refused wherever labels come in, in the same words."""

from __future__ import annotations

import csv
import json
import re

import numpy as np
import pytest

from klda import KLDA, LDA, NCM, KLDAEnsemble, KldaError, Learner
from klda.data import open_table
from klda.labels import MAX_LABEL_LENGTH
from klda.learner import folder as storage
from tests import model_json

LONG, LONGEST = "x" * (MAX_LABEL_LENGTH + 1), "x" * MAX_LABEL_LENGTH
X = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
RULE = rf"A label is one line of visible text, of at most {MAX_LABEL_LENGTH} characters\."
REFUSED = {
    LONG: rf"the label '{'x' * 20}'\.\.\. has {MAX_LABEL_LENGTH + 1} characters\. {RULE}",
    "": rf"the label is empty\. {RULE}",
    " ": rf"the label is empty\. {RULE}",
    "two\nlines": rf"the label 'two\\nlines' contains '\\n'\. {RULE}",
    "\x1b[31mred": rf"the label '\\x1b\[31mred' contains '\\x1b'\. {RULE}",
    "a\x00": rf"the label 'a\\x00' contains '\\x00'\. {RULE}",
    "a\x9bb": rf"the label 'a\\x9bb' contains '\\x9b'\. {RULE}",
}


def learners():
    return [Learner("features"), Learner("features", keep="features")]


def kinds_of_labels(label):
    """Kinds of sequences that labels come in; an array of strings loses a NUL at their ends."""
    arrays = [] if label.endswith("\x00") else [np.array]
    return [list, tuple, iter, lambda y: np.array(y, object), *arrays]


@pytest.mark.parametrize("bad", REFUSED)
def test_what_can_not_be_a_name_is_not_learned(bad):
    for learner in learners():
        learner.learn(X, ["a", "b"] * 2)
        for labels in kinds_of_labels(bad):
            for change in (
                lambda y, bot=learner: bot.learn(X, y),
                lambda y, bot=learner: bot.learn(iter([(X, y)])),
                lambda y, bot=learner: bot.rename("a", next(iter(y))),
            ):
                with pytest.raises(KldaError, match=REFUSED[bad]):
                    change(labels([bad, "b", "a", "b"]))
        assert learner.classes == {"a": 2, "b": 2}


def test_the_longest_name_is_learned():
    for learner in learners():
        for labels in kinds_of_labels(LONGEST):
            learner.learn(X, labels([LONGEST, "b"] * 2))
        assert learner.classes[LONGEST] == 10


@pytest.mark.parametrize("bad", REFUSED)
@pytest.mark.parametrize("kind", [KLDA, KLDAEnsemble, LDA, NCM])
def test_estimators_refuse_it_too(kind, bad):
    model = kind().fit(X, ["a", "b"] * 2)
    for labels in kinds_of_labels(bad):
        for verb in (kind().fit, kind().partial_fit, model.partial_fit):
            with pytest.raises(KldaError, match=REFUSED[bad]):
                verb(X, labels(["a", bad] * 2))
    with pytest.raises(KldaError, match=REFUSED[bad]):
        model.rename("a", bad)
    assert model.classes_.tolist() == ["a", "b"]


@pytest.mark.parametrize("bad", REFUSED)
def test_a_class_is_not_declared_with_it(bad):
    learner = Learner("ngrams").learn(["hello", "good bye"], ["a", "b"])
    with pytest.raises(KldaError, match=REFUSED[bad]):
        learner.declare({bad: "a greeting"})
    assert list(learner.classes) == ["a", "b"]


def test_a_label_of_a_million_characters_is_refused_before_an_array_is_made_of_it():
    with pytest.raises(KldaError, match=r"1,000,000 characters"):
        LDA().fit(np.ones((50_000, 1), np.float32), ["x" * 1_000_000] + ["a"] * 49_999)


def write_csv(path, labels):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["text", "label"], *(["hello", label] for label in labels)])


def write_jsonl(path, labels):
    path.write_text("".join(json.dumps({"text": "x", "label": one}) + "\n" for one in labels))


def write_npz(path, labels):
    np.savez(path, features=np.ones((len(labels), 2), np.float32), labels=np.array(labels))


def write_parquet(path, labels):
    arrow = pytest.importorskip("pyarrow", reason='needs: pip install "klda[parquet]"')
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table({"text": ["x"] * len(labels), "label": labels}), path)


WRITE = {"csv": write_csv, "jsonl": write_jsonl, "npz": write_npz, "parquet": write_parquet}


FILES = [(kind, bad) for kind in WRITE for bad in REFUSED]
FILES.remove(("npz", "a\x00"))  # an array of strings loses a NUL at their ends


@pytest.mark.parametrize("suffix, bad", FILES)
def test_a_file_with_it_is_refused_with_the_place(tmp_path, suffix, bad):
    path = tmp_path / f"rows.{suffix}"
    WRITE[suffix](path, ["a", bad])
    place = {"csv": "line 3", "jsonl": "line 2"}.get(suffix, "row 2")
    with pytest.raises(KldaError, match=f"{place}: {REFUSED[bad]}"):
        list(open_table(path).batches())


def test_a_folder_of_images_with_it_is_refused(tmp_path):
    (tmp_path / "two\nlines").mkdir()
    (tmp_path / "two\nlines" / "x.png").touch()
    with pytest.raises(KldaError, match=REFUSED["two\nlines"]):
        list(open_table(tmp_path).batches())


@pytest.mark.parametrize("bad", REFUSED)
def test_the_service_refuses_it_too(tmp_path, bad):
    pytest.importorskip("fastapi", reason='needs the extra: pip install "klda[server]"')
    from tests.server.conftest import serving

    Learner("features").learn(X, ["a", "b"] * 2).save(tmp_path / "m")
    with serving(tmp_path / "m") as client:
        for path, body in {
            "/v1/learn": {"features": X[:1].tolist(), "labels": [bad]},
            "/v1/rename": {"old": "a", "new": bad},
            "/v1/declare": {"classes": {bad: None}},
        }.items():
            answer = client.post(path, json=body)
            assert answer.status_code == 422
            assert re.search(REFUSED[bad], answer.json()["error"]["message"])
        learn = client.post("/v1/learn", json={"features": X[:1].tolist(), "labels": [LONGEST]})
        assert learn.status_code == 200


def test_an_older_model_that_has_such_a_class_shows_it_escaped_and_can_rename_it(tmp_path):
    from tests.cli.conftest import Cli

    folder, escape = tmp_path / "m", "\x1b[31mred"
    Learner("features").learn(X, ["a", "b"] * 2).save(folder)
    path = folder / storage.DOCUMENT
    model_json.edit(folder, lambda document: None)
    path.write_text(path.read_text().replace('"a"', json.dumps(escape)))
    model_json.edit(folder, lambda document: None)
    assert escape in Learner.load(folder).classes
    shown = Cli()("show", "--model", folder).output
    assert "\x1b" not in shown
    assert "\\x1b[31mred" in shown
    Cli()("rename", escape, "red", "--model", folder)
    assert list(Learner.load(folder).classes) == ["b", "red"]
