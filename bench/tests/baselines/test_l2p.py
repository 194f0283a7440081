from __future__ import annotations

import numpy as np
import pytest
import torch

from baselines.toys import accuracy, make
from klda.errors import KldaError


@pytest.mark.parametrize("kind", ["bert", "bart", "t5"])
def test_the_backbone_stays_bit_identical_and_the_prompts_learn(tiny, fast, tasks, kind):
    options = {**fast, "epochs": 60, "head_lr": 3e-2, "top_n": 3, "prompt_length": 4}
    method = make("l2p", tiny[kind], **options)
    before = {n: t.clone() for n, t in method.module.encoder.state_dict().items()}
    prompts, keys = method.module.prompts.detach().clone(), method.module.keys.detach().clone()
    method.learn_task(*tasks.first)
    assert accuracy(method, tasks.first_test) > 0.8
    method.learn_task(*tasks.second)
    after = method.module.encoder.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert not torch.equal(method.module.prompts, prompts)
    assert not torch.equal(method.module.keys, keys)


def test_selection_is_the_top_n_by_cosine(tiny, fast):
    module = make("l2p", tiny["bert"], **fast, pool_size=6, top_n=3).module
    query = torch.randn(5, 32)
    chosen, distance = module.select(query)
    keys = module.keys.detach()
    for row in range(5):
        cosine = (keys @ query[row]) / (keys.norm(dim=1) * query[row].norm())
        wanted = np.argsort(-cosine.numpy())[:3]
        assert chosen[row].tolist() == wanted.tolist()
        np.testing.assert_allclose(distance[row].detach(), 1 - cosine[wanted], atol=1e-5)


def test_unselected_prompts_get_no_gradient(tiny, fast, tasks):
    method = make("l2p", tiny["bert"], **fast, pool_size=8, top_n=2)
    rows = method._rows(*[tasks.first[0], method._codes(tasks.first[1])])
    method._before_task(rows)
    method.module.head.grow(2)
    batch = rows.take(np.arange(1))
    method._loss(batch).backward()
    chosen = set(method.module.select(batch["query"])[0][0].tolist())
    moved = set(method.module.prompts.grad.flatten(1).abs().sum(1).nonzero().flatten().tolist())
    assert moved == chosen


def test_a_left_to_right_backbone_and_a_bad_pool_are_refused(tiny):
    with pytest.raises(KldaError, match="left to right"):
        make("l2p", tiny["llama"], "cpu")
    with pytest.raises(KldaError, match="top_n=5"):
        make("l2p", tiny["bert"], "cpu", pool_size=3)
