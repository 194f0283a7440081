"""``klda learn``: into a model folder, on this machine or a cluster, or into a running service."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from klda.cli import options, reading
from klda.cli.checking import CheckedChange, check_refusal
from klda.cli.console import counted, interrupts_ignored, knowledge, report, say
from klda.cli.opening import check_unused, make_learner, note_similar, open_existing
from klda.errors import KldaError

if TYPE_CHECKING:
    from klda.data import Batch, Layout
    from klda.learner import Learner
    from klda.learner.resume import ResumableLearn

SAMPLE = 200  # texts that show their language and length
MOST_CHARACTERS = 6  # of a token: a text that has more is cut off, in any language
NEW = (
    *("foundation", "layers", "classifier", "components", "gamma", "ridge", "seed", "keep"),
    "no_names",
)
LONG = ("checkpoint_every", "resume", "restart", "wait")
CHECKS = ("check", "refuse_worse")


def learn(
    context: typer.Context,
    files: Annotated[
        list[Path],
        typer.Argument(
            help="Files with a column of texts and one of labels, folders of such files, patterns "
            "in quotes ('shards/*.parquet'), or image folders; - is standard input."
        ),
    ],
    model: options.OptionalModel = None,
    text_column: options.TextColumn = None,
    label_column: options.LabelColumn = None,
    header: options.Header = None,
    encoding: options.Encoding = None,
    ignore_case: options.IgnoreCase = False,
    skip_bad: options.SkipBad = False,
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
    as there are fewer than half as many samples as random features, one row of numbers per sample.
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

    layout = options.layout(text_column, label_column, header, encoding, ignore_case)
    check_refusal(check, refuse_worse)
    if server is not None:
        options.refuse(
            context, "--server", ("model", "cluster", *CHECKS, *NEW, *options.ENCODER, *LONG)
        )
        _on_service(server, key, files, layout, skip_bad, json)
        return
    if model is None:
        raise typer.BadParameter("Give a model folder (--model) or a service (--server).")
    options.check_cluster(context, "header", "encoding", "ignore_case", "skip_bad", "resume")
    if resume and restart:
        raise typer.BadParameter("--resume continues what --restart discards: give one of them.")
    # Taken by their names: they go on as they are.
    wanted, encoder = options.of(context, NEW), options.of(context, options.ENCODER)
    start = time.perf_counter()
    with folder.writer_lock(model, timeout=wait), _progress_kept(model):
        existing = open_existing(model, foundation, encoder) if folder.exists(model) else None
        before = existing.classes if existing else {}
        tables = reading.open_tables(files, layout, _modality(existing, foundation), before)
        job = ResumableLearn(model, tables, every=checkpoint_every)
        # Repeated after a kill, the command that made the model has its options still.
        if existing and not (resume and job.learned_before):
            check_unused(wanted, model, existing)
        job.open(resume=resume, restart=restart)
        resumed, skipped = job.samples, 0
        checked = CheckedChange.of(check, layout, existing, refuse_worse)

        def opened() -> Learner:
            return existing or make_learner(
                wanted, tables[0].modality, encoder, announce=not resumed
            )

        if job.complete and existing:
            job.tidy()
            say("These files were learned completely: there is nothing to resume.")
            learner = existing
        else:
            _tell_repeated(job)
            if cluster is None:
                learner, skipped = _learn_here(job, opened, skip_bad)
            else:
                where = encoder | options.given(address=cluster, workers=workers)
                learner = _learn_on_cluster(job, opened(), where)
            _check(job, checked, learner)
            with interrupts_ignored():
                job.save(learner)
    more: dict[str, Any] = {"resumed_after": resumed, "skipped": skipped}
    more["expected"] = learner.quality().summary()
    if checked is not None:
        more["check"] = checked.to_dict()
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
        say(f"{again} They now count once more.")
    if job.samples:
        say(f"Continuing after {job.samples:,} rows.")


def _modality(existing: Learner | None, foundation: str | None) -> str | None:
    """Return what the model takes; None if the files are to tell."""
    from klda.encoders import modality_of

    if existing:
        return existing.modality
    return modality_of(foundation) if foundation else None  # a column of paths may be texts


def _learn_here(
    job: ResumableLearn, opened: Callable[[], Learner], skip_bad: bool
) -> tuple[Learner, int]:
    """Learn what is left; return the learner, and the number of rows skipped."""
    with reading.shown(
        job.tables, "Learning", labels=True, start=job.place, skip_bad=skip_bad
    ) as rows:
        # Before the foundation model is loaded: a bad file shows at once.
        texts, batches = _begun(iter(rows))
        learner = opened()
        if learner.modality == "text":
            _tell_about(texts, learner)
        job.learn(learner, batches, progress=rows.done)
    return learner, rows.skipped


def _begun(batches: Iterator[Batch]) -> tuple[Sequence[Any], Iterator[Batch]]:
    """Read the first batch; return its inputs' beginning, and all batches."""
    first = list(itertools.islice(batches, 1))
    inputs = [value for batch in first for value in batch.inputs[:SAMPLE]]
    # An iterator lets go of what it gave.
    return inputs, itertools.chain(iter(first), batches)


def _tell_about(texts: Sequence[str], learner: Learner) -> None:
    """Say so if the foundation model does not know the language of texts, or cuts them off."""
    from klda.data.languages import NAMES, language_of
    from klda.encoders import MODELS

    name = learner.foundation["name"]
    known = MODELS[name].languages if name in MODELS else ()
    found = language_of(texts) if known else None
    if found and found not in known:
        knows = NAMES[known[0]] if len(known) == 1 else f"{len(known)} other languages"
        others = [info.name for info in MODELS.values() if found in info.languages][:1]
        say(
            f"The texts look {NAMES[found]}, and {name} knows {knows}. Models made with "
            f"--foundation {' or '.join([*others, 'ngrams'])} may answer better."
        )
    tokens = getattr(getattr(learner.encoder, "network", None), "max_length", None) or math.inf
    long = [text for text in texts if len(text) > MOST_CHARACTERS * tokens]
    if long:
        say(
            f"{name} reads the first {tokens} tokens of a text, about {4 * tokens:,} characters: "
            f"{len(long):,} of the first {len(texts):,} texts are longer."
        )


def _learn_on_cluster(job: ResumableLearn, learner: Learner, where: dict[str, Any]) -> Learner:
    from klda import cluster

    layout = job.tables[0].layout
    where |= options.given(input_column=layout.input, label_column=layout.label)
    paths = [table.path for table in job.tables]
    return cluster.learn(paths, learner=learner, progress=True, **where)


def _on_service(
    url: str, key: str | None, files: list[Path], layout: Layout, skip_bad: bool, json: bool
) -> None:
    from klda.server.client import Client

    start, client = time.perf_counter(), Client(url, key=key)
    before = client.classes
    tables = reading.open_tables(files, layout, client.modality, before)
    done = 0
    with reading.shown(tables, "Teaching", labels=True, skip_bad=skip_bad) as rows:
        for batch in rows:
            client.learn(batch.inputs, batch.labels or [])
            done += len(batch)
            rows.done(done)
    more = {"skipped": rows.skipped}
    _report(url, before, client.classes, time.perf_counter() - start, more, json)


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
    from klda.data.notes import label_notes

    new = [label for label in after if label not in before]
    note_similar(new, before, model)
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
