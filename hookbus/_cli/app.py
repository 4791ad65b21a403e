"""Command line of hookbus, with one function for each command.

Exit codes: 0 success, 1 error, 2 invalid configuration, 75 preempted, 130 interrupted.

Commands import their modules inside the function, so that `hookbus --help` and the commands that only read metadata
do not import torch.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer
from typer.core import TyperCommand

import hookbus
from hookbus._cli.console import (
    error_console,
    escape_text,
    handle_errors,
    output_console,
    print_error,
    print_json,
    tolerate_output_errors,
)
from hookbus._cli.output import (
    print_hook_health,
    print_hooks,
    print_host_check,
    print_metrics,
    print_order,
    print_paragraph,
    print_points,
    print_settings,
)
from hookbus.distributed.process_group import exit_process, is_distributed
from hookbus.errors import ConfigError, HookbusError

if TYPE_CHECKING:
    from hookbus.trainer.trainer import Trainer

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="An event bus for PyTorch training whose hooks are separately installable plugins.",
)

File = Annotated[Path, typer.Argument(help="The run file.", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="Overrides: training.epochs=3 hooks.checkpoint.interval=2 ~hooks.ema", show_default=False),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]


class _TrainCommand(TyperCommand):
    """Command whose option `--fast-dev-run` has an optional value: an override that follows it is no value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Add the default value of the option unless an integer follows."""
        option, complete = "--fast-dev-run", list[str]()
        for arg, following in zip(args, [*args[1:], ""], strict=True):
            complete.append(f"{option}=1" if arg == option and not following.isdecimal() else arg)
        return super().parse_args(ctx, complete)


@app.command(cls=_TrainCommand)
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
        trainer = _build_trainer(file, [*(overrides or ()), *extra], overwrite=overwrite)
        if profile:
            from hookbus._config.hooks import PROFILING_HOOKS, register_defaults

            register_defaults(trainer.bus, PROFILING_HOOKS)
        from hookbus._cli.output import print_summary
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


@app.command()
def test(
    file: File,
    overrides: Overrides = None,
    checkpoint: Annotated[Path | None, typer.Option(help="The checkpoint to test. Default: the newest.")] = None,
    json_: Json = False,
) -> None:
    """Test a trained model, with averaged weights and hook states if the checkpoint contains them.

    If the dataset has no test split, the validation split is used.
    """
    with handle_errors():
        trainer = _load_trainer(file, overrides, checkpoint, "test")
        trainer.test_loader = trainer.test_loader if trainer.test_loader is not None else trainer.val_loader
        if json_:
            trainer.register_service("console", error_console())  # standard output contains only the JSON document
        metrics = trainer.test()
        if json_:
            tested = {"checkpoint": str(trainer.load_from), "weights": trainer.load_weights}
            print_json({**tested, "hooks": trainer.loaded_hooks, "metrics": dict(metrics)})
        else:
            print_metrics(str(trainer.load_from), trainer.load_weights, trainer.loaded_hooks, metrics)


@app.command()
def predict(
    file: File,
    overrides: Overrides = None,
    checkpoint: Annotated[Path | None, typer.Option(help="The checkpoint to load. Default: the newest.")] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="The file to write: .pt, .npz, .csv, .jsonl or .parquet. Default: that of the hook `predictions`, "
            "`predictions.pt` in the work directory.",
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Remove earlier predictions in the file.")] = False,
) -> None:
    """Write the predictions of a trained model, with averaged weights if the checkpoint contains them.

    The split `predict` of the dataset is predicted; without one, the test split, else the validation split. Requires
    hookbus-predictions.
    """
    with handle_errors():
        trainer = _load_trainer(file, overrides, checkpoint, "predict")
        trainer.predict_loader = next(
            (
                loader
                for loader in (trainer.predict_loader, trainer.test_loader, trainer.val_loader)
                if loader is not None
            ),
            None,
        )
        _add_predictions_hook(trainer, output, overwrite=overwrite)
        trainer.predict(return_predictions=False)


@app.command()
def hooks(json_: Json = False) -> None:
    """List the installed hooks without importing them."""
    with handle_errors():
        from hookbus._utils.plugin_entries import short_names
        from hookbus.discovery import list_entries, warn_of_unknown_blocks

        warn_of_unknown_blocks()
        rows = [
            {
                "name": name,
                "class": plugin.class_name,
                "package": plugin.package,
                "version": plugin.version,
                "blocked": plugin.blocked,
            }
            for plugin, name in short_names(list_entries()).items()
        ]
        (print_json if json_ else print_hooks)(rows)


@app.command()
def points(json_: Json = False) -> None:
    """List the points of a run and their arguments without importing plugins."""
    with handle_errors():
        from hookbus._events.points import POINT_ALIASES
        from hookbus._utils.packages import POINTS_GROUP
        from hookbus.discovery import list_entries
        from hookbus.lifecycle import POINTS

        aliases = {name: [alias for alias, point in POINT_ALIASES.items() if point == name] for name in POINTS}
        more = {plugin.name: f"{plugin.package} {plugin.version}" for plugin in list_entries(POINTS_GROUP)}
        if json_:
            own = {
                p.name: {"args": ["run", *p.args], "unit": p.unit, "aliases": aliases[p.name], "doc": p.description}
                for p in POINTS.values()
            }
            print_json({**own, **{name: {"package": package} for name, package in more.items()}})
        else:
            print_points(POINTS.values(), aliases, more)


@app.command()
def explain(
    file: File,
    overrides: Overrides = None,
    settings: Annotated[
        bool, typer.Option("--settings", help="Show the settings instead, with the place that sets each of them.")
    ] = False,
    json_: Json = False,
) -> None:
    """Show the order of the hooks at each point, and the reason for it."""
    with handle_errors():
        if settings:
            from hookbus._config.sources import list_settings

            rows = list_settings(file, overrides or ())
            return print_json([asdict(row) for row in rows]) if json_ else print_settings(rows)
        from hookbus._config.hooks import get_default_hooks, merge_defaults
        from hookbus._config.load import load_config
        from hookbus.bus import HookBus

        config = load_config(file, overrides or ())
        hooks = config.build_valid_hooks()
        bus = HookBus(merge_defaults(hooks, get_default_hooks()) if config.default_hooks else hooks, order=config.order)
        explanation = bus.explain()
        if json_:
            print_json(asdict(explanation))
        else:
            print_order(explanation)


@app.command()
def check(
    file: File,
    overrides: Overrides = None,
    host: Annotated[
        str | None, typer.Option(help="Check what the hooks can do in another trainer, such as `lightning`.")
    ] = None,
    checkpoints: Annotated[
        Literal["host", "hookbus"] | None,
        typer.Option(help="With --host: the owner of the checkpoints. Default: the trainer."),
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="With --host: print JSON, for scripts.")] = False,
) -> None:
    """Validate a run file without training and report all errors.

    With --host, only the hooks are checked. The exit code is 2 if one of them cannot work.
    """
    with handle_errors():
        if host is not None:
            from hookbus._cli.host_check import check_hooks_in_host

            rows = check_hooks_in_host(file, overrides or (), host, checkpoints)
            print_json([asdict(row) for row in rows]) if json_ else print_host_check(rows)
            raise typer.Exit(2 if any(row.status == "cannot work" for row in rows) else 0)
        if checkpoints is not None or json_:
            raise ConfigError(f"{'--json' if json_ else '--checkpoints'}: no effect without --host. Pass --host.")
        for line in _build_trainer(file, overrides).check():
            print_paragraph(line, 0, 4)
        output_console().print(f"[green]ok[/]  {escape_text(str(file))}")


@app.command()
def summary(
    file: File,
    overrides: Overrides = None,
    max_depth: Annotated[
        int | None,
        typer.Option(
            help="Number of levels of nested modules; -1 for all. Default: that of the hook.", show_default=False
        ),
    ] = None,
    json_: Json = False,
) -> None:
    """Print parameters, shapes and FLOPs of the modules of the model, without training."""
    with handle_errors():
        from hookbus._cli.summary import find_summarizer, read_example

        trainer = _build_trainer(file, overrides)
        summarizer, batch = find_summarizer(trainer, max_depth), read_example(trainer)
        run = trainer.runs.create("train")
        if json_:
            print_json(summarizer.to_dict(run, batch))
        else:
            summarizer.print_summary(run, batch, output_console())


@app.command()
def schema(output: Annotated[Path | None, typer.Option("--output", "-o", help="Write to a file.")] = None) -> None:
    """Print the JSON schema of run files, for editors."""
    with handle_errors():
        from hookbus._cli.schema import json_schema

        document, problems = json_schema()
        for problem in problems:
            print_error(problem)
        if output is None:
            print_json(document)
        else:
            from hookbus.checkpoint.atomic_files import write_json

            try:
                write_json(output, document)
            except OSError as error:
                raise HookbusError(
                    f"{output} cannot be written: {error.strerror}. Pass another file to --output."
                ) from None
            first = f"# yaml-language-server: $schema={output}"
            output_console().print(escape_text(f"Wrote {output}. Add this line at the top of run files: {first}"))


@app.command()
def doctor(json_: Json = False) -> None:
    """Import each installed hook and report the broken ones."""
    with handle_errors():
        from hookbus._cli.doctor import check_installed_hooks

        with output_console().status("importing every installed hook"):
            reports = list(check_installed_hooks())
        if json_:
            print_json([asdict(report) for report in reports])
        else:
            print_hook_health(reports)
        raise typer.Exit(0 if all(report.ok for report in reports) else 1)


@app.command()
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

        written = merge(directory, output)
        output_console().print(escape_text(f"Wrote {written}, {written.stat().st_size:,} bytes."))


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
    sys.exit()


# -- helpers ---------------------------------------------------------------------------------------


def _build_trainer(file: Path, overrides: Sequence[str] | None, *, overwrite: bool = False) -> Trainer:
    from hookbus.trainer.from_file import trainer_from_file
    from hookbus.trainer.trainer import Trainer

    return trainer_from_file(Trainer, file, overrides or (), overwrite=overwrite)


def _load_trainer(
    file: Path, overrides: Sequence[str] | None, checkpoint: Path | None, mode: Literal["test", "predict"]
) -> Trainer:
    """Build the trainer of a run file, with the weights and hook states of a checkpoint."""
    from hookbus._config.factories import find_file_problem
    from hookbus.trainer.initial_weights import load_for_test

    if checkpoint is not None and (problem := find_file_problem(str(checkpoint))):
        raise ConfigError(f"--checkpoint: {problem}")
    trainer = _build_trainer(file, [*(overrides or ()), "resume=never", "load_from=null"])
    load_for_test(trainer, checkpoint or _newest_checkpoint(trainer, mode))
    return trainer


def _add_predictions_hook(trainer: Trainer, output: Path | None, *, overwrite: bool) -> None:
    """Register the hook that writes predictions, unless the run file has one; the options replace its settings."""
    from hookbus._config.hooks import build_hook, register_defaults
    from hookbus.hook import Hook

    options: dict[str, Any] = {"overwrite": True} if overwrite else {}
    if output is not None:
        options["file"] = str(output.absolute())
    if not options:
        register_defaults(trainer.bus, ["predictions"])
        return
    added = build_hook({"type": "predictions", **options})
    for name, hook in list(trainer.bus.hooks.items()):
        if isinstance(hook, Hook) and type(hook) is type(added):
            settings = hook.config.model_dump(exclude_unset=True)
            added = build_hook({"type": "predictions", **settings, **options})
            trainer.bus.unregister(name)
    trainer.bus.register(added)


def _newest_checkpoint(trainer: Trainer, mode: Literal["test", "predict"]) -> Path:
    from hookbus.checkpoint.sidecars import list_newest_first
    from hookbus.trainer.initial_weights import find_checkpoint_directory

    directory = find_checkpoint_directory(trainer)
    checkpoints = [] if directory is None else list_newest_first(directory)
    if not checkpoints:
        purpose = "to test" if mode == "test" else "to predict with"
        raise HookbusError(f"{directory} contains no checkpoint {purpose}. Train first, or pass --checkpoint.")
    return checkpoints[0]
