from __future__ import annotations

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


def find_data() -> Path | None:
    """Folder of the reference data: KLDA_DATA, else ../shared/data beside the repository."""
    candidates = [os.environ.get("KLDA_DATA"), REPOSITORY.parent / "shared" / "data"]
    for candidate in candidates:
        if candidate and (Path(candidate) / "paper").is_dir():
            return Path(candidate)
    return None


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Reference data folder; the test is skipped where it is absent."""
    found = find_data()
    if found is None:
        pytest.skip("reference data not found: set KLDA_DATA to the folder that holds paper/")
    return found
