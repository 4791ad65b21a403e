"""Commands that read a run file without training: `hookbus explain`, `check` and `summary`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Literal

import typer

from hookbus._cli.console import escape_text, handle_errors, output_console, print_json
from hookbus._cli.options import File, Json, Overrides
from hookbus._cli.output import print_host_check, print_order, print_paragraph, print_settings
from hookbus._cli.trainers import build_trainer
from hookbus.errors import ConfigError


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
        for line in build_trainer(file, overrides).check():
            print_paragraph(line, 0, 4)
        output_console().print(f"[green]ok[/]  {escape_text(str(file))}")


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

        trainer = build_trainer(file, overrides)
        summarizer, batch = find_summarizer(trainer, max_depth), read_example(trainer)
        run = trainer.runs.create("train")
        if json_:
            print_json(summarizer.to_dict(run, batch))
        else:
            summarizer.print_summary(run, batch, output_console())
