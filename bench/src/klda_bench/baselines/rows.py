"""Samples to train on or to answer, and batches of similar length made of them."""

from __future__ import annotations

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
    """Samples, of which batches are made on the device.

    `sequences` are fields of token ids, of which ``ids`` decides the order of lengths, and
    `padding` the fill value of each; `columns` have one entry per sample: labels, weights, a
    teacher's answers. Instead of sequences, `read` makes the field ``pixels`` of the `n_rows`
    samples at given positions: all images at once would not fit into memory.
    """

    def __init__(
        self,
        *,
        sequences: Mapping[str, Sequence[Sequence[int]]] | None = None,
        padding: Mapping[str, int] | None = None,
        columns: Mapping[str, Tensor] | None = None,
        read: Callable[[np.ndarray], Tensor] | None = None,
        n_rows: int = 0,
        device: torch.device,
    ) -> None:
        self._device, self._read, self._padding = device, read, padding or {}
        self._sequences = {
            name: [torch.tensor(row, dtype=torch.long) for row in rows]
            for name, rows in (sequences or {}).items()
        }
        # Without sequences all samples are of one length.
        lengths = [len(row) for row in self._sequences.get("ids", ())]
        self._lengths = np.array(lengths or [0] * n_rows)
        self.columns = {name: column.to(device) for name, column in (columns or {}).items()}

    def __len__(self) -> int:
        return len(self._lengths)

    def batches(self, size: int, rng: np.random.Generator | None = None) -> Iterator[Batch]:
        """Yield batches of samples of similar length; in a random order where `rng` is given."""
        order = np.arange(len(self)) if rng is None else rng.permutation(len(self))
        width = len(self) if rng is None else size * _BUCKET
        chunks = [order[i : i + width] for i in range(0, len(order), width)]
        order = np.concatenate([c[np.argsort(self._lengths[c], kind="stable")] for c in chunks])
        starts = np.arange(0, len(order), size)
        for start in starts if rng is None else rng.permutation(starts):
            yield self.take(order[start : start + size])

    def take(self, index: np.ndarray) -> Batch:
        """Make one batch of the samples `index`, cut to their longest; adds ``<field>_mask``."""
        batch: Batch = {"index": torch.from_numpy(index)}
        for name, rows in self._sequences.items():
            chosen = [rows[i] for i in index]
            batch[name] = pad_sequence(chosen, True, self._padding[name])
            batch[f"{name}_mask"] = pad_sequence([torch.ones_like(row) for row in chosen], True)
        if self._read is not None:
            batch["pixels"] = self._read(index)
        batch = {name: part.to(self._device) for name, part in batch.items()}
        return batch | {name: column[batch["index"]] for name, column in self.columns.items()}

    @torch.no_grad()
    def map(self, function: Callable[[Batch], Tensor], size: int) -> Tensor:
        """Apply a function to all samples; its rows, in the samples' order."""
        parts, order = [], []
        for batch in self.batches(size):
            parts.append(function(batch))
            order.append(batch["index"])
        return torch.cat(parts)[torch.cat(order).argsort()]
