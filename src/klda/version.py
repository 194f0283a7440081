"""The version, where every room can import it without importing all others."""

__version__ = "0.2.0"
