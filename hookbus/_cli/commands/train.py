"""The command `hookbus train`."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import typer

from hookbus._cli.console import handle_errors, tolerate_output_errors
from hookbus._cli.options import File, Overrides
from hookbus._cli.trainers import build_trainer
from hookbus._cli.usage_errors import RunFileCommand
from hookbus.errors import ConfigError


class TrainCommand(RunFileCommand):
    """Command whose option `--fast-dev-run` has an optional value: an override that follows it is no value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Add the default value of the option unless an integer follows."""
        option, complete = "--fast-dev-run", list[str]()
        for arg, following in zip(args, [*args[1:], ""], strict=False):
            complete.append(f"{option}=1" if arg == option and not following.removeprefix("-").isdecimal() else arg)
        return super().parse_args(ctx, complete)


def train(
    file: File,
    overrides: Overrides = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from the newest checkpoint of the work directory.")
    ] = False,
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite", help="Remove the existing run in the work directory, including checkpoints stored elsewhere."
        ),
    ] = False,
    profile: Annotated[bool, typer.Option("--profile", help="Print a profile of time and memory at the end.")] = False,
    fast_dev_run: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="[N]",
            help="Try all code paths with one batch, or N batches, of each loader. Nothing is written or resumed.",
        ),
    ] = None,
) -> None:
    """Train a model from a run file."""
    with handle_errors():
        if resume and overwrite:
            raise ConfigError("--resume continues the run that --overwrite removes. Pass only one of the two options.")
        options = [(resume, "resume=auto"), (fast_dev_run, f"training.fast_dev_run={fast_dev_run}")]
        extra = [override for is_set, override in options if is_set]
        trainer = build_trainer(file, [*(overrides or ()), *extra], overwrite=overwrite)
        if profile:
            from hookbus._config.hooks import PROFILING_HOOKS, register_defaults

            register_defaults(trainer.bus, PROFILING_HOOKS)
        from hookbus._cli.training_summary import print_summary
        from hookbus._run.finalize import EXIT_CODES

        summarize = partial(print_summary, file=file, overrides=overrides or (), requested=trainer.work_dir)
        try:
            run = trainer.fit()
        except KeyboardInterrupt:
            with tolerate_output_errors():
                summarize(trainer.bus.current)
            raise
        with tolerate_output_errors():  # the training has ended: its exit code is that of its outcome
            summarize(run)
        raise typer.Exit(EXIT_CODES[run.outcome])
