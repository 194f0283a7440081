from __future__ import annotations

import pytest
import torch

from baselines.toys import accuracy, make


def weights(method):
    return {name: p.detach().clone() for name, p in method.module.named_parameters()}


def test_labels_drawn_from_the_model_give_the_expected_fisher(tiny, fast, tasks):
    texts, labels = tasks.first
    method = make("ewc", tiny["bert"], **fast, fisher_samples=10_000)
    rows = method._rows(texts * 12, method._codes(labels * 12))
    method.module.head.grow(2)
    torch.manual_seed(0)
    fisher = method.fisher_diagonal(rows)
    p = method._logits(rows).softmax(1)
    expected = p * (1 - p)  # E_y (d log p(y|x) / db_k)^2 = E_y (1[y = k] - p_k)^2
    torch.testing.assert_close(fisher["head.bias"], expected.mean(0), rtol=0.15, atol=0)
    features = rows.map(method.module.encoder, 64)  # d log p / dW_k is that of b_k times x
    by_hand = (expected[:, :, None] * features[:, None, :].square()).mean(0)
    torch.testing.assert_close(fisher["head.weight"], by_hand, rtol=0.3, atol=1e-3)


def test_the_penalty_equals_the_hand_computed_sum_over_all_earlier_tasks(tiny, fast, tasks):
    method = make("ewc", tiny["bert"], **fast, fisher_samples=8)
    recorded = []
    diagonal = method.fisher_diagonal

    def record(rows):
        fisher = diagonal(rows)
        recorded.append((fisher, weights(method)))
        return fisher

    method.fisher_diagonal = record
    method.learn_task(*tasks.first)
    assert float(method.distance().detach()) == pytest.approx(0, abs=1e-9)
    method.learn_task(*tasks.second)

    def by_hand():
        """Equation 3, one quadratic for each task, in float64."""
        total = 0.0
        for fisher, anchor in recorded:
            for name, parameter in method.module.named_parameters():
                old = parameter.detach()[: len(anchor[name])].double()
                total += float((fisher[name].double() * (old - anchor[name]).square()).sum())
        return total

    # The program keeps one quadratic; it differs from the tasks' sum by a constant.
    constant = by_hand() - float(method.distance().detach())
    generator = torch.Generator().manual_seed(0)
    for size in (0.01, 0.1, 1.0):
        with torch.no_grad():
            for parameter in method.module.parameters():
                parameter += size * torch.randn(parameter.shape, generator=generator)
        assert float(method.distance().detach()) == pytest.approx(by_hand() - constant, rel=1e-3)


def test_the_penalty_pulls_weights_back(tiny, fast, tasks):
    moved = {}
    for penalty in (0.0, 1e5):
        method = make("ewc", tiny["bert"], **fast, penalty=penalty, fisher_samples=48)
        method.learn_task(*tasks.first)
        anchor, precision = weights(method), dict(method._precision)
        method.learn_task(*tasks.second)
        now = weights(method)
        moved[penalty] = sum(
            float((precision[n] * (now[n][: len(anchor[n])] - anchor[n]).square()).sum())
            for n in anchor
        )
    assert moved[1e5] < 0.1 * moved[0.0]


def test_ewc_with_no_penalty_is_vanilla(tiny, fast, tasks):
    ewc = make("ewc", tiny["bert"], **fast, penalty=0.0, fisher_samples=2)
    vanilla = make("vanilla", tiny["bert"], **fast)
    for method in (ewc, vanilla):
        method.learn_task(*tasks.first)
        method.learn_task(*tasks.second)
    assert accuracy(ewc, tasks.all_test) == accuracy(vanilla, tasks.all_test)
    torch.testing.assert_close(ewc.module.head.weight, vanilla.module.head.weight)
