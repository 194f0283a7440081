from __future__ import annotations

import numpy as np
import pytest
import torch

from baselines.toys import NAMES, accuracy, make


def learn_recorded(method, task):
    """Learn a task and keep every batch's masked scores, targets and replay flags."""
    seen = []
    import klda_bench.baselines.vag as vag

    real = vag.token_loss

    def record(masked, targets):
        seen.append((masked.detach(), targets))
        return real(masked, targets)

    vag.token_loss = record
    try:
        method.learn_task(*task)
    finally:
        vag.token_loss = real
    return seen


@pytest.mark.parametrize("kind", ["bart", "t5", "llama"])
def test_no_step_gives_probability_to_a_masked_token(tiny, fast, tasks, kind):
    method = make("vag", tiny[kind], **{**fast, "epochs": 2}, replay_ratio=0)
    words = {i for label in NAMES[:2] for i in method.module.target(method._label_ids(label))}
    masked_out = [i for i in range(method.module.size) if i not in words]
    steps = learn_recorded(method, tasks.first)
    assert steps
    for scores, targets in steps:
        probability = scores.softmax(-1)
        assert float(probability[..., masked_out].max()) == 0.0
        torch.testing.assert_close(probability.sum(-1), torch.ones(scores.shape[:2]))
        assert set(targets[targets >= 0].tolist()) <= words


@pytest.mark.parametrize("kind", ["bart", "llama"])
def test_a_replayed_label_is_learned_under_its_own_tasks_words(tiny, fast, tasks, kind):
    method = make("vag", tiny[kind], **{**fast, "epochs": 1}, replay_ratio=0.25)
    method.learn_task(*tasks.first)
    given = []
    train = method._train

    def record(sequences, columns):
        given.append((sequences, columns))
        train(sequences, columns)

    method._train = record
    method.learn_task(*tasks.second)
    ((sequences, columns),) = given
    replay = columns["replay"].numpy()
    per_class = int(len(tasks.second[0]) / 2 * 0.25)
    assert replay.sum() == 2 * per_class  # two earlier classes
    assert set(columns["task"].numpy()[replay]) == {0}
    assert set(columns["task"].numpy()[~replay]) == {1}
    names = [method._label_ids(label) for label in NAMES[:2]]
    for row in np.flatnonzero(replay):
        prompt, target = sequences["ids"][row], [t for t in sequences["targets"][row] if t >= 0]
        name = next(n for n in names if target == method.module.target(n))
        assert all(token in prompt for token in name)
        assert len(prompt) > len(method.module.source(method._prompt(name))) - 0
    first = method.vocabulary(NAMES[:2])
    assert torch.equal(method._allowed[0], first)


@pytest.mark.parametrize("kind", ["bart", "t5", "llama"])
def test_only_words_of_known_labels_are_written(tiny, fast, tasks, kind):
    method = make("vag", tiny[kind], **{**fast, "epochs": 1})
    method.learn_task(*tasks.first)
    written = []
    generate = method.module.generate

    def record(*args, **kwargs):
        rows = generate(*args, **kwargs)
        written.extend(rows)
        return rows

    method.module.generate = record
    method.predict(tasks.all_test[0])
    allowed = set(torch.nonzero(method._allowed.any(0)).flatten().tolist())
    assert written
    assert {token for row in written for token in row} <= allowed


def test_masking_and_replay_forget_less_than_neither(tiny, fast, tasks):
    kept = {}
    for ratio in (0.0, 1.0):
        method = make("vag", tiny["llama"], **{**fast, "epochs": 20}, replay_ratio=ratio)
        method.learn_task(*tasks.first)
        assert accuracy(method, tasks.first_test) > 0.9
        method.learn_task(*tasks.second)
        assert accuracy(method, tasks.second_test) > 0.9
        names = [label.replace("_", " ") for label in NAMES[:2]]
        kept[ratio] = np.mean(method.predict(names) == np.array(NAMES[:2]))
    assert kept[1.0] == 1.0
    assert kept[1.0] >= kept[0.0]
