"""Signing in and out, and the parts of the frame that follow the model."""

from __future__ import annotations

from typing import Annotated

from fastapi import Form, Request
from fastapi.responses import RedirectResponse, Response

from klda.server import schemas
from klda.server.api import CurrentService
from klda.server.changes import Undo
from klda.server.errors import ServerError
from klda.server.events import event_stream
from klda.server.gate import SESSION_COOKIE, SESSION_SECONDS, is_https
from klda.server.page.render import changed, header, render, role_of
from klda.server.page.routes import PAGE, router
from klda.server.page.wording import described


@router.get("/login")
async def login_form(request: Request) -> Response:
    """Show the form for a key."""
    return render(request, "login.html", wrong=False)


@router.post("/login")
async def login(request: Request, key: Annotated[str, Form(max_length=500)]) -> Response:
    """Take a key and open a session."""
    token = request.app.state.keys.open_session(key.strip())
    if token is None:
        return render(request, "login.html", status=401, wrong=True)
    response = RedirectResponse("/", 303)
    response.set_cookie(
        SESSION_COOKIE,
        token,
        max_age=SESSION_SECONDS,
        httponly=True,
        samesite="strict",
        secure=is_https(request),
    )
    return response


@router.post("/logout")
async def logout(request: Request) -> Response:
    """End the session."""
    request.app.state.keys.close_session(request.cookies.get(SESSION_COOKIE))
    response = RedirectResponse("/login", 303)
    response.delete_cookie(SESSION_COOKIE)
    return response


@router.get("/page/header")
async def show_header(request: Request) -> Response:
    """Show the model's name and figures, and what Undo takes back."""
    return render(request, "header.html", **await header(request))


@router.get("/page/events")
async def follow(request: Request, service: CurrentService) -> Response:
    """Tell the browser, once it shows a screen, of changes that others make."""
    if role_of(request) == "teach":
        request.app.state.page.get_ready()
    return await event_stream(service.states())


@router.post("/page/undo")
async def undo(
    request: Request,
    service: CurrentService,
    number: Annotated[list[schemas.ChangeNumber] | None, Form()] = None,
) -> Response:
    """Take back changes; without their numbers, the last one that can be."""
    if not number:
        number = [one.number for one in await service.undoable()][-1:]
    if not number:
        raise ServerError("There is nothing to undo.", 404)
    made = {one.number: one for one in await service.history()}
    for one in sorted(number, reverse=True):
        await service.change(Undo(one, by=PAGE))
        await request.app.state.page.undone(one)
    said = ", ".join(described(made[one]) for one in number if one in made)
    return changed(request, f"Undone: {said}." if said else "Undone.", undone={})
