"""``learn`` and ``predict`` on a cluster."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from sklearn.base import clone

from klda.cluster.blocks import Feed, Rows, pieces_of_dataset, pieces_of_tables
from klda.cluster.errors import ClusterError
from klda.cluster.pool import Pool, Resources, Tree, connected
from klda.cluster.progress import Report, shown
from klda.cluster.shares import Recipe, add_to, base_of
from klda.cluster.workers import Answer
from klda.data import BATCH_ROWS, Columns, Table, find_files, open_table
from klda.encoders import Encoder
from klda.errors import KldaError
from klda.learner import REFUSED, Learner

# A share costs as much to ship and merge as some thousand rows do to learn, see docs/cluster.md.
SHARE_ROWS_A_COMPONENT = 10
FEWEST_SHARE_ROWS = 4096
ANSWERS_A_FILE = (4096, 65536)
PROGRESS_LOG = "ray.data._internal.progress"
STORE_SHARE = 0.2  # of Ray's object store that rows waiting to be learned may take


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
    share_rows: int | None = None,
    retries: int = 3,
    source: str | None = None,
    progress: bool | Report = False,
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
        One to teach; changed only if everything succeeds. It must not keep a ledger.
    input_column, label_column : str, optional
        Columns; guessed where their names are obvious.
    address : str, optional
        ``"local"``, ``"auto"`` or ``host:port``; by default what RAY_ADDRESS says, else local. A
        connection that exists is used.
    workers : int, optional
        How many; by default one a GPU, or one a CPU where there are no GPUs.
    cpus_per_worker : int
        CPUs, and threads, of each.
    gpus_per_worker : float or "auto"
        GPUs of each; ``"auto"`` is one if the cluster has any.
    share_rows : int, optional
        Most rows that a worker learns before it hands over what it gathered; by default ten times
        the number of components.
    retries : int
        How often a group of rows is tried again after its worker died.
    source : str, optional
        Where the rows come from, for the history; by default the names of the files.
    progress : bool or callable
        True for a bar on a terminal, or what is called with each `Status`.
    **options
        How workers load the foundation model: ``device``, ``batch_size``, ``cache`` ...

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
    resources.check()
    _check_share_rows(share_rows)
    taught = Learner(model, classifier=classifier, **options) if learner is None else learner
    if taught.ledger is not None:
        raise KldaError(
            "learner keeps a ledger (keep='features'), which would have to hold the features of "
            "every row; on a cluster they stay on the workers. Use a learner without a ledger."
        )
    with connected(address, resources) as ray:
        chosen = Columns(input_column, label_column)
        tables, dataset = _opened(ray, data, taught.modality, chosen, taught.classes)
        text_labels = _text_labels(taught)
        rows = Rows(
            taught.modality,
            input_column,
            label_column,
            labels=True,
            at_once=_rows_at_once(taught),
            text_labels=text_labels,
        )
        with (
            _pool(ray, taught, options, resources, dataset) as pool,
            _feed(ray, tables, dataset, rows, pool, share_rows) as feed,
            shown(progress, "Learning") as report,
        ):
            learned = _gather(pool, feed, taught.classifier, rows, share_rows, report)
    before = taught.classes
    taught.classifier = learned
    names = source or ", ".join(table.path.name for table in tables) or "dataset"
    taught._record("learn", before, names)
    return taught


def _gather(
    pool: Pool, feed: Feed, classifier: Any, rows: Rows, share_rows: int | None, report: Report
) -> Any:
    """Have everything learned, and return a classifier that knows it beside what one knew before.

    Exactly once: a share is a value, made from the rows of its group alone, and each is an
    argument of one merge. Whatever is tried again, because a worker or a machine with results on
    it died, makes the same value in the place of the lost one; nothing is ever added to something
    that could have counted it before. What a dead worker had gathered of an unfinished group died
    with it.
    """
    base = base_of(classifier)
    piece = feed.first()
    if piece is None:
        raise KldaError("data is empty: there is nothing to learn.")
    if base is not None:
        recipe = Recipe.of(base)
    else:
        # As on one machine, the first rows fix what is drawn at random and the bandwidth.
        worker = pool.first()
        report(pool.status())
        drawn = worker.draw.remote(
            clone(classifier), rows, [(0, piece.start, piece.stop)], piece.ref
        )
        recipe = pool.get(drawn)
    # Fetched and stored again: a lost recipe must not be drawn a second time.
    stored = pool.ray.put(recipe)
    tree = Tree()

    def submit(worker: Any, group: Any) -> tuple[Any, Any]:
        task = worker.learn.options(num_returns=2)
        done, share = task.remote(stored, rows, group.first_row, group.spans, *group.refs)
        return done, share

    most = share_rows or max(FEWEST_SHARE_ROWS, SHARE_ROWS_A_COMPONENT * recipe.width)
    total = pool.run(feed, (min(most, max(1, recipe.width // 2)), most), submit, tree.add, report)
    share = pool.get(tree.root(pool.first()))
    if share.rows != total:
        raise ClusterError(f"{share.rows} rows were learned of {total}: nothing was kept.")
    if base is None:
        base = recipe.blank(classifier.device).set_params(**classifier.get_params())
    return add_to(base, share)


def predict(
    data: Any,
    model: str | Path | Learner,
    output: str | Path,
    *,
    input_column: str | None = None,
    columns: Sequence[str] = (),
    refused: float = REFUSED,
    address: str | None = None,
    workers: int | None = None,
    cpus_per_worker: int = 1,
    gpus_per_worker: float | str = "auto",
    retries: int = 3,
    progress: bool | Report = False,
    **options: Any,
) -> Path:
    """Answer rows in bulk: a folder of parquet files.

    Each row has its number from 1 (``row``), the text or image path, ``label``, ``probability`` and
    ``known``: whether the input is like anything learned (null if the model can't tell). Files are
    in the order of the rows, and so are rows in them.

    Parameters
    ----------
    data : path, pattern, sequence of these, or ray.data.Dataset
        Rows; labels are not needed.
    model : path or Learner
        Model folder.
    output : path
        Folder to make; all machines of the cluster must see it. It appears when it is complete.
    input_column : str, optional
        Column with the inputs; guessed where its name is obvious.
    columns : sequence of str
        Columns of a dataset to copy into the answers, such as an id, instead of the input.
    refused : float
        Share of known inputs that may be taken for unknown.
    address, workers, cpus_per_worker, gpus_per_worker, retries, progress, **options
        As for `learn`.

    Returns
    -------
    Path
        The folder.
    """
    resources = Resources(workers, cpus_per_worker, gpus_per_worker, retries)
    resources.check()
    folder = Path(output).resolve()
    if folder.exists():
        raise KldaError(f"output={str(output)!r} exists already: name a new folder.")
    asked = model if isinstance(model, Learner) else Learner.load(model, **options)
    if not asked.classes:
        raise KldaError("model has no classes yet: learn something before asking it.")
    with connected(address, resources) as ray, _written(folder) as partial:
        columns_of = Columns(input_column)
        tables, dataset = _opened(ray, data, asked.modality, columns_of)
        at_once = _rows_at_once(asked)
        rows = Rows(asked.modality, input_column, None, labels=False, at_once=at_once)
        state = ray.put(asked.classifier.to_state(compact=True))
        answer = Answer(partial, _refusable(asked, refused), tuple(columns))

        def submit(worker: Any, group: Any) -> tuple[Any, Any]:
            task = worker.predict.options(num_returns=2)
            done, name = task.remote(state, answer, rows, group.first_row, group.spans, *group.refs)
            return done, name

        with (
            _pool(ray, asked, options, resources, dataset) as pool,
            _feed(ray, tables, dataset, rows, pool, ANSWERS_A_FILE[1]) as feed,
            shown(progress, "Predicting") as report,
        ):
            if feed.first() is None:
                raise KldaError("data is empty: there is nothing to predict.")
            pool.run(feed, ANSWERS_A_FILE, submit, lambda name, worker: None, report)
    return folder


@contextlib.contextmanager
def _written(folder: Path) -> Iterator[Path]:
    """Make a folder beside, and give it its name when it is complete."""
    partial = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    partial.mkdir(parents=True)
    try:
        yield partial
        for left in partial.glob(".part-*"):  # of workers that died
            left.unlink()
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _refusable(learner: Learner, refused: float) -> float | None:
    classifier = learner.classifier
    if not hasattr(classifier, "novelty") or not classifier.calibrated:
        return None
    if isinstance(refused, bool) or not isinstance(refused, float) or not 0 < refused < 1:
        raise KldaError(f"refused={refused!r} must be a share between 0 and 1.")
    return refused


def _opened(
    ray: Any, data: Any, modality: str, columns: Columns, classes: Collection[Any] = ()
) -> tuple[list[Table], Any]:
    """Return the files, or the dataset."""
    if isinstance(data, ray.data.Dataset):
        return [], data
    given = [data] if isinstance(data, str | Path) else data
    if not isinstance(given, Sequence) or not all(isinstance(i, str | Path) for i in given):
        raise KldaError(
            f"data is a {type(data).__name__}; give paths of files, or a ray.data.Dataset."
        )
    paths = find_files(given)
    if not paths:
        raise KldaError("data is empty: name at least one file.")
    for path in paths:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise KldaError(f"{path} is a pipe, which only this process can read: give a file.")
    wanted: Any = modality
    tables = [
        open_table(path.resolve(), modality=wanted, columns=columns, classes=classes)
        for path in paths
    ]
    return tables, None


@contextlib.contextmanager
def _pool(
    ray: Any, learner: Learner, options: dict[str, Any], resources: Resources, dataset: Any
) -> Iterator[Pool]:
    loading = {
        name: value
        for name, value in (learner._options | options).items()
        if name not in ("layers", "modality")
    }
    if "device" not in options:
        loading.pop("device", None)  # the driver's is not the workers'
    pool = Pool(ray, learner.foundation, loading, resources, leave_cpus=dataset is not None)
    try:
        yield pool
    finally:
        pool.close()


@contextlib.contextmanager
def _feed(
    ray: Any, tables: list[Table], dataset: Any, rows: Rows, pool: Pool, group_rows: int | None
) -> Iterator[Feed]:
    if dataset is not None:
        dataset.context.enable_progress_bars = False  # there is one for all
        pieces = pieces_of_dataset(dataset, rows=rows.at_once)
    else:
        pieces = pieces_of_tables(ray, tables, labels=rows.labels, rows=rows.at_once)
    store = int(STORE_SHARE * ray.cluster_resources().get("object_store_memory", 2**30))
    feed = Feed(pieces, 2 * pool.size * (group_rows or ANSWERS_A_FILE[1]), store)
    with _quiet("ray.data", logging.WARNING), _quiet(PROGRESS_LOG, logging.ERROR):
        try:
            yield feed
        finally:
            feed.close()


@contextlib.contextmanager
def _quiet(name: str, level: int) -> Iterator[None]:
    """Keep Ray Data from telling of its own progress."""
    talk = logging.getLogger(name)
    before = talk.level
    talk.setLevel(level)
    try:
        yield
    finally:
        talk.setLevel(before)


def _rows_at_once(learner: Learner) -> int:
    """Rows that are encoded and learned at a time, as many as on one machine."""
    modality: Any = learner.modality
    return BATCH_ROWS[modality]


def _text_labels(learner: Learner) -> bool | None:
    """Whether the learner's classes are texts; None if it has none."""
    label = next(iter(learner.classes), None)
    return None if label is None else isinstance(label, str)


def _check_share_rows(share_rows: int | None) -> None:
    if share_rows is None:
        return
    if isinstance(share_rows, bool) or not isinstance(share_rows, int) or share_rows < 1:
        raise KldaError(f"share_rows={share_rows!r} can't be used; give a positive integer.")
