"""Files and rows that can't be read: the errors that say which, where and how to mend them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from klda.errors import KldaError


class TableError(KldaError):
    """A file that can't be read as rows; the message names the file, the place and the fix.

    `setting` is the field of a `Layout` that would help.
    """

    def __init__(self, message: str, setting: str | None = None) -> None:
        super().__init__(message)
        self.setting = setting


class BadRowError(TableError):
    """A row that can't be used; those around it can."""


@contextmanager
def damage_named(where: Callable[[], object]) -> Iterator[None]:
    """Turn what a damaged file raises while it is read into an error that says where.

    Our own errors say it already, and a lack of memory is not the file's fault.
    """
    try:
        yield
    except (KldaError, MemoryError):
        raise
    except Exception as error:  # libraries raise almost anything
        if isinstance(error, OSError) and error.errno is not None:
            raise TableError(f"{where()}: {error.strerror}") from error
        reason = f"{type(error).__name__}: {error}".rstrip(": .")
        raise TableError(
            f"{where()}: the file is damaged, cut short, or not what its name says ({reason})."
        ) from error
