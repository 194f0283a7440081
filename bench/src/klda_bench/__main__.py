"""``python -m klda_bench``: the same commands as ``klda bench``."""

from __future__ import annotations

from klda_bench.cli import app

if __name__ == "__main__":
    app(prog_name="python -m klda_bench")
