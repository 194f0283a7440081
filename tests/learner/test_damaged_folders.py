"""Folders that were damaged, and folders of an older format."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from klda import KLDA, KldaError, Learner
from klda.learner import array_files
from klda.learner import folder as storage
from klda.learner.folder import ModelFolderError
from tests import model_json

FOLDERS = Path(__file__).parent.parent / "folders"


@pytest.fixture
def old(tmp_path):
    """Return a copy of a folder of version 1: a KLDA with calibration and ledger."""
    return Path(shutil.copytree(FOLDERS / "version-1", tmp_path / "old"))


def test_a_folder_of_version_1_answers_as_it_did(old):
    expected = json.loads((FOLDERS / "version-1.json").read_text(encoding="utf-8"))
    bot = Learner.load(old, verify=True)
    probe = np.array(expected["probe"], np.float32)
    assert bot.classes == expected["classes"]
    assert bot.ledger.ids == expected["ids"]
    assert bot.predict(probe).tolist() == expected["labels"]
    # A score is a sum of 16 products in float32: it may be off by 16 roundings of the largest.
    scores = np.array(expected["scores"])
    rounding = 16 * np.finfo(np.float32).eps
    np.testing.assert_allclose(bot.scores(probe), scores, atol=rounding * np.abs(scores).max())
    assert bot.classifier.threshold(0.05) == pytest.approx(expected["threshold"])


def test_a_folder_of_version_1_learns_and_is_saved_with_checksums(old):
    bot = Learner.load(old)
    bot.learn(np.full((4, 3), 9.0, np.float32), ["fish"] * 4).forget(ids=["cat-1"])
    bot.save(old)
    assert storage.load(old, verify=True).document["format_version"] == 2
    assert Learner.load(old, verify=True).classes == {"bird": 8, "cat": 6, "dög": 8, "fish": 4}


def test_models_of_version_1_merge_among_themselves_but_not_with_others_of_the_same_seed(old):
    model, other = Learner.load(old).classifier, Learner.load(old).classifier
    rows, labels = np.full((4, 3), 9.0, np.float32), ["fish"] * 4
    alone = Learner.load(old).classifier.partial_fit(rows, labels)
    model.merge(other.empty().partial_fit(rows, labels))  # other features could not be merged
    assert model.counts_ == alone.counts_
    np.testing.assert_allclose(model.scores(rows), alone.scores(rows), rtol=1e-3)
    fresh = KLDA(**model.get_params() | {"gamma": model.gamma_}).partial_fit(rows, labels)
    with pytest.raises(KldaError, match=r"different random features.*both with klda 0\.1"):
        model.merge(fresh)


def test_a_checksum_in_version_1_is_damage(old):
    path = old / "model.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(document | {"sha256": "0" * 64}))
    with pytest.raises(ModelFolderError, match="SHA-256 of its values"):
        Learner.load(old)


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("classifier", "counts", 0), -8),
        (("classifier", "counts", 0), "x"),
        (("classifier", "classes", 0), "zebra"),
        (("classifier", "classes", 1), "bird"),
        (("classifier", "n_features"), 4),
        (("classifier", "parameters", "random_state"), -1),
        (("classifier", "members", 0, "rho"), None),
        (("classifier", "members", 0, "gamma"), 10**400),
        (("classifier", "members", 0, "turnover"), [[]]),
        (("ledger", "chunks"), 10**18),
        (("ledger", "next_number"), 3),
        (("foundation_model", "modality"), {}),
        (("history",), [[]]),
        (("samples",), 24),
    ],
)
def test_values_that_can_not_be_are_refused_without_a_checksum(old, where, value):
    def change(document):
        *path, last = where
        for key in path:
            document = document[key]
        document[last] = value

    model_json.edit(old, change)
    with pytest.raises(KldaError, match=r"damaged: .*Restore the (folder|model) from a copy"):
        Learner.load(old)


def test_a_device_that_is_none_is_refused_with_the_devices_there_are(old):
    pytest.importorskip("torch", reason="torch is not installed")
    model_json.edit(old, lambda found: found["classifier"]["parameters"].update(device=7))
    with pytest.raises(KldaError, match="device=7 can't be used"):
        Learner.load(old)
    assert Learner.load(old, device="cpu").samples == 23


def test_statistics_that_are_not_finite_are_refused_when_something_is_learned(tmp_path):
    bot = Learner("features", classifier=KLDA(n_components=800, gamma=0.1, random_state=0))
    rng = np.random.default_rng(0)
    bot.learn(rng.normal(size=(900, 4)), ["a", "b", "c"] * 300).save(tmp_path / "m")
    (path,) = (tmp_path / "m").glob("learn_0_triangle-*")
    content = path.read_bytes()
    assert len(content) > array_files.VERIFIED_UP_TO
    path.write_bytes(content[:-4] + np.float32(np.nan).tobytes())
    spoilt = Learner.load(tmp_path / "m")
    probe = rng.normal(size=(2, 4))
    np.testing.assert_array_equal(spoilt.predict(probe), bot.predict(probe))
    for change in (lambda: spoilt.learn(probe, ["a", "b"]), lambda: spoilt.rename("a", "d")):
        with pytest.raises(KldaError, match="'learn/0/triangle' holds values that are not finite"):
            change()
    with pytest.raises(ModelFolderError, match="SHA-256"):
        Learner.load(tmp_path / "m", verify=True)


def test_a_model_that_could_not_be_read_is_not_saved(tmp_path):
    bot = Learner("features", classifier=KLDA(n_components=8, gamma=0.1, random_state=0))
    bot.learn(np.arange(24.0).reshape(8, 3), ["a", "b"] * 4).save(tmp_path / "m")
    bot.classifier.solution_.evidence.novelty[0] = np.nan
    with pytest.raises(KldaError, match=r"Saving to .* failed.*novelty.*not finite"):
        bot.save(tmp_path / "m")
    assert Learner.load(tmp_path / "m", verify=True).classes == {"a": 4, "b": 4}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes and timers of POSIX")
@pytest.mark.slow
def test_random_damage_never_answers_in_silence():
    command = [sys.executable, "-m", "tools.mutate_folders", "--count", "500", "--seed", "7"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=FOLDERS.parent.parent
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "different though verified: 0; foreign or slow: 0" in done.stdout


OPEN = """
import resource, sys
import klda.learner
from klda import KldaError, Learner
resource.setrlimit(resource.RLIMIT_DATA, (800 << 20,) * 2)
try:
    Learner.load(sys.argv[1])
except KldaError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits its memory as Linux does")
@pytest.mark.parametrize("name", [storage.DOCUMENT, "arrays"])
def test_a_file_of_short_values_that_would_fill_the_memory_is_refused(tmp_path, name):
    """240 MB of empty lists in model.json, 90 in a header: 20 times as much once parsed."""
    rows = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    Learner("features").learn(rows, ["a", "b"] * 10).save(tmp_path / "m")
    document = tmp_path / "m" / storage.DOCUMENT
    if name == storage.DOCUMENT:
        file = document
        file.write_bytes(b'{"format": "klda-model", "x": [' + b"[]," * 80_000_000 + b"[]]}")
    else:
        start = b'{"x": [' + b"[]," * 30_000_000 + b"[]]} "
        content = len(start).to_bytes(8, "little") + start
        entry = {"bytes": len(content), "sha256": "", "arrays": ["x"]}
        file = tmp_path / "m" / f"large-{'0' * 16}.safetensors"
        file.write_bytes(content)
        changed = storage.load(tmp_path / "m").document
        changed["files"] = [{"name": file.name, **entry}]
        changed["sha256"] = storage.checksum(changed)
        document.write_text(json.dumps(changed))
    command = [sys.executable, "-c", OPEN, tmp_path / "m"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert str(file) in done.stdout
    assert "values, more than" in done.stdout


def test_a_label_full_of_commas_is_one_value():
    array_files.check_values(json.dumps(["," * array_files.MOST_VALUES, '\\"[' * 9]).encode())
    with pytest.raises(ValueError, match="values, more than"):
        array_files.check_values(b"[" + b"1," * array_files.MOST_VALUES + b"1]")
