"""``klda bench``: rerun the paper with any foundation model, method and data set; measure klda."""

from klda_bench.cli.commands import app

__all__ = ["app"]
