"""Last lines of a training: the files that the run has written, and the commands to run next."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.cells import cell_len

from hookbus._cli.console import escape_text, output_console
from hookbus._cli.output import print_pairs
from hookbus._config.overrides import drop_replaced
from hookbus._utils.numbers import format_quantity
from hookbus._utils.values import escape_control_characters
from hookbus.distributed.process_group import world_size
from hookbus.errors import get_relative_path

if TYPE_CHECKING:
    from hookbus._run.run import Run


def print_summary(run: Run, file: Path, overrides: Sequence[str], requested: str | Path | None) -> None:
    """Print the output files and the commands to run next, on rank 0 only."""
    if run.work_dir is None or not run.ranks.is_main:
        return
    directory = run.work_dir.path
    is_moved = requested is not None and Path(requested).absolute() != directory
    moved = [f"work_dir={get_relative_path(directory)}"] if is_moved else []
    repeated = drop_replaced([*overrides, *moved])
    out = output_console()
    out.print(f"\nThe files of this run are in [bold]{escape_text(get_relative_path(directory))}[/]")
    files = [(_relative_path(path, directory), meaning) for path, meaning in _iter_files(run, directory)]
    print_pairs([(escape_control_characters(name), escape_control_characters(meaning)) for name, meaning in files])
    out.print("\nNext steps")
    for command in _iter_commands(run, str(file), repeated):
        words = [shlex.quote(str(run.redact(word))) for word in command]
        out.print(escape_text(_format_command([_get_program(command[0]), *words])))


def _format_command(words: Sequence[str]) -> str:
    """Return an indented command, continued on further lines between arguments if it is too long."""
    width = output_console().width
    lines = [f"  {words[0]}"]
    for number, word in enumerate(words[1:], 2):
        continuation = 0 if number == len(words) else len(" \\")
        if cell_len(f"{lines[-1]} {word}") + continuation > width:
            lines[-1] += " \\"
            lines.append(f"    {word}")
        else:
            lines[-1] += f" {word}"
    return "\n".join(lines)


def _iter_files(run: Run, directory: Path) -> Iterator[tuple[Path, str]]:
    """Yield checkpoints, outputs of hooks, the configuration and the status, with their descriptions."""
    assert run.work_dir is not None
    best = {b.path: f"best {name}: {b.value:.4g}, epoch {b.epoch}" for name, b in run.best.items() if b.path}
    yield from best.items()
    checkpoints = _list_checkpoints(run)
    newest = _find_newest(run, checkpoints)
    if newest is not None and newest not in best:
        yield newest, f"newest checkpoint, iteration {run.iters_done}"
    if earlier := _count_others(checkpoints, [*best, *([] if newest is None else [newest])]):
        yield checkpoints[0].parent, format_quantity(earlier, "earlier checkpoint")
    outputs = {path: description for path, description in run.work_dir.outputs.items() if path.exists()}
    outputs |= {path: "log" for path in sorted((directory / "logs").glob("[!.]*")) if path not in outputs}
    listed = {path: description for path, description in outputs.items() if not _is_internal(path)}
    for path in sorted(listed, key=lambda path: (path.name == "config.yaml", path)):
        yield path, listed[path]
    if (directory / "status.json").exists():
        yield directory / "status.json", f"outcome: {run.outcome}"


def _is_internal(path: Path) -> bool:
    """Return whether a path is hidden, or contains the checkpoints, which are listed separately."""
    return path.name.startswith(".") or path.name == "checkpoints"


def _iter_commands(run: Run, file: str, overrides: list[str]) -> Iterator[list[str]]:
    newest = _find_newest(run, _list_checkpoints(run))
    if newest is not None and run.outcome in ("finished", "stopped"):
        best = next((best.path for best in run.best.values() if best.path is not None), newest)
        yield ["test", file, *overrides, "--checkpoint", get_relative_path(best)]
    if newest is not None and run.outcome == "finished":
        # A finished run has nothing left to train, so the suggested command doubles the limit.
        limits = {"epochs": run.max_epochs, "iterations": run.max_iters, "tokens": run.max_tokens}
        name, limit = next(((name, limit) for name, limit in limits.items() if limit), ("iterations", None))
        yield ["train", file, *drop_replaced([*overrides, f"training.{name}={2 * (limit or 1)}"]), "--resume"]
    elif newest is not None:
        yield ["train", file, *overrides, "--resume"]
    yield ["explain", file, *overrides]


def _list_checkpoints(run: Run) -> list[Path]:
    """Return the checkpoints of the run, newest first."""
    from hookbus._run.resume import get_checkpoint_directory
    from hookbus.checkpoint.sidecars import list_newest_first

    directory = get_checkpoint_directory(run) if run.get("checkpoint_saver") is not None else None
    return list_newest_first(directory) if directory is not None else []


def _find_newest(run: Run, checkpoints: Sequence[Path]) -> Path | None:
    """Return the newest checkpoint that is not a best checkpoint, else the newest one, or None."""
    best = {best.path for best in run.best.values()}
    return next((path for path in checkpoints if path not in best), next(iter(checkpoints), None))


def _count_others(checkpoints: Sequence[Path], listed: Sequence[Path]) -> int:
    """Return the number of checkpoints without the listed ones; a file with several names is one checkpoint."""
    return len({path.stat().st_ino for path in checkpoints} - {path.stat().st_ino for path in listed if path.exists()})


def _relative_path(path: Path, directory: Path) -> str:
    """Return a path relative to the work directory, or the absolute path of a file outside of it."""
    return str(path.relative_to(directory) if path.is_relative_to(directory) else path.absolute())


def _get_program(command: str) -> str:
    """Return the command that the user ran, with torchrun and the number of processes for distributed training."""
    program = sys.argv[0]
    if command == "train" and world_size() > 1:
        is_single_node = world_size() == int(os.environ.get("LOCAL_WORLD_SIZE", "0"))
        return f"torchrun {f'--nproc-per-node {world_size()}' if is_single_node else '...'} -m hookbus"
    if Path(program).name == "__main__.py":
        return "python -m hookbus"
    return "hookbus" if program == shutil.which("hookbus") else shlex.quote(program)
