"""How messages to people count things."""

from __future__ import annotations


def counted(number: int, one: str, many: str = "") -> str:
    """Return a number with what it counts, as ``"1 class"`` or ``"1,200 classes"``."""
    plural = many or one + ("es" if one.endswith("s") else "s")
    return f"{number:,} {one if number == 1 else plural}"
