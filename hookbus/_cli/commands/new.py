"""Command `new`: write a package or a script with a hook."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from hookbus._cli.console import escape_text, handle_errors, output_console
from hookbus.errors import ConfigError

SCRIPT = "my_hook"
"""Name of a script if none is passed."""


def new(
    name: Annotated[
        str | None,
        typer.Argument(help="Name of the package and its folder: hookbus-mine. With --here: of the script."),
    ] = None,
    writer: Annotated[bool, typer.Option("--writer", help="A hook that writes to an experiment tracker.")] = False,
    bridge: Annotated[bool, typer.Option("--bridge", help="The hooks in another trainer.")] = False,
    here: Annotated[
        bool, typer.Option("--here", help="A script with a hook in the current folder, instead of a package.")
    ] = False,
) -> None:
    """Write a new package with a hook: settings, tests, README, license and CI. Its tests pass as written."""
    with handle_errors():
        options = [
            option for option, is_set in (("--writer", writer), ("--bridge", bridge), ("--here", here)) if is_set
        ]
        if len(options) > 1:
            raise ConfigError(f"hookbus new: {' and '.join(options)} exclude each other. Pass one of them.")
        if here:
            _write_script(name or SCRIPT)
        elif name is None:
            raise ConfigError("hookbus new: the name of the package is missing. Pass one, such as hookbus-mine.")
        else:
            _write_package(Path(name), "writer" if writer else "bridge" if bridge else "hook")


def _write_package(folder: Path, variant: Literal["hook", "writer", "bridge"]) -> None:
    from hookbus._cli.scaffold import write_package

    paths = write_package(folder, variant)
    console = output_console()
    console.print(escape_text(f"Wrote {folder}:"))
    for path in paths:
        console.print(escape_text(f"  {path.relative_to(folder)}"), highlight=False)
    console.print(escape_text(f"Next: cd {folder} && pytest"), highlight=False)


def _write_script(name: str) -> None:
    from hookbus._cli.scaffold import write_script

    path = write_script(Path(), name)
    output_console().print(escape_text(f"Wrote {path}. Next: python {path}"), highlight=False)
