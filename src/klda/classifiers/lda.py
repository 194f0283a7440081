"""Linear Discriminant Analysis on the features as they are."""

from __future__ import annotations

from klda.classifiers.base import ContinualClassifier


class LDA(ContinualClassifier):
    """Linear Discriminant Analysis on the features as they are, learned class by class.

    Parameters
    ----------
    ridge, small_sample_correction, calibrated, priors
        As for `KLDA`.
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
