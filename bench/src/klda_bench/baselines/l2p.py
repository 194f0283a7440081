"""L2P: a frozen backbone, steered by prompts that a text selects from a learned pool."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from klda.errors import KldaError
from klda_bench.baselines.backbones import TextEncoder
from klda_bench.baselines.classifiers import ClassifierBaseline, ClassifierModule
from klda_bench.baselines.training import Batch, Rows
from klda_bench.environment import UnavailableError


class PromptedModule(ClassifierModule):
    """A frozen encoder with a pool of prompts, and a head over the prompts' outputs."""

    encoder: TextEncoder

    def __init__(self, backbone: str, pool_size: int, prompt_length: int, top_n: int) -> None:
        super().__init__(TextEncoder(backbone))
        if self.encoder.causal:
            raise UnavailableError(
                f"backbone={backbone!r} reads left to right, so prompts before a text can't see "
                "it; give l2p an encoder (BERT, minilm) or a seq2seq model (BART, T5)."
            )
        self.encoder.requires_grad_(False)
        self.top_n = top_n
        dimension = self.encoder.dimension
        # Prompts start at the size of the word embeddings that they stand beside.
        spread = self.encoder.model.get_input_embeddings().weight.detach().std()
        self.prompts = nn.Parameter(torch.randn(pool_size, prompt_length, dimension) * spread)
        self.keys = nn.Parameter(torch.empty(pool_size, dimension).uniform_(-1, 1))

    def train(self, mode: bool = True) -> PromptedModule:
        """Switch the mode of all but the encoder: its dropout would change frozen features."""
        super().train(mode)
        self.encoder.eval()
        return self

    @torch.no_grad()
    def query(self, batch: Batch) -> Tensor:
        """q(x): the frozen encoder's own feature of the text."""
        # In full precision always: a rounded query could select other prompts than in training.
        with torch.autocast(batch["ids"].device.type, enabled=False):
            return self.encoder(batch)

    def select(self, query: Tensor) -> tuple[Tensor, Tensor]:
        """Select the N nearest keys of each query (equation 3), with their cosine distances."""
        with torch.autocast(query.device.type, enabled=False):
            keys = functional.normalize(self.keys, dim=1)
            distance = 1 - functional.normalize(query, dim=1) @ keys.T
        chosen = distance.topk(self.top_n, dim=1, largest=False).indices
        return chosen, distance.gather(1, chosen)

    def prompted(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Scores of the prompted text, and the sum of the chosen keys' distances."""
        query = batch["query"] if "query" in batch else self.query(batch)
        chosen, distance = self.select(query)
        prompts = self.prompts[chosen].flatten(1, 2)
        words = self.encoder.model.get_input_embeddings()(batch["ids"])
        # Equation 2: x_p = [P_s1; ...; P_sN; x_e].
        inputs = torch.cat([prompts.to(words.dtype), words], dim=1)
        seen = batch["ids_mask"].new_ones(prompts.shape[:2])
        mask = torch.cat([seen, batch["ids_mask"]], dim=1)
        hidden = self.encoder.hidden(mask, inputs_embeds=inputs)
        # f_r^avg: the mean of the outputs at the prompts' places.
        feature = hidden[:, : prompts.shape[1]].mean(1)
        return self.head(feature).float(), distance.sum(1)

    def forward(self, batch: Batch) -> Tensor:
        """Scores of all classes so far."""
        return self.prompted(batch)[0]


@dataclass(kw_only=True, eq=False)
class L2P(ClassifierBaseline):
    """Learning to prompt (Wang et al. 2022).

    Only the prompts, their keys and the head are trained. As in the authors' code, cross-entropy
    runs over the current task's classes alone, and how often earlier tasks used a prompt does not
    count (equation 4 is left out).

    `pool_size` is M, the number of prompts; `prompt_length` L_p, tokens per prompt; `top_n` N, the
    prompts selected for a text; `pull` lambda of equation 5: how strongly the chosen keys are drawn
    to the query. Prompts and keys learn at `head_lr`.
    """

    pool_size: int = 10
    prompt_length: int = 5
    top_n: int = 5
    pull: float = 0.5

    def __post_init__(self) -> None:
        if not 1 <= self.top_n <= self.pool_size:
            raise KldaError(
                f"top_n={self.top_n} must lie between 1 and pool_size={self.pool_size}."
            )
        super().__post_init__()

    def _make_module(self) -> PromptedModule:
        return PromptedModule(self.backbone, self.pool_size, self.prompt_length, self.top_n)

    def _groups(self) -> list[tuple[float, Iterable[Tensor]]]:
        return [(self.head_lr, self._trained().values())]

    def _before_task(self, rows: Rows) -> None:
        # The backbone is frozen: a text's query never changes, so it is computed once.
        self.module.eval()
        rows.columns["query"] = rows.map(self.module.query, 2 * self.batch_size)
        present = torch.zeros(len(self.classes_), dtype=torch.bool, device=self._device)
        present[rows.columns["labels"]] = True
        self._absent = ~present

    def _loss(self, batch: Batch) -> Tensor:
        """Equation 5."""
        scores, distance = self.module.prompted(batch)
        scores = scores.masked_fill(self._absent, float("-inf"))
        return functional.cross_entropy(scores, batch["labels"]) + self.pull * distance.mean()
