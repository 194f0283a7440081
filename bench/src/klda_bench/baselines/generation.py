"""What LAMOL and VAG share: a model that writes a text's label, and the label it means."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor
from torch.nn import functional

from klda_bench.baselines.backbones import IGNORED, TextGenerator
from klda_bench.baselines.training import Baseline, Rows

_WRITTEN_AT_ONCE = 512  # a token takes almost as long for one text as for hundreds


@dataclass(kw_only=True, eq=False)
class GenerativeBaseline(Baseline):
    """Fine-tuning of a seq2seq or decoder-only model that writes labels.

    All weights train at `backbone_lr`; there is no head.
    """

    backbone: str = field(default="smollm2", kw_only=False)

    def _make_module(self) -> TextGenerator:
        return TextGenerator(self.backbone)

    def _text_ids(self, text: str) -> list[int]:
        """Token ids of a sample's text, cut to `max_length`."""
        limit = min(self.max_length, self.module.tokenizer.model_max_length)
        return self.module.ids(text)[:limit]

    def _label_ids(self, label: Any) -> list[int]:
        # The space makes a label's first word the token it is inside a sentence.
        return self.module.ids(" " + label_text(label))

    def _train(self, sequences: dict[str, list[list[int]]], columns: dict[str, Tensor]) -> None:
        """Train all weights on fields named ``*ids`` (inputs) and ``*targets``."""
        padding = {f: IGNORED if f.endswith("targets") else self.module.pad for f in sequences}
        rows = Rows(sequences=sequences, padding=padding, columns=columns, device=self._device)
        self._fit(rows, [(self.backbone_lr, self.module.parameters())])

    def _write(self, prompts: Sequence[Sequence[int]], **how: Any) -> list[list[int]]:
        """Generate in batches of similar length; answers in the prompts' order."""
        order = np.argsort([len(prompt) for prompt in prompts], kind="stable")
        written: list[list[int]] = [[] for _ in prompts]
        self.module.eval()
        for start in range(0, len(order), _WRITTEN_AT_ONCE):
            index = order[start : start + _WRITTEN_AT_ONCE]
            with self._autocast():
                answers = self.module.generate([prompts[i] for i in index], **how)
            for i, answer in zip(index, answers, strict=True):
                written[i] = answer
        return written

    def _longest_label(self) -> int:
        return max(len(self.module.target(self._label_ids(label))) for label in self.classes_)


def label_text(label: Any) -> str:
    """Write a label as a phrase: ``card_lost`` becomes ``card lost``."""
    return str(label).replace("_", " ").strip()


def token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean negative log-likelihood of each sample's target tokens, (n,)."""
    losses = functional.cross_entropy(
        logits.float().transpose(1, 2), targets, ignore_index=IGNORED, reduction="none"
    )
    return losses.sum(1) / (targets != IGNORED).sum(1).clamp(min=1)


def closest_spelling(written: str, labels: Sequence[str]) -> int:
    """Position of the label written, or of the one spelled most alike."""
    return labels.index(difflib.get_close_matches(written, labels, n=1, cutoff=0.0)[0])
