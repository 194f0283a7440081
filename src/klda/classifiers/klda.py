"""Linear Discriminant Analysis of random features of a kernel."""

from __future__ import annotations

import numbers
from typing import Any, Self

import numpy as np
from sklearn.utils import check_random_state

from klda.backend import Array, choose_backend, is_torch
from klda.checks import check_choice, check_number
from klda.classifiers.discriminants import DiscriminantClassifier
from klda.kernel import GAMMA_SCALE, RANDOM_FEATURES, FourierFeatures, median_squared_distance
from klda.member import Member
from klda.statistics import ClassStatistics


class KLDA(DiscriminantClassifier):
    """Kernel LDA: random Fourier features of an RBF kernel, then LDA in their space.

    Parameters
    ----------
    n_components : int
        Number of random features D.
    gamma : float or "auto"
        The kernel is ``exp(-gamma ||x - y||^2)``. ``"auto"`` takes it from the distances in the
        first batch; afterwards it is fixed. What the paper calls sigma is this gamma.
    ridge : float or "auto"
        Added to the covariance's diagonal, relative to its mean. Rounded to eight steps an octave.
        ``"auto"`` is ``0.1 D / N`` for N samples and D components up to N = D, and falls to 0.01 at
        N = 2 D.
    random_features : {"gaussian", "orthogonal"}
        How the random directions are drawn.
    small_sample_correction : bool
        Estimate the means of rare classes with the help of the others, and repair the bias
        against them.
    calibrated : bool
        Judge some of the samples learned as if they had not been, to make probabilities honest
        and to find the threshold of `is_known`.
    priors : {"auto", "uniform", "empirical"}
        Whether classes count alike or by their number of samples. ``"auto"`` lets numbers that
        differ by more than chance speak, and leaves classes alike where most are of one size.
    random_state : int, RandomState or None
        Seed of the random features. Models merge only if they were drawn alike.
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
        self.random_state = random_state
        self.device = device
        self.dtype = dtype

    @classmethod
    def paper(cls, *, gamma: float, **parameters: Any) -> Self:
        """Return exactly the paper's method.

        Gaussian features, D = 5000, a ridge of 1e-3 for numerical safety only, no small-sample
        correction, uniform priors.

        Parameters
        ----------
        gamma : float
            The kernel parameter (the paper's "sigma").
        **parameters
            Other parameters of the constructor, such as ``random_state`` or ``device``.
        """
        settings: dict[str, Any] = {
            "n_components": 5000,
            "ridge": 1e-3,
            "random_features": "gaussian",
            "small_sample_correction": False,
            "calibrated": False,
            "priors": "uniform",
        }
        return cls(gamma=gamma, **(settings | parameters))

    @property
    def gamma_(self) -> float:
        """The kernel parameter in use."""
        self._check_started()
        kernel = self._members[0].kernel
        assert kernel is not None
        return kernel.gamma

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_number("n_components", self.n_components, kind=numbers.Integral)
        check_choice("random_features", self.random_features, RANDOM_FEATURES)
        if isinstance(self.gamma, str):
            check_choice("gamma", self.gamma, ("auto",))
        else:
            check_number("gamma", self.gamma)

    def _draw_members(self, samples: Array) -> list[Member]:
        backend = choose_backend(self.device, self.dtype, samples)
        rng = check_random_state(self.random_state)
        gamma = self.gamma
        if gamma == "auto":
            values = samples.cpu().numpy() if is_torch(samples) else samples
            gamma = GAMMA_SCALE / median_squared_distance(values)
        members = []
        for _ in range(self._n_members()):
            kernel = FourierFeatures.draw(
                int(samples.shape[1]),
                int(self.n_components),
                gamma=float(gamma),
                kind=self.random_features,
                rng=rng,
                backend=backend,
            )
            members.append(Member(backend, kernel, ClassStatistics(self.n_components, backend)))
        return members

    def _n_members(self) -> int:
        return 1
