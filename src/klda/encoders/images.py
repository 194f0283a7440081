"""Images: read ahead of the network that turns them into rows."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from klda.cpus import usable_cpus
from klda.encoders.encoder import NetworkEncoder, gather
from klda.encoders.image_decoding import ACCEPTED, open_image
from klda.errors import KldaError
from klda.progress import Show


class ImageEncoder(NetworkEncoder):
    """Images to rows: reads the next batch while the network runs on one."""

    modality = "image"

    def encode(self, inputs: Any, *, progress: Show = False) -> np.ndarray:
        """Turn paths, PIL images, bytes of image files or uint8 arrays into features."""
        images = _check_list(inputs)
        return gather(self, len(images), self._batches(images), progress=progress)

    def _batches(self, inputs: Sequence[Any]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        size = self.network.batch_size
        starts = range(0, len(inputs), size)
        with ThreadPoolExecutor(min(8, usable_cpus())) as pool:
            ahead: list[Future[np.ndarray]] = []
            for start in (*starts, len(inputs)):
                current, numbers = ahead, range(start, min(start + size, len(inputs)))
                ahead = [pool.submit(self._read, inputs[at], at) for at in numbers]
                if current:
                    rows = self._rows([future.result() for future in current])
                    yield np.arange(start - len(rows), start), rows

    def _read(self, item: Any, position: int) -> np.ndarray:
        return self.network.pixels(open_image(item, position))

    def _rows(self, pixels: list[np.ndarray]) -> np.ndarray:
        # Some processors keep an image's shape; images of different shapes are encoded one by one.
        same = len({array.shape for array in pixels}) == 1
        groups = [pixels] if same else [[array] for array in pixels]
        with self.lock:
            return np.concatenate([self.network.rows(np.stack(group)) for group in groups])


def _check_list(inputs: Any) -> list[Any]:
    single = isinstance(inputs, str | bytes | os.PathLike) or hasattr(inputs, "getpixel")
    if single or (isinstance(inputs, np.ndarray) and inputs.ndim in (2, 3)):
        raise KldaError(
            "inputs is one image: give a list of images, [image] for one, or a stacked uint8 "
            "array (n, height, width, 3)."
        )
    try:
        return list(inputs)
    except TypeError as error:
        raise KldaError(
            f"inputs must be a list of images ({ACCEPTED}); got {type(inputs).__name__}."
        ) from error
