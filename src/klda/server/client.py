"""A client with the Learner's verbs, for a model that ``klda serve`` serves."""

from __future__ import annotations

import base64
import io
import json
import time
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import numpy as np

from klda.checks import REFUSED, checked_inputs
from klda.engine.solution import Answer
from klda.errors import KldaError, require
from klda.inspection.evaluation import Evaluation
from klda.inspection.refusal import Choice, Tuning
from klda.inspection.suggestions import Suggestion
from klda.inspection.suspects import Suspect
from klda.labels import (
    Label,
    SimilarClassWarning,
    as_list,
    as_python,
    check_one_each,
    did_you_mean,
    unknown_like,
)
from klda.server.errors import ServerError
from klda.server.settings import MAX_TOP

BATCH = 500
BATCH_IMAGES = 16
BATCH_NUMBERS = 400_000  # of features; about 8 MB as JSON
RETRIES = 4
FOLLOW_AGAIN_SECONDS = 1.0
# The service is busy, or its response was lost. A change may have been made then: it is sent again
# with the same idempotency key, and counts once.
_TRY_AGAIN = (429, 503, 0, 502, 504)


class Client:
    """A learner on a server: methods of the same name do what the Learner's do.

    Large inputs are sent in several requests. Changes carry an idempotency key, so that a request
    can be sent again after a lost connection without counting twice.

    Parameters
    ----------
    url : str
        Where the service is, such as ``"http://127.0.0.1:8000"``.
    key : str, optional
        An API key.
    timeout : float
        Seconds to wait for a response.

    Examples
    --------
    >>> from klda import Client
    >>> client = Client("http://127.0.0.1:8000")
    >>> client.learn(["where is my card?"], ["card_arrival"])  # doctest: +SKIP
    >>> client.predict(["has my card been sent?"])  # doctest: +SKIP
    array(['card_arrival'], dtype='<U12')
    """

    def __init__(self, url: str, *, key: str | None = None, timeout: float = 60.0) -> None:
        if not url.startswith(("http://", "https://")):
            raise KldaError(
                f"url={url!r} is not an address; give one such as http://127.0.0.1:8000."
            )
        httpx = require("httpx", "server")
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._http = httpx.Client(base_url=url.rstrip("/"), headers=headers, timeout=timeout)
        self._lost = httpx.TransportError
        self._modality: str | None = None
        self._made: list[list[int]] = []  # numbers of the changes of each call

    def __repr__(self) -> str:
        return f"<Client {self._http.base_url}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    @property
    def info(self) -> dict[str, Any]:
        """A description of the model."""
        return self._call("GET", "/v1/model")

    @property
    def modality(self) -> str:
        """What it takes: ``"text"``, ``"image"`` or ``"features"``."""
        if self._modality is None:
            self._modality = str(self.info["modality"])
        return self._modality

    @property
    def classes(self) -> dict[Label, int]:
        """Number of samples learned of each class."""
        found: dict[Label, int] = {}
        more = True
        while more:
            answer = self._call("GET", f"/v1/classes?limit=10000&offset={len(found)}")
            found |= {entry["label"]: entry["samples"] for entry in answer["classes"]}
            more = answer["classes"] and len(found) < answer["total"]
        return found

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return int(self.info["classes"])

    @property
    def samples(self) -> int:
        """Number of samples learned."""
        return int(self.info["samples"])

    @property
    def history(self) -> list[dict[str, Any]]:
        """The latest changes, the latest last; each with its number, for :meth:`undo`."""
        return self._call("GET", "/v1/history?limit=1000")["changes"][::-1]

    def quality(self) -> dict[str, Any]:
        """Return how accurate the model is expected to be on new inputs, also by class."""
        return self._call("GET", "/v1/quality")

    def suspects(self, inputs: Any, labels: Sequence[Label] | np.ndarray) -> list[Suspect]:
        """Find samples whose labels are probably wrong, and samples that are there twice."""
        inputs = self._checked(inputs)
        body = {**self._body(inputs), "labels": _one_each(inputs, labels)}
        return [Suspect(**one) for one in self._call("POST", "/v1/suspects", body)["suspects"]]

    def suggest(self, inputs: Any, n: int = 20) -> list[Suggestion]:
        """Choose which of some inputs to label next."""
        body = {**self._body(self._checked(inputs)), "n": n}
        found = self._call("POST", "/v1/suggest", body)["suggestions"]
        return [Suggestion(**one) for one in found]

    def follow(self) -> Iterator[dict[str, int]]:
        """Yield the model's version, classes and samples now, and after each change."""
        last = None
        while True:
            try:
                with self._http.stream("GET", "/v1/events", timeout=60.0) as answer:
                    if answer.status_code != 200:
                        answer.read()
                        _read(answer)
                    for line in answer.iter_lines():
                        if line.startswith("data: ") and (state := json.loads(line[6:])) != last:
                            last = state
                            yield state
            except self._lost:
                pass
            time.sleep(FOLLOW_AGAIN_SECONDS)  # the service ends each stream after a while

    def learn(self, inputs: Any, labels: Sequence[Label] | np.ndarray) -> Self:
        """Learn samples, one label per input; on disk when this returns."""
        return self._change_samples("/v1/learn", inputs, labels)

    def _change_samples(self, path: str, inputs: Any, labels: Any) -> Self:
        inputs = self._checked(inputs)
        names, parts = _one_each(inputs, labels), self._parts(inputs)
        return self._change(
            path, *({**self._body(inputs[part]), "labels": names[part]} for part in parts)
        )

    def declare(self, classes: Label | Sequence[Label] | Mapping[Label, str | None]) -> Self:
        """Make classes known by their names, or by descriptions if `classes` maps names to them."""
        given = classes if isinstance(classes, Mapping) else dict.fromkeys(as_list(classes))
        return self._change(
            "/v1/declare", {"classes": {str(as_python(x)): given[x] for x in given}}
        )

    def forget(self, labels: Label | Sequence[Label], inputs: Any = None) -> Self:
        """Forget classes, or with `inputs`: exactly these samples, one label for each or all."""
        names = as_list(labels)
        if inputs is None:
            return self._change("/v1/forget", {"labels": names})
        inputs = self._checked(inputs)
        names = names * len(inputs) if len(names) == 1 else names
        return self._change_samples("/v1/forget", inputs, names)

    def undo(self, number: int | None = None) -> Self:
        """Undo a change: the model becomes what it would be had it never been made.

        `number` is that of an entry in the :attr:`history`; by default it is what this client
        changed last and has not undone.
        """
        if number is None and not self._made:
            raise KldaError("number is missing: this client has nothing to undo; see its history.")
        failed = None
        for one in reversed(self._made[-1] if number is None else [number]):
            try:
                self._call_once("/v1/undo", {"undo": one})
            except ServerError as error:
                if error.status != 404:
                    raise
                failed = error  # nobody can undo it: it must not keep the others
            self._made = [left for made in self._made if (left := [x for x in made if x != one])]
        if failed:
            raise failed
        return self

    def expire_undo(self, before: float | None = None) -> bool:
        """Erase undo data on the server, all or what is older than a time.

        `before` is in seconds since 1970. Returns whether there was anything.
        """
        return bool(self._call("POST", "/v1/expire-undo", {"before": before})["erased"])

    def tune_unknown(
        self, known: Any, unknown: Any, *, reject: float | None = None, by_class: bool = False
    ) -> Tuning:
        """Fit the threshold beyond which inputs are unknown; return what each choice costs.

        All inputs go in one request: at most 10,000 of each kind, and 16 MiB together.
        """
        body = {
            "known": self._body(self._checked(known)),
            "unknown": self._body(self._checked(unknown)),
            "reject": reject,
            "by_class": by_class,
        }
        made = self._call_once("/v1/tune-unknown", body)
        self._made.append([int(made["version"])])
        choices = [Choice(**one) for one in made["choices"]]
        return Tuning(choices, made["known"], made["unknown"], made["classes"])

    def rename(self, old: Label, new: Label, *, merge: bool = False) -> Self:
        """Give a class another name; with `merge` it becomes part of the class of that name."""
        body = {"old": as_python(old), "new": as_python(new), "merge": merge}
        return self._change("/v1/rename", body)

    def predict(self, inputs: Any, *, reject: float | bool | None = None) -> np.ndarray:
        """Return the likeliest class of each input.

        With `reject`, inputs unlike anything learned get ``"unknown"``, or -1 where classes are
        integers. The service decides this as :meth:`tune_unknown` chose, or at 0.05: give True.
        """
        if reject not in (None, False, True, REFUSED):
            raise KldaError(
                f"reject={reject!r} is not possible: the service decides as tuned, or at {REFUSED}."
            )
        answers = self.answer(inputs, top=1)
        labels = np.array([answer.top[0][0] for answer in answers])
        if reject is None or reject is False:
            return labels
        return np.where(_known(answers), labels, unknown_like(labels[0]))

    def predict_proba(self, inputs: Any) -> np.ndarray:
        """Return the probability of every class, for a model of at most 100 classes.

        Columns are in the order of :attr:`classes`.
        """
        classes = list(self.classes)
        if len(classes) > MAX_TOP:
            raise KldaError(
                f"The model has {len(classes)} classes, and the service returns at most {MAX_TOP} "
                "per input: use predict_top."
            )
        found = [dict(top) for top in self.predict_top(inputs, max(1, len(classes)))]
        if any(one.keys() != set(classes) for one in found):
            raise KldaError("The classes changed between two requests: ask again.")
        return np.array([[one[label] for label in classes] for one in found])

    def predict_top(self, inputs: Any, k: int = 3) -> list[list[tuple[Label, float]]]:
        """Return the `k` likeliest classes of each input and their probabilities."""
        return [answer.top for answer in self.answer(inputs, top=k)]

    def answer(self, inputs: Any, *, top: int = 5) -> list[Answer]:
        """Return for each input the `top` likeliest classes, and whether it is known."""
        inputs = self._checked(inputs)
        answers: list[Answer] = []
        for part in self._parts(inputs):
            body = {**self._body(inputs[part]), "top": top}
            for found in self._call("POST", "/v1/predict", body)["predictions"]:
                ranked = [(entry["label"], entry["probability"]) for entry in found["top"]]
                answers.append(Answer(ranked, found["known"], found["novelty"]))
        return answers

    def is_known(self, inputs: Any) -> np.ndarray:
        """Return whether each input is like anything learned.

        True also where the model has learned too little to tell.
        """
        return _known(self.answer(inputs, top=1))

    def novelty(self, inputs: Any) -> np.ndarray:
        """Return how unlike anything learned each input is; larger is less known."""
        found = [answer.novelty for answer in self.answer(inputs, top=1)]
        if all(value is None for value in found):
            raise KldaError("This model can't tell known inputs from unknown ones.")
        return np.array(found, float)

    def evaluate(self, inputs: Any, labels: Sequence[Label] | np.ndarray) -> Evaluation:
        """Compare the answers with the true labels; classes never learned count as wrong."""
        inputs = self._checked(inputs)
        names = _one_each(inputs, labels)
        best = [top[0] for top in self.predict_top(inputs, 1)]
        sure = np.array([probability for _, probability in best])
        return Evaluation.of(names, [label for label, _ in best], sure)

    def explain(self, value: Any) -> dict[str, Any]:
        """Explain the answer for one input: the nearest classes, and the words of a text."""
        ((value,),) = self._body([value]).values()
        return self._call("POST", "/v1/explain", {self.modality: value})

    def _checked(self, inputs: Any) -> Any:
        return checked_inputs(inputs, self.modality)

    def _parts(self, inputs: Any) -> list[slice]:
        size = BATCH_IMAGES if self.modality == "image" else BATCH
        if self.modality == "features":
            size = max(1, min(BATCH, BATCH_NUMBERS // len(inputs[0])))
        return [slice(start, start + size) for start in range(0, len(inputs), size)]

    def _body(self, inputs: Any) -> dict[str, Any]:
        if self.modality == "text":
            return {"texts": list(inputs)}
        if self.modality == "image":
            return {"images": [_encode_image(image) for image in inputs]}
        return {"features": np.asarray(inputs, np.float32).tolist()}

    def _change(self, path: str, *bodies: dict[str, Any]) -> Self:
        made: list[int] = []
        try:
            for body in bodies:
                answer = self._call_once(path, body)
                made.append(int(answer["version"]))
                if similar := answer["similar"]:
                    warnings.warn(did_you_mean(similar), SimilarClassWarning, stacklevel=4)
        finally:
            if made:
                self._made.append(made)
        return self

    def _call_once(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return self._call("POST", path, body, **{"Idempotency-Key": uuid.uuid4().hex})

    def _call(
        self, method: str, path: str, body: dict[str, Any] | None = None, **headers: str
    ) -> dict[str, Any]:
        for attempt in range(RETRIES + 1):
            try:
                return _read(self._http.request(method, path, json=body, headers=headers))
            except self._lost as error:
                where = self._http.base_url
                failed = ServerError(
                    f"No response from {where}: {error}. Is klda serve running?", 0
                )
            except ServerError as error:
                failed = error
            if failed.status not in _TRY_AGAIN:
                break
            if attempt < RETRIES:
                time.sleep(0.2 * 2**attempt)
        raise failed


def _read(answer: Any) -> dict[str, Any]:
    status, error = answer.status_code, None
    with suppress(ValueError):
        content = answer.json()
        if isinstance(content, dict):
            if status == 200:
                return content
            error = content.get("error")
    if not isinstance(error, dict):
        said = f"{answer.url} responded with status {status}, not as klda serve does."
        error = {"message": said, "code": "unknown"}
    raise ServerError(error["message"], status, error["code"])


def _known(answers: list[Answer]) -> np.ndarray:
    return np.array([answer.known is not False for answer in answers])


def _one_each(inputs: Any, labels: Any) -> list[Label]:
    if isinstance(labels, str | bytes):
        raise KldaError(f"labels={labels!r} is one label; give a list of labels: [{labels!r}].")
    names = as_list(labels)
    check_one_each(inputs, names)
    return names


def _encode_image(image: Any) -> str:
    if isinstance(image, str | Path):
        image = Path(image).read_bytes()
    if isinstance(image, bytes):
        return base64.b64encode(image).decode()
    pillow = require("PIL.Image", "images")
    if isinstance(image, np.ndarray):
        image = pillow.fromarray(image)
    buffer = io.BytesIO()
    image.convert("RGB").save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()
