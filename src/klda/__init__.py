"""Teach a classifier new classes for ever, without forgetting and without keeping the data."""

from __future__ import annotations

__version__ = "0.1.0"
