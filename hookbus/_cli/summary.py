"""Summary at the end of a training: output files and suggested commands."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hookbus._cli.console import escape_text, output_console
from hookbus.distributed.process_group import world_size

if TYPE_CHECKING:
    from hookbus._run.run import Run


def print_summary(run: Run, file: Path, overrides: Sequence[str], requested: str | Path | None) -> None:
    """Print the output files and the commands to run next, on rank 0 only.

    Args:
        run: Finished training.
        file: Run file.
        overrides: Overrides of the command line.
        requested: Requested work directory. The run may have used another one.
    """
    if run.work_dir is None or not run.ranks.is_main:
        return
    directory = run.work_dir.path
    moved = [] if requested is None or Path(requested) == directory else [f"work_dir={directory}"]
    out = output_console()
    out.print(f"\nThe files of this run are in [bold]{escape_text(str(directory))}[/]", soft_wrap=True)
    rows = [(_relative_path(path, directory), meaning) for path, meaning in _iter_files(run, directory)]
    width = max((len(name) for name, _ in rows), default=0)
    for name, meaning in rows:
        out.print(f"  {escape_text(name.ljust(width))}  [dim]{escape_text(meaning)}[/]", soft_wrap=True)
    out.print("\nNext steps")
    for command in _iter_commands(run, str(file), [*overrides, *moved]):
        out.print(escape_text(f"  {_get_program(command[0])} {shlex.join(command)}"), soft_wrap=True)


def _iter_files(run: Run, directory: Path) -> Iterator[tuple[Path, str]]:
    best = {b.path: f"best {name}: {b.value:.4g}, epoch {b.epoch}" for name, b in run.best.items() if b.path}
    yield from best.items()
    newest = _newest_checkpoint(run)
    if newest is not None and newest not in best:
        yield newest, f"newest checkpoint, iteration {run.iters_done}"
    for path in sorted((directory / "logs").glob("[!.]*")):
        yield path, "log"
    for name, meaning in (("config.yaml", "all settings"), ("status.json", f"outcome: {run.outcome}")):
        if (directory / name).exists():
            yield directory / name, meaning


def _iter_commands(run: Run, file: str, overrides: list[str]) -> Iterator[list[str]]:
    newest = _newest_checkpoint(run)
    if newest is not None and run.outcome in ("finished", "stopped"):
        best = next((best.path for best in run.best.values() if best.path is not None), newest)
        yield ["test", file, *overrides, "--checkpoint", str(best)]
    if newest is not None and run.outcome == "finished":
        # A finished run has nothing left to train, so the suggested command doubles the limit.
        name, limit = ("epochs", run.max_epochs) if run.max_epochs else ("iterations", run.max_iters)
        others = [override for override in overrides if not override.startswith(f"training.{name}=")]
        yield ["train", file, *others, f"training.{name}={2 * (limit or 1)}", "--resume"]
    elif newest is not None:
        yield ["train", file, *overrides, "--resume"]
    yield ["explain", file, *overrides]


def _newest_checkpoint(run: Run) -> Path | None:
    """Return the newest checkpoint that is not a best checkpoint, else the newest one, or None."""
    from hookbus._run.resume import get_checkpoint_directory
    from hookbus.checkpoint.sidecars import list_newest_first

    directory = get_checkpoint_directory(run) if run.get("checkpoint_saver") is not None else None
    checkpoints = list_newest_first(directory) if directory is not None else []
    best = {best.path for best in run.best.values()}
    return next((path for path in checkpoints if path not in best), next(iter(checkpoints), None))


def _relative_path(path: Path, directory: Path) -> str:
    return str(path.relative_to(directory) if path.is_relative_to(directory) else path)


def _get_program(command: str) -> str:
    """Return the command that the user ran, with torchrun and the number of processes for distributed training."""
    program = sys.argv[0]
    if command == "train" and world_size() > 1:
        is_single_node = world_size() == int(os.environ.get("LOCAL_WORLD_SIZE", "0"))
        return f"torchrun {f'--nproc-per-node {world_size()}' if is_single_node else '...'} -m hookbus"
    if Path(program).name == "__main__.py":
        return "python -m hookbus"
    return "hookbus" if program == shutil.which("hookbus") else shlex.quote(program)
