"""What ``model.json`` says of a learner, or of a learn that is not complete.

`klda.storage` checks that a folder is as it was written, `klda.state_schema` what is said of the
classifier and the ledger; here is the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from klda import schema, state_schema, storage
from klda.schema import DamagedStateError

_FOUNDATION = schema.record(
    {
        "name": schema.text,
        "modality": schema.choice("text", "image", "features"),
        "layers": schema.plain,
    },
    others=schema.plain,
)
_HISTORY = schema.listing(
    schema.record(
        {"when": schema.text, "action": schema.text, "samples": schema.integer(-(2**63))},
        {
            "source": schema.text,
            "new_classes": schema.scalars,
            "dropped_classes": schema.scalars,
        },
        others=schema.plain,
    )
)
_MODEL = schema.record(
    {
        "saved": schema.text,
        "compact": schema.boolean,
        "foundation_model": _FOUNDATION,
        "samples": schema.integer(),
        "classes": schema.record({}),  # compared with the classifier's
        "classifier": state_schema.check_meta,
        "history": _HISTORY,
    },
    {"ledger": state_schema.LEDGER},
)
_PROGRESS = schema.record(
    {
        "foundation_model": _FOUNDATION,
        "classifier": state_schema.check_meta,
        "learning": schema.record(
            {
                "run": schema.text,
                "base": schema.optional(schema.text),
                "paths": schema.listing(schema.text),
                "files": schema.listing(schema.mapping(schema.scalar)),
                "columns": schema.listing(schema.optional(schema.text)),
                "file": schema.integer(),
                "rows": schema.integer(),
                "samples": schema.integer(),
            }
        ),
    }
)


@contextmanager
def checked(folder: str | Path) -> Iterator[None]:
    """Turn errors about stored values into errors that name the model folder.

    Parameters
    ----------
    folder : str or Path
        Where the values were read.
    """
    try:
        yield
    except DamagedStateError as error:
        raise storage.damaged(Path(folder) / storage.DOCUMENT, error) from error


def check_model(document: dict[str, Any]) -> None:
    """Raise `DamagedStateError` if a document does not describe a learner.

    Parameters
    ----------
    document : dict
        The content of ``model.json``.
    """
    _MODEL(document, storage.DOCUMENT)
    classifier = document["classifier"]
    counted = zip(map(str, classifier["classes"]), classifier["counts"], strict=True)
    if document["classes"] != dict(counted):
        raise DamagedStateError("the classes are not those of the classifier")
    if document["samples"] != sum(classifier["counts"]):
        raise DamagedStateError("the number of samples is not that of the classes")
    if document["compact"] != classifier["compact"]:
        raise DamagedStateError("the classifier is compact and the model is not, or vice versa")


def check_progress(document: dict[str, Any]) -> None:
    """Raise `DamagedStateError` if a document does not describe a learn that is not complete.

    Parameters
    ----------
    document : dict
        The content of ``model.json`` in the folder of the learn.
    """
    _PROGRESS(document, storage.DOCUMENT)
    learning = document["learning"]
    if learning["file"] >= len(learning["paths"]) or len(learning["columns"]) != 2:
        raise schema.refused("learning", learning, "one of its files, and two columns")
