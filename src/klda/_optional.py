"""Import of optional dependencies, with an error that says how to install them."""

from __future__ import annotations

import importlib
from typing import Any

from klda.errors import MissingDependencyError


def require(module: str, extra: str) -> Any:
    """Import a module that one of klda's extras brings.

    Parameters
    ----------
    module : str
        Dotted module name.
    extra : str
        The extra that installs it, as in ``pip install "klda[extra]"``.

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
        raise MissingDependencyError(
            f"The package {module.split('.')[0]!r} is needed for this and is not installed. "
            f'Install it with: pip install "klda[{extra}]"'
        ) from error
