"""Errors that klda raises on bad input or a missing part."""

from __future__ import annotations


class KldaError(ValueError):
    """Base of all errors that name a parameter, what was given, and the fix."""


class MissingDependencyError(KldaError, ImportError):
    """A part of klda needs a package that is not installed."""
