"""Plan of a training: what fires when, and what will be written, without training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hookbus.hook import Hook
from hookbus.trainer.planned_events import PlannedEvents, plan_events

if TYPE_CHECKING:
    from hookbus.trainer.setup import TrainerSetup
    from hookbus.writers.planned_file import PlannedFile

OWN = "run"
"""Name that stands for the files of the run itself."""


@dataclass(frozen=True, slots=True)
class FileRow:
    """A file, or a pattern of files, that a training writes.

    Attributes:
        hook: Instance name of the hook, "run" for the files of the run itself.
        path: Path; a relative one is below the work directory. Fields in braces stand for numbers and metrics.
        when: What the file is written for, such as "each after_train_epoch"; "once" for a single file.
        count: Number of times that a file is written, None if it depends on the run.
        size: Size of each file in bytes, None if it depends on the run; 0 for a hard link.
        keep: Maximum number of files that are kept, None for all.
        total: Size in bytes of all files that are kept at the end, None if it depends on the run.
    """

    hook: str
    path: str
    when: str
    count: int | None
    size: int | None
    keep: int | None
    total: int | None


@dataclass(frozen=True, slots=True)
class Plan:
    """Plan of a training.

    Attributes:
        work_dir: Work directory that the training will use, None if it has none.
        events: What fires when.
        files: What is written.
        unknown: Names of the hooks that write to the work directory or to paths of theirs, and do not list their files.
    """

    work_dir: str | None
    events: PlannedEvents
    files: list[FileRow]
    unknown: list[str]

    @property
    def total(self) -> int:
        """Size in bytes of all files of known size at the end."""
        return sum(row.total or 0 for row in self.files)


def build_plan(trainer: TrainerSetup) -> Plan:
    """Return the plan of a training that starts from scratch. No data is read.

    Args:
        trainer: The trainer.

    Raises:
        HookbusError: If the order of the hooks is contradictory.
    """
    trainer.short_run.omit_hooks(trainer.bus)
    run = trainer.runs.create("train")
    events = plan_events(trainer, run)
    hooks = {name: hook for name, hook in trainer.bus.hooks.items() if isinstance(hook, Hook)}
    planned = {name: list(hook.planned_files(run)) for name, hook in hooks.items()}
    files = [_build_row(name, file, events) for name, listed in planned.items() for file in listed]
    unknown = [name for name, hook in hooks.items() if not planned[name] and _writes(hook)]
    directory = run.planned_directory
    return Plan(
        None if directory is None else str(directory), events, [*_own_files(trainer, directory), *files], unknown
    )


def _own_files(trainer: TrainerSetup, directory: Path | None) -> list[FileRow]:
    if directory is None:
        return []
    names = [*(["config.yaml"] if hasattr(trainer.config, "to_yaml") else []), "status.json"]
    return [FileRow(OWN, name, "once", 1, None, None, None) for name in names]


def _build_row(hook: str, file: PlannedFile, events: PlannedEvents) -> FileRow:
    count = events.get_count(hook, file.point) if file.point else None if file.when else 1
    parts = [f"each {file.point}" if file.point else "", file.when]
    when = ", ".join(part for part in parts if part) or "once"
    kept = 1 if file.appended else file.keep
    number = min((value for value in (count, kept) if value is not None), default=None)
    total = None if file.size is None or number is None else number * file.size
    return FileRow(hook, file.path, f"{when}, appended" if file.appended else when, count, file.size, kept, total)


def _writes(hook: Hook) -> bool:
    return hook.requires_work_dir or any(path is not None for path in hook.output_paths.values())
