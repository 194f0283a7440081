"""Closed-form peers of KLDA, written from their papers' formulas in torch, for CPU and GPU.

Each module holds one method behind the protocol's interface. They are here to be compared with, not
to be used: no removal, no merge, no saved models.
"""

from __future__ import annotations

from klda_bench.environment import require

require("torch", "baselines")
