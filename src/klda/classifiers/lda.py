"""Linear Discriminant Analysis of the features as they are."""

from __future__ import annotations

from klda.classifiers.discriminants import DiscriminantClassifier


class LDA(DiscriminantClassifier):
    """Linear Discriminant Analysis on the features as they are, learned class by class.

    Parameters
    ----------
    ridge : float or "auto"
        Added to the covariance's diagonal, relative to its mean. Rounded to eight steps an octave.
        ``"auto"`` is ``0.1 D / N`` for N samples and D components up to N = D, and falls to 0.01 at
        N = 2 D.
    small_sample_correction : bool
        Estimate the means of rare classes with the help of the others, and repair the bias
        against them.
    calibrated : bool
        Judge some of the samples learned as if they had not been, to make probabilities honest
        and to find the threshold of `is_known`.
    priors : {"auto", "uniform", "empirical"}
        Whether classes count alike or by their number of samples. ``"auto"`` lets numbers that
        differ by more than chance speak, and leaves classes alike where most are of one size.
    device : str
        ``"auto"``, ``"cpu"``, or a torch device such as ``"cuda"``.
    dtype : {"float32", "float64"}
        Precision of the statistics.

    Examples
    --------
    >>> from klda import LDA
    >>> model = LDA().partial_fit([[0.0, 0.1], [0.2, 0.0]], ["a", "a"])
    >>> model = model.partial_fit([[1.0, 1.1], [1.2, 1.0]], ["b", "b"])
    >>> model.predict([[0.9, 0.9]]).tolist()
    ['b']
    """

    def __init__(
        self,
        *,
        ridge: float | str = "auto",
        small_sample_correction: bool = True,
        calibrated: bool = True,
        priors: str = "auto",
        device: str = "auto",
        dtype: str = "float32",
    ) -> None:
        self.ridge = ridge
        self.small_sample_correction = small_sample_correction
        self.calibrated = calibrated
        self.priors = priors
        self.device = device
        self.dtype = dtype
