"""Options that were not heard, and words that were not right."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import pytest

from klda.data import identity
from klda.learner import Learner
from tests.cli.conftest import Cli


def words(result):
    return " ".join(result.output.split())


@pytest.mark.parametrize("kind", ["klda", "lda"])
def test_the_device_is_for_the_classifier_too(cli, rows, tmp_path, kind):
    pytest.importorskip("torch", reason="torch is not installed")
    given = ("learn", rows("a", "ab"), "--model", tmp_path / "m", "--classifier", kind)
    assert "nowhere" in words(cli(*given, "--device", "nowhere", code=1))
    assert not (tmp_path / "m").exists()
    cli(*given, "--device", "cpu")


@pytest.mark.parametrize("how", [("--explain",), ("--reject",)])
@pytest.mark.parametrize("share", [0, 1])
def test_a_share_of_refused_inputs_that_can_not_be_used_is_refused(cli, make, rows, how, share):
    model, ask = make("m", "abc"), rows("ask", "a", count=1)
    said = words(cli("predict", ask, "--model", model, *how, "--refused", share, code=1))
    assert f"--refused={float(share)} can't be used; give a fraction between 0 and 1" in said


def test_the_share_of_refused_inputs_counts_where_answers_are_explained(cli, make, rows):
    asked = ("predict", rows("ask", "a", count=1), "--model", make("m", "abc"))
    limits = [
        cli(*asked, "--explain", "--format", "jsonl", "--refused", share).output
        for share in (0.01, 0.5)
    ]
    assert limits[0] != limits[1]


def test_columns_are_found_whatever_their_case(cli, tmp_path):
    (tmp_path / "rows.csv").write_text("Id,Description,Kind\n1,hello,a\n2,good bye,b\n")
    given = ("learn", tmp_path / "rows.csv", "--model", tmp_path / "m")
    cli(*given, "--input-column", "description", "--label-column", "KIND")
    said = words(cli(*given, "--input-column", "descriptions", "--label-column", "kind", code=1))
    assert "no column 'descriptions'" in said


def test_one_class_is_not_classes(cli, rows, tmp_path):
    learned = words(cli("learn", rows("one", "a", count=1), "--model", tmp_path / "m"))
    assert "Learned 1 sample, 1 new class," in learned
    assert "now knows 1 class from 1 sample." in learned
    assert "1 class from 1 sample" in words(cli("show", "--model", tmp_path / "m"))


def test_serve_says_how_to_begin_a_model(tmp_path):
    pytest.importorskip("fastapi", reason='needs the extra: pip install "klda[server]"')
    said = words(Cli()("serve", "--model", tmp_path / "nosuch", code=1))
    assert "--new minilm" in said
    assert "klda learn" not in said


# ------------------------------------------------------------------------------- hints


def write_texts(path, labels):
    lines = [f"text {i} of {label},{label}" for i, label in enumerate(labels)]
    path.write_text("text,label\n" + "\n".join(lines) + "\n")
    return path


def test_classes_that_differ_only_in_case_or_spaces_are_named(cli, tmp_path):
    model, options = tmp_path / "m", ("--components", 50)
    first = write_texts(tmp_path / "a.csv", ["Refund", "refund", "REFUND", "card  lost", "other"])
    said = words(cli("learn", first, "--model", model, *options))
    assert "'REFUND', 'Refund', 'refund' differ only in case or spaces" in said
    assert "other" not in said
    more = write_texts(tmp_path / "b.csv", ["refund", "Card lost"])
    said = cli("learn", more, "--model", model).stderr
    assert "'Card lost', 'card  lost' differ only in case or spaces" in said
    assert "REFUND" not in said  # said before
    assert len(Learner.load(model).classes) == 6


def test_learning_the_same_file_or_a_copy_of_it_again_is_said(cli, rows, tmp_path):
    model, once, two = tmp_path / "m", rows("once", "ab"), rows("two", "ab", seed=1)
    said = cli("learn", once, two, "--model", model, "--components", 50).stderr
    assert "learned before" not in said
    copy = shutil.copy(two, tmp_path / "copy.npz")
    again = cli("learn", copy, once, rows("three", "ab", seed=2), "--model", model)
    assert "The same rows were learned before: copy.npz, once.npz. They now" in words(again)
    assert Learner.load(model).classes == {"a": 125, "b": 125}
    rows("once", "bc")
    assert "learned before" not in cli("learn", once, "--model", model).stderr
    said = cli("learn", two, copy, "--model", tmp_path / "m2", "--components", 50).stderr
    assert "learned before: copy.npz. " in said  # by the same command


def test_a_copy_of_a_folder_of_images_has_the_same_content(tmp_path):
    for name in ("photos/cats/1.jpg", "photos/dogs/2.jpg"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_bytes(name.encode())
    shutil.copytree(tmp_path / "photos", tmp_path / "copy", copy_function=shutil.copyfile)
    os.utime(tmp_path / "copy/cats/1.jpg", (1, 1))
    first, second = (identity(tmp_path / name) for name in ("photos", "copy"))
    assert first["content"] == second["content"]
    assert first != second


def test_the_file_that_predict_writes_is_named(cli, make, rows, tmp_path):
    given = ("predict", rows("q", "ab"), "--model", make("m", "ab"), "--output")
    assert cli(*given, tmp_path / "a.csv").stderr == f"Wrote {tmp_path}/a.csv.\n"
    assert cli(*given, tmp_path / "a.csv").stderr == f"Replaced {tmp_path}/a.csv.\n"


@pytest.mark.skipif(os.name == "nt", reason="a locked file can't be read there")
@pytest.mark.parametrize(
    "command, advice", [("serve", "teach it over HTTP"), ("learn", "Wait until it has finished")]
)
def test_the_process_that_holds_a_folder_is_named(cli, make, rows, command, advice):
    model = make("m", "ab")
    code = "import sys, klda.learner.folder as f\nwith f.writer_lock(sys.argv[1]): print(); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    started = [sys.executable, "-c", code, str(model), command, "--quiet"]
    with subprocess.Popen(started, **pipes) as holder:
        holder.stdout.readline()
        said = words(cli("learn", rows("more", "c"), "--model", model, code=1))
        holder.communicate("done\n")
    assert f"(process {holder.pid}: -c {model} {command} --quiet)" in said
    assert advice in said
    cli("learn", rows("more", "c"), "--model", model)


# ------------------------------------------------------------------------------- rename


def test_rename(cli, make, rows):
    model = make("m", "abc")
    said = cli("rename", "a", "new name", "--model", model)
    assert "Renamed a to new name" in said.stderr
    assert said.stdout == ""
    assert Learner.load(model).classes == {"b": 25, "c": 25, "new name": 25}
    answers = cli("predict", rows("q", "a", count=1), "--model", model).stdout
    assert "1,new name," in answers
    found = cli.json("rename", "b", "z", "--model", model)
    assert (found["old"], found["new"], found["samples"]) == ("b", "z", 25)


@pytest.mark.parametrize(
    "given, wrong", [(("zebra", "x"), "'zebra'"), (("a", "b"), "'b'"), (("a", " "), "empty")]
)
def test_a_rename_that_can_not_be_done_changes_nothing(cli, make, given, wrong):
    model = make("m", "ab")
    before = (model / "model.json").read_bytes()
    assert wrong in cli("rename", *given, "--model", model, code=1).stderr
    assert (model / "model.json").read_bytes() == before
    assert "There is no model folder" in cli("rename", "a", "b", "--model", "gone", code=1).stderr


# ------------------------------------------------------------------------------- help, lists, maps


COMMANDS = ("learn", "forget", "rename", "merge", "predict", "evaluate", "serve", "show", "declare")


@pytest.mark.parametrize(
    "command", [(), *((name,) for name in COMMANDS), ("bench",), ("bench", "shots")]
)
def test_the_help_names_values_and_cuts_no_option_off(cli, monkeypatch, command):
    """Not ``<bool>``, ``<list[Path]>`` or ``--input-column,--text-...``."""
    monkeypatch.setenv("COLUMNS", "80")
    shown = cli(*command, "--help").stdout
    assert not re.findall(r"<(?:bool|str|path|int|float|list).*>", shown)
    assert not [line for line in shown.splitlines() if re.match(r"\W+--\S*…", line)]
    if command:
        assert "completion" not in shown


def test_the_name_that_the_help_leaves_out_works(cli, rows, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("body,queue,date\nhello,a,1\ngood bye,b,2\n")
    given = ("--text-column", "body", "--label-column", "queue", "--foundation", "ngrams")
    cli("learn", "--help")
    assert cli.json("learn", path, "--model", tmp_path / "m", *given)["learned"] == 2


def test_how_to_get_a_model_is_said_once(cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown = words(cli("models"))
    for extra in ("minilm", "text", "images"):
        assert shown.count(f'"klda[{extra}]"') == 1
    assert "paraphrase-minilm-l3" in shown
