from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from klda import encoders
from klda.errors import KldaError
from klda_bench.models.feature_cache import CachedEncoder


@pytest.fixture(autouse=True)
def _cache(monkeypatch, tmp_path):
    monkeypatch.setenv("KLDA_CACHE", str(tmp_path))


class Counting:
    """An encoder whose features depend on the text, and which records the texts it gets."""

    name = "counting"
    modality = "text"
    dimension = 5

    def __init__(self, revision: str = "1") -> None:
        self.revision = revision
        self.encoded: list[str] = []

    def encode(self, inputs, *, progress=False):
        if "bad" in inputs:
            raise RuntimeError("stopped")
        self.encoded += inputs
        rows = [np.frombuffer(f"{text:>20}"[:20].encode(), np.int32) for text in inputs]
        return np.array(rows, dtype=np.float32).reshape(len(inputs), 5) + int(self.revision)

    def fingerprint(self):
        return {"name": self.name, "revision": self.revision}


def files_in(folder):
    return len(list((folder / "features").iterdir()))


def test_texts_are_encoded_once():
    inner, texts = Counting(), ["b", "a", "b"]
    for _ in range(2):
        rows = CachedEncoder(inner).encode(texts)
        np.testing.assert_array_equal(rows, Counting().encode(texts))
    assert inner.encoded == texts
    assert CachedEncoder(inner).encode([]).shape == (0, 5)


def test_features_are_found_again_only_by_the_same_model():
    CachedEncoder(Counting("1")).encode(["a"])
    other, same = Counting("2"), Counting("1")
    rows = CachedEncoder(other).encode(["a"])
    np.testing.assert_array_equal(rows, Counting("2").encode(["a"]))
    CachedEncoder(same).encode(["a"])
    assert (other.encoded, same.encoded) == (["a"], [])


def test_a_cached_encoder_describes_the_encoder_inside():
    ngrams = encoders.load("ngrams")
    cached = CachedEncoder(ngrams)
    assert isinstance(cached, encoders.Encoder)
    assert cached.fingerprint() == ngrams.fingerprint()
    assert cached.gamma_scale == ngrams.gamma_scale
    np.testing.assert_array_equal(cached.encode(["a dog"]), ngrams.encode(["a dog"]))


def test_a_damaged_file_is_named(tmp_path):
    encoder = CachedEncoder(Counting())
    encoder.encode(["a"])
    (file,) = (tmp_path / "features").iterdir()
    file.write_bytes(b"no array" * 100)
    with pytest.raises(KldaError, match=rf"{file.name}: .*Delete the file"):
        encoder.encode(["a"])


def test_what_was_encoded_before_an_error_is_kept():
    inner = Counting()
    with pytest.raises(RuntimeError, match="stopped"):
        CachedEncoder(inner, part=2).encode(["a", "b", "c", "bad"])
    assert CachedEncoder(inner, part=2).encode(["a", "b", "c"]).shape == (3, 5)
    assert inner.encoded == ["a", "b", "c"]


def test_images_are_found_by_content(tmp_path, tiny_dinov2, pictures):
    image = pytest.importorskip("PIL.Image")
    encoder = CachedEncoder(encoders.load(tiny_dinov2, device="cpu"))
    rows = encoder.encode(pictures)
    np.testing.assert_array_equal(encoder.encode(list(pictures)), rows)
    assert files_in(tmp_path) == 1
    for place in ("a.png", "b.png"):
        image.fromarray(pictures[0]).save(tmp_path / place)
        encoder.encode([tmp_path / place])
    assert files_in(tmp_path) == 2


def test_the_tokenizer_is_part_of_the_key(tmp_path, tiny_models, texts):
    folder = shutil.copytree(tiny_models("bert-base"), tmp_path / "model")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    for lowercase in (True, False):
        tokenizer["normalizer"]["lowercase"] = lowercase
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
        CachedEncoder(encoders.load(folder, device="cpu")).encode(texts)
    assert files_in(tmp_path) == 2


def test_features_of_another_precision_are_others(tmp_path, tiny_models, texts):
    for precision in ("float32", "bfloat16"):
        how = {"device": "cpu", "runtime": "torch", "precision": precision}
        CachedEncoder(encoders.load(tiny_models("bert-base"), **how)).encode(texts)
    assert files_in(tmp_path) == 2
