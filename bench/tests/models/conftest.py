"""The tiny random models that klda's own tests of encoders use."""

from tests.encoders.conftest import pictures, texts, tiny_models

__all__ = ["pictures", "texts", "tiny_models"]
