from __future__ import annotations

import json
import multiprocessing
import shutil
from pathlib import Path

import numpy as np
import pytest

from klda import encoders
from klda.encoders.sources import default_cache_folder
from klda.errors import KldaError
from klda_bench.models.feature_cache import CachedEncoder, FeatureCache


class Counting:
    """An encoder whose features depend on the text, and which records the texts it gets."""

    name = "counting"
    modality = "text"
    dimension = 5

    def __init__(self, revision: str = "1") -> None:
        self.revision = revision
        self.encoded: list[str] = []

    def encode(self, inputs, *, progress=False):
        self.encoded += inputs
        rows = [np.frombuffer(f"{text:>20}"[:20].encode(), np.int32) for text in inputs]
        return np.array(rows, dtype=np.float32).reshape(len(inputs), 5) + int(self.revision)

    def fingerprint(self):
        return {"name": self.name, "revision": self.revision}


def expected(texts: list[str], revision: str = "1") -> np.ndarray:
    return Counting(revision).encode(texts)


def write(folder: Path, worker: int) -> None:
    """Encode texts, half of which another process encodes too."""
    encoder = CachedEncoder(Counting(), FeatureCache(folder))
    for start in range(0, 200, 20):
        encoder.encode([f"text {worker * 100 + number}" for number in range(start, start + 20)])


@pytest.fixture
def cache(tmp_path) -> FeatureCache:
    return FeatureCache(tmp_path / "cache")


def test_an_input_is_encoded_once(cache):
    inner = Counting()
    encoder = CachedEncoder(inner, cache)
    texts = ["b", "a", "b", "c"]
    np.testing.assert_array_equal(encoder.encode(texts), expected(texts))
    assert inner.encoded == ["b", "a", "c"]
    again = ["c", "d", "a", "d"]
    np.testing.assert_array_equal(encoder.encode(again), expected(again))
    assert inner.encoded == ["b", "a", "c", "d"]


def test_features_are_found_again_only_by_the_same_model(cache):
    CachedEncoder(Counting("1"), cache).encode(["a"])
    other, same = Counting("2"), Counting("1")
    np.testing.assert_array_equal(CachedEncoder(other, cache).encode(["a"]), expected(["a"], "2"))
    np.testing.assert_array_equal(CachedEncoder(same, cache).encode(["a"]), expected(["a"]))
    assert (other.encoded, same.encoded) == (["a"], [])


def test_a_cached_encoder_describes_the_encoder_inside(cache):
    ngrams = encoders.load("ngrams")
    cached = CachedEncoder(ngrams, cache)
    assert isinstance(cached, encoders.Encoder)
    assert cached.fingerprint() == ngrams.fingerprint()
    assert cached.gamma_scale == ngrams.gamma_scale
    np.testing.assert_array_equal(cached.encode(["a dog"]), ngrams.encode(["a dog"]))


def test_a_damaged_file_is_named(cache):
    CachedEncoder(Counting(), cache).encode(["a"])
    cache.path.write_bytes(b"no database" * 1000)
    with pytest.raises(KldaError, match=r"features-v2\.sqlite: .*Delete the file"):
        CachedEncoder(Counting(), cache).encode(["a"])


def test_what_was_encoded_before_an_error_is_kept(cache, monkeypatch):
    monkeypatch.setattr("klda_bench.models.feature_cache._WINDOW", 2)

    class Failing(Counting):
        def encode(self, inputs, *, progress=False):
            if "bad" in inputs:
                raise RuntimeError("stopped")
            return super().encode(inputs)

    with pytest.raises(RuntimeError, match="stopped"):
        CachedEncoder(Failing(), cache).encode(["a", "b", "c", "bad"])
    assert len(cache) == 2


def test_processes_share_a_cache(cache):
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=write, args=(cache.folder, i)) for i in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert len(cache) == 400


def test_images_are_found_by_content(tmp_path, tiny_dinov2, pictures, cache):
    image = pytest.importorskip("PIL.Image")
    encoder = CachedEncoder(encoders.load(tiny_dinov2, device="cpu"), cache)
    rows = encoder.encode(pictures)
    assert len(cache) == len(pictures)
    np.testing.assert_array_equal(encoder.encode(list(pictures)), rows)
    assert len(cache) == len(pictures)
    for place in ("a.png", "b.png"):
        image.fromarray(pictures[0]).save(tmp_path / place)
        encoder.encode([tmp_path / place])
    assert len(cache) == len(pictures) + 1


def test_the_tokenizer_is_part_of_the_key(tmp_path, tiny_models, texts, cache):
    folder = shutil.copytree(tiny_models("bert-base"), tmp_path / "model")
    CachedEncoder(encoders.load(folder, device="cpu"), cache).encode(texts)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["normalizer"]["lowercase"] = False
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    CachedEncoder(encoders.load(folder, device="cpu"), cache).encode(texts)
    assert len(cache) == 2 * len(texts)


def test_features_of_another_precision_are_others(cache, tiny_models, texts):
    folder = tiny_models("bert-base")
    for precision in ("float32", "bfloat16"):
        encoder = encoders.load(folder, device="cpu", engine="torch", precision=precision)
        CachedEncoder(encoder, cache).encode(texts)
    assert len(cache) == 2 * len(texts)


def test_the_default_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("KLDA_CACHE", str(tmp_path / "given"))
    assert default_cache_folder() == FeatureCache().folder == tmp_path / "given"
