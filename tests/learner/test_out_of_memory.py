"""Running out of memory before anything changed leaves the model as it was."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

# A process of its own: the limit is real, and holds for all that runs in it.
SCRIPT = """
import resource
import sys

import numpy as np

from klda import KLDA, Learner

rng = np.random.default_rng(0)
small = rng.normal(size=(40, 8)).astype(np.float32)
small[20:] += 5
names = ["a"] * 20 + ["b"] * 20
large = rng.normal(size=(4000, 8)).astype(np.float32)
learner = Learner("features", classifier=KLDA(gamma=0.02, random_state=0, device="cpu"))
learner.learn(small, names)
before = learner.scores(small)
pages = int(open("/proc/self/statm").read().split()[0])
held = pages * resource.getpagesize()
_, hard = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (held + (8 << 20), hard))
try:
    change = learner.learn if sys.argv[1] == "learn" else learner.classifier.partial_fit
    change(large, ["c"] * len(large))
except MemoryError:
    pass
else:
    sys.exit("the limit was not reached")
finally:
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
assert learner.classes == {"a": 20, "b": 20}
np.testing.assert_array_equal(learner.scores(small), before)
assert learner.learn(large, ["c"] * len(large)).classes["c"] == len(large)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits its address space as Linux does")
@pytest.mark.parametrize("verb", ["learn", "partial_fit"])
def test_a_learn_without_memory_for_it_leaves_the_model_whole(verb):
    done = subprocess.run([sys.executable, "-c", SCRIPT, verb], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
