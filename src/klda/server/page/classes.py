"""Classes: the table, a drawer for each class, what can be done to several, and the map."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Form, Query, Request
from fastapi.responses import Response

from klda.errors import KldaError
from klda.inspection.label_set import ConfusablePair
from klda.labels import Label, close_names, spelt
from klda.messages import counted
from klda.server import inputs, schemas
from klda.server.api import CurrentService
from klda.server.changes import Change, Declare, Forget, Rename
from klda.server.errors import ServerError
from klda.server.page.ask import named_class, picked
from klda.server.page.render import as_csv, changed, paginate, render, screen
from klda.server.page.routes import PAGE, Field, router
from klda.server.page.state import CurrentState, PageState
from klda.server.page.wording import named, shown
from klda.server.service import Service

FEW = 5  # examples
CONFUSED = 0.02  # of the examples of a class: worth naming
OFTEN = 0.05  # worth a tag
SORTS = ("name", "examples", "accuracy", "confused", "taught")
MOST_ADDED = 1000  # examples, one per line
TRACE = " The shared statistics keep a small trace of it, because its examples are not stored."

Labels = Annotated[list[str], Form()]


@dataclass(frozen=True)
class Row:
    """A class in the table."""

    label: Label
    examples: int
    accuracy: float  # NaN where it is not known
    low: float
    high: float
    confusion: float  # with the class that it is most confused with
    rival: Label | None
    taught: float  # when; 0 if the history does not say
    similar: Label | None  # a class with almost the same name

    @property
    def tags(self) -> list[tuple[str, str]]:
        """What is to be said of it: a kind, and words."""
        found = []
        if not self.examples:
            found.append(("warn", "no examples"))
        elif self.examples < FEW:
            found.append(("warn", "few examples"))
        if self.confusion >= OFTEN:
            found.append(("bad", "often confused"))
        if self.similar is not None:
            found.append(("", "similar name"))
        return found

    @property
    def expected(self) -> str:
        """Its expected accuracy in a table; "" where it is not known."""
        return "" if math.isnan(self.accuracy) else f"{self.accuracy:.3f}"

    def key(self, sort: str) -> tuple:
        """Return what it is sorted by."""
        name = spelt(self.label)
        match sort:
            case "examples":
                return -self.examples, name
            case "accuracy":
                return (2.0 if math.isnan(self.accuracy) else self.accuracy), name
            case "confused":
                return -self.confusion, name
            case "taught":
                return -self.taught, name
        return (name,)


async def table(state: PageState) -> list[Row]:
    """Return all classes with what is known of them."""
    service = state.service
    counts, quality = service.snapshot.counts, await service.quality()
    found = {one.label: one for one in quality.classes}
    rivals = worst_rivals(await confused_pairs(service))
    taught, similar = await state.last_taught(), await state.similar_names()
    rows = []
    for label, examples in counts.items():
        one, (rival, confusion) = found.get(label), rivals.get(label, (None, 0.0))
        known = one is not None and one.left_out > 0
        numbers = (one.accuracy, one.low, one.high) if one and known else (math.nan, 0.0, 1.0)
        seen, alike = taught.get(label, 0.0), similar.get(label)
        rows.append(Row(label, examples, *numbers, confusion, rival, seen, alike))
    return rows


async def confused_pairs(service: Service) -> list[ConfusablePair]:
    """Return the pairs of classes that are worth naming, the most easily confused first.

    Of classes with few examples, only more examples tell whether they are.
    """
    counts = service.snapshot.counts
    return [
        pair
        for pair in (await service.class_overview())[1]
        if pair.confusion >= CONFUSED
        and min(counts.get(pair.first, 0), counts.get(pair.second, 0)) >= FEW
    ]


def worst_rivals(pairs: list[ConfusablePair]) -> dict[Label, tuple[Label, float]]:
    """Return with which class each is confused most, and how often."""
    found: dict[Label, tuple[Label, float]] = {}
    for pair in pairs:
        found.setdefault(pair.first, (pair.second, pair.confusion))
        found.setdefault(pair.second, (pair.first, pair.confusion))
    return found


Search = Annotated[str, Query(max_length=200)]


async def listed(
    state: CurrentState, search: Search = "", tag: Search = "", sort: Search = "", page: int = 1
) -> dict[str, Any]:
    """Return the part of the table that is asked for."""
    wanted = spelt(search)
    rows = [row for row in await table(state) if wanted in spelt(row.label)]
    tags = sorted({words for row in rows for _, words in row.tags})
    if tag:
        rows = [row for row in rows if tag in (words for _, words in row.tags)]
    sort = sort if sort in SORTS else SORTS[0]
    rows.sort(key=lambda row: row.key(sort))
    shown_rows, page, pages = paginate(rows, page)
    return {
        "rows": shown_rows,
        "found": len(rows),
        "tags": tags,
        "search": search,
        "tag": tag,
        "sort": sort,
        "page": page,
        "pages": pages,
    }


Listed = Annotated[dict[str, Any], Depends(listed)]


@router.get("/classes")
async def show_classes(request: Request, listed: Listed) -> Response:
    """Show the table of classes."""
    return await screen(request, "classes", view="table", **listed)


@router.get("/page/classes")
async def show_table(request: Request, listed: Listed) -> Response:
    """Show the part of the table that was asked for."""
    return render(request, "class_table.html", **listed)


@router.get("/page/classes.csv")
async def export_classes(
    request: Request, state: CurrentState, labels: Annotated[list[str] | None, Query()] = None
) -> Response:
    """Return the classes that were selected, or all, as CSV."""
    declared = state.service.snapshot.learner.declared
    rows = [
        [row.label, row.examples, row.expected, row.rival or "", declared.get(row.label) or ""]
        for row in sorted(await table(state), key=lambda row: row.key("name"))
        if labels is None or str(row.label) in labels
    ]
    columns = ["class", "examples", "expected_accuracy", "confused_with", "description"]
    return as_csv("classes.csv", columns, rows)


# ------------------------------------------------------------------ one class


@router.get("/page/class")
async def show_class(
    request: Request, service: CurrentService, state: CurrentState, label: str
) -> Response:
    """Show a class and what can be done with it."""
    rows = {row.label: row for row in await table(state)}
    chosen = inputs.chosen_class(label, rows)
    pairs = [
        (pair.second if pair.first == chosen else pair.first, pair.confusion)
        for pair in await confused_pairs(service)
        if chosen in (pair.first, pair.second)
    ]
    about = service.snapshot.learner.declared.get(chosen)
    return render(request, "class.html", row=rows[chosen], pairs=pairs, about=about)


@router.get("/page/pair")
async def show_pair(request: Request, service: CurrentService, first: str, second: str) -> Response:
    """Show two classes that are easily confused, and what can be done about it."""
    both = _several(service, [first, second])
    found = [
        pair.confusion
        for pair in await confused_pairs(service)
        if {pair.first, pair.second} == both["counts"].keys()
    ]
    return render(request, "pair.html", confusion=found[0] if found else None, **both)


@router.get("/page/near")
async def near_names(request: Request, service: CurrentService, name: Search = "") -> Response:
    """Show the classes with names much like one that is being typed."""
    near = close_names(name, service.snapshot.counts, 3) if name.strip() else []
    return render(request, "near.html", near=near, counts=service.snapshot.counts)


@router.get("/page/combo")
async def combo(
    request: Request, service: CurrentService, typed: Search = "", labels: str = ""
) -> Response:
    """List the classes that another one can be merged into."""
    others = {name: n for name, n in service.snapshot.counts.items() if str(name) != labels}
    return render(request, "combo.html", **picked(typed, others))


@router.post("/page/declare")
async def declare(
    request: Request,
    service: CurrentService,
    name: Field,
    about: Annotated[schemas.Description | None, Form(alias="description")] = None,
) -> Response:
    """Add a class by its name."""
    label = named_class(name, known := service.snapshot.counts)
    if label in known:
        raise ServerError(f"There is a class “{shown(label)}” already.")
    done = await service.change(Declare([(label, about)], by=PAGE))
    return changed(request, f"Added {named([label])}.", done)


@router.post("/page/class/describe")
async def describe(
    request: Request,
    service: CurrentService,
    label: Field,
    about: Annotated[schemas.Description | None, Form(alias="description")] = None,
) -> Response:
    """Change the description of a class."""
    chosen = inputs.chosen_class(label, service.snapshot.counts)
    done = await service.change(Declare([(chosen, about)], by=PAGE))
    return changed(request, f"Described {named([chosen])}.", done, finished={})


@router.post("/page/class/add")
async def add_examples(
    request: Request, service: CurrentService, label: Field, texts: Field
) -> Response:
    """Teach examples of a class, one per line."""
    chosen = inputs.chosen_class(label, service.snapshot.counts)
    lines = [line.strip() for line in texts.splitlines() if line.strip()]
    if not lines:
        raise ServerError("Write at least one example.")
    if len(lines) > MOST_ADDED:
        raise ServerError(f"At most {MOST_ADDED:,} examples at a time; import a file instead.")
    given = [(await inputs.typed_input(service, line))[0] for line in lines]
    done = await service.learn(given, [chosen] * len(given), by=PAGE)
    said = f"Taught {counted(len(given), 'example')} of {named([chosen])}."
    return changed(request, said, done, finished={})


@router.post("/page/rename")
async def rename(request: Request, service: CurrentService, old: Field, new: Field) -> Response:
    """Rename a class."""
    known = service.snapshot.counts
    chosen, label = inputs.chosen_class(old, known), inputs.typed_class(new, known)
    others = [name for name in known if name != chosen]
    taken = next((name for name in others if spelt(name) == spelt(label)), None)
    if taken is not None:
        raise ServerError(
            f"There is a class “{shown(taken)}” already. To make one class of the two, merge them.",
        )
    done = await service.change(Rename(chosen, label, by=PAGE))
    return changed(request, f"Renamed {named([chosen])} to {named([label])}.", done, finished={})


# ------------------------------------------------------------------ several classes


@router.post("/page/forget")
async def forget(request: Request, service: CurrentService, labels: Labels) -> Response:
    """Remove classes."""
    known = service.snapshot.counts
    chosen = [inputs.chosen_class(label, known) for label in labels]
    done = await service.change(Forget(chosen, by=PAGE))
    trace = "" if done.exact else TRACE
    text = f"Removed {named(chosen)}.{trace}"
    return changed(request, text, done, finished={})


@router.post("/page/merge/choose")
async def choose_name(request: Request, service: CurrentService, labels: Labels) -> Response:
    """Ask for the name that classes to be merged keep."""
    return render(request, "merge.html", **_several(service, labels))


@router.post("/page/merge")
async def merge(request: Request, service: CurrentService, labels: Labels, into: Field) -> Response:
    """Make one class of several."""
    known = service.snapshot.counts
    target = inputs.chosen_class(into, known)
    sources = [label for label in _chosen(service, labels) if label != target]
    if not sources:
        raise ServerError("Choose another class to merge into.")
    made: list[Change] = []
    text = f"Merged {named(sources)} into {named([target])}."
    try:
        for label in sources:
            made.append(await service.change(Rename(label, target, merge=True, by=PAGE)))
    except KldaError as error:
        if not made:
            raise
        text = f"Merged only {named(sources[: len(made)])} into {named([target])}: {error}"
    return changed(request, text, *made, finished={})


def _chosen(service: Service, labels: list[str]) -> Mapping[Label, int]:
    known = service.snapshot.counts
    chosen = [inputs.chosen_class(label, known) for label in dict.fromkeys(labels)]
    return {label: known[label] for label in chosen}


def _several(service: Service, labels: list[str]) -> dict[str, Any]:
    counts = _chosen(service, labels)
    if len(counts) < 2:
        raise ServerError("Select two classes or more to merge.")
    return {"counts": counts, "largest": max(counts, key=lambda label: counts[label])}
