from __future__ import annotations

import multiprocessing
import sqlite3
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from klda import encoders
from klda.encoders.sources import default_cache_folder
from klda.errors import KldaError
from klda_bench.models.feature_cache import CachedEncoder, FeatureCache, FeatureCacheWarning


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
    assert len(cache) == 4


def test_features_are_found_again_only_by_the_same_model(cache):
    texts = [f"text {number}" for number in range(2000)]
    CachedEncoder(Counting(), cache).encode(texts)
    warm = Counting()
    reopened = CachedEncoder(warm, FeatureCache(cache.folder))
    np.testing.assert_array_equal(reopened.encode(texts[::-1]), expected(texts[::-1]))
    assert warm.encoded == []
    other = Counting(revision="2")
    rows = CachedEncoder(other, cache).encode(texts)
    np.testing.assert_array_equal(rows, expected(texts, revision="2"))
    assert other.encoded == texts


def test_a_cached_encoder_describes_the_encoder_inside(cache):
    encoder = CachedEncoder(Counting(), cache)
    assert isinstance(encoder, encoders.Encoder)
    assert (encoder.name, encoder.modality, encoder.dimension) == ("counting", "text", 5)
    assert encoder.fingerprint() == Counting().fingerprint()


@pytest.mark.parametrize("part", [slice(None), slice(0, 100)])
def test_a_damaged_file_is_renamed_with_a_warning(part, cache):
    texts = [f"text {number}" for number in range(1000)]
    CachedEncoder(Counting(), cache).encode(texts)
    content = bytearray(cache.path.read_bytes())
    content[part] = b"\xa5" * len(content[part])
    cache.path.write_bytes(content)
    with pytest.warns(FeatureCacheWarning):
        rows = CachedEncoder(Counting(), cache).encode(texts)
    np.testing.assert_array_equal(rows, expected(texts))


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.5, 0.9])
def test_a_truncated_file_never_gives_wrong_features(fraction, cache):
    texts = [f"text {number}" for number in range(1000)]
    CachedEncoder(Counting(), cache).encode(texts)
    content = cache.path.read_bytes()
    cache.path.write_bytes(content[: int(fraction * len(content))])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FeatureCacheWarning)
        for _ in range(3):
            rows = CachedEncoder(Counting(), cache).encode(texts)
            np.testing.assert_array_equal(rows, expected(texts))
    warm = Counting()  # and the cache has recovered
    CachedEncoder(warm, cache).encode(texts)
    assert warm.encoded == []


def test_random_damage_never_gives_wrong_features(cache):
    texts = [f"text {number}" for number in range(300)]
    generator = np.random.default_rng(0)
    for _ in range(15):
        cache.clear()
        CachedEncoder(Counting(), cache).encode(texts)
        content = bytearray(cache.path.read_bytes())
        for position in generator.integers(0, len(content), size=20):
            content[position] ^= int(generator.integers(1, 256))
        cache.path.write_bytes(content)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FeatureCacheWarning)
            rows = CachedEncoder(Counting(), cache).encode(texts)
        np.testing.assert_array_equal(rows, expected(texts))


def test_a_changed_row_is_computed_again(cache):
    texts = ["a", "b", "c"]
    CachedEncoder(Counting(), cache).encode(texts)
    with sqlite3.connect(cache.path) as connection:
        connection.execute("UPDATE features SET row = zeroblob(20) WHERE number = 2")
    inner = Counting()
    with pytest.warns(FeatureCacheWarning, match="1 of its rows"):
        rows = CachedEncoder(inner, cache).encode(texts)
    np.testing.assert_array_equal(rows, expected(texts))
    assert inner.encoded == ["b"]
    CachedEncoder(inner, cache).encode(texts)
    assert inner.encoded == ["b"]


def test_a_row_stored_under_another_key_is_rejected(cache):
    CachedEncoder(Counting(), cache).encode(["a", "b"])
    with sqlite3.connect(cache.path) as connection:
        (one, digest), (other, _) = connection.execute("SELECT row, digest FROM features")
        assert one != other
        connection.execute("UPDATE features SET row = ?, digest = ?", (one, digest))
    with pytest.warns(FeatureCacheWarning):
        rows = CachedEncoder(Counting(), cache).encode(["a", "b"])
    np.testing.assert_array_equal(rows, expected(["a", "b"]))


def test_a_folder_that_cannot_be_written_gives_only_a_warning(tmp_path):
    (tmp_path / "file").write_text("in the way")
    encoder = CachedEncoder(Counting(), FeatureCache(tmp_path / "file"))
    with pytest.warns(FeatureCacheWarning):
        rows = encoder.encode(["a", "b"])
    np.testing.assert_array_equal(rows, expected(["a", "b"]))


def test_the_file_stays_below_max_bytes(tmp_path):
    cache = FeatureCache(tmp_path, max_bytes=200_000)
    for start in range(40):
        keys = [f"{start} {number}".encode() for number in range(50)]
        cache.put(keys, np.full((50, 100), start, dtype=np.float32))
        assert cache.path.stat().st_size < 260_000
    newest = cache.get([f"39 {number}".encode() for number in range(50)])
    assert all(row is not None and row[0] == 39 for row in newest)
    assert cache.get([b"0 0"]) == [None]
    with pytest.raises(KldaError, match="max_bytes"):
        FeatureCache(tmp_path, max_bytes=0)


def test_clear_empties_it(cache):
    cache.put([b"key"], np.ones((1, 3)))
    cache.clear()
    assert len(cache) == 0
    assert cache.get([b"key"]) == [None]


def test_processes_share_a_cache(cache):
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=write, args=(cache.folder, n)) for n in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    texts = [f"text {number}" for number in range(300)]  # the middle third from both
    warm = Counting()
    np.testing.assert_array_equal(CachedEncoder(warm, cache).encode(texts), expected(texts))
    assert warm.encoded == []


def test_threads_share_a_cache(cache):
    encoder = CachedEncoder(Counting(), cache)
    jobs = [[f"text {(job * 7 + number) % 100}" for number in range(30)] for job in range(16)]
    with ThreadPoolExecutor(8) as pool:
        for job, rows in zip(jobs, pool.map(encoder.encode, jobs), strict=True):
            np.testing.assert_array_equal(rows, expected(job))


def test_bad_inputs_raise_the_error_of_the_encoder(cache, tiny_models, tiny_dinov2):
    text = CachedEncoder(encoders.load(tiny_models("bert-base"), device="cpu"), cache)
    image = CachedEncoder(encoders.load(tiny_dinov2, device="cpu"), cache)
    with pytest.raises(KldaError, match=r"\[text\]"):
        text.encode("one text")
    with pytest.raises(KldaError, match=r"inputs\[1\] must be a text"):
        text.encode(["a", 3])
    with pytest.raises(KldaError, match=r"inputs\[0\] \(nowhere.png\)"):
        image.encode(["nowhere.png"])


def test_load_accepts_a_cache_and_finds_images_by_content(
    tmp_path, tiny_dinov2, pictures, monkeypatch
):
    image_module = pytest.importorskip("PIL.Image")
    path = tmp_path / "picture.png"
    image_module.fromarray(pictures[0]).save(path)
    encoder = CachedEncoder(
        encoders.load(tiny_dinov2, device="cpu"), FeatureCache(tmp_path / "cache")
    )
    inputs = [path, pictures[1], image_module.fromarray(pictures[2])]
    first = encoder.encode(inputs)
    calls = []
    monkeypatch.setattr(encoder.encoder, "encode", lambda items, **_: calls.append(items))
    np.testing.assert_array_equal(encoder.encode(inputs), first)
    assert calls == []
    monkeypatch.undo()
    turned = image_module.fromarray(pictures[2])
    turned.getexif()[0x0112] = 3  # upside down
    assert np.abs(encoder.encode([turned]) - first[2]).max() > 1e-3
    image_module.fromarray(pictures[3]).save(path)
    assert np.abs(encoder.encode([path]) - first[0]).max() > 1e-3


def test_the_tokenizer_is_part_of_the_key(tmp_path, tiny_models, texts):
    import shutil

    folder = shutil.copytree(tiny_models("bert-base"), tmp_path / "model")
    cache = FeatureCache(tmp_path / "cache")
    CachedEncoder(encoders.load(folder, device="cpu"), cache).encode(texts)
    assert len(cache) == 6
    tokenizer = folder / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace('"lowercase": true', '"lowercase": false'))
    CachedEncoder(encoders.load(folder, device="cpu"), cache).encode(texts)
    assert len(cache) == 12


def test_the_default_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("KLDA_CACHE", str(tmp_path))
    assert default_cache_folder() == tmp_path
    assert FeatureCache().folder == tmp_path
    monkeypatch.delenv("KLDA_CACHE")
    assert default_cache_folder().name == "klda"


def test_the_bandwidth_of_an_encoder_survives_the_cache(cache):
    ngrams = encoders.load("ngrams")
    cached = CachedEncoder(ngrams, cache)
    texts = ["a dog", "a cat"]
    np.testing.assert_array_equal(cached.encode(texts), ngrams.encode(texts))
    assert cached.gamma_scale == ngrams.gamma_scale


def test_features_of_another_precision_are_others(cache, tiny_models, texts):
    folder = tiny_models("bert-base")
    for precision in ("float32", "bfloat16"):
        encoder = encoders.load(folder, device="cpu", engine="torch", precision=precision)
        CachedEncoder(encoder, cache).encode(texts)
    assert len(cache) == 2 * len(texts)
