"""How readily klda says that a text is new to it: a slider, and what each of its places costs."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from fastapi import Form, Query, Request
from fastapi.responses import Response

from klda.checks import REFUSED
from klda.inspection.refusal import FRACTIONS, Refusal
from klda.server import inputs
from klda.server.api import CurrentService
from klda.server.changes import Tune
from klda.server.errors import ServerError
from klda.server.page.render import changed, render
from klda.server.page.routes import PAGE, Field, router
from klda.server.page.state import CurrentState, PageState
from klda.server.page.tested import Tested
from klda.server.page.wording import percent

MOST_FOREIGN = 500  # texts that fit no class, to see how many are noticed
TOO_LITTLE = "Too little has been taught to tell known texts from unknown ones."

Place = Annotated[int, Query(ge=0, lt=len(FRACTIONS))]


def limits(state: PageState) -> np.ndarray:
    """Return the novelty that each place of the slider allows; empty if that can't be told."""
    learner = state.service.snapshot.learner
    if not learner.classes or learner.threshold(REFUSED) is None:
        return np.array([])
    return np.array([learner.threshold(fraction) for fraction in FRACTIONS])


def in_use(state: PageState, found: np.ndarray) -> int:
    """Return the place of the slider that is nearest to what the model does."""
    now = state.service.snapshot.learner.threshold()
    return int(np.abs(found - now).argmin())


async def strictness(state: PageState, place: int | None = None) -> dict[str, Any]:
    """Return what the slider shows at a place, by default the one in use."""
    found = limits(state)
    if not len(found):
        return {"places": 0}
    now = in_use(state, found)
    place = now if place is None else place
    return {
        "places": len(FRACTIONS),
        "place": place,
        "in_use": now,
        "refused": FRACTIONS[place],
        "costs": [
            *(await _foreign(state, found[place])),
            *(_tested(state, state.tests[-1], found[place]) if state.tests else ()),
        ],
    }


async def _foreign(state: PageState, limit: float) -> list[str]:
    if state.foreign is None:
        return []
    snapshot = state.service.snapshot
    answers = await state.service.run(snapshot.answer, state.foreign, 1)
    noticed = sum(answer.novelty > limit for answer in answers)
    return [f"Of your {len(answers)} texts that fit no class, {noticed} would be noticed."]


def _tested(state: PageState, test: Tested, limit: float) -> list[str]:
    """Say how many rows of a file that was tested are beyond a limit."""
    known = state.service.snapshot.counts
    is_known = np.array([label in known for label in test.labels])
    is_new = np.array([answer.novelty > limit for answer in test.answers])
    said = []
    if is_known.any():
        refused = percent(is_new[is_known].mean())
        said.append(f"In {test.name}, {refused} of the rows that fit a class would be called new.")
    if not is_known.all():
        noticed = percent(is_new[~is_known].mean())
        said.append(f"Of the rows of {test.name} that fit no class, {noticed} would be noticed.")
    return said


@router.get("/page/quality/strictness")
async def show_strictness(
    request: Request, state: CurrentState, place: Place | None = None
) -> Response:
    """Show what a place of the slider costs."""
    return render(request, "strictness.html", **await strictness(state, place))


@router.post("/page/quality/foreign")
async def try_foreign(
    request: Request, service: CurrentService, state: CurrentState, texts: Field
) -> Response:
    """Take texts that fit no class; they are used for the costs, and not stored."""
    lines = [line.strip() for line in texts.splitlines() if line.strip()]
    if not lines:
        raise ServerError("Write some texts that fit none of your classes, one per line.")
    if len(lines) > MOST_FOREIGN:
        raise ServerError(f"At most {MOST_FOREIGN} texts.")
    state.foreign = await service.encode([(await inputs.typed_input(service, x))[0] for x in lines])
    return render(request, "strictness.html", **await strictness(state))


@router.post("/page/quality/strictness")
async def use_strictness(
    request: Request,
    service: CurrentService,
    state: CurrentState,
    place: Annotated[int, Form(ge=0, lt=len(FRACTIONS))],
) -> Response:
    """Let the model refuse as the slider says; at its usual place, as klda does by itself."""
    found = limits(state)
    if not len(found):
        raise ServerError(TOO_LITTLE, 409)
    calibration = service.snapshot.learner.solution.calibration
    refusal = None
    if FRACTIONS[place] != REFUSED and calibration is not None:
        refusal = Refusal(float(found[place]) / calibration.unit).pack()
    done = await service.change(Tune(refusal, by=PAGE))
    said = f"About {percent(FRACTIONS[place])} of what fits a class will be called new."
    return changed(request, said, done)
