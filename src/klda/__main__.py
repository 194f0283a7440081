"""``python -m klda``: the ``klda`` command."""

from klda.cli import main

main()
