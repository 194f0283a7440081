"""Classes known by their names, before and while they are taught."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Self

import numpy as np

from klda.classifiers.validation import check_label_kind
from klda.errors import KldaError
from klda.labels import Label
from klda.learner.persistence import PersistenceMixin


class DeclaringMixin(PersistenceMixin):
    """The part of a learner that knows classes by their names."""

    def declare(self, classes: Label | Sequence[Label] | Mapping[Label, str | None]) -> Self:
        """Make classes known by their names, before anything is taught of them.

        Parameters
        ----------
        classes : label, sequence of labels, or mapping from labels to descriptions
            A name is read as words: ``card_arrival`` as "card arrival". A description says more.

        Returns
        -------
        self

        Examples
        --------
        >>> from klda import Learner
        >>> bot = Learner("minilm")                               # doctest: +SKIP
        >>> bot.declare(["card_arrival", "lost_card"])            # doctest: +SKIP
        >>> bot.declare({"refund": "customer wants money back"})  # doctest: +SKIP
        >>> bot.predict(["when will my card come?"])              # doctest: +SKIP
        """
        if not self._reads_names:
            raise KldaError(
                "Classes can be declared for texts only, with a KLDA classifier whose rule is "
                f"'auto'; this learner has {self._inputs.modality} inputs and {self.classifier!r}."
            )
        names = self._names.declare(classes)
        known = self.classifier.counts_
        check_label_kind(np.array(list(known)), list(names.declared))
        texts = names.texts(dict.fromkeys(names.declared, 0) | known)
        rows = self._encoded_names(texts)  # before anything changes
        with self.changing("declare"):
            self._names = names
            self._hint(texts, rows)
        return self

    @property
    def declared(self) -> dict[Label, str | None]:
        """Classes that were declared, each with its description, if it was given one."""
        return dict(self._names.declared)

    @property
    def _reads_names(self) -> bool:
        return self._inputs.modality == "text" and getattr(self.classifier, "rule", "") == "auto"

    def _refresh_hints(self) -> None:
        """Let the classifier have the names that count now, as hints."""
        known = self.classifier.counts_
        self._names = self._names.drop(set(self._names.declared) - set(known))
        if not self._reads_names or not self.classifier.__sklearn_is_fitted__():
            return
        texts = self._names.texts(known)
        held = self.classifier.model_.hints
        if texts == {label: self._hint_texts.get(label) for label in held.labels}:
            return
        try:
            rows = self._encoded_names(texts)
        except KldaError as error:  # rows may be learned where the foundation model is not at hand
            warnings.warn(f"The names of classes do not count: {error}", stacklevel=4)
            texts = {label: text for label, text in texts.items() if label in self._hint_texts}
            rows = self._encoded_names(texts)
        self._hint(texts, rows)

    def _hint(self, texts: dict[Label, str], rows: np.ndarray) -> None:
        self.classifier.hint(rows, list(texts))
        self._hint_texts = texts

    def _encoded_names(self, texts: dict[Label, str]) -> np.ndarray:
        """Return the rows of names, encoding only those that were not before."""
        model = self.classifier.model_ if self.classifier.__sklearn_is_fitted__() else None
        known: dict[str, np.ndarray] = {}
        if model is not None:
            for label, row in zip(model.hints.labels, model.hints.rows, strict=True):
                known[self._hint_texts.get(label, "")] = row
        missing = [text for text in dict.fromkeys(texts.values()) if text not in known]
        if missing:
            known |= dict(zip(missing, self._inputs.encode(missing), strict=True))
        return np.array([known[text] for text in texts.values()])
