"""``learn`` and ``predict`` on a cluster."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from klda.checks import check_count, check_fraction
from klda.cluster.connection import connected
from klda.cluster.pool import Pool, Resources
from klda.cluster.rows import Part, cut, is_dataset, open_rows
from klda.cluster.workers import packed
from klda.data import Batch, Layout, read
from klda.data.threads import read_ahead
from klda.engine.engine import Engine
from klda.engine.model import Model
from klda.errors import KldaError, require
from klda.labels import check_label_kind
from klda.learner import Learner
from klda.progress import Show, progress_bar

# A part's statistics cost as much to send and merge as some thousand rows cost to learn.
PART_ROWS_PER_COMPONENT = 10
FEWEST_PART_ROWS = 4096
PREDICTIONS_PER_FILE = (4096, 65536)
STORE_FRACTION = 0.2  # of Ray's object store that rows waiting for a worker may take


def learn(
    data: Any,
    learner: Learner | None = None,
    *,
    input_column: str | Sequence[str] | None = None,
    label_column: str | None = None,
    address: str | None = None,
    workers: int | None = None,
    cpus_per_worker: int = 1,
    gpus_per_worker: float | str = "auto",
    rows_per_part: int | None = None,
    retries: int = 3,
    progress: Show = False,
    **options: Any,
) -> Learner:
    """Learn from files or a Ray Data dataset on a cluster, as one machine would.

    Parameters
    ----------
    data : path, pattern, sequence of these, or ray.data.Dataset
        Labelled rows. Files are read as ``klda learn`` reads them.
    learner : Learner, optional
        A learner to teach, by default a new one of texts; it changes only if everything succeeds.
        It must not keep a ledger.
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
    progress : bool or callable
        True for a bar on a terminal; or a function that is called, whenever a part is done, with
        the fraction of the rows that is learned (0 for a dataset) and a note.
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
    taught = Learner(**options) if learner is None else learner
    if taught.ledger is not None:
        raise KldaError(
            "learner keeps a ledger (keep='features'), which would have to hold the features of "
            "every row; on a cluster they stay on the workers. Use a learner without a ledger."
        )
    if not taught.engine.is_new:
        taught.engine.model  # noqa: B018  raises at once if it can only predict
    with connected(address, resources.local_cpus) as ray:
        layout = Layout(input_column, label_column)
        tables = open_rows(ray, data, taught.modality, layout, classes=taught.classes)
        source = ", ".join(table.path.name for table in tables)
        with (
            _pool(ray, data, taught, options, resources) as pool,
            taught.changing("learn", source) as draft,
        ):
            batches: Iterator[Batch] = read(tables, labels=True)
            if draft.engine.is_new:  # the first rows fix the feature map
                first = next(batches)
                draft.add(taught.encode(first.inputs), first.labels or [])
                draft.engine.model = draft.engine.model.empty()
                batches = itertools.chain([first], batches)
            empty = draft.engine.model.empty()
            size = empty.map.n_components
            most = rows_per_part or max(FEWEST_PART_ROWS, PART_ROWS_PER_COMPONENT * size)
            parts = _parts(pool, batches, min(most, max(1, size // 2)), most)
            given = ray.put(packed(draft, Engine(draft.engine.parameters, empty), solved=False))
            learned = pool.map(parts, "learn", given)
            for _, (arrays, meta) in _shown(learned, "Learning", pool, progress):
                check_label_kind(draft.engine.counts, meta["classes"])
                draft.engine.merge(Model.unpack(arrays, meta, empty.backend, empty.map))
            draft.note_learned()
    return taught


def predict(
    data: Any,
    model: str | Path | Learner,
    output: str | Path,
    *,
    input_column: str | Sequence[str] | None = None,
    columns: Sequence[str] | None = (),
    reject: float | None = None,
    address: str | None = None,
    workers: int | None = None,
    cpus_per_worker: int = 1,
    gpus_per_worker: float | str = "auto",
    retries: int = 3,
    progress: Show = False,
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
    columns : sequence of str, optional
        Columns to copy, such as an id, instead of the input; None copies all.
    reject : float, optional
        Fraction of inputs of known classes that may be called unknown; by default as
        `Learner.tune_unknown` chose, or 0.05.
    address, workers, cpus_per_worker, gpus_per_worker, retries, progress, **options
        As for `learn`.

    Returns
    -------
    Path
        The folder.
    """
    resources = Resources(workers, cpus_per_worker, gpus_per_worker, retries)
    parquet = require("pyarrow.parquet", "cluster")
    if reject is not None:
        check_fraction("reject", reject)
    folder = Path(output).resolve()
    if folder.exists():
        raise KldaError(f"output={str(output)!r} exists already: name a new folder.")
    asked = model if isinstance(model, Learner) else Learner.load(model, **options)
    if not asked.classes:
        raise KldaError("model has no classes yet: learn something before asking it.")
    with connected(address, resources.local_cpus) as ray, _written(folder) as partial:
        tables = open_rows(ray, data, asked.modality, Layout(input_column))
        given = ray.put(packed(asked, asked.engine, compact=True))
        with _pool(ray, data, asked, options, resources) as pool:
            parts = _parts(pool, read(tables, labels=False, keep=columns), *PREDICTIONS_PER_FILE)
            answered = pool.map(parts, "predict", given, reject)
            for part, table in _shown(answered, "Predicting", pool, progress):
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


def _pool(
    ray: Any, data: Any, learner: Learner, options: dict[str, Any], resources: Resources
) -> Pool:
    """Return workers with a learner's foundation model."""
    # The driver's device is not the workers', and the fingerprint says which layers.
    loading = learner.options | {"device": "auto"} | options
    loading = {key: loading[key] for key in loading if key not in ("layers", "modality")}
    return Pool(ray, learner.foundation, loading, resources, beside_dataset=is_dataset(ray, data))


def _parts(pool: Pool, batches: Iterator[Batch], least: int, most: int) -> Iterator[Part]:
    """Cut rows into parts in a thread, a few parts ahead of the workers."""
    store = pool.ray.cluster_resources().get("object_store_memory", 2**30)
    most_bytes = STORE_FRACTION * store / (pool.size + 4)  # one per worker, and those read ahead
    return read_ahead(cut(batches, pool.ray.put, pool.size, least, most, most_bytes))


def _shown(
    results: Iterator[tuple[Part, Any]], doing: str, pool: Pool, progress: Show
) -> Iterator[tuple[Part, Any]]:
    """Yield parts with their results, and show or report how far the work is."""
    rows, fraction = 0, 0.0
    with progress_bar(doing, None if pool.beside_dataset else 1.0, show=progress) as report:
        for part, result in results:
            yield part, result
            rows, fraction = rows + part.n_rows, fraction + part.fraction
            report(fraction, f"{rows:,} rows")
