"""``python -m klda``: the command line."""

from klda.cli import main

if __name__ == "__main__":
    main()
