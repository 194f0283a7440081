"""The paper, reproducible: data sets, protocol, methods, tables and figures.

Flow, one way: :mod:`~klda.benchmarks.datasets` finds rows, :mod:`~klda.benchmarks.protocol`
shows them to a method task by task, :mod:`~klda.benchmarks.metrics` reduces what came out,
:mod:`~klda.benchmarks.results` keeps it, :mod:`~klda.benchmarks.suite` walks the grid, and
:mod:`~klda.benchmarks.tables`, :mod:`~klda.benchmarks.figures` and
:mod:`~klda.benchmarks.report` show it. The classifiers are used through their public API only.
"""

from __future__ import annotations
