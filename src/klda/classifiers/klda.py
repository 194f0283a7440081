"""Linear Discriminant Analysis of random features of a kernel."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.utils import check_random_state

from klda.classifiers.base import ContinualClassifier
from klda.engine.arrays import Array, Backend
from klda.engine.feature_map import GAMMA_SCALE, Draw, FeatureMap, median_squared_distance
from klda.errors import KldaError

PAPER: dict[str, Any] = {
    "n_components": 5000,
    "ridge": 1e-3,
    "random_features": "gaussian",
    "small_sample_correction": False,
    "calibrated": False,
    "priors": "uniform",
    "rule": "lda",
}


class KLDA(ContinualClassifier):
    """Kernel LDA: random Fourier features of an RBF kernel, then LDA in their space.

    Parameters
    ----------
    n_components : int
        Number of random features D.
    gamma : float or "auto"
        The kernel is ``exp(-gamma ||x - y||^2)``. ``"auto"`` takes it from the distances in the
        first batch; afterwards it is fixed. What the paper calls sigma is this gamma.
    ridge : float or "auto"
        Added to the covariance's diagonal, relative to its mean. Rounded to eight steps per
        octave. ``"auto"`` is ``0.1 D / N`` for N samples and D components up to N = D, and falls
        to 0.01 at N = 2 D; larger while there are few samples of each class.
    random_features : {"gaussian", "orthogonal"}
        How the random directions are drawn.
    small_sample_correction : bool
        Estimate the means of rare classes with the help of the others, and correct the bias
        against them.
    calibrated : bool
        Score some of the samples learned as if they had not been, to calibrate probabilities and
        to find the threshold of `is_known`.
    priors : {"auto", "uniform", "empirical"}
        Prior probabilities: equal, or class frequencies. ``"auto"`` uses class frequencies when
        they differ significantly.
    rule : {"auto", "lda"}
        ``"lda"`` is the paper's: the nearest class mean. ``"auto"`` adds ridge regression onto the
        classes, from the same statistics; see `klda.engine.rule`.
    blocks : tuple of int, optional
        Widths of the blocks that a row consists of, such as the layers of a network. While there
        are few samples, the blocks before the last are weighted by what the samples favour.
    random_state : int, RandomState or None
        Seed of the random features. Models can be merged only if they have the same ones.
    device : str
        ``"auto"``, ``"cpu"``, or a torch device such as ``"cuda"``.
    dtype : {"float32", "float64"}
        Precision of features and statistics.

    Examples
    --------
    >>> import numpy as np
    >>> from klda import KLDA
    >>> rng = np.random.default_rng(0)
    >>> model = KLDA(n_components=256, random_state=0)
    >>> model = model.partial_fit(rng.normal(0, 1, (20, 8)), ["cats"] * 20)
    >>> model = model.partial_fit(rng.normal(3, 1, (20, 8)), ["dogs"] * 20)
    >>> model.predict(rng.normal(3, 1, (2, 8))).tolist()
    ['dogs', 'dogs']
    """

    def __init__(
        self,
        *,
        n_components: int = 5000,
        gamma: float | str = "auto",
        ridge: float | str = "auto",
        random_features: str = "gaussian",
        small_sample_correction: bool = True,
        calibrated: bool = True,
        priors: str = "auto",
        rule: str = "auto",
        blocks: tuple[int, ...] | None = None,
        random_state: int | np.random.RandomState | None = None,
        device: str = "auto",
        dtype: str = "float32",
    ) -> None:
        self.n_components = n_components
        self.gamma = gamma
        self.ridge = ridge
        self.random_features = random_features
        self.small_sample_correction = small_sample_correction
        self.calibrated = calibrated
        self.priors = priors
        self.rule = rule
        self.blocks = blocks
        self.random_state = random_state
        self.device = device
        self.dtype = dtype

    @classmethod
    def paper(cls, *, gamma: float, **parameters: Any) -> Self:
        """Return exactly the paper's method.

        Gaussian features, D = 5000, a ridge of 1e-3 for numerical safety only, no small-sample
        correction, uniform priors, LDA's rule.

        Parameters
        ----------
        gamma : float
            The kernel parameter (the paper's "sigma").
        **parameters
            Other parameters of the constructor, such as ``random_state`` or ``device``.
        """
        return cls(gamma=gamma, **(PAPER | parameters))

    @property
    def gamma_(self) -> float:
        """The kernel parameter in use."""
        return float(self._known().maps[0].gamma or 0.0)

    def _maps(self, samples: Array, backend: Backend) -> list[FeatureMap]:
        """Draw random Fourier features, for one member or for each of several."""
        rng = check_random_state(self.random_state)
        blocks, width = tuple(self.blocks or ()), int(samples.shape[1])
        if blocks and (min(blocks) < 1 or sum(blocks) != width):
            raise KldaError(
                f"blocks={blocks} adds up to {sum(blocks)}, but rows have {width} features; give "
                "the width of each block of features."
            )
        members = int(getattr(self, "n_members", 1))
        keys = rng.randint(np.iinfo(np.int64).max, size=members, dtype=np.int64).tolist()
        gamma = self.gamma
        if gamma == "auto":
            gamma = GAMMA_SCALE / median_squared_distance(samples)
            gamma = float(f"{gamma:.6g}")  # the same, whatever machine has rounded its last digits
        draws = [Draw(self.random_features, key) for key in keys]
        size, gamma = int(self.n_components), float(gamma)
        return [FeatureMap(backend, width, size, gamma, draw, blocks=blocks) for draw in draws]


class KLDAEnsemble(KLDA):
    """KLDA-E: the average of several KLDA models with different random features.

    Scores are averaged by default: measured on the paper's data sets this is level with the
    paper's averaging of probabilities or ahead of it by up to 0.3 points.

    Parameters
    ----------
    n_members : int
        Number of models.
    combine : {"scores", "probabilities"}
        What is averaged.
    n_components, gamma, ridge, random_features, small_sample_correction, calibrated, priors, \
rule, blocks, random_state, \
device, dtype
        As for `KLDA`.
    """

    def __init__(
        self,
        *,
        n_members: int = 5,
        combine: str = "scores",
        n_components: int = 5000,
        gamma: float | str = "auto",
        ridge: float | str = "auto",
        random_features: str = "gaussian",
        small_sample_correction: bool = True,
        calibrated: bool = True,
        priors: str = "auto",
        rule: str = "auto",
        blocks: tuple[int, ...] | None = None,
        random_state: int | np.random.RandomState | None = None,
        device: str = "auto",
        dtype: str = "float32",
    ) -> None:
        super().__init__(
            n_components=n_components,
            gamma=gamma,
            ridge=ridge,
            random_features=random_features,
            small_sample_correction=small_sample_correction,
            calibrated=calibrated,
            priors=priors,
            rule=rule,
            blocks=blocks,
            random_state=random_state,
            device=device,
            dtype=dtype,
        )
        self.n_members = n_members
        self.combine = combine

    @classmethod
    def paper(cls, *, gamma: float, **parameters: Any) -> Self:
        """Return exactly the paper's KLDA-E: five members, averaged probabilities."""
        return cls(gamma=gamma, **(PAPER | {"combine": "probabilities"} | parameters))
