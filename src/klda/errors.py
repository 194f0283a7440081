"""Errors that klda raises on bad input or a missing package."""

from __future__ import annotations

import importlib
import re
from typing import Any

# What libraries and threads that can't be loaded or started for lack of memory say; and Python, if
# not even an error has room.
_NO_MEMORY = re.compile(
    r"failed to map segment|annot allocate memory|can't start new thread"
    r"|returned NULL without setting an exception"
)


class KldaError(ValueError):
    """Base of all errors that name a parameter, what was given, and the fix."""


class MissingDependencyError(KldaError, ImportError):
    """A part of klda needs a package that is not installed."""


def is_lack_of_memory(error: BaseException) -> bool:
    """Whether there was not enough memory, whichever library or call noticed it."""
    if isinstance(error, (OSError, ImportError, RuntimeError, SystemError)):
        return _NO_MEMORY.search(str(error)) is not None
    return isinstance(error, MemoryError)


def require(module: str, extra: str, install: str | None = None) -> Any:
    """Import a module of an optional dependency.

    Parameters
    ----------
    module : str
        Dotted module name.
    extra : str
        The extra that installs it, as in ``pip install "klda[extra]"``.
    install : str, optional
        The command that installs it, if it is another one.

    Returns
    -------
    module
        The imported module.

    Raises
    ------
    MissingDependencyError
        If the module is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or module.split(".")[0] != error.name.split(".")[0]:
            raise
        install = install or f'pip install "klda[{extra}]"'
        raise MissingDependencyError(
            f"This needs the package {module.split('.')[0]!r}, which is not installed. "
            f"Install it with: {install}"
        ) from error
