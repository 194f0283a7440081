"""``klda undo``."""

from __future__ import annotations

import numpy as np

from klda import Learner
from klda.storage import folder as storage
from tests.cli.conftest import folder_content


def test_undo_is_exact_after_other_changes(cli, make, rows, tmp_path):
    model, never = make("m", "abc"), make("never", "abc")
    wrong, more = rows("wrong", "ad", seed=3), rows("more", "be", seed=4)
    for folder in (model, never):
        if folder == model:
            cli("learn", wrong, "--model", folder)
        cli("learn", more, "--model", folder)
        cli("rename", "c", "see", "--model", folder)
    said = cli("undo", 2, "--model", model).stderr
    assert "Undid change 2: learn" in said
    assert "4 classes from" in said
    X = np.random.default_rng(0).normal(size=(20, 16))
    ours, theirs = Learner.load(model), Learner.load(never)
    assert ours.classes == theirs.classes
    np.testing.assert_allclose(ours.scores(X), theirs.scores(X), rtol=1e-4, atol=1e-3)
    shown = cli("show", model).stdout
    assert "learn (undone)" in shown
    assert "undo of 2" in shown


def test_undo_takes_back_the_last_change_and_says_what_it_can_not(cli, make):
    model = make("m", "abc")
    cli("rename", "a", "z", "--model", model)
    assert cli.json("undo", "--model", model)["undone"]["action"] == "rename"
    assert set(Learner.load(model).classes) == set("abc")
    before = folder_content(model)
    assert "nothing was undone" in cli("undo", "--model", model, code=1).stderr
    assert "7" in cli("undo", 7, "--model", model, code=1).stderr
    assert folder_content(model) == before


def test_undo_takes_a_folder_as_show_does(cli, make):
    model = make("m", "abc")
    cli("rename", "a", "z", "--model", model)
    cli("rename", "b", "y", "--model", model)
    assert cli.json("undo", model, 2)["undone"]["number"] == 2
    assert cli.json("undo", model)["undone"]["number"] == 3
    assert set(Learner.load(model).classes) == set("abc")
    for words in ([], [model, 1, 2], [model, "b"], [model, 0], [model, 1, "--expire"]):
        cli("undo", *words, code=2)
    cli("undo", model, "--model", model, code=2)


def test_undo_of_tuned_thresholds_and_of_a_rebuild(cli, make):
    model = make("m", "abc", "--keep", "features")
    rows = np.random.default_rng(0).normal(size=(40, 16))
    learner = Learner.load(model)
    before, size = learner.scores(rows), learner.parameters.n_components
    learner.tune_unknown(rows, rows + 1)
    learner.rebuild(n_components=60).save(model)
    cli("rename", "a", "z", "--model", model)
    assert "rebuild" in cli("undo", model, 3).stderr
    assert "tune" in cli("undo", model, 2).stderr
    cli("undo", model)
    found = Learner.load(model)
    assert (found.refusal, found.parameters.n_components) == (None, size)
    np.testing.assert_allclose(found.scores(rows), before, atol=1e-4 * np.abs(before).max())


def test_undo_data_is_erased(cli, make):
    model = make("m", "abc")
    cli("rename", "a", "z", "--model", model)
    assert cli.json("undo", model, "--expire") == {"model": str(model), "erased": True}
    assert not [name for name in storage.load(model).arrays if name.startswith("undo/")]
    assert "There was no undo data" in cli("undo", model, "--expire").stderr
    assert "nothing to undo" in cli("undo", model, code=1).stderr
