# ruff: noqa: E402
"""Requests that nobody thought of: schemathesis makes them from the API's own document."""

from __future__ import annotations

import os
import shutil

import pytest

schemathesis = pytest.importorskip("schemathesis", reason="pip install schemathesis")

from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.checks import load_all_checks
from schemathesis.specs.openapi import checks

from .conftest import KEYS, TEACH, listening

load_all_checks()
EXAMPLES = int(os.environ.get("KLDA_SCHEMA_EXAMPLES", "10"))

# What fits the schema may still be refused: labels that are not as many as the inputs, rows that
# are not as long as the model's, classes that do not exist.
EXCLUDED = [checks.positive_data_acceptance]


@pytest.fixture(scope="module")
def running(features_origin, tmp_path_factory):
    folder = tmp_path_factory.mktemp("schema") / "model"
    shutil.copytree(features_origin, folder)
    with listening(folder, keys=KEYS) as address:
        yield address


@pytest.fixture(scope="module")
def document(running):
    return schemathesis.openapi.from_url(f"{running}v1/openapi.json")


OPERATIONS = [
    ("POST", "learn"), ("POST", "predict"), ("POST", "forget"), ("POST", "undo"),
    ("POST", "rename"), ("POST", "declare"), ("POST", "explain"), ("GET", "classes"),
    ("GET", "refused"), ("POST", "retry"), ("GET", "map"), ("GET", "scores"), ("GET", "model"),
    ("GET", "health"), ("GET", "metrics"), ("GET", "history"), ("GET", "quality"),
    ("GET", "events"), ("POST", "suspects"), ("POST", "learn-file"), ("POST", "suggest"),
    ("POST", "tune-unknown"), ("POST", "expire-undo"),
]  # fmt: skip


def test_every_operation_is_tried(document):
    found = {(one.ok().method.upper(), one.ok().path) for one in document.get_all_operations()}
    assert found == {(method, f"/v1/{name}") for method, name in OPERATIONS}


@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("method, name", OPERATIONS)
def test_no_request_breaks_the_service_or_its_document(document, method, name, mode):
    operation = document[f"/v1/{name}"][method]

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    def check(case):
        headers = {"Authorization": f"Bearer {TEACH}"}
        case.call_and_validate(headers=headers, excluded_checks=EXCLUDED)

    try:
        check()
    except Unsatisfiable:
        assert not operation.body  # nothing to get wrong where nothing is sent
