"""The reference data, found as klda's own tests find it."""

from tests.conftest import data_dir

__all__ = ["data_dir"]
