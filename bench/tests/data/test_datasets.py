from __future__ import annotations

import gzip
import zipfile

import numpy as np
import pytest

from klda.errors import KldaError
from klda_bench.data import datasets, downloads
from klda_bench.environment import UnavailableError

SIZES = {
    "clinc": (10_500, 750, 150, 10),
    "banking": (10_003, 1_000, 77, 7),
    "dbpedia": (10_000, 1_000, 70, 7),
    "hwu": (8_954, 1_076, 64, 8),
}


@pytest.fixture(autouse=True)
def _no_other_data(monkeypatch, tmp_path):
    monkeypatch.delenv("KLDA_DATA", raising=False)
    (tmp_path / "clone").mkdir()
    monkeypatch.chdir(tmp_path / "clone")
    monkeypatch.setenv("KLDA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("KLDA_OFFLINE", "1")


def write_texts(folder, rows, part, suffix=".csv.gz"):
    folder.mkdir(parents=True, exist_ok=True)
    text = "text,label\n" + "".join(f'"{text}",{label}\n' for text, label in rows)
    data = text.encode()
    (folder / f"{part}{suffix}").write_bytes(gzip.compress(data) if suffix[-3:] == ".gz" else data)


ROWS = [("no", "a"), ("null", "b"), ("a, comma", "a")]


def tiny(folder):
    write_texts(folder, ROWS, "train")
    write_texts(folder, ROWS[:2], "test")
    return folder


@pytest.mark.data
@pytest.mark.parametrize("name", list(SIZES))
def test_the_papers_text_sets_have_their_published_sizes(name, data_dir):
    dataset = datasets.load(name, data=data_dir)
    found = (len(dataset.train), len(dataset.test), len(dataset.classes), dataset.tasks)
    assert found == SIZES[name]
    assert dataset.modality == "text"


def test_words_that_look_like_missing_values_stay_words(tmp_path):
    tiny(tmp_path / "paper" / "clinc")
    dataset = datasets.load("clinc", data=tmp_path)
    assert dataset.train.X == ["no", "null", "a, comma"]
    assert dataset.train.y.tolist() == ["a", "b", "a"]


def test_the_given_folder_comes_before_the_variable_and_that_before_the_cache(
    tmp_path, monkeypatch
):
    given, variable = tmp_path / "given", tmp_path / "variable"
    cached = tiny(datasets.cache_root() / "paper" / "hwu")
    assert datasets.find("hwu") == cached
    beside = tiny(tmp_path / "shared" / "data" / "paper" / "hwu")
    assert datasets.find("hwu").resolve() == beside.resolve()
    monkeypatch.setenv("KLDA_DATA", str(variable))
    assert datasets.find("hwu") == cached
    named = tiny(variable / "paper" / "hwu")
    assert datasets.find("hwu") == named
    assert datasets.find("hwu", data=given) == cached
    own = tiny(given / "paper" / "hwu")
    assert datasets.find("hwu", data=given) == own


@pytest.mark.parametrize("name", ["clinc", "cars"])
def test_absent_and_offline_says_what_to_do(name, tmp_path):
    with pytest.raises(UnavailableError) as error:
        datasets.load(name, data=tmp_path)
    for part in (repr(name), "--data", "KLDA_DATA", f"paper/{name}"):
        assert part in str(error.value)


def test_a_data_folder_that_is_none_is_named(tmp_path):
    with pytest.raises(KldaError, match="is not a folder"):
        datasets.load("clinc", data=tmp_path / "nowhere")


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(KldaError, match="clinc, banking"):
        datasets.load("clink")


def test_a_users_own_folder_of_texts(tmp_path):
    folder = tiny(tmp_path / "tickets")
    dataset = datasets.load(str(folder))
    assert (dataset.name, dataset.tasks, dataset.modality) == ("tickets", 2, "text")


def test_a_users_own_folder_of_features(tmp_path):
    rng = np.random.default_rng(0)
    for part in ("train", "test"):
        np.savez(
            tmp_path / f"{part}.npz",
            features=rng.normal(size=(6, 3)).astype(np.float32),
            labels=np.array(["a", "b"] * 3),
        )
    dataset = datasets.load(str(tmp_path))
    assert dataset.modality == "features"
    assert dataset.train.X.shape == (6, 3)


def test_a_folder_without_a_test_file_is_named(tmp_path):
    write_texts(tmp_path, ROWS, "train")
    with pytest.raises(KldaError, match="has no test file"):
        datasets.load(str(tmp_path))


def test_test_classes_without_training_rows_are_named(tmp_path):
    write_texts(tmp_path, ROWS, "train")
    write_texts(tmp_path, [("x", "zebra")], "test")
    with pytest.raises(KldaError, match="zebra"):
        datasets.load(str(tmp_path))


def test_the_digest_changes_with_any_row(tmp_path):
    first = datasets.load(str(tiny(tmp_path / "one"))).sha256
    write_texts(tmp_path / "one", [*ROWS[:2], ("a, comma", "b")], "train")
    assert datasets.load(str(tmp_path / "one")).sha256 != first


@pytest.mark.parametrize("error", [OSError(28, "No space left"), TimeoutError("timed out")])
def test_a_full_disk_is_not_called_offline(error, monkeypatch):
    def fail(name, target):
        raise error

    monkeypatch.setattr(downloads, "download", fail)
    with pytest.raises(KldaError, match=error.args[-1]) as caught:
        datasets.load("clinc")
    assert isinstance(caught.value, UnavailableError) == isinstance(error, TimeoutError)


def test_an_archive_is_downloaded_and_unpacked(monkeypatch, tmp_path):
    notes = "tiny-imagenet-200/val/val_annotations.txt"
    with zipfile.ZipFile(tmp_path / "tiny-imagenet-200.zip", "w") as archive:
        archive.writestr("tiny-imagenet-200/train/n01/images/a.JPEG", b"pixels")
        archive.writestr("tiny-imagenet-200/val/images/b.JPEG", b"pixels")
        archive.writestr(notes, "b.JPEG\tn01\t0\t0\n")
    address = (tmp_path / "tiny-imagenet-200.zip").as_uri()
    source = downloads.DATASETS["tiny-imagenet"]._replace(address=address)
    monkeypatch.setitem(downloads.DATASETS, "tiny-imagenet", source)
    for name in ("KLDA_OFFLINE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    dataset = datasets.load("tiny-imagenet")
    assert dataset.train.y.tolist() == dataset.test.y.tolist() == ["n01"]
    assert not list((tmp_path / "cache" / "data" / "paper").glob("tmp*"))


def test_a_set_that_is_no_longer_published_says_which_files_to_get(monkeypatch):
    for name in ("KLDA_OFFLINE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UnavailableError, match="no longer published"):
        datasets.load("cars")
