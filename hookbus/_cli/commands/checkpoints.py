"""The command `hookbus consolidate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hookbus._cli.console import escape_text, handle_errors, output_console
from hookbus._cli.output_file import check_output
from hookbus.errors import CheckpointError, ConfigError


def consolidate(
    directory: Annotated[
        Path, typer.Argument(help="A generation_N directory, or a file that refers to one.", show_default=False)
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file to write. Default: next to the directory.")
    ] = None,
) -> None:
    """Merge the checkpoint of a distributed run into one file."""
    with handle_errors():
        from hookbus._cli.consolidate import consolidate as merge
        from hookbus.checkpoint.load import resolve_path

        check_output(output)
        try:
            resolve_path(directory)
        except CheckpointError as error:
            raise ConfigError(str(error)) from None
        written = merge(directory, output)
        output_console().print(escape_text(f"Wrote {written}, {written.stat().st_size:,} bytes."))
