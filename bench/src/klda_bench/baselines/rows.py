"""Samples on the device, and batches of similar length made of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

Batch = dict[str, Tensor]

# Batches of one length are cut from this many shuffled batches' worth of samples: long enough for
# little padding, short enough that the batches of two epochs differ.
_BUCKET = 32


class Rows:
    """Samples, whose token sequences are padded once and kept on the device.

    `sequences` are fields of variable length, of which ``ids`` decides the order of lengths, and
    `padding` the fill value of each; `columns` have one entry per sample: labels, weights, a
    teacher's answers. `read` makes a field of the samples at given positions for each batch: all
    images at once would not fit into memory. Batches are cut to their longest sequence, rounded up
    to a multiple of `width_step`.
    """

    def __init__(
        self,
        *,
        sequences: Mapping[str, Sequence[Sequence[int]]],
        padding: Mapping[str, int],
        columns: Mapping[str, Tensor] | None = None,
        read: Mapping[str, Callable[[np.ndarray], Tensor]] | None = None,
        n_rows: int | None = None,
        width_step: int = 1,
        device: torch.device,
    ) -> None:
        self._device, self._read, self._width_step = device, read or {}, width_step
        self._lengths = {name: np.array(list(map(len, rows))) for name, rows in sequences.items()}
        # Without sequences all samples are of one length.
        self._order_by = self._lengths.get("ids", np.zeros(n_rows or 0, dtype=int))
        self._padded: Batch = {}
        for name, rows in sequences.items():
            tensors = [torch.tensor(row, dtype=torch.long) for row in rows]
            self._padded[name] = pad_sequence(tensors, True, padding[name]).to(device)
            mask = pad_sequence([torch.ones_like(tensor) for tensor in tensors], True)
            self._padded[f"{name}_mask"] = mask.to(device)
        self.columns = {name: column.to(device) for name, column in (columns or {}).items()}

    def __len__(self) -> int:
        return len(self._order_by)

    def batches(self, size: int, rng: np.random.Generator | None = None) -> Iterator[Batch]:
        """Yield batches of samples of similar length; in a random order where `rng` is given."""
        order = np.arange(len(self)) if rng is None else rng.permutation(len(self))
        width = len(self) if rng is None else size * _BUCKET
        chunks = [order[i : i + width] for i in range(0, len(order), width)]
        lengths = self._order_by
        order = np.concatenate([c[np.argsort(lengths[c], kind="stable")] for c in chunks])
        # One copy to the device an epoch, not one a batch.
        where = torch.from_numpy(order).to(self._device)
        starts = np.arange(0, len(order), size)
        for start in starts if rng is None else rng.permutation(starts):
            yield self._take(order[start : start + size], where[start : start + size])

    def take(self, index: np.ndarray) -> Batch:
        """Make one batch of the samples `index`, cut to their longest; adds ``<field>_mask``."""
        return self._take(index, torch.from_numpy(index).to(self._device))

    def _take(self, index: np.ndarray, where: Tensor) -> Batch:
        batch: Batch = {"index": where}
        for name, padded in self._padded.items():
            longest = self._lengths[name.removesuffix("_mask")][index].max()
            width = self._width_step * math.ceil(longest / self._width_step)
            batch[name] = padded[where, :width]
        batch.update({name: column[where] for name, column in self.columns.items()})
        batch.update({name: read(index).to(self._device) for name, read in self._read.items()})
        return batch

    @torch.no_grad()
    def map(self, function: Callable[[Batch], Tensor], size: int) -> Tensor:
        """Apply a function to all samples; its rows, in the samples' order."""
        parts, order = [], []
        for batch in self.batches(size):
            parts.append(function(batch))
            order.append(batch["index"])
        return torch.cat(parts)[torch.cat(order).argsort()]
