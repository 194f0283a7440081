"""Lower bounds of dependencies: none admits a release with a known vulnerability."""

from __future__ import annotations

import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.version import Version
from tools.lowest import lower_bound

from tests.factories import REPOSITORY

# The first release without known vulnerabilities, and the last one that was mended in it.
SAFE = {
    "filelock": ("4.2.1", "CVE-2026-112906"),
    "h11": ("0.16.0", "CVE-2025-43859"),
    "jinja2": ("3.1.6", "CVE-2025-27516"),
    "numpy": ("1.22", "CVE-2021-41495"),
    "onnx": ("1.21.0", "CVE-2026-27489"),
    "pillow": ("13.0.0", "CVE-2026-96639"),
    "protobuf": ("6.33.5", "CVE-2026-0994"),
    "pyarrow": ("26.0.0", "CVE-2026-92287"),
    "pytest": ("9.0.3", "CVE-2025-71176"),
    "python-multipart": ("0.0.31", "GHSA-v9pg-7xvm-68hf"),
    "ray": ("2.56.0", "CVE-2026-57516"),
    "scikit-learn": ("1.5.0", "CVE-2024-5206"),
    "sentencepiece": ("0.2.1", "CVE-2026-1260"),
    "setuptools": ("78.1.1", "CVE-2025-47273"),
    "starlette": ("1.3.1", "CVE-2026-54283"),
    "torch": ("2.11.0", "CVE-2026-4538"),
    "transformers": ("5.10.1", "CVE-2026-9856"),
}


def requirements():
    for file in ("pyproject.toml", "bench/pyproject.toml"):
        settings = tomllib.loads((REPOSITORY / file).read_text(encoding="utf-8"))
        project = settings["project"]
        groups = [
            settings["build-system"]["requires"],
            project["dependencies"],
            *project["optional-dependencies"].values(),
            *settings.get("dependency-groups", {}).values(),
        ]
        for requirement in (Requirement(text) for group in groups for text in group):
            if not requirement.name.startswith("klda"):
                yield pytest.param(requirement, id=f"{file}: {requirement}")


@pytest.mark.parametrize("requirement", requirements())
def test_a_lower_bound_leaves_out_releases_with_known_vulnerabilities(requirement):
    lowest = lower_bound(requirement)
    assert lowest is not None
    safe, advisory = SAFE.get(requirement.name.lower(), ("0", ""))
    assert Version(lowest) >= Version(safe), advisory


def test_what_brings_a_vulnerable_package_along_is_bounded_itself():
    """FastAPI alone would accept a Starlette, and uvicorn an h11, with known vulnerabilities."""
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    server = settings["project"]["optional-dependencies"]["server"]
    assert {"starlette", "h11"} <= {Requirement(text).name for text in server}
