"""Encoders that users bring: functions from texts to rows, and objects of other libraries."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from klda.checks import Modality, checked_texts
from klda.encoders.encoder import Encoder, describe, gather
from klda.encoders.runtime import DEFAULT, RunOptions
from klda.errors import KldaError
from klda.progress import Show

OWN = "own:"  # begins the revision of features that only their name identifies
# What libraries call it: sentence-transformers and model2vec, fastembed, LangChain.
_METHODS = ("encode", "embed", "embed_documents")
_NAMES = ("model_name", "base_model_name", "model")


class WrappedEncoder(Encoder):
    """A function from a list of texts to an array, a tensor, or a list or generator of rows.

    `name` identifies the features, together with the row of a fixed text, unless `about`, which is
    added to the fingerprint, has a revision. The `batch_size` holds where `options` has none.
    """

    modality: Modality = "text"
    runtime = "own"
    precision = "float32"

    def __init__(
        self,
        function: Callable[[list[str]], Any],
        name: str,
        options: RunOptions = DEFAULT,
        *,
        batch_size: int = 4096,
        **about: Any,
    ) -> None:
        options.require_last_layer(name)
        self.function, self.name = function, name
        self.batch_size, self.prompt = options.batch_size or batch_size, options.prompt or ""
        self._lock = threading.Lock()  # a user's function need not be safe in threads
        (row,) = self._rows(["a text"])
        self.dimension = len(row)
        # A name says little about what a function or a server computes, or computes by now.
        part = row[:16].astype(np.float64)
        probe = np.round(part / max(float(np.linalg.norm(part)), 1e-12), 4).tolist()
        prompt = {"prompt": self.prompt} if self.prompt else {}
        self._about = {"revision": f"{OWN}{name}", "probe": probe} | prompt | about

    def encode(self, inputs: Any, *, progress: Show = False) -> np.ndarray:
        """Turn texts into features."""
        texts, size = checked_texts(inputs), self.batch_size
        parts = (slice(start, start + size) for start in range(0, len(texts), size))
        batches = ((part, self._rows(texts[part])) for part in parts)
        return gather(self, len(texts), batches, progress=progress)

    def fingerprint(self) -> dict[str, Any]:
        """Describe the features, which the name identifies."""
        return describe(self, **self._about)

    def _rows(self, texts: Sequence[str]) -> np.ndarray:
        with self._lock:
            found = self.function([self.prompt + text for text in texts])
        if hasattr(found, "detach"):  # a tensor, which may be on a GPU
            found = found.detach().float().cpu()
        try:
            rows = np.asarray(found if hasattr(found, "__len__") else list(found), np.float32)
        except (TypeError, ValueError) as error:
            raise KldaError(
                f"The encoder {self.name!r} must return rows of numbers: {error}."
            ) from error
        width = getattr(self, "dimension", rows.shape[-1] if rows.ndim == 2 else 0)
        if rows.shape != (len(texts), width) or not width:
            raise KldaError(
                f"The encoder {self.name!r} returned an array of shape {rows.shape} for "
                f"{len(texts)} texts: it must return one row for each, all of one length."
            )
        return rows

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._lock = threading.Lock()

    def __deepcopy__(self, memo: dict[int, Any]) -> WrappedEncoder:
        return self


def wrap(model: Any, name: str | None, options: RunOptions) -> WrappedEncoder:
    """Return an encoder of a function, or of an object with ``encode`` or a method like it."""
    methods = (getattr(model, method, None) for method in _METHODS)
    function = next((method for method in methods if callable(method)), model)
    if not callable(function):
        raise KldaError(
            f"model={model!r:.80} can't be used: it has no encode. Give the name of a foundation "
            "model, a folder, 'features' for rows that you have computed, a function from texts to "
            "rows, or an object with encode(texts)."
        )
    if name is None:
        known = (getattr(model, field, None) for field in _NAMES)
        named = model if hasattr(model, "__qualname__") else type(model)
        own_name = f"{named.__module__}.{named.__qualname__}"
        name = next((one for one in known if isinstance(one, str) and one), own_name)
    return WrappedEncoder(function, name, options)
