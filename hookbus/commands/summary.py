"""What the command line says when a training is over: where its files are, and what to try next."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape

from hookbus.commands.console import console
from hookbus.distributed import world_size

if TYPE_CHECKING:
    from hookbus.run import Run

__all__ = ["say_summary"]


def say_summary(run: Run, file: Path, overrides: Sequence[str], asked_for: str | Path | None) -> None:
    """Print where everything lies, and the commands that go on from there; on the main rank, which alone writes.

    Args:
        run: the training that ended.
        file: its run file.
        overrides: what was said beside it on the command line.
        asked_for: the work directory that was asked for; the run may have had to go into another one.
    """
    if run.work_dir is None or not run.ranks.is_main:
        return
    directory = run.work_dir.path
    moved = [] if asked_for is None or Path(asked_for) == directory else [f"work_dir={directory}"]
    out = console()
    out.print(f"\nThe files of this run are in [bold]{escape(str(directory))}[/]", soft_wrap=True)
    rows = [(_inside(path, directory), meaning) for path, meaning in _files(run, directory)]
    width = max((len(name) for name, _ in rows), default=0)
    for name, meaning in rows:
        out.print(f"  {escape(name.ljust(width))}  [dim]{escape(meaning)}[/]", soft_wrap=True)
    out.print("\nWhat to try next")
    for command in _commands(run, str(file), [*overrides, *moved]):
        out.print(escape(f"  {_program(command[0])} {shlex.join(command)}"), soft_wrap=True)


def _files(run: Run, directory: Path) -> Iterator[tuple[Path, str]]:
    best = {b.path: f"best {name}: {b.value:.4g}, epoch {b.epoch}" for name, b in run.best.items() if b.path}
    yield from best.items()
    newest = _newest(run)
    if newest is not None and newest not in best:
        yield newest, f"the newest checkpoint, after iteration {run.iters_done}"
    for path in sorted((directory / "logs").glob("[!.]*")):
        yield path, "log"
    for name, meaning in (("config.yaml", "all settings"), ("status.json", f"how it ended: {run.outcome}")):
        if (directory / name).exists():
            yield directory / name, meaning


def _commands(run: Run, file: str, overrides: list[str]) -> Iterator[list[str]]:
    newest = _newest(run)
    if newest is not None and run.outcome in ("finished", "stopped"):
        best = next((best.path for best in run.best.values() if best.path is not None), newest)
        yield ["test", file, *overrides, "--checkpoint", str(best)]
    if newest is not None and run.outcome == "finished":
        name, limit = ("epochs", run.max_epochs) if run.max_epochs else ("iterations", run.max_iters)
        others = [each for each in overrides if not each.startswith(f"training.{name}=")]
        yield ["train", file, *others, f"training.{name}={2 * (limit or 1)}", "--resume"]
    elif newest is not None:
        yield ["train", file, *overrides, "--resume"]
    yield ["explain", file, *overrides]


def _newest(run: Run) -> Path | None:
    """The newest checkpoint; one that is the best as well has a name of its own."""
    from hookbus.checkpoints.files import newest_first
    from hookbus.runs.resuming import checkpoints_of

    directory = checkpoints_of(run) if run.get("saver") is not None else None
    found = newest_first(directory) if directory is not None else []
    best = {best.path for best in run.best.values()}
    return next((path for path in found if path not in best), next(iter(found), None))


def _inside(path: Path, directory: Path) -> str:
    return str(path.relative_to(directory) if path.is_relative_to(directory) else path)


def _program(command: str) -> str:
    """How the user called us; a training of several processes goes on with as many."""
    called = sys.argv[0]
    if command == "train" and world_size() > 1:
        several = world_size() == int(os.environ.get("LOCAL_WORLD_SIZE", "0"))
        return f"torchrun {f'--nproc-per-node {world_size()}' if several else '...'} -m hookbus"
    if Path(called).name == "__main__.py":
        return "python -m hookbus"
    return "hookbus" if called == shutil.which("hookbus") else shlex.quote(called)
