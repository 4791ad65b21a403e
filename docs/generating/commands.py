"""The command line."""

from __future__ import annotations

from typing import Any

import typer

from docs.generating.tables import table
from hookbus.cli import app

__all__ = ["commands"]


def commands() -> str:
    """Every command with its arguments and options."""
    group: Any = typer.main.get_command(app)
    return "\n".join(_command(name, command) for name, command in group.commands.items())


def _command(name: str, command: Any) -> str:
    options = [each for each in command.params if each.param_type_name == "option" and each.name != "help"]
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    usage = " ".join(["hookbus", name, *(_usage(each) for each in arguments), *(["[options]"] if options else [])])
    rows = [(f"`{_usage(each)}`", each.help) for each in arguments]
    rows += [(f"`{', '.join(each.opts)}`", each.help) for each in options]
    known = f"\n{table(('argument', 'meaning'), rows)}\n" if rows else ""
    return f"## hookbus {name}\n\n```text\n{usage}\n```\n\n{command.help}\n{known}"


def _usage(argument: Any) -> str:
    name = argument.name
    return name if argument.required else f"[{name}]"
