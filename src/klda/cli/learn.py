"""``klda learn``: into a model folder, on this machine or a cluster, or into a running service."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from klda.cli import options, reading
from klda.cli.console import interrupts_ignored, knowledge, report, say
from klda.cli.held_out import CheckedChange, check_refusal
from klda.cli.opening import (
    check_unused,
    make_learner,
    no_model,
    note_similar,
    open_existing,
    tables_for,
)
from klda.errors import KldaError
from klda.messages import counted

if TYPE_CHECKING:
    from klda.data import Batch, Layout
    from klda.labels import Label
    from klda.learner import Learner
    from klda.learner.resume import ResumableLearn

SAMPLE = 200  # texts that show their language
NOT_ON_SERVER = ("model", "cluster", "check", "refuse_worse", "wait")


def learn(
    context: typer.Context,
    files: Annotated[
        list[Path],
        typer.Argument(
            help="Files with a column of texts and one of labels, folders of such files, patterns "
            "in quotes ('shards/*.parquet'), or image folders; - is standard input."
        ),
    ],
    text_column: options.TextColumn = None,
    header: options.Header = None,
    encoding: options.Encoding = None,
    skip_bad: options.SkipBad = False,
    label_column: options.LabelColumn = None,
    ignore_case: options.IgnoreCase = False,
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
    runtime: options.Runtime = None,
    precision: options.Precision = None,
    checkpoint_every: options.CheckpointEvery = 180.0,
    resume: options.Resume = False,
    restart: options.Restart = False,
    model: options.OptionalModel = None,
    server: options.Server = None,
    key: options.Key = None,
    cluster: options.Cluster = None,
    workers: options.Workers = None,
    check: Annotated[
        Path | None,
        options.option(
            "File with inputs and their true labels: say how the change does on it, by class.",
            metavar="FILE",
        ),
    ] = None,
    refuse_worse: Annotated[
        float | None,
        options.option(
            "With --check: leave the model as it was if a class gets worse by more points.",
            min=0,
            metavar="POINTS",
        ),
    ] = None,
    wait: options.Wait = 0.0,
    json: options.Json = False,
) -> None:
    """Teach a model new classes, or more of old ones.

    The model folder is created if it does not exist. Rows are read, encoded and learned in batches,
    so a file may be larger than memory. No text and no image is kept, only statistics; and, as long
    as there are at most half as many samples as random features, one row of numbers per sample.
    The model changes once, at the end: a command that fails, is interrupted or is killed leaves it
    as it was. A long one saves its progress every few minutes, and **--resume** continues from
    there.

    **klda learn** tickets.csv **--model** bot/

    **klda learn** export.xlsx **--model** bot/ **--text-column** Subject **--text-column** Body

    **klda learn** photos/ **--model** cats/ **--foundation** dinov2-small

    **klda learn** shards/ **--model** bot/ **--resume**

    **klda learn** new.csv **--model** bot/ **--check** held-out.csv **--refuse-worse** 1.0

    **klda learn** tickets.csv **--server** http://127.0.0.1:8000
    """
    from klda.learner.resume import ResumableLearn
    from klda.storage import folder

    layout = options.layout(text_column, header, encoding, label_column, ignore_case)
    check_refusal(check, refuse_worse)
    if server is not None:
        options.refuse(
            context, "--server", NOT_ON_SERVER, (options.NEW, options.ENCODING, options.LONG)
        )
        _on_service(server, key, files, layout, skip_bad, json)
        return
    if model is None:
        raise no_model(files)
    options.check_cluster(context, "header", "encoding", "ignore_case", "skip_bad", "resume")
    if resume and restart:
        raise typer.BadParameter("--resume continues what --restart discards: give one of them.")
    wanted = options.given_of(context, options.NEW)
    where = options.encoder_options(device, batch_size, runtime, precision)
    start = time.perf_counter()
    with folder.writer_lock(model, timeout=wait), _progress_kept(model):
        existing = open_existing(model, foundation, where) if folder.exists(model) else None
        before = existing.classes if existing else {}
        tables = tables_for(existing, files, foundation, layout)
        job = ResumableLearn(model, tables, every=checkpoint_every)
        # Repeated after a kill, the command that made the model has its options still.
        if existing and not (resume and job.learned_before):
            check_unused(wanted, model, existing)
        job.open(resume=resume, restart=restart)
        resumed, skipped = job.samples, 0
        checked = CheckedChange(check, layout, existing, refuse_worse) if check else None

        def open_learner() -> Learner:
            return existing or make_learner(wanted, tables[0].modality, where, announce=not resumed)

        if job.complete and existing:
            job.tidy()
            say("These files were learned completely: there is nothing to resume.")
            learner, checked = existing, None  # there is nothing to compare
        else:
            _tell_repeated(job)
            if cluster is None:
                learner, skipped = _learn_here(job, open_learner, skip_bad)
            else:
                there = where | options.given(address=cluster, workers=workers)
                learner = _learn_on_cluster(job, open_learner(), there)
            _check(job, checked, learner)
            counts = learner.classes  # what was meant is probably the class with more samples
            _tell_similar(sorted(counts, key=counts.__getitem__, reverse=True), before, model)
            with interrupts_ignored():
                job.save(learner)
    more: dict[str, Any] = {"resumed_after": resumed, "skipped": skipped}
    more["expected"] = learner.quality().summary()
    if check is not None:
        more["check"] = checked and checked.to_dict()
    _report(str(model), before, learner.classes, time.perf_counter() - start, more, json)
    if not json:
        _tell_quality(learner, checked)


def _tell_quality(learner: Learner, checked: CheckedChange | None) -> None:
    """Say what accuracy to expect, and how held-out rows fared."""
    quality = learner.quality()
    if quality.is_known:
        say(str(quality))
    if checked is not None:
        checked.show()


def _check(job: ResumableLearn, checked: CheckedChange | None, learner: Learner) -> None:
    """Compare the model with the one before; keep no progress of a learn that is refused."""
    if checked is None:
        return
    try:
        checked.compare(learner)
    except KldaError:
        job.tidy()
        raise


def _tell_repeated(job: ResumableLearn) -> None:
    from klda.learner.resume import named

    if job.repeated:
        again = f"The same rows were learned before: {named(job.repeated)}."
        say(f"{again} They now count once more, and the expected accuracy is too high.")
    if job.samples:
        say(f"Continuing after {job.samples:,} rows.")


def _learn_here(
    job: ResumableLearn, open_learner: Callable[[], Learner], skip_bad: bool
) -> tuple[Learner, int]:
    """Learn what is left; return the learner, and the number of rows skipped."""
    with reading.progress_over(
        job.tables, "Learning", labels=True, start=job.place, skip_bad=skip_bad
    ) as rows:
        # Before the foundation model is loaded: a bad file shows at once.
        texts, batches = _begun(iter(rows))
        learner = open_learner()
        _tell_language(texts, learner.modality, learner.foundation["name"])
        job.learn(learner, batches, progress=rows.done)
    return learner, rows.skipped


def _tell_language(texts: Sequence[Any], modality: str, foundation: str) -> None:
    from klda.inspection.notes import language_notes

    if modality == "text":
        for note in language_notes(texts, foundation):
            say(note)


def _begun(batches: Iterator[Batch]) -> tuple[Sequence[Any], Iterator[Batch]]:
    """Read the first batch; return its inputs' beginning, and all batches."""
    first = list(itertools.islice(batches, 1))
    inputs = [value for batch in first for value in batch.inputs[:SAMPLE]]
    # An iterator lets go of what it gave.
    return inputs, itertools.chain(iter(first), batches)


def _tell_similar(
    labels: Collection[Label], before: Collection[Label], model: Path | None = None
) -> None:
    """Point out new classes that look like others, before they are made."""
    found = note_similar(labels, before, model)
    if any(str(one).casefold() == str(other).casefold() for one, other in found.items()):
        say("With --ignore-case, labels that differ only in case are one class.")


def _learn_on_cluster(job: ResumableLearn, learner: Learner, where: dict[str, Any]) -> Learner:
    from klda import cluster

    layout = job.tables[0].layout
    where |= options.given(input_column=layout.input, label_column=layout.label)
    paths = [table.path for table in job.tables]
    return cluster.learn(paths, learner=learner, progress=True, **where)


def _on_service(
    url: str, key: str | None, files: list[Path], layout: Layout, skip_bad: bool, json: bool
) -> None:
    from klda.inspection.quality import Quality
    from klda.server.client import Client

    start, client = time.perf_counter(), Client(url, key=key)
    before = client.classes
    tables = reading.open_tables(files, layout, client.modality, before)
    known, done = set(before), 0
    with reading.progress_over(tables, "Teaching", labels=True, skip_bad=skip_bad) as rows:
        texts, batches = _begun(iter(rows))
        _tell_language(texts, client.modality, client.info["foundation_model"]["name"])
        for batch in batches:
            labels = batch.labels or []
            _tell_similar(labels, known)
            client.learn(batch.inputs, labels)
            known.update(labels)
            done += len(batch)
            rows.done(done)
    said = client.quality()
    expected = {name: said[name] for name in ("accuracy", "low", "high", "left_out")}
    more = {"skipped": rows.skipped, "expected": expected}
    _report(url, before, client.classes, time.perf_counter() - start, more, json)
    if expected["accuracy"] is not None and not json:
        say(str(Quality(**expected, classes=[])))


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
    model: str,
    before: dict[Any, int],
    after: dict[Any, int],
    seconds: float,
    more: dict[str, Any],
    as_json: bool,
) -> None:
    from klda.inspection.notes import label_notes

    new = [label for label in after if label not in before]
    for note in label_notes({label: after[label] for label in new}):
        say(note)
    classes, samples = len(after), sum(after.values())
    learned = samples - sum(before.values())
    done = {"model": model, "learned": learned, "new_classes": new, **more}
    report(
        as_json,
        done | {"classes": classes, "samples": samples, "seconds": round(seconds, 3)},
        f"Learned {counted(learned, 'sample')}, {counted(len(new), 'new class')}, in "
        f"{seconds:.1f} s. {model} now knows {knowledge(classes, samples)}.",
    )
