"""Commands that other packages add, such as ``klda bench``."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Put a package that adds the command ``greet`` on the path, as pip would install it."""

    def write(module="import typer\napp = typer.Typer()\n"):
        (tmp_path / "greetings.py").write_text(module)
        metadata = tmp_path / "greetings-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: greetings\nVersion: 1.0\nSummary: Greet people.\n"
        )
        (metadata / "entry_points.txt").write_text("[klda.commands]\ngreet = greetings:app\n")
        monkeypatch.syspath_prepend(str(tmp_path))

    return write


def test_a_package_adds_a_command(cli, install):
    install(
        "import typer\napp = typer.Typer()\n"
        "@app.command()\ndef hello(name: str):\n    print('hello', name)\n"
        "@app.command()\ndef bye():\n    print('bye')\n"
    )
    assert cli("greet", "hello", "Ada").stdout == "hello Ada\n"
    assert "hello" in cli("greet", "--help").stdout


def test_the_help_lists_an_added_command_without_importing_it(cli, install):
    install("raise SystemExit('imported')")
    shown = cli("--help").stdout
    assert "greet" in shown
    assert "Greet people." in shown


def test_an_unknown_command_is_still_wrong_usage(cli, install):
    install()
    assert "No such command" in cli("grete", code=2).output


def test_bench_without_its_package_says_how_to_install_it(cli, monkeypatch):
    monkeypatch.setattr("klda.cli.app.entry_points", lambda **_: ())
    assert "pip install -e bench" in cli("bench", "speed", code=1).stderr


def test_bench_is_found_once_installed(tmp_path):
    """Installed without its dependencies into a folder of its own, as pip does it in a clone."""
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    offline = ("--no-deps", "--no-build-isolation", "--no-index")
    if importlib.util.find_spec("setuptools") is None:  # importing it would replace distutils here
        pytest.skip("setuptools is not installed")
    shutil.copytree(BENCH, tmp_path / "bench")  # building leaves files behind
    packages = tmp_path / "packages"
    subprocess.run([*pip, *offline, "--target", packages, tmp_path / "bench"], check=True)
    code = (
        f"import sys; sys.path.insert(0, {str(packages)!r})\n"
        "from klda.cli import main; sys.argv[1:] = ['bench', 'methods']; main()"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "klda-e" in shown.stdout
