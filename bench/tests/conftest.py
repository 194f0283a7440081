"""The reference data and tiny models, found as klda's own tests find them."""

import pytest
from tests.conftest import data_dir, tiny_dinov2

__all__ = ["data_dir", "tiny_dinov2"]


@pytest.fixture
def small_clinc(tmp_path, monkeypatch):
    """A text set under the name of one of the paper's, and nothing else."""
    for name in ("KLDA_OFFLINE", "HF_HUB_OFFLINE"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("KLDA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("KLDA_DATA", str(tmp_path))
    folder = tmp_path / "paper" / "clinc"
    folder.mkdir(parents=True)
    words = ("lamp", "card", "song", "rain", "taxi", "milk", "note", "game", "news", "loan")
    for part, asked in (("train", "where is my {}|the {} please|a {}"), ("test", "my {}|one {}")):
        rows = [f"{text.format(word)},{word}" for word in words for text in asked.split("|")]
        (folder / f"{part}.csv").write_text("\n".join(["text,label", *rows]), encoding="utf-8")
