"""The command line: hookbus train | test | hooks | explain | check | schema | points | doctor | consolidate.

Exit codes: 0 done, 1 error, 2 a configuration that does not hold, 75 preempted, 130 interrupted.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.markup import escape

import hookbus
from hookbus.commands.console import complain, console, errors, paragraph, print_json, reported, table_of
from hookbus.distributed import is_one_of_several, leave
from hookbus.errors import ConfigError, HookbusError

if TYPE_CHECKING:
    from hookbus.dispatch.explain import Explanation
    from hookbus.loop import Trainer

__all__ = ["app", "main"]

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


@app.command()
def train(
    file: File,
    overrides: Overrides = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the newest checkpoint of the work directory.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Remove the run that is in the work directory.")
    ] = False,
    profile: Annotated[bool, typer.Option("--profile", help="Show in the end where time and memory go.")] = False,
) -> None:
    """Train as a run file says."""
    with reported():
        if resume and overwrite:
            raise ConfigError(["--resume goes on with the run that --overwrite removes: say one of them."])
        trainer = _trainer(file, [*(overrides or ()), *(["resume=auto"] if resume else [])], overwrite=overwrite)
        if profile:
            from hookbus.runfile.builder import PROFILING, add_missing

            add_missing(trainer.bus, PROFILING)
        run = trainer.fit()
        from hookbus.commands.closing import say_closing
        from hookbus.runs.ending import EXIT_CODES

        say_closing(run, file, overrides or (), trainer.work_dir)
        raise typer.Exit(EXIT_CODES[run.outcome])


@app.command()
def test(
    file: File,
    overrides: Overrides = None,
    checkpoint: Annotated[Path | None, typer.Option(help="The checkpoint to test; default the newest.")] = None,
    json_: Json = False,
) -> None:
    """Test a trained model, on the validation set where there is no test set."""
    with reported():
        trainer = _trainer(file, [*(overrides or ()), "resume=never"])
        trainer.test_loader = trainer.test_loader if trainer.test_loader is not None else trainer.val_loader
        trainer.load_from = checkpoint or _newest(trainer)
        if json_:
            trainer.register_service("console", errors())  # standard output is for the JSON alone
        metrics = trainer.test()
        if json_:
            print_json({"checkpoint": str(trainer.load_from), "metrics": dict(metrics)})
            return
        table = table_of("metric", "value")
        for name, value in metrics.items():
            table.add_row(escape(name), f"{value:.6g}")
        console().print(f"[dim]{escape(str(trainer.load_from))}[/]")
        console().print(table)


@app.command()
def hooks(json_: Json = False) -> None:
    """List the installed hooks. Reads metadata, imports nothing."""
    with reported():
        from hookbus.discovery import listed_names, offers

        rows = [
            {"name": name, "class": o.class_name, "package": o.package, "version": o.version, "blocked": o.blocked}
            for o, name in listed_names(offers()).items()
        ]
        if json_:
            print_json(rows)
            return
        if not rows:
            console().print("No hooks are installed. Begin with: pip install hookbus-logger hookbus-checkpoint")
            return
        table = table_of("name", "class", "package", "version", "")
        for row in rows:
            note = "[yellow]blocked by HOOKBUS_BLOCK[/]" if row["blocked"] else ""
            table.add_row(*(escape(str(row[k])) for k in ("name", "class", "package", "version")), note)
        console().print(table)


@app.command()
def points(json_: Json = False) -> None:
    """List the points of a run and their arguments. Imports nothing."""
    with reported():
        from hookbus._packages import POINTS_GROUP
        from hookbus.discovery import offers
        from hookbus.lifecycle import ALIASES, POINTS

        aliases = {name: [alias for alias, point in ALIASES.items() if point == name] for name in POINTS}
        more = {offer.name: f"{offer.package} {offer.version}" for offer in offers(POINTS_GROUP)}
        if json_:
            own = {
                p.name: {"args": ["run", *p.args], "unit": p.unit, "aliases": aliases[p.name], "doc": p.doc}
                for p in POINTS.values()
            }
            print_json({**own, **{name: {"package": package} for name, package in more.items()}})
            return
        for point in POINTS.values():
            console().print(f"[bold]{paragraph(point.signature, 0, 8)}[/]")
            notes = [f"Counted per {point.unit}."] if point.unit else []
            notes += [f"Also spelt {alias}." for alias in aliases[point.name]]
            console().print(paragraph(" ".join([point.doc, *notes]), 4))
        for name, package in more.items():
            console().print(f"[bold]{escape(name)}[/]\n{paragraph(f'Declared by {package}.', 4)}")


@app.command()
def explain(file: File, overrides: Overrides = None, json_: Json = False) -> None:
    """Show in what order hooks listen at each point, and why."""
    with reported():
        from hookbus.bus import HookBus
        from hookbus.config import load_config
        from hookbus.runfile.builder import get_default_hooks
        from hookbus.runfile.defaults import with_defaults

        config = load_config(file, overrides or ())
        given = config.checked_hooks()
        bus = HookBus(with_defaults(given, get_default_hooks()) if config.default_hooks else given, order=config.order)
        explanation = bus.explain()
        if json_:
            print_json(
                {
                    "order": explanation.order,
                    "points": {
                        point: [{k: getattr(row, k) for k in row.__slots__} for row in rows]
                        for point, rows in explanation.points.items()
                    },
                }
            )
            return
        _show_order(explanation)


@app.command()
def check(file: File, overrides: Overrides = None) -> None:
    """Say everything that would go wrong, without training."""
    with reported():
        for line in _trainer(file, overrides).check():
            console().print(escape(line))
        console().print(f"[green]ok[/]  {escape(str(file))}")


@app.command()
def schema(output: Annotated[Path | None, typer.Option("--output", "-o", help="Write to a file.")] = None) -> None:
    """Print the JSON schema of run files, for editors."""
    with reported():
        from hookbus.commands.schema import json_schema

        found, problems = json_schema()
        for problem in problems:
            complain(problem)
        if output is None:
            print_json(found)
        else:
            from hookbus.checkpoints.files import write_json

            try:
                write_json(output, found)
            except OSError as error:
                raise HookbusError(f"{output} cannot be written: {error.strerror}. Name another file.") from None
            first = f"# yaml-language-server: $schema={output}"
            console().print(escape(f"Wrote {output}. Begin run files with the line: {first}"), soft_wrap=True)


@app.command()
def doctor(json_: Json = False) -> None:
    """Import each installed hook by itself, and show which are broken."""
    with reported():
        from hookbus.commands.doctor import examine

        with console().status("importing every installed hook"):
            reports = list(examine())
        if json_:
            print_json([{"name": r.name, "package": r.package, "ok": r.ok, "problem": r.problem} for r in reports])
        elif reports:
            table = table_of("", "name", "package", "problem")
            for report in reports:
                mark = "[green]ok[/]" if report.ok else "[red]broken[/]"
                table.add_row(mark, escape(report.name), escape(report.package), escape(report.problem))
            console().print(table)
        else:
            console().print("No hooks are installed.")
        raise typer.Exit(0 if all(report.ok for report in reports) else 1)


@app.command()
def consolidate(
    directory: Annotated[
        Path, typer.Argument(help="A generation_N directory, or a file that names one.", show_default=False)
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file to write; default beside the directory.")
    ] = None,
) -> None:
    """Make one file of a checkpoint that several processes have written."""
    with reported():
        from hookbus.commands.consolidating import consolidate as made_one

        written = made_one(directory, output)
        console().print(escape(f"Wrote {written}, {written.stat().st_size:,} bytes."), soft_wrap=True)


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        typer.echo(f"hookbus {hookbus.__version__}")
        raise typer.Exit


def main() -> NoReturn:
    """Run the command line. A mistake of the user never shows a traceback, nor does an output of few letters."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        app(standalone_mode=True)
    except SystemExit as end:
        if is_one_of_several() and isinstance(end.code, int):
            leave(end.code)
        raise
    sys.exit()


# -- inside ----------------------------------------------------------------------------------------


def _trainer(file: Path, overrides: Sequence[str] | None, *, overwrite: bool = False) -> Trainer:
    from hookbus.assembly.assemble import trainer_from_file
    from hookbus.loop import Trainer

    return trainer_from_file(Trainer, file, overrides or (), overwrite=overwrite)


def _newest(trainer: Trainer) -> Path:
    from hookbus.assembly.beginnings import checkpoints_directory
    from hookbus.checkpoints.files import newest_first

    directory = checkpoints_directory(trainer)
    found = [] if directory is None else newest_first(directory)
    if not found:
        raise HookbusError(f"{directory} holds no checkpoint to test. Train first, or name one by --checkpoint.")
    return found[0]


def _show_order(explanation: Explanation) -> None:
    """Each point with its listeners from first to last; then which package each hook comes from."""
    wishes = any(row.before or row.after for rows in explanation.points.values() for row in rows)
    table = table_of("point", "priority", "number from", "when", *(["wishes"] if wishes else []))
    packages: dict[str, str] = {}
    for point, rows in explanation.points.items():
        table.add_row(f"[bold]{escape(point)}[/]")
        for row in rows:
            packages[row.hook] = row.package
            asks = ", ".join([*(f"before {name}" for name in row.before), *(f"after {name}" for name in row.after)])
            cells = (f"  {row.hook}", str(row.priority), row.source, row.when, *([asks] if wishes else []))
            table.add_row(*map(escape, cells))
    console().print(f"order: {explanation.order}; hooks stand under each point from first to last\n")
    console().print(table)
    _show_packages(packages)


def _show_packages(packages: Mapping[str, Any]) -> None:
    table = table_of("hook", "package")
    for hook, package in packages.items():
        table.add_row(escape(hook), escape(package))
    console().print()
    console().print(table)
