"""The paper, reproducible: data sets, protocol, methods, tables and figures.

Flow, one way: :mod:`~klda_bench.datasets` finds rows, :mod:`~klda_bench.protocol`
shows them to a method task by task, :mod:`~klda_bench.metrics` reduces what came out,
:mod:`~klda_bench.results` keeps it, :mod:`~klda_bench.suite` walks the grid, and
:mod:`~klda_bench.tables`, :mod:`~klda_bench.figures` and
:mod:`~klda_bench.report` show it. The classifiers are used through their public API only.
"""

from __future__ import annotations
