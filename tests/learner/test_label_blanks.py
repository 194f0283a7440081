"""Blanks around a label are not part of it, whatever kind of file it stands in."""

from __future__ import annotations

import json

import numpy as np
import pytest

from klda.data import open_table

LABELS = [" pin", "pin ", "\tpin"]


def write_csv(path):
    path.write_text("text,label\n" + "".join(f"hello,{label}\n" for label in LABELS))


def write_jsonl(path):
    rows = [{"text": "hello", "label": label} for label in LABELS]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_parquet(path):
    arrow = pytest.importorskip("pyarrow", reason='needs: pip install "klda[parquet]"')
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table({"text": ["hello"] * 3, "label": LABELS}), path)


def write_npz(path):
    np.savez(path, features=np.ones((3, 2), np.float32), labels=np.array(LABELS))


WRITE = {"csv": write_csv, "jsonl": write_jsonl, "parquet": write_parquet, "npz": write_npz}


@pytest.mark.parametrize("suffix", WRITE)
def test_blanks_around_a_label_are_left_out(tmp_path, suffix):
    path = tmp_path / f"rows.{suffix}"
    WRITE[suffix](path)
    (batch,) = open_table(path).batches(labels=True)
    assert batch.labels == ["pin"] * 3
