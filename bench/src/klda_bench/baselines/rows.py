"""Samples on the device, and batches of similar length made of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from klda.errors import KldaError

Batch = dict[str, Tensor]

# Batches of one length are cut from this many shuffled batches' worth of samples: long enough for
# little padding, short enough that the batches of two epochs differ.
_BUCKET = 32
_READERS = min(8, os.cpu_count() or 1)


class Rows:
    """Tokenised samples, padded once and kept on the device.

    `sequences` are fields of variable length, of which ``ids`` decides the order of lengths, and
    `padding` the fill value of each; `columns` have one entry per sample: labels, weights, a
    teacher's answers.
    """

    def __init__(
        self,
        *,
        sequences: Mapping[str, Sequence[Sequence[int]]],
        padding: Mapping[str, int],
        columns: Mapping[str, Tensor] | None = None,
        device: torch.device,
    ) -> None:
        self._lengths = {
            field: np.array([len(row) for row in rows]) for field, rows in sequences.items()
        }
        self._padded = {
            field: _pad(rows, padding[field]).to(device) for field, rows in sequences.items()
        }
        self._on_device = {
            field: torch.from_numpy(lengths).to(device) for field, lengths in self._lengths.items()
        }
        self.columns = {name: column.to(device) for name, column in (columns or {}).items()}
        self._device = device

    def __len__(self) -> int:
        return len(self._lengths["ids"])

    def batches(self, size: int, rng: np.random.Generator | None = None) -> Iterator[Batch]:
        """Yield batches of samples of similar length; in a random order where `rng` is given."""
        order = self._order(size, rng)
        # One copy to the device an epoch, not one a batch.
        where = torch.from_numpy(np.concatenate(order)).to(self._device)
        for index, part in zip(order, where.split([len(index) for index in order]), strict=True):
            yield self._take(index, part)

    def _order(self, size: int, rng: np.random.Generator | None) -> list[np.ndarray]:
        lengths = self._lengths["ids"]
        if rng is None:
            order = np.argsort(lengths, kind="stable")
            return [order[i : i + size] for i in range(0, len(order), size)]
        shuffled = rng.permutation(len(lengths))
        chunks = [shuffled[i : i + size * _BUCKET] for i in range(0, len(shuffled), size * _BUCKET)]
        order = np.concatenate(
            [chunk[np.argsort(lengths[chunk], kind="stable")] for chunk in chunks]
        )
        batches = [order[i : i + size] for i in range(0, len(order), size)]
        return [batches[i] for i in rng.permutation(len(batches))]

    def take(self, index: np.ndarray) -> Batch:
        """Make one batch of the samples `index`, cut to their longest; adds ``<field>_mask``."""
        return self._take(index, torch.from_numpy(index).to(self._device))

    def _take(self, index: np.ndarray, where: Tensor) -> Batch:
        batch: Batch = {"index": where}
        for field, padded in self._padded.items():
            width = int(self._lengths[field][index].max())
            batch[field] = padded[where, :width]
            positions = torch.arange(width, device=self._device)
            batch[f"{field}_mask"] = (positions < self._on_device[field][where, None]).long()
        batch.update({name: column[where] for name, column in self.columns.items()})
        return batch

    @torch.no_grad()
    def map(self, function: Callable[[Batch], Tensor], size: int) -> Tensor:
        """Apply a function to all samples; its rows, in the samples' order."""
        parts, order = [], []
        for batch in self.batches(size):
            parts.append(function(batch))
            order.append(batch["index"])
        joined = torch.cat(parts)
        result = torch.empty_like(joined)
        result[torch.cat(order)] = joined
        return result


class ImageRows(Rows):
    """Images, read and scaled batch by batch: all of them at once would not fit into memory.

    `images` are arrays, paths, or whatever ``read(image, position)`` turns into pixels.
    """

    def __init__(
        self,
        images: Sequence[Any],
        read: Callable[[Any, int], Tensor],
        *,
        columns: Mapping[str, Tensor] | None = None,
        device: torch.device,
    ) -> None:
        super().__init__(sequences={}, padding={}, columns=columns, device=device)
        self._lengths = {"ids": np.zeros(len(images), dtype=int)}
        self._images, self._read = images, read

    def _take(self, index: np.ndarray, where: Tensor) -> Batch:
        batch = super()._take(index, where)
        with ThreadPoolExecutor(_READERS) as pool:
            pixels = list(pool.map(lambda i: self._read(self._images[i], int(i)), index))
        if len({part.shape for part in pixels}) > 1:
            raise KldaError(
                "The model's processor keeps each image's shape, so that they make no batch: give "
                "images of one size."
            )
        batch["pixels"] = torch.stack(pixels).to(self._device)
        return batch


def _pad(rows: Sequence[Sequence[int]], value: int) -> Tensor:
    tensors = [torch.tensor(row, dtype=torch.long) for row in rows]
    return nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=value)
