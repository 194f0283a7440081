"""Learning from files larger than memory, in hours if need be: a kill loses minutes at most.

Rows are read ahead in a thread, encoded, and learned in another thread. Every few minutes the
progress is saved beside the model, in the folder ``.learning`` inside the model folder: the
statistics so far, and the place in the files that they stand for. The model itself changes once,
at the end. A learn that is resumed goes on at that place, from those statistics, in the same
chunks: no row is lost, none counts twice, and the model is the one that would have come out
without the pause.
"""

from __future__ import annotations

import hashlib
import json
import time
import uuid
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from klda import __version__, features, model_document, storage
from klda.errors import KldaError
from klda.learner import Learner, Lesson
from klda.tables import (
    Columns,
    Piece,
    Place,
    Table,
    as_label,
    find_files,
    identity,
    open_table,
    read,
)

EVERY = 180.0  # seconds between checkpoints
LARGEST_SHARE = 0.05  # of the time, that checkpoints may take
NAMED_FILES = 3  # in messages and in the history


class CheckpointError(KldaError):
    """An unfinished learn stands in the way, or can't be resumed; the message says what to do."""


class CheckpointWarning(UserWarning):
    """A checkpoint could not be saved; learning goes on without."""


def learn_files(
    learner: Learner,
    paths: str | Path | Iterable[str | Path],
    folder: str | Path,
    *,
    columns: Columns | None = None,
    every: float = EVERY,
    resume: bool = False,
) -> Learner:
    """Learn files of any size and save to a model folder, with checkpoints on the way.

    Parameters
    ----------
    learner : Learner
        A new one, or one loaded from ``folder``.
    paths : str, Path, or iterable of them
        Files, folders and patterns, as `klda.tables.find_files` takes them.
    folder : str or Path
        The model folder; it changes once, at the end.
    columns : Columns, optional
        Names of the columns, where they can't be guessed.
    every : float
        Seconds between checkpoints; 0 makes none.
    resume : bool
        Go on where a learn of the same files into the same folder was cut off; from the beginning
        if it was not, and not at all if it is complete.

    Returns
    -------
    Learner
        The learner, which has learned the files.

    Raises
    ------
    CheckpointError
        If there is a checkpoint and ``resume`` is False, or it does not belong to these files as
        they are now, this model and these columns.
    ModelExistsError
        If the folder holds a model that the learner did not come from.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> import numpy as np
    >>> from klda import Learner
    >>> from klda.streaming import learn_files
    >>> rng = np.random.default_rng(0)
    >>> with TemporaryDirectory() as here:
    ...     for i in range(3):
    ...         rows, labels = rng.normal(i, 1, (50, 8)), np.full(50, f"class {i}")
    ...         np.savez(Path(here) / f"{i}.npz", features=rows, labels=labels)
    ...     learner = learn_files(Learner("features"), [f"{here}/*.npz"], f"{here}/model")
    >>> learner.classes
    {'class 0': 50, 'class 1': 50, 'class 2': 50}
    """
    modality: Any = learner.modality
    files = find_files(paths)
    if not files:
        raise KldaError("paths is empty: name at least one file.")
    tables = [open_table(path, modality=modality, columns=columns) for path in files]
    with storage.writer_lock(folder):
        job = Job(folder, tables, every=every)
        job.open(resume=resume)
        if job.complete:
            job.tidy()
            return Learner.load(folder, model=learner.encoder)
        with closing(read(tables, labels=True, start=job.place)) as pieces:
            job.learn(learner, pieces)
        job.save(learner)
    return learner


class Job:
    """One learn of some files into a model folder, whose writer lock the caller holds.

    Parameters
    ----------
    folder : str or Path
        The model folder.
    tables : sequence of Table
        The files.
    every : float
        Seconds between checkpoints; 0 makes none. They are made less often if they would take
        more than a twentieth of the time.

    Attributes
    ----------
    place : Place
        Where to begin to read; the first row, unless a learn is resumed.
    complete : bool
        Whether there is nothing left to learn.
    samples : int
        Rows that were learned before the pause.
    """

    def __init__(
        self, folder: str | Path, tables: Sequence[Table], *, every: float = EVERY
    ) -> None:
        if not every >= 0:
            raise KldaError(f"every={every!r} can't be used; give seconds, or 0 for none.")
        self.folder = Path(folder)
        self.tables = list(tables)
        self.every = every
        self.place = Place()
        self.samples = 0
        self.complete = False
        self._at = self.folder / storage.LEARNING
        self._run = uuid.uuid4().hex
        identities = [identity(table.path) for table in tables]
        self._repeatable = all(identities)  # what came through a pipe can't be read again
        if not self._repeatable:
            self.every = 0.0
        self._files = [
            {"path": str(table.path.resolve()), **found}
            for table, found in zip(tables, identities, strict=True)
        ]
        columns = tables[0].columns
        self._columns = [columns.input, columns.label]
        stored = storage.load(self.folder) if storage.exists(self.folder) else None
        if stored is not None:
            with model_document.checked(self.folder):
                model_document.check_model(stored.document)
        self._base = stored.generation if stored else None
        self._history: list[dict[str, Any]] = stored.document["history"] if stored else []
        self._stored: storage.StoredModel | None = None
        self._places: deque[Piece] = deque()
        self._due = 0.0

    # ---------------------------------------------------------------- before

    def open(self, *, resume: bool = False, restart: bool = False) -> None:
        """Look for a checkpoint, and decide where to begin.

        Parameters
        ----------
        resume : bool
            Go on from it.
        restart : bool
            Drop it.

        Raises
        ------
        CheckpointError
            If there is one and neither is asked for, or it can't be resumed.
        """
        if restart or not storage.exists(self._at):
            storage.remove(self._at)
            learned = {entry.get("files") for entry in self._history}
            self.complete = resume and self._repeatable and self._digest() in learned
            return
        stored = self._load()
        learning = stored.document["learning"]
        finished = any(entry.get("run") == learning["run"] for entry in self._history)
        same_files = learning["paths"] == [file["path"] for file in self._files]
        if finished and not same_files:  # killed after its save, before it could tidy up
            storage.remove(self._at)
            return
        if not resume:
            raise CheckpointError(_in_the_way(self.folder, learning, finished))
        self.complete = finished
        if not finished:
            self._check_resumable(learning, stored.document["klda_version"])
            self._stored, self._run = stored, learning["run"]
            self.place = Place(learning["file"], learning["rows"])
            self.samples = learning["samples"]

    def _load(self) -> storage.StoredModel:
        with self._reading():
            return _stored_progress(self._at)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Say of a checkpoint that is damaged what to do."""
        try:
            with model_document.checked(self._at):
                yield
        except storage.ModelFolderError as error:
            raise CheckpointError(
                f"The checkpoint of an unfinished learn in {self._at} can't be read: {error} Drop "
                "it with --restart; the model is not affected."
            ) from error

    def _check_resumable(self, learning: dict[str, Any], version: str) -> None:
        if version != __version__:
            raise self._refused(f"it was begun with klda {version}, this is {__version__}")
        paths = [file["path"] for file in self._files]
        if learning["paths"] != paths:
            raise self._refused(
                f"it learns {_named(learning['paths'])}, not {_named(paths)}. Name the same files"
            )
        if learning["columns"] != self._columns:
            raise self._refused(
                f"it reads the columns {_columns(learning['columns'])}, not "
                f"{_columns(self._columns)}. Name the same columns"
            )
        if learning["base"] != self._base:
            raise self._refused("the model was changed since")
        for then, now in zip(learning["files"], self._files, strict=False):
            if then != now:  # files that were not begun may change
                raise self._refused(f"{now['path']} was changed since")

    def _refused(self, reason: str) -> CheckpointError:
        return CheckpointError(
            f"The unfinished learn in {self.folder} can't be resumed: {reason}; or drop what it "
            "has learned with --restart."
        )

    def _digest(self) -> str:
        content = json.dumps([self._files, self._columns], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    # ---------------------------------------------------------------- learning

    def learn(self, learner: Learner, pieces: Iterable[Piece]) -> None:
        """Learn what is left; the learner changes when all of it is learned.

        Parameters
        ----------
        learner : Learner
            A new one, or the one in the folder.
        pieces : iterable of Piece
            From `place` on. Labels, which files hold as texts, become integers if the learner's
            classes are.
        """
        lesson = None
        if self._base is not None and not learner._is_from(self.folder):
            raise storage.ModelExistsError(
                f"{self.folder} holds a model already, which learner did not come from: it would "
                f"be lost. Add to it with learner=Learner.load({str(self.folder)!r}), or name "
                "another folder."
            )
        if self._stored is not None:
            self._check_same_learner(learner)
            with self._reading():
                lesson = Lesson.from_state(self._stored, learner.classifier.device)
        self._due = time.monotonic() + self.every
        integers = any(isinstance(label, int) for label in learner.classes)

        def after(lesson: Lesson) -> None:
            self._note(lesson, learner)

        learner._learn(
            self._batches(pieces, integers),
            lesson=lesson,
            after=after,
            source=_named([str(table.path) for table in self.tables]),
            noted={"run": self._run, "files": self._digest()},
        )

    def _batches(self, pieces: Iterable[Piece], integers: bool) -> Iterator[tuple[Any, list[Any]]]:
        for piece in pieces:
            self._places.append(piece)
            labels: list[Any] = piece.chunk.labels or []
            yield piece.chunk.inputs, [as_label(label, integers) for label in labels]

    def _note(self, lesson: Lesson, learner: Learner) -> None:
        """Take note of a batch that was learned, and save a checkpoint when it is time."""
        piece = self._places.popleft()
        self.place = piece.place
        self.samples += len(piece.chunk)
        if not self.every or time.monotonic() < self._due:
            return
        start = time.monotonic()
        try:
            self._save_checkpoint(lesson, learner)
        except storage.ModelFolderError as error:
            warnings.warn(f"{error} Learning goes on.", CheckpointWarning, stacklevel=2)
        end = time.monotonic()
        self._due = end + max(self.every, (end - start) / LARGEST_SHARE)

    def _save_checkpoint(self, lesson: Lesson, learner: Learner) -> None:
        arrays, document = lesson.to_state()
        document["saved"] = datetime.now(UTC).isoformat(timespec="seconds")
        document["foundation_model"] = learner.foundation
        document["learning"] = {
            "run": self._run,
            "base": self._base,
            "paths": [file["path"] for file in self._files],
            "files": self._files[: self.place.file + 1],
            "columns": self._columns,
            "file": self.place.file,
            "rows": self.place.rows,
            "samples": self.samples,
        }
        storage.save(self._at, arrays, document)

    def _check_same_learner(self, learner: Learner) -> None:
        """Refuse a new learner that is made in another way than the one that was cut off."""
        assert self._stored is not None
        document = self._stored.document
        if not features.same_features(learner.foundation, document["foundation_model"]):
            name = document["foundation_model"]["name"]
            raise self._refused(f"it was begun with another foundation model, {name}. Give that")
        if ("ledger" in document) != (learner.ledger is not None):
            raise self._refused("it was begun with another choice of what to keep. Give the same")
        then = document["classifier"]["parameters"]
        now = learner.classifier.get_params()
        kinds = document["classifier"]["kind"], type(learner.classifier).__name__
        differing = [
            (name, then.get(name), now.get(name))
            for name in sorted((set(then) | set(now)) - {"device"})
            if then.get(name) != now.get(name)
        ]
        if kinds[0] != kinds[1]:
            differing = [("classifier", *kinds)]
        for name, old, new in differing[:1]:
            raise self._refused(
                f"it was begun with {name}={old!r}, not {new!r}. Give the same options"
            )

    # ---------------------------------------------------------------- after

    def save(self, learner: Learner) -> None:
        """Save the model and remove the checkpoint; after a kill in between, `open` notices.

        Parameters
        ----------
        learner : Learner
            As `learn` left it.
        """
        learner.save(self.folder)
        self.tidy()

    def tidy(self) -> None:
        """Remove the checkpoint of a learn that is complete."""
        storage.remove(self._at)


def unfinished(folder: str | Path) -> str | None:
    """Say how far an unfinished learn in a model folder has come; None if there is none.

    Parameters
    ----------
    folder : str or Path
        Model folder.

    Returns
    -------
    str or None
        As ``"12,288 rows, up to row 4,096 of part-2.csv"``.
    """
    at = Path(folder) / storage.LEARNING
    if not storage.exists(at):
        return None
    return _progress(_stored_progress(at).document["learning"])


def _stored_progress(at: Path) -> storage.StoredModel:
    stored = storage.load(at)
    with model_document.checked(at):
        model_document.check_progress(stored.document)
    return stored


def _progress(learning: dict[str, Any]) -> str:
    name = Path(learning["paths"][learning["file"]]).name
    return f"{learning['samples']:,} rows, up to row {learning['rows']:,} of {name}"


def _in_the_way(folder: Path, learning: dict[str, Any], finished: bool) -> str:
    files = _named(learning["paths"])
    if finished:
        return (
            f"{folder}: the learn of {files} was complete when it was cut off; nothing is left to "
            "do. Say --resume to tidy up, or --restart to learn the files once more."
        )
    return (
        f"{folder} holds an unfinished learn of {files}: {_progress(learning)}. Give the same "
        "files and --resume to go on from there, or --restart to drop it."
    )


def _named(paths: Sequence[str]) -> str:
    names = ", ".join(Path(path).name for path in paths[:NAMED_FILES])
    more = len(paths) - NAMED_FILES
    return f"{names} and {more:,} more" if more > 0 else names


def _columns(names: Sequence[str | None]) -> str:
    return " and ".join("(guessed)" if name is None else repr(name) for name in names)
