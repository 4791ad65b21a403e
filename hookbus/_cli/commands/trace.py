"""Command `hookbus trace`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from hookbus._cli.console import escape_text, handle_errors, output_console, print_json
from hookbus._cli.options import File, Json, Overrides
from hookbus._cli.output_file import check_output, explain_output_errors
from hookbus.distributed.process_group import is_main


def trace(
    file: File,
    overrides: Overrides = None,
    iterations: Annotated[int, typer.Option(min=1, help="Number of training iterations.")] = 50,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The file to write, for ui.perfetto.dev or chrome://tracing.")
    ] = Path("trace.json"),
    json_: Json = False,
) -> None:
    """Train some iterations, and show the time and the device synchronizations of each hook.

    The training starts from scratch in a temporary directory, which is removed. Hooks that write elsewhere are omitted.
    """
    with handle_errors():
        from hookbus._cli.trace_output import print_trace
        from hookbus._cli.tracing import trace_training
        from hookbus.checkpoint.atomic_files import write_json
        from hookbus.testing.chrome_trace import to_chrome_trace

        check_output(output)
        traces = trace_training(file, overrides or (), iterations)
        if not is_main():
            return
        with explain_output_errors(output):
            write_json(output, to_chrome_trace(traces))
        if json_:
            print_json([{**asdict(trace.summarize()), "synchronizations": trace.synchronizations} for trace in traces])
        else:
            print_trace(traces)
            output_console().print(escape_text(f"\nWrote {output}. Open it in https://ui.perfetto.dev."))
