"""``klda export``."""

from __future__ import annotations


def test_a_model_of_features_is_written_as_its_head(cli, make, tmp_path):
    model = make("m", "abc")
    said = " ".join(cli("export", "--model", model, "--onnx", tmp_path / "out").stderr.split())
    assert "head.onnx, klda.json" in said
    assert "head.onnx takes its features" in said
    assert (tmp_path / "out" / "head.onnx").stat().st_size > 1000


def test_a_folder_in_use_is_refused(cli, make):
    model = make("m", "ab")
    assert "is not empty" in cli("export", model, "--onnx", model, code=1).stderr


def test_texts_come_with_their_tokenizer(cli, bot, tmp_path):
    found = cli.json("export", "--model", bot / "model", "--onnx", tmp_path / "out")
    assert found["files"] == ["head.onnx", "klda.json", "model.onnx", "tokenizer.json"]
    assert found["knows_unknown"]
