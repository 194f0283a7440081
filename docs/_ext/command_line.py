"""The directive `klda-commands`: every command of klda, from its own help."""

from __future__ import annotations

import re
from itertools import groupby
from typing import Any

import typer
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from klda.cli.app import app as commands

OPTION = re.compile(r"(?<![*`\w-])(--[a-z][\w-]+)")  # one that stands in a sentence


def explained(text: str) -> list[str]:
    """Return a help text in MyST: examples, which are one line each, in one block."""
    paragraphs = text.split("\n\n")
    examples = {one for one in paragraphs if "**klda" in one and "\n" not in one}
    lines = []
    for example, group in groupby(paragraphs, lambda one: one in examples):
        if example:
            lines += ["```text", *(one.replace("**", "") for one in group), "```", ""]
        else:
            lines += [OPTION.sub(r"`\1`", "\n\n".join(group)), ""]
    return lines


def described(name: str, command: Any) -> list[str]:
    """Return the lines, in MyST, that describe a command."""
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    words = [str(one.name).upper() for one in arguments]
    lines = [f"## klda {name}", "", "```text", " ".join(["klda", name, *words, "[OPTIONS]"]), "```"]
    lines += ["", *explained(command.help or "")]
    for one in command.params:
        if getattr(one, "hidden", False) or not getattr(one, "help", None):
            continue
        names = [*one.opts, *one.secondary_opts] if one.param_type_name == "option" else [one.name]
        text = OPTION.sub(r"`\1`", " ".join(one.help.split()))
        lines += [", ".join(f"`{each}`" for each in names), f": {text}", ""]
    return lines


class Commands(SphinxDirective):
    """Insert a section for each command."""

    def run(self) -> list[nodes.Node]:
        """Return the sections, from the commands themselves."""
        group: Any = typer.main.get_command(commands)
        lines: list[str] = []
        for name in group.list_commands(None):
            command = group.get_command(None, name)
            if name != "bench" and not command.hidden:  # bench is a package of its own
                lines += described(name, command)
        return self.parse_text_to_nodes("\n".join(lines), allow_section_headings=True)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("klda-commands", Commands)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
