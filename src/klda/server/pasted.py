"""Texts and labels that someone pasted or uploaded, within the limits of the API."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pydantic import TypeAdapter, ValidationError

from klda.data import open_pasted
from klda.labels import Label
from klda.server import class_names, schemas
from klda.server.errors import ServiceError

MOST_ROWS = 100_000
_texts = TypeAdapter(list[schemas.Text])


@dataclass(frozen=True)
class PastedRows:
    """Texts and their labels.

    Attributes
    ----------
    texts : list of str
        As they were pasted.
    labels : list of label
        One per text, by the rules of the API.
    has_header : bool
        Whether the first line named the columns; otherwise it is the first row.
    """

    texts: list[str]
    labels: list[Label]
    has_header: bool

    def without_first(self) -> PastedRows:
        """Return all rows but the first, which was a header after all."""
        if len(self.texts) < 2:
            raise ServiceError("There is a header but no row.")
        return replace(self, texts=self.texts[1:], labels=self.labels[1:], has_header=True)


def read_rows(content: bytes, name: str, classes: Mapping[Label, int]) -> PastedRows:
    """Read rows as files are read, and check that the model can be taught them.

    Parameters
    ----------
    content : bytes
        CSV or TSV.
    name : str
        What errors call it.
    classes : mapping of label to int
        The classes of the model.

    Returns
    -------
    PastedRows
        Without blank rows.

    Raises
    ------
    TableError, ServiceError
        If a row can't be read or taught; the message names it.
    """
    table = open_pasted(content, name=name, classes=classes)
    batches = table.batches(rows=MOST_ROWS)
    batch = next(batches)
    if next(batches, None) is not None:
        raise ServiceError(f"{name}: more than {MOST_ROWS:,} rows. Send them in several parts.")
    labels = batch.labels or []
    try:
        _texts.validate_python(batch.inputs)
    except ValidationError as error:
        first = error.errors()[0]
        raise ServiceError(f"{name}, row {int(first['loc'][0]) + 1}: {first['msg']}.") from error
    for label in dict.fromkeys(labels):
        try:
            class_names.typed(str(label), classes)
        except ServiceError as error:
            raise ServiceError(f"{name}, row {labels.index(label) + 1}: {error}") from error
    return PastedRows(batch.inputs, labels, table.header)
