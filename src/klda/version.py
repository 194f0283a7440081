"""The version, where every room can import it without importing all others."""

__version__ = "0.3.0.dev0"
