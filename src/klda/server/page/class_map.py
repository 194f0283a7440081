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
from klda.inspection.languages import WORDS
from klda.labels import spelt
from klda.server.api import CurrentService
from klda.server.page.classes import confused_pairs
from klda.server.page.render import render, screen
from klda.server.page.routes import router
from klda.server.page.wording import shown
from klda.server.service import Service

SIZE = (1200, 700)
FONT_SIZE, GROUP_SIZE = 13, 17
MOST_LARGER = 2.5  # times as large are the letters on a phone
GROUPED = 30  # a map of more classes shows the names of groups when far
PER_GROUP = 8  # classes, on average
LINES = 20  # pairs that are drawn
COMMON = frozenset(" ".join(WORDS.values()).split())  # words that name no group
MOST_ZOOM = 16

Zoom = Annotated[int, Query(ge=1, le=MOST_ZOOM)]
Width = Annotated[int, Query(ge=1)]


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
async def show_names(
    request: Request, service: CurrentService, zoom: Zoom = 1, width: Width = SIZE[0]
) -> Response:
    """Show the names for which there is room when the map is so many times as large.

    On a screen where it has fewer pixels, the letters are larger, as part of the map.
    """
    drawn = (await service.class_overview())[0]
    larger = min(max(1.0, SIZE[0] / width), MOST_LARGER)
    return render(request, "names.html", **names(drawn, zoom, larger))


async def _drawn(service: Service) -> dict[str, Any]:
    drawn = (await service.class_overview())[0]
    dots = [] if drawn is None else drawn.draw(*SIZE, FONT_SIZE)
    at = {dot.label: dot for dot in dots}
    lines = [
        (at[pair.first], at[pair.second], pair.confusion)
        for pair in (await confused_pairs(service))[:LINES]
        if pair.first in at and pair.second in at
    ]
    return {"dots": dots, "lines": lines, "size": SIZE, **names(drawn, 1)}


def names(drawn: ClassMap | None, zoom: int, times: float = 1.0) -> dict[str, Any]:
    """Return the names that have room at a zoom, and the size of their letters."""
    if drawn is None:
        return {"named": [], "letters": FONT_SIZE, "is_far": False}
    is_far = zoom == 1 and len(drawn.labels) > GROUPED
    size = times * (GROUP_SIZE if is_far else FONT_SIZE)
    readable = ClassMap([shown(label) for label in drawn.labels], drawn.counts, drawn.places)
    width, height = SIZE
    found = (groups(readable) if is_far else readable).draw(zoom * width, zoom * height, size)
    named = [_shrunk(dot, zoom) for dot in found if dot.has_room]
    return {"named": named, "letters": size / zoom, "is_far": is_far}


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
        most = {word: n for word, n in own.items() if n >= max(2, len(members) / 3)}
        weight = {word: n * math.log(1 + n / everywhere[word]) for word, n in most.items()}
        largest = members[drawn.counts[members].argmax()]
        name = max(weight, key=lambda word: weight[word]) if weight else drawn.labels[largest]
        if name in labels:
            name = drawn.labels[largest]
        labels.append(name)
        counts.append(len(members))
        places.append(drawn.places[members].mean(axis=0))
    return ClassMap(labels, np.array(counts), np.array(places))


def _words(label: Any) -> set[str]:
    found = {word for word in spelt(label).split() if len(word) > 2 and word.isalpha()}
    return found - COMMON
