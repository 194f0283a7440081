"""Models behind a server of embeddings, as functions from texts to rows.

The server speaks OpenAI's protocol, POST /v1/embeddings: OpenAI, Ollama, vLLM, Text Embeddings
Inference, LiteLLM and others do.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from klda.encoders.runtime import RunOptions
from klda.encoders.wrapped import WrappedEncoder
from klda.errors import KldaError, require

KEY = "KLDA_EMBEDDINGS_KEY"
"""Environment variable with the key; for OpenAI's own server also OPENAI_API_KEY."""
_ATTEMPTS = 5
_WAIT = 0.5  # seconds before the second attempt; twice as long before each one after it
_LONGEST_WAIT = 60.0
_TIMEOUT = 60.0
_AGAIN = (408, 409, 429, 500, 502, 503, 504)  # too many requests, or trouble that may pass
_NO_KEY = f" Put a valid key into the environment variable {KEY}."
_ADVICE = {
    401: _NO_KEY,
    403: _NO_KEY,
    404: " Check the URL, which usually ends in /v1, and the name of the model.",
}


class EndpointError(KldaError):
    """A server of embeddings can't be reached, or refuses; the message says what to do."""


def endpoint_encoder(url: str, model: str | None, options: RunOptions) -> WrappedEncoder:
    """Return the encoder of a model behind a URL such as ``http://localhost:11434/v1``.

    The model's name identifies its features, and not the URL, which may change.
    """
    address, _, named = url.partition("#")
    address, model = address.rstrip("/"), model or named
    if not model:
        raise KldaError(
            f"model is missing: which model of {url} is to be used? Give its name, as in "
            f'Learner("{url}", model="nomic-embed-text").'
        )
    about = {"source": address, "revision": f"endpoint:{model}"}
    name = f"{address}#{model}"
    return WrappedEncoder(Endpoint(address, model), name, options, batch_size=128, **about)


class Endpoint:
    """A function from texts to rows, which a server computes."""

    def __init__(self, url: str, model: str) -> None:
        self.url, self.model = url, model
        self._place = f"The model {model!r} at {url}"
        self._client: Any = None

    def __call__(self, texts: list[str]) -> np.ndarray:
        """Return one row per text."""
        response = self._post(texts)
        try:
            data = sorted(response.json()["data"], key=lambda entry: entry["index"])
            return np.array([entry["embedding"] for entry in data], np.float32)
        except (TypeError, KeyError, ValueError) as error:
            raise EndpointError(f"{self._place} answers with something else: {error!r}.") from error

    def _post(self, texts: list[str]) -> Any:
        """Send a request; one that fails for a reason that may pass is sent again."""
        httpx = require("httpx", "endpoint")
        if self._client is None:
            key = os.environ.get(KEY)
            if not key and urlsplit(self.url).hostname == "api.openai.com":
                key = os.environ.get("OPENAI_API_KEY")  # which is for no other server
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            self._client = httpx.Client(timeout=_TIMEOUT, headers=headers)
        reason, wait, body = "", 0.0, {"model": self.model, "input": texts}
        for attempt in range(_ATTEMPTS):
            time.sleep(min(max(wait, 0.0), _LONGEST_WAIT))
            wait = _WAIT * 2**attempt
            try:
                response = self._client.post(f"{self.url}/embeddings", json=body)
            except httpx.TransportError as error:
                reason = f"{type(error).__name__}: {error}"
                continue
            if response.is_success:
                return response
            status = response.status_code
            reason = f"status {status}: {response.text[:200]}"
            if status not in _AGAIN:
                raise EndpointError(f"{self._place} refuses: {reason}.{_ADVICE.get(status, '')}")
            with contextlib.suppress(KeyError, ValueError):  # a date may stand there
                wait = float(response.headers["retry-after"])
        raise EndpointError(f"{self._place} does not answer after {_ATTEMPTS} attempts: {reason}.")

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_client": None}  # which has the key
