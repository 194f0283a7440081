"""Errors of work on a cluster."""

from __future__ import annotations

from klda.errors import KldaError


class ClusterError(KldaError):
    """The cluster can't be reached or can't do the work; the message says what to do."""
