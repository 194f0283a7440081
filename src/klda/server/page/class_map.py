"""The map: the second view of Classes. Names of groups when far, of classes when near."""

from __future__ import annotations

import math
from collections import Counter
from typing import Annotated, Any

import numpy as np
from fastapi import Query, Request
from fastapi.responses import Response
from scipy.cluster.hierarchy import fcluster, linkage

from klda.inspection.class_map import ClassMap, Dot
from klda.labels import spelt
from klda.server.api import CurrentService
from klda.server.page.render import render, screen
from klda.server.page.routes import router
from klda.server.page.wording import shown
from klda.server.service import Service

SIZE = (1200, 700)
FONT_SIZE, GROUP_SIZE = 13, 22
GROUPED = 30  # a map of more classes shows the names of groups when far
SPREAD = 12  # a map of more classes is spread out
PER_GROUP = 8  # classes, on average
LINES = 20  # pairs that are drawn
MOST_ZOOM = 16

Zoom = Annotated[int, Query(ge=1, le=MOST_ZOOM)]


@router.get("/classes/map")
async def show_map(request: Request, service: CurrentService) -> Response:
    """Show the map."""
    return await screen(request, "classes", view="map", **await _drawn(service))


@router.get("/page/map")
async def show_again(request: Request, service: CurrentService) -> Response:
    """Show the map after a change."""
    return render(
        request, "map.html", n_classes=len(service.snapshot.counts), **await _drawn(service)
    )


@router.get("/page/map/names")
async def show_names(request: Request, service: CurrentService, zoom: Zoom = 1) -> Response:
    """Show the names for which there is room when the map is so many times as large."""
    drawn = spread((await service.class_overview())[0])
    return render(request, "names.html", **names(drawn, zoom))


async def _drawn(service: Service) -> dict[str, Any]:
    drawn, pairs = await service.class_overview()
    drawn = spread(drawn)
    dots = [] if drawn is None else drawn.draw(*SIZE, FONT_SIZE)
    at = {dot.label: dot for dot in dots}
    lines = [
        (at[pair.first], at[pair.second], pair.confusion)
        for pair in pairs[:LINES]
        if pair.first in at and pair.second in at
    ]
    return {"dots": dots, "lines": lines, "size": SIZE, **names(drawn, 1)}


def names(drawn: ClassMap | None, zoom: int) -> dict[str, Any]:
    """Return the names that have room at a zoom, and the size of their letters."""
    if drawn is None:
        return {"named": [], "letters": FONT_SIZE, "is_far": False}
    is_far = zoom == 1 and len(drawn.labels) > GROUPED
    size = GROUP_SIZE if is_far else FONT_SIZE
    readable = ClassMap([shown(label) for label in drawn.labels], drawn.counts, drawn.places)
    width, height = SIZE
    found = (groups(readable) if is_far else readable).draw(zoom * width, zoom * height, size)
    named = [_shrunk(dot, zoom) for dot in found if dot.has_room]
    return {"named": named, "letters": size / zoom, "is_far": is_far}


def spread(drawn: ClassMap | None) -> ClassMap | None:
    """Move classes apart where they are crowded: half-way to even steps along each axis.

    A few classes far from all others would otherwise leave most of the map empty.
    """
    if drawn is None or len(drawn.labels) <= SPREAD:
        return drawn
    ranks = drawn.places.argsort(axis=0).argsort(axis=0)
    even = 2 * ranks / (len(ranks) - 1) - 1
    return ClassMap(drawn.labels, drawn.counts, (drawn.places + even) / 2)


def _shrunk(dot: Dot, zoom: int) -> tuple[str, float, float]:
    return dot.name, round(dot.name_x / zoom, 2), round(dot.name_y / zoom, 2)


def groups(drawn: ClassMap) -> ClassMap:
    """Return a map of groups of classes that are close to each other, named by a common word."""
    count = max(4, len(drawn.labels) // PER_GROUP)
    group_of = fcluster(linkage(drawn.places, "average"), count, "maxclust")
    everywhere = Counter(word for label in drawn.labels for word in _words(label))
    labels, counts, places = [], [], []
    for group in np.unique(group_of):
        members = np.flatnonzero(group_of == group)
        own = Counter(word for i in members for word in _words(drawn.labels[i]))
        weight = {word: n * math.log(1 + n / everywhere[word]) for word, n in own.items() if n > 1}
        largest = members[drawn.counts[members].argmax()]
        name = max(weight, key=lambda word: weight[word]) if weight else drawn.labels[largest]
        if name in labels:
            name = drawn.labels[largest]
        labels.append(name)
        counts.append(len(members))
        places.append(drawn.places[members].mean(axis=0))
    return ClassMap(labels, np.array(counts), np.array(places))


def _words(label: Any) -> set[str]:
    return {word for word in spelt(label).split() if len(word) > 2 and word.isalpha()}
