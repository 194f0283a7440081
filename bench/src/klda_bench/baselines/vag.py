"""Writing the label's name: plainly, and as VAG with the softmax over the task's own words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from klda_bench.baselines.generation import GenerativeBaseline, label_text, token_loss
from klda_bench.baselines.training import Batch

_SEPARATOR = "\nLabel:"  # ends a decoder-only model's prompt; a seq2seq model needs none


@dataclass(kw_only=True, eq=False)
class VanillaG(GenerativeBaseline):
    """Plain fine-tuning in sequence of a model that writes the label's name.

    The label whose name is nearest in embedding to what was written is the answer. This is Vanilla
    in the generation framework of Shao et al. (2023), whose code calls it Vanilla-G. A name
    means something before it is learned, so it is forgotten less than a row of a classifier's head.
    The authors compare names with a sentence encoder; here with the backbone's own embeddings of
    their tokens, as they were before any training.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        embeddings = self.module.model.get_input_embeddings().weight.detach().clone()
        self._embeddings = functional.normalize(embeddings, dim=1)

    def _prompt(self, text: list[int]) -> list[int]:
        return text if self.module.seq2seq else [*text, *self.module.ids(_SEPARATOR)]

    def _learn(self, texts: list[str], labels: list[Any]) -> None:
        self._fit_pairs([self._text_ids(text) for text in texts], self._codes(labels), {})

    def _fit_pairs(
        self, texts: list[list[int]], codes: list[int], columns: dict[str, Tensor]
    ) -> None:
        """Train to write the name of each text's class."""
        prompts = [self._prompt(text) for text in texts]
        names = [self._label_ids(self.classes_[code]) for code in codes]
        ids, targets = self.module.sequences(prompts, names)
        self._train({"ids": ids, "targets": targets}, columns)

    def _loss(self, batch: Batch) -> Tensor:
        logits, targets = self.module.logits(batch["ids"], batch["ids_mask"], batch["targets"])
        return token_loss(logits, targets).mean()

    def _predict(self, texts: list[str]) -> np.ndarray:
        prompts = [self._prompt(self._text_ids(text)) for text in texts]
        how = {"max_new_tokens": self._longest_label(), "processors": self._processors()}
        answers = self._write(prompts, **how)
        written = self._embed_names([self.module.text(row) for row in answers])
        names = self._embed_names([label_text(label) for label in self.classes_])
        return (written @ names.T).argmax(1).cpu().numpy()

    def _processors(self) -> list[Any]:
        """Change the scores of the next token while writing."""
        return []

    def _embed_names(self, names: list[str]) -> Tensor:
        """Turn label names into unit vectors, (n, d)."""
        rows = [self.module.ids(" " + name) for name in names]
        # The sum points where the mean does, and is zero where nothing was written.
        vectors = torch.stack([self._embeddings[row].sum(0) for row in rows])
        return functional.normalize(vectors, dim=1)


@dataclass(kw_only=True, eq=False)
class VAG(VanillaG):
    """Vocabulary-aware label generation (Shao et al. 2023).

    *Vocabulary sparsity.* The loss's softmax runs over the tokens of the current task's label
    names alone, so learning a task pushes no other word down. *Label-based pseudo-replay.* For
    every earlier class, its label's name with words inserted serves as a text of that class, under
    the vocabulary of its own task. *Prediction.* The model writes a name with the whole vocabulary
    of all labels seen, and the label nearest in embedding is the answer.

    The authors insert words that RoBERTa-large proposes; here a word's nearest neighbours in the
    backbone's own embeddings are inserted, which needs no second model.

    `replay_ratio` is the number of pseudo-samples of an earlier class relative to the current
    task's samples per class, `replay_weight` the weight of their loss. After a fraction `insertion`
    of a label's tokens, at least one, a neighbour is inserted.
    """

    replay_ratio: float = 0.1
    replay_weight: float = 1.0
    insertion: float = 0.3

    def __post_init__(self) -> None:
        super().__post_init__()
        self._task_of: list[int] = []  # of each class
        self._allowed = torch.zeros(0, self.module.size, dtype=torch.bool, device=self._device)

    def _learn(self, texts: list[str], labels: list[Any]) -> None:
        codes = self._codes(labels)
        first_new = len(self._task_of)
        self._task_of += [self.n_tasks_] * (len(self.classes_) - first_new)
        self._allowed = torch.cat([self._allowed, self.vocabulary(sorted(set(labels)))[None]])
        per_class = len(texts) / len(set(labels))
        replayed = self.label_replay(first_new, max(1, int(per_class * self.replay_ratio)))
        tasks = [self.n_tasks_] * len(texts) + [self._task_of[code] for _, code in replayed]
        replay = [False] * len(texts) + [True] * len(replayed)
        columns = {"task": torch.tensor(tasks), "replay": torch.tensor(replay)}
        ids = [self._text_ids(text) for text in texts] + [text for text, _ in replayed]
        self._fit_pairs(ids, codes + [code for _, code in replayed], columns)

    def vocabulary(self, labels: list[Any]) -> Tensor:
        """Mark the tokens that writing these labels can take, (vocabulary,)."""
        allowed = torch.zeros(self.module.size, dtype=torch.bool, device=self._device)
        for label in labels:
            allowed[self.module.target(self._label_ids(label))] = True
        return allowed

    def label_replay(self, n_classes: int, count: int) -> list[tuple[list[int], int]]:
        """`count` augmented names of each of the first `n_classes` classes, with the class."""
        if self.replay_ratio == 0:
            return []
        rng = np.random.default_rng([self.seed, self.n_tasks_, 2])
        return [
            (self._augment(self._label_ids(self.classes_[code]), rng), code)
            for code in range(n_classes)
            for _ in range(count)
        ]

    def _augment(self, ids: list[int], rng: np.random.Generator) -> list[int]:
        """Insert neighbours of some tokens after them."""
        chosen = rng.random(len(ids)) < self.insertion
        chosen[rng.integers(len(ids))] = True
        augmented = []
        for token, insert in zip(ids, chosen, strict=True):
            augmented.append(token)
            if insert:
                similarity = self._embeddings @ self._embeddings[token]
                augmented.append(int(similarity.topk(6).indices[1:][rng.integers(5)]))
        return augmented

    def _loss(self, batch: Batch) -> Tensor:
        logits, targets = self.module.logits(batch["ids"], batch["ids_mask"], batch["targets"])
        masked = mask_vocabulary(logits, self._allowed[batch["task"]][:, None])
        losses = token_loss(masked, targets)
        new, replay = _mean(losses, ~batch["replay"]), _mean(losses, batch["replay"])
        return new + self.replay_weight * replay

    def _processors(self) -> list[Any]:
        return [lambda _, scores: mask_vocabulary(scores, self._allowed.any(0))]


def _mean(values: Tensor, chosen: Tensor) -> Tensor:
    """Mean of the chosen values, 0 where there are none."""
    return (values * chosen).sum() / chosen.sum().clamp(min=1)


def mask_vocabulary(logits: Tensor, allowed: Tensor) -> Tensor:
    """Scores whose softmax gives probability zero to every token that isn't allowed."""
    return logits.masked_fill(~allowed, float("-inf"))
