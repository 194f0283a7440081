"""The ``klda`` command: its commands, and what happens when one fails."""

from __future__ import annotations

import os
import re
import sys
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from klda.cli import (
    check,
    declare,
    evaluate,
    export,
    forget,
    learn,
    mcp,
    merge,
    models,
    predict,
    rename,
    serve,
    show,
    suggest,
    tune,
    undo,
)
from klda.cli.console import complain, notes_to, say
from klda.cli.opening import PARAMETERS
from klda.data import BadRowError, TableError
from klda.errors import KldaError, is_lack_of_memory

COMMANDS = "klda.commands"  # entry points of other packages that add commands: name = module:app
# Commands that another package adds, and how to install it.
ELSEWHERE = {
    "bench": "The benchmarks are not part of the klda package. To install them, clone klda's "
    "repository and run in the clone: pip install -e bench"
}
OPTIONS = {"input": "--text-column", "label": "--label-column", "encoding": "--encoding"}
# Options by the names that their values have in Python.
NAMES = {parameter: option for option, parameter in PARAMETERS.items()} | {"url": "server"}
_PARAMETER = re.compile(r"^(\w+)=('[^']*'|\([^)]*\)|[^\s:,]+)")  # how errors of Python begin
# Other names of options.
ALSO = {"input-column": "text-column", "refused": "reject", "engine": "runtime"}


class _PlainHelp:
    """Shows parameters as other commands do: ``--model MODEL`` and ``FILES...``, not types."""

    def get_params(self, ctx: Any) -> Any:
        params = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if getattr(param, "is_flag", False):
                param.metavar = ""
            elif param.metavar is None:
                param.metavar = param.name.rpartition("_")[2].upper()
            if param.param_type_name == "argument":
                param.display_type_rich = lambda ctx: ""  # newer versions of Typer show it
                shown = param.metavar + ("..." if param.nargs == -1 else "")
                is_optional = not param.required and not shown.startswith("[")
                usage = [f"[{shown}]" if is_optional else shown]
                param.get_usage_pieces = lambda ctx, usage=usage: usage
        return params

    def format_help(self, ctx: Any, formatter: Any) -> None:
        from typer import rich_utils  # loaded for a help alone

        rich_utils.RANGE_STRING = ""  # an error says what a number may be
        super().format_help(ctx, formatter)  # type: ignore[misc]


class ReportingGroup(_PlainHelp, TyperGroup):
    """A group of commands, of klda or of another package, whose errors become messages."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command; report what is to be known, and what goes wrong."""
        notes_to(say)
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            say("Interrupted. The model is as it was before.")
            raise typer.Exit(130) from None
        except BrokenPipeError:
            # The reader of a pipe (head, less) has seen enough.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
        except Exception as error:
            said = _said(error)
            if said is None:
                raise
            complain(said)
            raise typer.Exit(1) from error


def _said(error: Exception) -> str | None:
    """Return what the user is told of an error; None if nobody foresaw it."""
    if isinstance(error, BadRowError):
        return f"{error} To leave such rows out, use --skip-bad."
    if isinstance(error, TableError) and error.setting:
        return f"{error} The option for it is {OPTIONS[error.setting]}."
    if isinstance(error, KldaError):
        return str(error)
    if is_lack_of_memory(error):
        reason = str(error).rstrip(".") or "an array did not fit"
        return f"Not enough memory: {reason}. Nothing was changed."
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}" if error.filename else str(error)
    return None


class Command(_PlainHelp, TyperCommand):
    """One command, of klda or of another package; its errors name options and what was given."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the options; say what was given for one that can't be used."""
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            for wrong in getattr(error.__cause__, "errors", list)()[:1]:  # of pydantic
                if wrong["msg"].startswith("Input should"):
                    error.message = f"{wrong['input']!r}: {wrong['msg'].replace('Input', 'it', 1)}."
            raise

    def run(self, ctx: Any) -> Any:
        """Run the command; what its errors say of parameters is not yet in a user's words."""
        return super().invoke(ctx)

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return self.run(ctx)
        except KldaError as error:

            def option(found: re.Match) -> str:
                name = NAMES.get(found[1], found[1])
                given = ctx.params.get(name)
                return found[0] if given is None else f"--{name.replace('_', '-')} {given}"

            error.args = (_PARAMETER.sub(option, str(error)), *error.args[1:])
            raise


class _Commands(ReportingGroup):
    """The group of all commands, those of other packages included."""

    def list_commands(self, ctx: Any) -> list[str]:
        added = sorted(point.name for point in entry_points(group=COMMANDS))
        return [*super().list_commands(ctx), *added]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        found = super().get_command(ctx, cmd_name)
        if found is not None:
            return found
        if point := next(iter(entry_points(group=COMMANDS, name=cmd_name)), None):
            return _AddedCommand(point)
        if cmd_name in ELSEWHERE:
            raise KldaError(ELSEWHERE[cmd_name])
        return None


class _AddedCommand(TyperGroup):
    """A command of another package, which is imported when the command runs."""

    def __init__(self, point: EntryPoint) -> None:
        about = point.dist.metadata["Summary"] if point.dist else None
        super().__init__(name=point.name, help=about, rich_help_panel="More")
        self._point = point

    def make_context(self, *given: Any, **more: Any) -> Any:
        return typer.main.get_command(self._point.load()).make_context(*given, **more)


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "token_normalize_func": lambda name: ALSO.get(name, name),
    },
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from klda.version import __version__

        sys.stdout.write(f"klda {__version__}\n")
        raise typer.Exit


@app.callback()
def klda(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Show the version."
    ),
) -> None:
    """Teach a classifier new classes forever, without forgetting, without keeping the data.

    A model is a folder. Teach it classes from files of texts, images or features, at any time; ask
    it; make it forget.

    **klda learn** tickets.csv **--model** bot/

    **klda predict** new.csv **--model** bot/

    **klda evaluate** test.csv **--model** bot/

    Files: CSV, TSV, JSON, JSONL (also .gz), Excel, parquet, .npy and .npz, folders with one folder
    of images per class. The columns of texts and labels are found by their names or contents.

    Results go to standard output, everything else to standard error. Exit codes: 0 success, 1
    something is wrong with the data or the model, 2 wrong usage, 130 interrupted (the model is as
    it was before).
    """


for panel, commands in {
    "Teach": (learn.learn, declare.declare, forget.forget, rename.rename, merge.merge, undo.undo),
    "Ask": (predict.predict, evaluate.evaluate, tune.tune_unknown, serve.serve, mcp.mcp),
    "Look": (show.show, check.check, suggest.suggest, models.models),
    "Take along": (export.export,),
}.items():
    for command in commands:
        app.command(cls=Command, rich_help_panel=panel)(command)
