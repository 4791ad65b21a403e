"""The command `hookbus consolidate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hookbus._cli.console import escape_text, handle_errors, output_console
from hookbus._cli.output_file import check_output


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

        check_output(output)
        written = merge(directory, output)
        output_console().print(escape_text(f"Wrote {written}, {written.stat().st_size:,} bytes."))
