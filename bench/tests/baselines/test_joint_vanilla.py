from __future__ import annotations

import pytest

from baselines.toys import accuracy, make


@pytest.mark.parametrize("kind", ["bert", "bart", "t5"])
def test_vanilla_forgets_the_first_task_and_joint_does_not(tiny, fast, tasks, kind):
    vanilla = make("vanilla", tiny[kind], **fast)
    vanilla.learn_task(*tasks.first)
    learned = accuracy(vanilla, tasks.first_test)
    vanilla.learn_task(*tasks.second)
    assert learned > 0.9
    assert accuracy(vanilla, tasks.second_test) > 0.9
    assert accuracy(vanilla, tasks.first_test) < learned / 2

    joint = make("joint", tiny[kind], **fast)
    joint.learn_task(*tasks.all)
    assert accuracy(joint, tasks.first_test) > 0.9
    assert accuracy(joint, tasks.second_test) > 0.9
