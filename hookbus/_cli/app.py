"""Command line of hookbus.

Exit codes: 0 success, 1 error, 2 invalid configuration, 75 preempted, 130 interrupted.
"""

from __future__ import annotations

import inspect
import io
import sys
from typing import Annotated, NoReturn

import typer

import hookbus
from hookbus._cli.commands.checkpoints import consolidate
from hookbus._cli.commands.evaluate import predict, test
from hookbus._cli.commands.histories import plot, runs
from hookbus._cli.commands.new import new
from hookbus._cli.commands.packages import doctor, hooks, points, schema
from hookbus._cli.commands.plan import plan
from hookbus._cli.commands.run_files import check, explain, summary
from hookbus._cli.commands.trace import trace
from hookbus._cli.commands.train import TrainCommand, train
from hookbus._cli.console import report_error
from hookbus._cli.usage_errors import RunFileCommand, RunFileGroup
from hookbus.distributed.process_group import exit_process, is_distributed

app = typer.Typer(
    cls=RunFileGroup,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="An event bus for PyTorch training whose hooks are separately installable plugins.",
)

app.command(cls=TrainCommand)(train)
_COMMANDS = (
    test, predict, runs, plot, hooks, points, explain, check, summary, plan, trace, schema, doctor, consolidate, new
)  # fmt: skip
for _command in _COMMANDS:
    has_overrides = "overrides" in inspect.signature(_command).parameters
    app.command(cls=RunFileCommand if has_overrides else None)(_command)


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        typer.echo(f"hookbus {hookbus.__version__}")
        raise typer.Exit


def main() -> NoReturn:
    """Run the command line. User errors are printed without a traceback."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # An ASCII-only terminal or pipe must not turn the output into a UnicodeEncodeError.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        app(standalone_mode=True)
    except SystemExit as end:
        if is_distributed() and isinstance(end.code, int):
            # A thread that is blocked in a collective call could crash the interpreter during its shutdown.
            exit_process(end.code)
        raise
    except OSError as error:  # of the output of typer itself, such as --help
        sys.exit(report_error(error))
    sys.exit()
