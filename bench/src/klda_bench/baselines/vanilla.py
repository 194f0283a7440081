"""Vanilla: fine-tune on task after task, with nothing against forgetting."""

from __future__ import annotations

from klda_bench.baselines.training import ClassifierBaseline


class Vanilla(ClassifierBaseline):
    """Plain fine-tuning in sequence, the lower bound.

    The head grows by a task's classes and cross-entropy runs over all classes seen so far, so
    every step on a new task pushes the old classes' scores down.
    """

    name = "vanilla"
