"""``python -m klda.benchmarks``: the same commands as ``klda bench``."""

from __future__ import annotations

from klda.cli.bench import app

if __name__ == "__main__":
    app(prog_name="python -m klda.benchmarks")
