"""The fine-tuned methods that the KLDA paper compares with.

Each one trains a network, task after task: ``learn_task`` sees one task's texts and labels once,
``predict`` answers without a task id, and no real sample of an earlier task is kept. A backbone is
a klda model name, a hub name, a local folder, or a ``.gguf`` file; LAMOL and VAG need one that
writes text (BART, T5, or decoder-only, such as ``smollm2``).
"""

from __future__ import annotations

from klda_bench.environment import require

require("torch", "baselines")
require("transformers", "baselines")
