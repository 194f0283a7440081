"""Foundation models whose weights come in Python packages, and features kept on disk."""

from klda_bench.models.packaged import MODELS

__all__ = ["MODELS"]
