"""The command line: hookbus train | test | hooks | explain | check | schema | points | doctor.

Exit codes: 0 done, 1 error, 2 a configuration that does not hold, 75 preempted, 130 interrupted.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import hookbus
from hookbus.errors import ConfigError, HookbusError, HookWarning

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
) -> None:
    """Train as a run file says."""
    with _reported():
        trainer = _trainer(file, overrides, resume=resume, overwrite=overwrite)
        run = trainer.fit()
        from hookbus.session import EXIT_CODES

        raise typer.Exit(EXIT_CODES[run.outcome])


@app.command()
def test(
    file: File,
    overrides: Overrides = None,
    checkpoint: Annotated[Path | None, typer.Option(help="The checkpoint to test; default the newest.")] = None,
    json_: Json = False,
) -> None:
    """Test a trained model: the test set, or the validation set where there is no other."""
    with _reported():
        trainer = _trainer(file, overrides)
        trainer.test_loader = trainer.test_loader if trainer.test_loader is not None else trainer.val_loader
        trainer.load_from = checkpoint or _newest(trainer)
        metrics = trainer.test()
        if json_:
            _print_json({"checkpoint": str(trainer.load_from), "metrics": dict(metrics)})
            return
        table = _table("metric", "value")
        for name, value in metrics.items():
            table.add_row(escape(name), f"{value:.6g}")
        _console().print(f"[dim]{escape(str(trainer.load_from))}[/]")
        _console().print(table)


@app.command()
def hooks(json_: Json = False) -> None:
    """List the hooks that are installed. Reads metadata; imports nothing."""
    with _reported():
        from hookbus.discovery import offers

        rows = [
            {"name": o.name, "class": o.class_name, "package": o.package, "version": o.version, "blocked": o.blocked}
            for o in offers()
        ]
        if json_:
            _print_json(rows)
            return
        if not rows:
            _console().print("No hooks are installed. Begin with: pip install hookbus-logger hookbus-checkpoint")
            return
        table = _table("name", "class", "package", "version", "")
        for row in rows:
            note = "[yellow]blocked by HOOKBUS_BLOCK[/]" if row["blocked"] else ""
            table.add_row(*(escape(str(row[k])) for k in ("name", "class", "package", "version")), note)
        _console().print(table)


@app.command()
def points(json_: Json = False) -> None:
    """List the points of a run, and what listeners may ask for. Imports nothing."""
    with _reported():
        from hookbus.lifecycle import POINTS

        if json_:
            _print_json({p.name: {"args": ["run", *p.args], "unit": p.unit, "doc": p.doc} for p in POINTS.values()})
            return
        table = _table("point", "arguments besides run", "counts", "fires")
        for point in POINTS.values():
            table.add_row(point.name, ", ".join(point.args) or "[dim]none[/]", point.unit or "", escape(point.doc))
        _console().print(table)


@app.command()
def explain(file: File, overrides: Overrides = None, json_: Json = False) -> None:
    """Show in what order the hooks of a run file listen at each point, and where each number comes from."""
    with _reported():
        from hookbus.builder import get_default_hooks
        from hookbus.bus import HookBus
        from hookbus.config import load_config
        from hookbus.defaults import with_defaults

        config = load_config(file, overrides or ())
        given = config.build_hooks()
        bus = HookBus(with_defaults(given, get_default_hooks()) if config.default_hooks else given, order=config.order)
        explanation = bus.explain()
        if json_:
            points = {
                point: [{k: getattr(row, k) for k in row.__slots__} for row in rows]
                for point, rows in explanation.points.items()
            }
            _print_json({"order": explanation.order, "points": points})
            return
        table = _table("point", "priority", "hook", "number from", "when", "wishes", "package")
        for point, rows in explanation.points.items():
            for i, row in enumerate(rows):
                wishes = [*(f"before {n}" for n in row.before), *(f"after {n}" for n in row.after)]
                cells = (row.hook, row.source, row.when, ", ".join(wishes), row.package)
                hook, source, when, wish, package = map(escape, cells)
                table.add_row("" if i else point, str(row.priority), hook, source, when, wish, package)
            table.add_section()
        _console().print(f"order: {explanation.order} (listeners from first to last)")
        _console().print(table)


@app.command()
def check(file: File, overrides: Overrides = None) -> None:
    """Say everything that would go wrong, without training."""
    with _reported():
        trainer = _trainer(file, overrides)
        for line in trainer.check():
            _console().print(escape(line))
        _console().print(f"[green]ok[/]  {escape(str(file))}")


@app.command()
def schema(output: Annotated[Path | None, typer.Option("--output", "-o", help="Write to a file.")] = None) -> None:
    """Print the JSON schema of run files, every installed hook included, for editors."""
    with _reported():
        from hookbus.schema import json_schema

        found, problems = json_schema()
        for problem in problems:
            _complain(problem)
        if output is None:
            _print_json(found)
        else:
            from hookbus.files import write_json

            write_json(output, found)
            _console().print(
                f"Wrote {escape(str(output))}. First line of a run file: "
                f"# yaml-language-server: $schema={escape(str(output))}"
            )


@app.command()
def doctor(json_: Json = False) -> None:
    """Import every installed hook in a process of its own, and show which are broken and why."""
    with _reported():
        from hookbus.doctor import examine

        reports = list(examine())
        if json_:
            _print_json([{"name": r.name, "package": r.package, "ok": r.ok, "problem": r.problem} for r in reports])
        else:
            _show_reports(reports)
        raise typer.Exit(0 if all(report.ok for report in reports) else 1)


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        typer.echo(f"hookbus {hookbus.__version__}")
        raise typer.Exit


def main() -> NoReturn:
    """Run the command line. A mistake of the user never shows a traceback."""
    sys.exit(app(standalone_mode=True))


# -- inside ----------------------------------------------------------------------------------------


def _trainer(file: Path, overrides: Sequence[str] | None, *, resume: bool = False, overwrite: bool = False) -> Any:
    from hookbus.assemble import trainer_from_config
    from hookbus.config import load_config

    extra = ["resume=auto"] if resume else []
    config = load_config(file, [*(overrides or ()), *extra])
    if overwrite and config.resume != "never":
        raise ConfigError(["--overwrite removes the run that resume would go on with: say one of them."])
    from hookbus.loop import Trainer

    return trainer_from_config(Trainer, config, overwrite=overwrite)


def _newest(trainer: Any) -> Path:
    from hookbus.files import newest_first

    directory = Path(trainer.work_dir) / "checkpoints"
    found = newest_first(directory)
    if not found:
        raise HookbusError(f"{directory} holds no checkpoint to test. Train first, or name one by --checkpoint.")
    return found[0]


@contextmanager
def _reported() -> Iterator[None]:
    """Turn exceptions into messages and exit codes, and warnings into lines."""
    _log_to_console()
    with warnings.catch_warnings():
        warnings.simplefilter("always", HookWarning)
        warnings.showwarning = _show_warning
        try:
            yield
        except ConfigError as error:
            for problem in error.problems:
                _complain(problem)
            raise typer.Exit(2) from None
        except HookbusError as error:
            _complain(str(error), *getattr(error, "__notes__", ()))
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            _complain("Interrupted.")
            raise typer.Exit(130) from None
        except typer.Exit:
            raise
        except Exception:
            traceback.print_exc()
            raise typer.Exit(1) from None


def _log_to_console() -> None:
    from rich.logging import RichHandler

    logger = logging.getLogger("hookbus")
    if not logger.handlers:
        handler = RichHandler(console=_errors(), show_path=False, show_time=False, markup=False)
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    _errors().print(f"[yellow]warning:[/] {escape(str(message))}", soft_wrap=True)


def _complain(*lines: str) -> None:
    for line in lines:
        _errors().print(f"[red]error:[/] {escape(line)}", soft_wrap=True, highlight=False)


def _show_reports(reports: Iterable[Any]) -> None:
    table = _table("", "name", "package", "problem")
    for report in reports:
        mark = "[green]ok[/]" if report.ok else "[red]broken[/]"
        table.add_row(mark, escape(report.name), escape(report.package), escape(report.problem))
    _console().print(table)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def _console() -> Console:
    return _made("out", lambda: Console(width=None if sys.stdout.isatty() else 160))


def _errors() -> Console:
    return _made("err", lambda: Console(stderr=True))


_consoles: dict[str, Console] = {}


def _made(name: str, make: Callable[[], Console]) -> Console:
    return _consoles.setdefault(name, make())
