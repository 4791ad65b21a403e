"""Commands of the command line."""

from __future__ import annotations

from typing import Any

import typer

from docs.generating.tables import table
from hookbus._cli.app import app

__all__ = ["commands"]


def commands() -> str:
    """Return the section of every command with its arguments and options."""
    group: Any = typer.main.get_command(app)
    return "\n".join(_command(name, command) for name, command in group.commands.items())


def _command(name: str, command: Any) -> str:
    options = [param for param in command.params if param.param_type_name == "option" and param.name != "help"]
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    usage = " ".join(
        ["hookbus", name, *(_usage(argument) for argument in arguments), *(["[options]"] if options else [])]
    )
    rows = [(f"`{_usage(argument)}`", argument.help) for argument in arguments]
    rows += [(f"`{', '.join(option.opts)}`", option.help) for option in options]
    options_table = f"\n{table(('argument', 'meaning'), rows)}\n" if rows else ""
    return f"## hookbus {name}\n\n```text\n{usage}\n```\n\n{command.help}\n{options_table}"


def _usage(argument: Any) -> str:
    name = argument.name
    return name if argument.required else f"[{name}]"
