"""What a user chooses: of the features when the first samples come, of the solution at any time."""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from klda.checks import check_count
from klda.engine.arrays import Array, Backend
from klda.engine.feature_map import (
    GAMMA_SCALE,
    RANDOM_FEATURES,
    Draw,
    FeatureMap,
    FourierMap,
    IdentityMap,
    median_squared_distance,
)
from klda.errors import KldaError
from klda.labels import as_python
from klda.version import __version__

CHOICES = {
    "dtype": ("float32", "float64"),
    "priors": ("auto", "uniform", "empirical"),
    "random_features": RANDOM_FEATURES,
    "rule": ("auto", "lda"),
}


MOST_SEEDS = 1 << 32  # that NumPy takes


@dataclass(frozen=True)
class Parameters:
    """The parameters of `klda.KLDA`; those of `klda.LDA` have no random features.

    Attributes
    ----------
    n_components : int or None
        Number of random features; None for the features as they are.
    """

    n_components: int | None = 5000
    gamma: float | str = "auto"
    ridge: float | str = "auto"
    random_features: str = "gaussian"
    small_sample_correction: bool = True
    calibrated: bool = True
    priors: str = "auto"
    rule: str = "auto"
    blocks: tuple[int, ...] | None = None
    random_state: Any = 0
    device: str = "auto"
    dtype: str = "float32"

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            value = getattr(self, name)
            if not isinstance(value, str) or value not in choices:
                raise KldaError(
                    f"{name}={value!r} is not known; use one of {', '.join(map(repr, choices))}."
                )
        if self.n_components is not None:
            check_count("n_components", self.n_components)
        if self.blocks is not None:
            object.__setattr__(self, "blocks", checked_blocks(self.blocks))
        for name in ("gamma", "ridge"):
            value = getattr(self, name)
            is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
            is_auto = isinstance(value, str) and value == "auto"
            if not (is_auto or (is_number and np.isfinite(value) and value > 0)):
                raise KldaError(
                    f"{name}={value!r} can't be used; give a number above 0, or 'auto'."
                )

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Parameters:
        """Take those that there are from a classifier's, without random features if it has none."""
        names = {each.name for each in fields(cls)}
        known = {name: value for name, value in given.items() if name in names}
        if "n_components" not in given:
            known |= {"n_components": None, "rule": "lda"}
        return cls(**known)

    @property
    def last_block(self) -> int:
        """The first feature of the last block of a row."""
        return sum(self.blocks[:-1]) if self.blocks else 0

    def stored(self) -> dict[str, Any]:
        """Return them as JSON has them; the features drawn with a generator are stored."""
        values = {name: as_python(value) for name, value in asdict(self).items()}
        values["blocks"] = list(self.blocks) if self.blocks else None
        if not isinstance(values["random_state"], int | None):
            values["random_state"] = None
        return values

    @classmethod
    def of_stored(cls, values: Mapping[str, Any]) -> Parameters:
        """Return the parameters that `stored` gave."""
        unknown = sorted(values.keys() - {each.name for each in fields(cls)})
        if unknown:
            raise KldaError(
                "The model was made by a newer version of klda: it has a parameter "
                f"{unknown[0]!r}, which klda {__version__} does not know. Upgrade klda."
            )
        blocks = values.get("blocks")
        return cls(**{**values, "blocks": tuple(blocks) if blocks else None})

    def scoring(self) -> tuple[Any, ...]:
        """Return those that the scores of a model depend on."""
        return (self.ridge, self.priors, self.small_sample_correction, self.rule, self.blocks)

    def feature_map(self, rows: Array, backend: Backend) -> FeatureMap:
        """Return the feature map of a new model, given its first samples."""
        blocks, width = tuple(self.blocks or ()), int(rows.shape[1])
        if blocks and sum(blocks) != width:
            raise KldaError(
                f"blocks={blocks} adds up to {sum(blocks)}, but rows have {width} features; "
                "give the width of each block of features."
            )
        if self.n_components is None:
            return IdentityMap(backend, backend.asarray(rows).mean(0))
        gamma = self.gamma
        if isinstance(gamma, str):
            gamma = GAMMA_SCALE / median_squared_distance(rows)
            gamma = float(f"{gamma:.6g}")  # the same, whatever machine has rounded its last digits
        draw = Draw(self.random_features, random_key(self.random_state))
        size = int(self.n_components)
        return FourierMap(backend, width, size, float(gamma), draw)


def checked_blocks(blocks: Any) -> tuple[int, ...]:
    """Return widths of blocks; raise if these are none."""
    given = tuple(blocks) if isinstance(blocks, Sequence | np.ndarray) else ()
    if not given or not all(isinstance(one, int | np.integer) and one > 0 for one in given):
        raise KldaError(
            f"blocks={blocks!r} can't be used; give the width of each block of features, such as "
            "(1152, 384)."
        )
    return tuple(int(one) for one in given)


def random_key(random_state: Any) -> int:
    """Return the key of the random features that a seed, a generator or chance gives."""
    if isinstance(random_state, np.random.RandomState):
        rng = random_state
    elif random_state is None:
        rng = np.random.RandomState()
    elif isinstance(random_state, int | np.integer) and 0 <= random_state < MOST_SEEDS:
        rng = np.random.RandomState(int(random_state))
    else:
        raise KldaError(
            f"random_state={random_state!r} can't be used; give an integer from 0 to 2^32 - 1, a "
            "numpy.random.RandomState or None."
        )
    return int(rng.randint(np.iinfo(np.int64).max, size=1, dtype=np.int64)[0])
