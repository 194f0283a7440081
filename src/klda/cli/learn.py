"""``klda learn``."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from klda.cli import options, reading
from klda.cli.console import counted, interrupts_ignored, knowledge, report, say
from klda.cli.opening import NewModel, open_existing
from klda.errors import KldaError

if TYPE_CHECKING:
    from klda.learner import Learner
    from klda.learner.resume import ResumableLearn

MOST_HINTS = 5


def learn(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="Files with a column of texts and one of labels, folders of such files, patterns "
            "in quotes ('shards/*.parquet'), or image folders."
        ),
    ],
    model: options.Model,
    input_column: options.InputColumn = None,
    label_column: options.LabelColumn = None,
    foundation: options.Foundation = None,
    layers: options.Layers = None,
    classifier: options.Classifier = None,
    components: options.Components = None,
    gamma: options.Gamma = None,
    ridge: options.Ridge = None,
    seed: options.Seed = None,
    keep: options.Keep = None,
    no_names: options.NoNames = False,
    device: options.Device = "auto",
    batch_size: options.BatchSize = None,
    engine: options.Engine = None,
    precision: options.Precision = None,
    checkpoint_every: options.CheckpointEvery = 180.0,
    resume: options.Resume = False,
    restart: options.Restart = False,
    cluster: options.Cluster = None,
    workers: options.Workers = None,
    wait: options.Wait = 0.0,
    json: options.Json = False,
) -> None:
    """Teach a model new classes, or more of old ones.

    The model folder is created if it does not exist. Rows are read, encoded and learned in batches,
    so a file may be larger than memory. No text and no image is kept, only statistics; and, as long
    as there are fewer than half as many samples as random features, one row of numbers per sample.
    The model changes once, at the end: a command that fails, is interrupted or is killed leaves it
    as it was. A long one saves its progress every few minutes, and **--resume** continues from
    there.

    **klda learn** tickets.csv **--model** bot/

    **klda learn** more.jsonl others.tsv.gz **--model** bot/ **--text-column** body
    **--label-column** queue

    **klda learn** photos/ **--model** cats/ **--foundation** dinov2-small

    **klda learn** shards/ **--model** bot/ **--resume**

    **klda learn** shards/ **--model** bot/ **--cluster** 10.0.0.1:6379
    """
    from klda.encoders import modality_of
    from klda.learner import folder
    from klda.learner.resume import ResumableLearn, named

    options.check_workers(cluster, workers)
    if resume and (restart or cluster is not None):
        raise typer.BadParameter(
            "--resume continues from saved progress, which --restart discards and --cluster does "
            "not save: give one of them."
        )
    new = NewModel(foundation, layers, classifier, components, gamma, ridge, seed, keep, no_names)
    encoding = options.encoding(device, batch_size, engine, precision)
    start = time.perf_counter()
    with folder.writer_lock(model, timeout=wait), _progress_kept(model):
        existing = None
        if folder.exists(model):
            existing = open_existing(model, foundation, encoding)
        before = existing.classes if existing else {}
        modality = existing.modality if existing else None
        if foundation and not existing:  # a column of paths may be texts: the model tells
            modality = modality_of(foundation)
        tables = reading.open_tables(files, modality, input_column, label_column, before)
        job = ResumableLearn(model, tables, every=checkpoint_every)
        # Repeated after a kill, the command that made the model has its options still.
        if existing and not (resume and job.learned_before):
            new.check_unused(model, existing)
        job.open(resume=resume, restart=restart)
        resumed = job.samples

        def opened() -> Learner:
            return existing or new.make(tables[0].modality, encoding, announce=not resumed)

        if job.complete and existing:
            job.tidy()
            say("These files were learned completely: there is nothing to resume.")
            learner = existing
        else:
            if job.repeated:
                again = f"The same rows were learned before: {named(job.repeated)}."
                say(f"{again} They now count once more.")
            if resumed:
                say(f"Continuing after {resumed:,} rows.")
            if cluster is None:
                learner = _learn_here(job, opened)
            else:
                where = encoding | options.given(address=cluster, workers=workers)
                learner = _learn_on_cluster(job, opened(), where)
            with interrupts_ignored():
                job.save(learner)
    _report(learner, before, model, resumed, time.perf_counter() - start, json)


def _learn_here(job: ResumableLearn, opened: Callable[[], Learner]) -> Learner:
    with reading.shown(job.tables, "Learning", labels=True, start=job.place) as rows:
        # Before the foundation model is loaded: a bad file shows at once.
        batches = iter(rows)
        first = iter(list(itertools.islice(batches, 1)))  # an iterator lets go of what it gave
        learner = opened()
        job.learn(learner, itertools.chain(first, batches), progress=rows.done)
    return learner


def _learn_on_cluster(job: ResumableLearn, learner: Learner, where: dict[str, Any]) -> Learner:
    from klda import cluster

    columns = job.tables[0].columns
    where |= options.given(input_column=columns.input, label_column=columns.label)
    paths = [table.path for table in job.tables]
    return cluster.learn(paths, learner=learner, progress=True, **where)


@contextmanager
def _progress_kept(model: Path) -> Iterator[None]:
    """Say, when a learn is interrupted, that its progress is kept."""
    from klda.learner import resume

    try:
        yield
    except resume.CheckpointError:
        raise  # which says it already
    except BaseException:
        with suppress(KldaError):
            if progress := resume.unfinished(model):
                say(
                    f"The progress is kept: {progress}. Continue with --resume, or discard it with "
                    "--restart."
                )
        raise


def _report(
    learner: Learner,
    before: dict[Any, int],
    model: Path,
    resumed: int,
    seconds: float,
    as_json: bool,
) -> None:
    after = learner.classes
    new = [label for label in after if label not in before]
    for names in _spellings(new, after):
        say(f"{', '.join(names)} differ only in case or spaces and are different classes.")
    classes, samples = len(after), sum(after.values())
    learned = samples - sum(before.values())
    report(
        as_json,
        {
            "model": str(model),
            "learned": learned,
            "resumed_after": resumed,
            "new_classes": new,
            "classes": classes,
            "samples": samples,
            "seconds": round(seconds, 3),
        },
        f"Learned {counted(learned, 'sample')}, {counted(len(new), 'new class')}, in "
        f"{seconds:.1f} s. {model} now knows {knowledge(classes, samples)}.",
    )


def _spellings(new: list[Any], classes: Iterable[Any]) -> list[list[str]]:
    """Return the names of classes, at least one of them new, that are probably meant as one."""
    groups: dict[str, list[Any]] = {}
    for label in classes:
        groups.setdefault(" ".join(str(label).split()).casefold(), []).append(label)
    fresh = set(new)
    alike = [group for group in groups.values() if len(group) > 1 and not fresh.isdisjoint(group)]
    return [list(map(repr, group)) for group in alike[:MOST_HINTS]]
