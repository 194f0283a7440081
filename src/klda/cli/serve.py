"""``klda serve``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from klda.cli import options
from klda.cli.console import say
from klda.cli.options import option
from klda.errors import KldaError

KEYED_RATE = 100.0


def serve(
    folder: options.Folder = None,
    model: options.OptionalModel = None,
    host: Annotated[str, option("Address to listen on (127.0.0.1).")] = "127.0.0.1",
    port: Annotated[
        int, option("Port (8000); 0 takes any free one.", min=0, max=65535, metavar="PORT")
    ] = 8000,
    keys: Annotated[
        Path | None, option("File with one role (ask or teach) and key per line.", metavar="FILE")
    ] = None,
    new: Annotated[
        str | None,
        option("Start a new model with this foundation model if there is none.", metavar="NAME"),
    ] = None,
    workers: Annotated[int, option("Processes that encode inputs (1).", min=1, metavar="N")] = 1,
    rate: Annotated[
        float | None,
        option(
            f"Requests per second and client; 0 is no limit. By default {KEYED_RATE:g} with keys, "
            "no limit without.",
            min=0,
            metavar="RATE",
        ),
    ] = None,
    max_body: Annotated[int, option("Largest request, in MiB (16).", min=1, metavar="MIB")] = 16,
    max_batch: Annotated[
        int, option("Inputs of concurrent requests encoded together (64).", min=1, metavar="N")
    ] = 64,
    checkpoint_interval: Annotated[
        float, option("Time between saves (30).", min=0, metavar="SECONDS")
    ] = 30.0,
    discard_journal: Annotated[
        bool,
        option(
            "Go on without the changes that only the journal has: it is renamed.",
            "--discard-journal",
        ),
    ] = False,
    allowed_host: Annotated[
        list[str] | None, option("Host name that requests may be addressed to; may be repeated.")
    ] = None,
    device: options.Device = "auto",
    quiet: Annotated[bool, option("Log warnings and errors only.", "--quiet")] = False,
) -> None:
    """Serve a model over HTTP, with a page to teach and ask.

    **klda serve** bot/

    **klda serve** new-bot/ **--new** minilm

    **klda serve** bot/ **--host** 0.0.0.0 **--keys** keys.txt **--workers** 4

    Keys are also read from KLDA_TEACH_KEYS and KLDA_ASK_KEYS (separated by commas). Without keys
    the service listens on this computer only, and everyone on it may teach.
    """
    from klda.server.run import serve as run
    from klda.server.settings import ServiceSettings, find_keys

    at = options.one_folder(folder, model, "serve")
    if new is None and not (at.is_dir() and any(at.iterdir())):
        raise KldaError(f"There is no model in {at}. Start one with: klda serve {at} --new minilm")
    known = find_keys(keys)
    settings = ServiceSettings(
        model=at,
        new=new,
        device=device,
        workers=workers,
        host=host,
        port=port,
        keys=known,
        rate=(KEYED_RATE if known else 0.0) if rate is None else rate,
        max_body=max_body << 20,
        max_batch=max_batch,
        checkpoint_interval=checkpoint_interval,
        discard_journal=discard_journal,
        allowed_hosts=tuple(name.lower() for name in allowed_host or ()),
        quiet=quiet,
    )
    run(settings, lambda address: say(f"klda serves {at} at {address} (Ctrl-C stops it)"))
