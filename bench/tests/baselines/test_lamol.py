from __future__ import annotations

import numpy as np
import pytest
import torch

from baselines.toys import NAMES, accuracy, make, topic_words
from klda_bench.baselines.backbones import IGNORED
from klda_bench.baselines.generation import closest_spelling, token_loss


@pytest.fixture(scope="module")
def learned(tiny, fast, tasks):
    """LAMOL after two tasks, and what it was given in the second."""
    method = make("lamol", tiny["llama"], **{**fast, "epochs": 25}, gamma=0.5)
    given = []
    build = method.sequences

    def record(samples):
        sequences = build(samples)
        given.append((samples, sequences))
        return sequences

    method.sequences = record
    method.learn_task(*tasks.first)
    method.learn_task(*tasks.second)
    return method, given


def test_pseudo_samples_enter_at_the_asked_ratio_and_none_in_the_first_task(learned, tasks):
    _, given = learned
    assert len(given[0][0]) == len(tasks.first[0])
    real = len(tasks.second[0])
    assert sum(sample.task == 1 for sample in given[1][0]) == real
    assert sum(sample.task == 0 for sample in given[1][0]) == real // 2


def test_pseudo_samples_carry_their_own_tasks_token(learned):
    method, given = learned
    first, second = method.task_token(0), method.task_token(1)
    assert first != second
    samples, sequences = given[1]
    for sample, ids, targets in zip(
        samples, sequences["lm_ids"], sequences["lm_targets"], strict=True
    ):
        token = first if sample.task == 0 else second
        assert ids[0] == token
        assert targets[0] == IGNORED
        assert ids.count(first) + ids.count(second) == 1
        assert ids[1:] == targets[1:]
        assert ids[1:-1] == [*sample.text, method._answer, *sample.label]
    # The question's form has no task token: at test time nobody knows the task.
    assert not any({first, second} & set(ids) for ids in sequences["ids"])


def test_pseudo_samples_are_written_in_their_tasks_words(learned):
    method, _ = learned
    words = {word for label in NAMES[:2] for word in topic_words(label)}
    others = {word for label in NAMES[2:] for word in topic_words(label)}
    texts = " ".join(method.module.text(s.text) for s in method.pseudo_samples_).split()
    assert sum(word in words for word in texts) > 10 * sum(word in others for word in texts)
    names = {label.replace("_", " ") for label in NAMES[:2]}
    written = [method.module.text(s.label) for s in method.pseudo_samples_]
    assert np.mean([name in names for name in written]) > 0.8


def test_the_rehearsal_is_what_keeps_the_first_task(learned, tiny, fast, tasks):
    method, _ = learned
    without = make("lamol", tiny["llama"], **{**fast, "epochs": 25}, gamma=0.0)
    without.learn_task(*tasks.first)
    without.learn_task(*tasks.second)
    assert without.pseudo_samples_ == []
    assert accuracy(method, tasks.second_test) > 0.9
    assert accuracy(method, tasks.first_test) > accuracy(without, tasks.first_test) + 0.3


def test_the_loss_is_question_plus_weighted_language_model(learned):
    method, given = learned
    method.module.eval()
    sequences = {name: rows[:3] for name, rows in given[1][1].items()}
    from klda_bench.baselines.training import Rows

    padding = {n: IGNORED if n.endswith("targets") else 0 for n in sequences}
    rows = Rows(sequences=sequences, padding=padding, device=torch.device("cpu"))
    batch = rows.take(np.arange(3))
    with torch.no_grad():
        losses = []
        for kind in ("", "lm_"):
            ids, mask = batch[f"{kind}ids"], batch[f"{kind}ids_mask"]
            log_p = method.module.model(input_ids=ids, attention_mask=mask).logits.log_softmax(-1)
            rows_nll = []
            for row, target in enumerate(batch[f"{kind}targets"].tolist()):
                nll = [-log_p[row, i - 1, t] for i, t in enumerate(target) if t != IGNORED]
                rows_nll.append(torch.stack(nll).mean())
            losses.append(torch.stack(rows_nll).mean())
        torch.testing.assert_close(method._loss(batch), losses[0] + 0.25 * losses[1])


def test_token_loss_ignores_positions_without_a_target():
    logits = torch.randn(2, 3, 5)
    targets = torch.tensor([[1, IGNORED, 4], [IGNORED, 2, IGNORED]])
    log_p = logits.log_softmax(-1)
    by_hand = torch.stack([-(log_p[0, 0, 1] + log_p[0, 2, 4]) / 2, -log_p[1, 1, 2]])
    torch.testing.assert_close(token_loss(logits, targets), by_hand)


def test_a_misspelt_answer_goes_to_the_closest_label():
    labels = ["card lost", "card arrival", "top up"]
    assert closest_spelling("top up", labels) == 2
    assert closest_spelling("card arived", labels) == 1
