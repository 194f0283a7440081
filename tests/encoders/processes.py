"""Code in a process of its own, which may lack packages."""

from __future__ import annotations

import os
import subprocess
import sys

_WITHOUT = """
import sys
from importlib.machinery import PathFinder

class Installed(PathFinder):
    @classmethod
    def find_spec(cls, name, *place):
        hidden = name.partition(".")[0] in {missing!r}
        return None if hidden else super().find_spec(name, *place)

sys.meta_path[sys.meta_path.index(PathFinder)] = Installed
"""


def run_python(code: str, *, missing: tuple[str, ...] = (), **environment: str) -> str:
    """Run code as if packages were missing; return what it prints. It must not fail or warn."""
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT.format(missing=missing) + code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr[-2000:]
    return done.stdout
