"""Loss and gradients of a batch, computed step by step or replayed from a recording."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from klda_bench.baselines.rows import Batch


class Gradients:
    """Sets the gradients of some weights to those of a batch's loss, and returns the loss."""

    def __init__(self, loss: Callable[[Batch], Tensor], weights: Sequence[Tensor]) -> None:
        self._loss, self._weights = loss, weights

    def __call__(self, batch: Batch) -> Tensor:
        """Compute the loss of a batch and its gradients."""
        for weight in self._weights:
            weight.grad = None
        value = self._loss(batch)
        value.backward()
        return value.detach()


class RecordedGradients(Gradients):
    """The same on a GPU, recorded as a CUDA graph for each shape of batch and replayed.

    A small model's kernels take longer to launch than to run. The loss must not read values back
    from the GPU, nor choose shapes by them.
    """

    def __init__(self, loss: Callable[[Batch], Tensor], weights: Sequence[Tensor]) -> None:
        super().__init__(loss, weights)
        self._pool = torch.cuda.graph_pool_handle()  # one replays at a time, so they share memory
        self._recordings: dict[tuple[tuple[str, torch.Size], ...], _Recording] = {}

    def __call__(self, batch: Batch) -> Tensor:
        """Compute the loss of a batch and its gradients."""
        shape = tuple((name, part.shape) for name, part in batch.items())
        if shape not in self._recordings:
            self._recordings[shape] = self._record(batch)
        graph, inputs, value, gradients = self._recordings[shape]
        for name, part in batch.items():
            inputs[name].copy_(part)
        graph.replay()
        for weight, gradient in zip(self._weights, gradients, strict=True):
            weight.grad = gradient
        return value

    def _record(self, batch: Batch) -> _Recording:
        inputs = {name: part.clone() for name, part in batch.items()}
        # Libraries prepare themselves in a first pass, which a recording can't hold.
        aside, usual = torch.cuda.Stream(), torch.cuda.current_stream()
        aside.wait_stream(usual)
        with torch.cuda.stream(aside):
            super().__call__(inputs)
        usual.wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            value = super().__call__(inputs)
        return graph, inputs, value, [weight.grad for weight in self._weights]


_Recording = tuple[torch.cuda.CUDAGraph, Batch, Tensor, list[Tensor | None]]
