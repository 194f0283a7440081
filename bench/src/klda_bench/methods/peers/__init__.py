"""Closed-form peers of KLDA, written from their papers' formulas.

Each module holds one method behind the protocol's interface, on NumPy and SciPy, or on tensors of
torch where ``device`` is a GPU. They are here to be compared with, not to be used: no removal, no
merge, no saved models.
"""

from __future__ import annotations

from klda_bench.methods.peers.anacp import AnaCP
from klda_bench.methods.peers.fecam import FeCAM
from klda_bench.methods.peers.relu_ridge import GACL, RanPAC
from klda_bench.methods.peers.slda import SLDA

__all__ = ["GACL", "SLDA", "AnaCP", "FeCAM", "RanPAC"]
