"""Teach SetFit and klda the demo's twenty intents, 16 texts of each, on the same model.

pip install -e . -e "bench[peers]"
OMP_NUM_THREADS=1 python tools/compare_setfit.py
"""

from __future__ import annotations

import time

from klda_bench.at_work.programs import PROGRAMS
from klda_bench.demo.texts import examples

learn = [each for each in examples() if each.part == "learn"]
test = [each for each in examples() if each.part == "test"]
for name in ("klda", "setfit"):
    start, program = time.process_time(), PROGRAMS[name].make()
    program.learn([each.text for each in learn], [each.intent for each in learn])
    answers = program.predict([each.text for each in test])
    right = sum(a == each.intent for a, each in zip(answers, test, strict=True))
    seconds = time.process_time() - start
    print(f"{PROGRAMS[name].title}: {right / len(test):.1%}, {seconds:.1f} s of CPU")
