"""The reference data and tiny models, found as klda's own tests find them."""

from tests.conftest import data_dir, tiny_dinov2

__all__ = ["data_dir", "tiny_dinov2"]
