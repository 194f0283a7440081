"""``learn`` and ``predict`` on a cluster."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from klda.checks import REFUSED, check_count, check_fraction
from klda.cluster.connection import ClusterError, Resources, connected
from klda.cluster.pool import Pool, Progress
from klda.cluster.rows import Part, cut, open_rows
from klda.cluster.workers import Packed, packed
from klda.data import Batch, Columns, Table, read
from klda.data.threads import read_ahead
from klda.encoders import Encoder
from klda.encoders.progress import progress_bar
from klda.engine.checks import check_label_kind
from klda.engine.engine import Engine
from klda.engine.model import Model
from klda.errors import KldaError, require
from klda.learner import Learner

# A part's statistics cost as much to send and merge as some thousand rows cost to learn.
PART_ROWS_PER_COMPONENT = 10
FEWEST_PART_ROWS = 4096
PREDICTIONS_PER_FILE = (4096, 65536)
STORE_FRACTION = 0.2  # of Ray's object store that rows waiting for a worker may take


def learn(
    data: Any,
    *,
    model: str | Path | Encoder = "minilm",
    classifier: Any = None,
    learner: Learner | None = None,
    input_column: str | None = None,
    label_column: str | None = None,
    address: str | None = None,
    workers: int | None = None,
    cpus_per_worker: int = 1,
    gpus_per_worker: float | str = "auto",
    rows_per_part: int | None = None,
    retries: int = 3,
    source: str | None = None,
    progress: bool | Callable[[Progress], None] = False,
    **options: Any,
) -> Learner:
    """Learn from files or a Ray Data dataset on a cluster, as one machine would.

    Parameters
    ----------
    data : path, pattern, sequence of these, or ray.data.Dataset
        Labelled rows. Files are read as ``klda learn`` reads them.
    model, classifier
        For a new learner, as for `klda.learner.Learner`.
    learner : Learner, optional
        A learner to teach; it changes only if everything succeeds. It must not keep a ledger.
    input_column, label_column : str, optional
        Columns; guessed where their names are obvious.
    address : str, optional
        ``"local"``, ``"auto"`` or ``host:port``; by default what RAY_ADDRESS says, else local. An
        existing connection is used.
    workers : int, optional
        Number of workers; by default one per GPU, or one per CPU where there are no GPUs.
    cpus_per_worker : int
        CPUs, and threads, of each.
    gpus_per_worker : float or "auto"
        GPUs of each; ``"auto"`` is one if the cluster has any.
    rows_per_part : int, optional
        Most rows that a worker learns before it sends their statistics; by default ten times the
        number of components.
    retries : int
        How often a part is done again after its worker died.
    source : str, optional
        Where the rows come from, for the history; by default the names of the files.
    progress : bool or callable
        True for a bar on a terminal, or a function that is called with each `Progress`.
    **options
        How workers load the foundation model: ``device``, ``batch_size`` ...

    Returns
    -------
    Learner
        The one given, or a new one. Its statistics are those of one process to rounding, and its
        ridge, temperature and threshold come from the same samples.

    Raises
    ------
    KldaError
        For bad rows, as on one machine; a `ClusterError` if the cluster can't do the work. The
        learner given is then as it was.
    """
    resources = Resources(workers, cpus_per_worker, gpus_per_worker, retries)
    if rows_per_part is not None:
        check_count("rows_per_part", rows_per_part)
    taught = Learner(model, classifier=classifier, **options) if learner is None else learner
    if taught.ledger is not None:
        raise KldaError(
            "learner keeps a ledger (keep='features'), which would have to hold the features of "
            "every row; on a cluster they stay on the workers. Use a learner without a ledger."
        )
    draft = taught.copy()
    if not draft.engine.is_new:
        draft.engine.model  # noqa: B018  raises at once if it can only predict
    with connected(address, resources) as ray:
        columns = Columns(input_column, label_column)
        tables = open_rows(ray, data, taught.modality, columns, classes=taught.classes)
        with _working(ray, tables, taught, options, resources, progress, "Learning") as pool:
            batches: Iterator[Batch] = read(tables, labels=True)
            if draft.engine.is_new:  # the first rows fix the feature map
                first = next(batches)
                draft.learn_rows(draft.encode(first.inputs), first.labels or [])
                draft.engine = Engine(draft.engine.model.empty())
                batches = itertools.chain([first], batches)
            parts = _parts(pool, batches, *_part_sizes(draft, rows_per_part))
            empty = ray.put(packed(draft, Engine(draft.engine.model.empty()), solved=False))
            _merge_all(pool.map(parts, "learn", empty), draft)
    return taught.commit(draft, source or ", ".join(table.path.name for table in tables))


def _part_sizes(draft: Learner, rows_per_part: int | None) -> tuple[int, int]:
    """Return the least and the most rows of a part."""
    size = draft.engine.model.map.n_components
    most = rows_per_part or max(FEWEST_PART_ROWS, PART_ROWS_PER_COMPONENT * size)
    return min(most, max(1, size // 2)), most


def _merge_all(learned: Iterator[tuple[Part, Packed]], draft: Learner) -> None:
    """Add the model of each part to the draft."""
    engine, before, n_rows = draft.engine, draft.samples, 0
    for part, (arrays, meta) in learned:
        model = engine.model
        check_label_kind(model.classes, meta["classes"])
        engine.merge(Model.unpack(arrays, meta, model.backend, model.map))
        n_rows += part.n_rows
    if draft.samples - before != n_rows:
        raise ClusterError(f"{draft.samples - before} rows were learned of {n_rows}: none is kept.")


def predict(
    data: Any,
    model: str | Path | Learner,
    output: str | Path,
    *,
    input_column: str | None = None,
    columns: Sequence[str] = (),
    reject: float = REFUSED,
    address: str | None = None,
    workers: int | None = None,
    cpus_per_worker: int = 1,
    gpus_per_worker: float | str = "auto",
    retries: int = 3,
    progress: bool | Callable[[Progress], None] = False,
    **options: Any,
) -> Path:
    """Predict in bulk, into a folder of parquet files.

    Each row has its number from 1 (``row``), the text or image path, ``label``, ``probability`` and
    ``known``: whether the input is like anything learned (null if the model can't tell). Files, and
    the rows in them, are in the order of the inputs.

    Parameters
    ----------
    data : path, pattern, sequence of these, or ray.data.Dataset
        Rows; labels are not needed.
    model : path or Learner
        Model folder.
    output : path
        Folder to create. It appears when it is complete.
    input_column : str, optional
        Column with the inputs; guessed where its name is obvious.
    columns : sequence of str
        Columns of a dataset to copy, such as an id, instead of the input.
    reject : float
        Fraction of inputs of known classes that may be called unknown.
    address, workers, cpus_per_worker, gpus_per_worker, retries, progress, **options
        As for `learn`.

    Returns
    -------
    Path
        The folder.
    """
    resources = Resources(workers, cpus_per_worker, gpus_per_worker, retries)
    parquet = require("pyarrow.parquet", "cluster")
    check_fraction("reject", reject)
    folder = Path(output).resolve()
    if folder.exists():
        raise KldaError(f"output={str(output)!r} exists already: name a new folder.")
    asked = model if isinstance(model, Learner) else Learner.load(model, **options)
    if not asked.classes:
        raise KldaError("model has no classes yet: learn something before asking it.")
    with connected(address, resources) as ray, _written(folder) as partial:
        found = Columns(input_column)
        tables = open_rows(ray, data, asked.modality, found, copied=tuple(columns))
        given = ray.put(packed(asked, asked.engine, compact=True))
        with _working(ray, tables, asked, options, resources, progress, "Predicting") as pool:
            parts = _parts(pool, read(tables, labels=False), *PREDICTIONS_PER_FILE)
            for part, table in pool.map(parts, "predict", given, float(reject)):
                parquet.write_table(table, partial / f"part-{part.first_row:012d}.parquet")
    return folder


@contextlib.contextmanager
def _written(folder: Path) -> Iterator[Path]:
    """Create a folder under another name, and rename it when it is complete."""
    partial = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    partial.mkdir(parents=True)
    try:
        yield partial
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextlib.contextmanager
def _working(
    ray: Any,
    tables: Sequence[Table],
    learner: Learner,
    options: dict[str, Any],
    resources: Resources,
    progress: bool | Callable[[Progress], None],
    doing: str,
) -> Iterator[Pool]:
    """Yield workers with a learner's foundation model; their progress is reported, or shown."""
    # The driver's device is not the workers'.
    loading = learner.options | {"device": "auto"} | options
    for name in ("layers", "modality"):  # the fingerprint says which
        loading.pop(name, None)
    is_dataset = tables[0].typed
    with progress_bar(doing, None if is_dataset else 1.0, show=progress is True) as show:

        def shown(now: Progress) -> None:
            show(now.fraction or 0.0, f"{now.rows:,} rows, {len(now.workers)} workers")

        report = progress if callable(progress) else shown
        given = (learner.foundation, loading, resources)
        with Pool(ray, *given, leave_cpus=is_dataset, report=report) as pool:
            pool.wait_for_place()
            yield pool


def _parts(pool: Pool, batches: Iterator[Batch], least: int, most: int) -> Iterator[Part]:
    """Cut rows into parts in a thread, a few parts ahead of the workers."""
    store = pool.ray.cluster_resources().get("object_store_memory", 2**30)
    most_bytes = STORE_FRACTION * store / (pool.size + 4)  # one per worker, and those read ahead
    return read_ahead(cut(batches, pool.ray.put, pool.size, least, most, most_bytes))
