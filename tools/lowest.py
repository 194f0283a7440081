"""Constraints for pip: the lowest version of each requirement of klda and of some of its extras.

python tools/lowest.py minilm server > lowest.txt
pip install -c lowest.txt -e ".[minilm,server]"
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement

SETTINGS = Path(__file__).resolve().parent.parent / "pyproject.toml"


def lower_bound(requirement: Requirement) -> str | None:
    """Return the lowest version that a requirement admits."""
    bounds = {one.operator: one.version for one in requirement.specifier}
    return bounds.get("==", bounds.get(">="))


def constraints(extras: list[str]) -> Iterator[str]:
    """Yield the lowest version of each requirement of klda and of some of its extras."""
    project = tomllib.loads(SETTINGS.read_text(encoding="utf-8"))["project"]
    groups = [project["dependencies"], *(project["optional-dependencies"][one] for one in extras)]
    for requirement in (Requirement(text) for group in groups for text in group):
        if requirement.name != project["name"]:
            yield f"{requirement.name}=={lower_bound(requirement)}"


if __name__ == "__main__":
    print(*constraints(sys.argv[1:]), sep="\n")
