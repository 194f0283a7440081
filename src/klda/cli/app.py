"""The ``klda`` command: its commands, and what happens when one fails."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from klda.cli import evaluate, forget, learn, manage, predict
from klda.cli.console import complain, say
from klda.errors import KldaError

# Commands whose modules are imported only when they are called: name -> (module, panel, help).
LATER = {
    "serve": ("klda.cli.serve", "Ask", "Serve a model over HTTP, with a page to teach and ask."),
    "bench": (
        "klda.cli.bench",
        "Measure",
        "Measure accuracy, speed and scale; reproduce the paper's tables.",
    ),
}

# Parameters of the library that errors name and that are options here.
_PARAMETERS = re.compile(r"\b(input_column|label_column)\b")


def _as_option(parameter: re.Match[str]) -> str:
    return "--" + parameter[0].replace("_", "-")


class _Commands(TyperGroup):
    """The group of all commands; turns errors into messages and exit codes."""

    def list_commands(self, ctx: Any) -> list[str]:
        present = [name for name, (module, *_) in LATER.items() if importlib.util.find_spec(module)]
        return [*super().list_commands(ctx), *present]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in LATER:
            return super().get_command(ctx, cmd_name)
        module, panel, summary = LATER[cmd_name]
        if importlib.util.find_spec(module) is None:
            return None
        # Enough for the list in the help, which is not worth an import.
        return TyperGroup(name=cmd_name, help=summary, rich_help_panel=panel)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        if name in LATER:
            command = typer.main.get_command(importlib.import_module(LATER[name][0]).app)
        return name, command, rest

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            say("Interrupted. The model is as it was before.")
            raise typer.Exit(130) from None
        except BrokenPipeError:
            # The reader of a pipe (head, less) has seen enough.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
        except KldaError as error:
            complain(_PARAMETERS.sub(_as_option, str(error)))
            raise typer.Exit(1) from error
        except OSError as error:
            complain(f"{error.filename}: {error.strerror}" if error.filename else str(error))
            raise typer.Exit(1) from error


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from klda import __version__

        sys.stdout.write(f"klda {__version__}\n")
        raise typer.Exit


@app.callback()
def klda(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Show the version."
    ),
) -> None:
    """Teach a classifier new classes for ever, without forgetting, without keeping the data.

    A model is a folder. Teach it from files of texts, images or features, any time, a class or a
    thousand; ask it; make it forget.

    **klda learn** tickets.csv **--model** bot/

    **klda predict** new.csv **--model** bot/

    **klda evaluate** test.csv **--model** bot/

    Files: CSV, TSV, JSONL (also .gz), parquet, .npy and .npz, folders with one folder of images a
    class. Columns named text, label, intent, category and the like are found by themselves.

    Results go to standard output, all else to standard error. Exit codes: 0 done, 1 something is
    wrong with the data or the model, 2 wrong usage, 130 interrupted (the model is as it was).
    """


app.command(rich_help_panel="Teach")(learn.learn)
app.command(rich_help_panel="Teach")(forget.forget)
app.command(rich_help_panel="Teach")(manage.merge)
app.command(rich_help_panel="Ask")(predict.predict)
app.command(rich_help_panel="Ask")(evaluate.evaluate)
app.command(rich_help_panel="Look")(manage.show)
app.command(rich_help_panel="Look")(manage.models)
