"""The kernel's bandwidth for a text encoder, from fixed probe texts.

A bandwidth taken from the first batch would depend on that batch: a file learned at once and the
same file learned class by class would get different kernels, and models trained separately could
not be merged. The distance between unrelated sentences is a property of the encoder, so it is
measured on a fixed set of them: requests, questions, statements and headlines.
"""

from __future__ import annotations

from importlib import resources

from klda.encoders.encoder import Encoder
from klda.engine.feature_map import GAMMA_SCALE, median_squared_distance


def gamma_for(encoder: Encoder) -> float:
    """Return the kernel's ``gamma`` for the features of a text encoder."""
    scale = getattr(encoder, "gamma_scale", GAMMA_SCALE)
    gamma = scale / median_squared_distance(encoder.encode(_probe_texts()))
    # Rounded, so that another machine or half precision gives the same value.
    return float(f"{gamma:.2g}")


def _probe_texts() -> list[str]:
    return resources.files(__package__).joinpath("probe_texts.txt").read_text("utf-8").splitlines()
