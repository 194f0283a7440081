"""Models on the hub."""

from __future__ import annotations

import json

import numpy as np
import pytest

from klda import Learner
from klda.errors import KldaError
from tests.hub import serving

pytest.importorskip("huggingface_hub", "1.0", reason='needs the extra: pip install "klda[hub]"')
NAME = "me/tickets"


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A hub with no files, which the client takes for the real one."""
    with serving(NAME, {}) as (address, kind):
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
        monkeypatch.setattr(
            "huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE",
            address + "/{repo_id}/resolve/{revision}/{filename}",
        )
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr("klda.export.hub.default_cache_folder", lambda: tmp_path / "cache")
        monkeypatch.setenv("HF_TOKEN", "hf_test")
        yield kind


def taught(labels="ab"):
    rng = np.random.default_rng(0)
    learner = Learner("features")
    for at, label in enumerate(labels):
        learner.learn(rng.normal(size=(20, 8)).astype(np.float32) + 3 * np.eye(8)[at], [label] * 20)
    return learner


def test_what_is_pushed_is_what_is_loaded(hub):
    learner = taught()
    learner.undo_seconds = 60
    assert f"/{NAME}/commit/" in learner.push_to_hub(NAME)
    # Releases of the client before 2 send the first, later ones the second.
    assert hub.made.get("private") is True or hub.made.get("visibility") == "private"
    again = Learner.from_pretrained(NAME)
    assert again.undo_seconds == 60
    rows = np.random.default_rng(1).normal(size=(30, 8)).astype(np.float32)
    np.testing.assert_array_equal(again.predict_proba(rows), learner.predict_proba(rows))
    again.learn(rows[:2], ["c", "c"])
    assert again.classes == {"a": 20, "b": 20, "c": 2}


def test_a_second_push_replaces_the_first(hub):
    taught().push_to_hub(NAME)
    before = set(hub.files)
    taught("abc").push_to_hub(NAME)
    assert Learner.from_pretrained(NAME).classes == {"a": 20, "b": 20, "c": 20}
    named = {file["name"] for file in json.loads(hub.files["model.json"])["files"]}
    assert {name for name in hub.files if name.endswith(".safetensors")} == named
    assert before - set(hub.files)


def test_the_card_says_what_is_in_the_model(hub):
    taught().push_to_hub(NAME)
    card = hub.files["README.md"].decode()
    assert "2 classes from 40 examples" in card
    assert "| a | 20 |" in card
    assert "One row of numbers (features) per example" in card
    assert f'Learner.from_pretrained("{NAME}")' in card


def test_a_folder_is_loaded_as_it_is(tmp_path):
    taught().save(tmp_path / "m")
    assert Learner.from_pretrained(tmp_path / "m").classes == {"a": 20, "b": 20}


@pytest.mark.parametrize("name", ["nothing here", "a/b/c", "tickets"])
def test_a_name_that_is_none_is_refused(name):
    with pytest.raises(KldaError, match="neither a model folder nor a name"):
        Learner.from_pretrained(name)


def test_a_model_that_is_not_there_is_said(hub):
    with pytest.raises(KldaError, match=r"'me/other' could not be downloaded: .*Learner\.load"):
        Learner.from_pretrained("me/other")


def test_without_a_connection_the_error_says_what_to_do(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with pytest.raises(KldaError, match="Check the connection"):
        taught().push_to_hub(NAME)
    with pytest.raises(KldaError, match="Check the connection"):
        Learner.from_pretrained(NAME)


def test_a_download_that_was_cut_off_is_done_again(hub, monkeypatch):
    import huggingface_hub

    learner, real = taught(), huggingface_hub.snapshot_download
    learner.push_to_hub(NAME)

    def cut_off(*names, **wanted):
        real(*names, **{**wanted, "allow_patterns": ["model.json"]})
        raise KeyboardInterrupt

    monkeypatch.setattr(huggingface_hub, "snapshot_download", cut_off)
    with pytest.raises(KeyboardInterrupt):
        Learner.from_pretrained(NAME)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", real)
    assert Learner.from_pretrained(NAME).classes == learner.classes
