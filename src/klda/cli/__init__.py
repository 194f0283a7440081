"""The command line: ``klda learn``, ``predict``, ``evaluate`` and the rest.

Results go to standard output and nothing else does; progress and messages go to standard error.
Exit codes: 0 success, 1 something is wrong with the data or the model, 2 wrong usage, 130
interrupted.
"""

from __future__ import annotations

from typing import Any


def main() -> None:
    """Run the command line."""
    import signal
    import warnings

    from klda.cli.app import app
    from klda.cli.console import say

    def show(message: Any, category: type[Warning], *place: Any, **more: Any) -> None:
        if category.__name__ != "SimilarClassWarning":  # commands say that with the command to use
            say(str(message))

    warnings.showwarning = show
    try:
        app(prog_name="klda")
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the exit status is settled
