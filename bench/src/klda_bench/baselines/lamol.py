"""LAMOL: one language model answers, and rewrites samples of the tasks it has learned."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from klda_bench.baselines import generation
from klda_bench.baselines.backbones import IGNORED
from klda_bench.baselines.training import Batch, seeded

ANSWER = "<answer>"
_ROUNDS = 8  # of generation, before a task has to do with the pseudo-samples it got


@dataclass(frozen=True)
class PseudoSample:
    """A sample that the model wrote: its task's number, text and label as token ids."""

    task: int
    text: list[int]
    label: list[int]


@dataclass(kw_only=True, eq=False)
class LAMOL(generation.GenerativeBaseline):
    """Language modelling for lifelong language learning (Sun et al. 2020).

    Every sample is learned twice (section 3.2, L = L_QA + lambda L_LM): as a question, where the
    model reads the text and writes the label, and as a language model's sentence, where it reads
    only the task's token (section 3.3) and writes text and label. Before a new task the model
    writes gamma times its size in pseudo-samples, in equal shares for the earlier tasks, and they
    are learned with it. The question itself is the same for all samples and isn't rewritten.

    `gamma` is the number of pseudo-samples per real sample, `lm_weight` lambda, the weight of the
    language model's loss. Pseudo-samples are drawn among the `top_k` likeliest tokens. `question`
    stands between a text and its label.
    """

    gamma: float = 0.2
    lm_weight: float = 0.25
    top_k: int = 20
    question: str = " Which class is this text?"

    def __post_init__(self) -> None:
        super().__post_init__()
        with seeded(self.seed, self._device):
            self._answer = self.module.add_token(ANSWER)
        self.pseudo_samples_: list[PseudoSample] = []

    def task_token(self, task: int) -> int:
        """Token that stands for a task, the first being 0; made when first asked for."""
        return self.module.add_token(f"<task-{task}>")

    def _prompt(self, text: list[int]) -> list[int]:
        return [*text, *self.module.ids(self.question), self._answer]

    def _learn(self, texts: list[str], labels: list[Any]) -> None:
        task, width = self.n_tasks_, max(len(self._text_ids(text)) for text in texts)
        self.pseudo_samples_ = self.pseudo_samples(round(self.gamma * len(texts)), width)
        self._codes(labels)
        real = [
            PseudoSample(task, self._text_ids(text), self._label_ids(label))
            for text, label in zip(texts, labels, strict=True)
        ]
        self._train(self.sequences([*real, *self.pseudo_samples_]), {})

    def sequences(self, samples: list[PseudoSample]) -> dict[str, list[list[int]]]:
        """Both forms of each sample: question and answer, and the language model's sentence."""
        questions = [self._prompt(sample.text) for sample in samples]
        ids, targets = self.module.sequences(questions, [sample.label for sample in samples])
        token = {task: self.task_token(task) for task in {sample.task for sample in samples}}
        lm_ids, lm_targets = self.module.sequences(
            [[token[sample.task]] for sample in samples],
            [[*sample.text, self._answer, *sample.label] for sample in samples],
        )
        return {"ids": ids, "targets": targets, "lm_ids": lm_ids, "lm_targets": lm_targets}

    def _loss(self, batch: Batch) -> Tensor:
        both = []  # one pass through the model for both, filled up to one width
        for name, fill in (("ids", self.module.pad), ("ids_mask", 0), ("targets", IGNORED)):
            rows = [*batch[name], *batch[f"lm_{name}"]]
            both.append(pad_sequence(rows, batch_first=True, padding_value=fill))
        losses = generation.token_loss(*self.module.logits(*both))
        answers, sentences = losses.chunk(2)
        return answers.mean() + self.lm_weight * sentences.mean()

    def pseudo_samples(self, count: int, max_text: int = 64) -> list[PseudoSample]:
        """Write samples of the tasks learned so far, in equal shares.

        Texts have at most `max_text` tokens. Fewer than `count`, with a warning, where the model
        writes too many without a label.
        """
        n_tasks = self.n_tasks_
        if n_tasks == 0:
            return []
        longest = max_text + 1 + self._longest_label()
        wanted = [count // n_tasks + (task < count % n_tasks) for task in range(n_tasks)]
        kept: list[list[PseudoSample]] = [[] for _ in range(n_tasks)]
        for _ in range(_ROUNDS):
            # Twice what is missing: one long round costs less than two.
            tasks = [t for t in range(n_tasks) for _ in range(2 * (wanted[t] - len(kept[t])))]
            if not tasks:
                break
            prompts = [[self.task_token(task)] for task in tasks]
            written = self._write(prompts, max_new_tokens=longest, top_k=self.top_k)
            for task, row in zip(tasks, written, strict=True):
                sample = self._parse(task, row)
                if sample is not None and len(kept[task]) < wanted[task]:
                    kept[task].append(sample)
        samples = [sample for part in kept for sample in part]
        if len(samples) < count:
            warnings.warn(
                f"lamol wrote {len(samples)} of {count} pseudo-samples; the others had no text or "
                "no label. More epochs, or a better backbone, would help.",
                stacklevel=2,
            )
        return samples

    def _parse(self, task: int, written: list[int]) -> PseudoSample | None:
        """Cut a written sentence at its answer token; None where it has not one of each part."""
        # Task tokens have higher numbers than the answer token; they belong in front only.
        if written.count(self._answer) != 1 or max(written) > self._answer:
            return None
        cut = written.index(self._answer)
        text, label = written[:cut], written[cut + 1 :]
        return PseudoSample(task, text, label) if text and label else None

    def _predict(self, texts: list[str]) -> np.ndarray:
        prompts = [self._prompt(self._text_ids(text)) for text in texts]
        answers = self._write(prompts, max_new_tokens=self._longest_label())
        labels = [generation.label_text(label) for label in self.classes_]
        return np.array(
            [generation.closest_spelling(self.module.text(row), labels) for row in answers]
        )
