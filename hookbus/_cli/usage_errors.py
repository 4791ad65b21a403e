"""Usage errors of commands that name the arguments to pass instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from typer.core import TyperCommand, TyperGroup

from hookbus._cli.redaction import redact_text
from hookbus._utils.known_keys import TOP_LEVEL_KEYS, find_sections, find_setting
from hookbus._utils.values import shorten

RUN_FILE_SUFFIXES = (".yaml", ".yml")
MAX_ARGUMENT_LENGTH = 60


class RunFileGroup(TyperGroup):
    """Commands of which `train` is named if the name of a run file is passed instead of a command."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command, or fail with the command for a run file."""
        if args[0] not in self.commands and Path(args[0]).suffix in RUN_FILE_SUFFIXES:
            name = shorten(args[0], MAX_ARGUMENT_LENGTH)
            ctx.fail(f"No such command {name!r}. To train with a run file, write: {ctx.command_path} train {name}")
        return super().resolve_command(ctx, args)


class RunFileCommand(TyperCommand):
    """Command that accepts overrides of a run file, which are no options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Fail with the override if a setting is passed as an option."""
        options = {name for parameter in self.get_params(ctx) for name in parameter.opts}
        for arg, following in zip(args, [*args[1:], ""], strict=False):
            option, _, value = arg.partition("=")
            if arg == "--":
                break
            if option.startswith("--") and option not in options and (key := _find_setting(option)):
                value = value or ("" if following.startswith("-") else following) or "..."
                override = redact_text(f"{key}={shorten(value, MAX_ARGUMENT_LENGTH)}")
                ctx.fail(f"No such option: {option}. Pass a setting without dashes: {override}")
        return super().parse_args(ctx, args)


def _find_setting(option: str) -> str | None:
    """Return the key of the setting that an option names, or None."""
    name = option.removeprefix("--").replace("-", "_")
    if name.partition(".")[0] in TOP_LEVEL_KEYS:
        return name
    sections = find_sections(name)
    return f"{sections[0]}.{name}" if sections else find_setting(name)
