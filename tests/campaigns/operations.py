"""Kills and errors at the file operations of trainings, one after the other."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from hookbus.checkpoint.sidecars import list_newest_first, verify
from hookbus.errors import CheckpointError
from tests.campaigns.campaign import Campaign, select_positions
from tests.campaigns.preload import COPIES, REPORT, Fault
from tests.campaigns.processes import ForkedRanks, ForkedTraining, LaunchedTraining, disable_fsync, finish
from tests.campaigns.training import Case

SHORT = 2
"""Number of epochs, with five saves, the removal of old files, and replaced best files."""
KILLED = [
    Case("Trainer", epochs=SHORT),
    Case("epochs", epochs=SHORT, elsewhere=True),
    Case("Trainer", True, epochs=SHORT, elsewhere=True),
    Case("Trainer", "overlap", epochs=SHORT),
    Case("Trainer", epochs=SHORT, overwrite=True),
]
RANKS = [
    Case("Trainer", ranks=2, sharded=True, epochs=SHORT),
    Case("Trainer", ranks=2, epochs=SHORT),
    Case("Trainer", ranks=2, sharded=True, epochs=SHORT, launched=True),
]
FAILED = [Case("Trainer", epochs=SHORT), Case("epochs", "overlap", epochs=SHORT, elsewhere=True)]
UNAVAILABLE = (errno.EIO, errno.EROFS)
"""Errors after which a file system may not even allow to remove a file."""
ERRORS = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS)
RANK_TRIALS = 20

Prepare = Callable[[Path], None]


def kill_everywhere(campaign: Campaign, trials: int | None) -> None:
    """Kill trainings at each file operation: a first start, a resumed one, and one that overwrites."""
    for case in KILLED:
        prepare = _train_before if case.overwrite else lambda directory: None
        _kill_at_operations(campaign, case, prepare, str(case), trials)
    resumed = KILLED[1]
    _kill_at_operations(campaign, resumed, _kill_before(campaign, resumed), f"{resumed}, resumed", trials)


def kill_ranks(campaign: Campaign, trials: int | None) -> None:
    """Kill one of two ranks at random file operations; a single trial is that of sharded weights."""
    for case in RANKS if trials != 1 else RANKS[:1]:
        _kill_ranks(campaign, case, trials or RANK_TRIALS)


def fail_everywhere(campaign: Campaign, trials: int | None) -> None:
    """Let each file operation of trainings fail."""
    for case in FAILED:
        count = _count_operations(campaign, case, lambda directory: None, reads=True)
        for at in select_positions(count, trials, campaign.random):
            number, action = campaign.random.choice(ERRORS), campaign.random.choice(("error", "error", "short write"))
            fault = Fault(at, action, number, lasting=campaign.random.random() < 0.5, reads=True)
            _fail_and_resume(campaign, case, fault)


def _kill_at_operations(campaign: Campaign, case: Case, prepare: Prepare, name: str, trials: int | None) -> None:
    row, completed = campaign.get_row(name), replace(case, overwrite=False)
    reference = campaign.get_reference(completed)
    for at in select_positions(_count_operations(campaign, case, prepare), trials, campaign.random):
        directory = campaign.create_directory()
        prepare(directory)
        row.kills += _train_with(case, directory, Fault(at)) == -9
        row.trials += 1
        campaign.complete(case if case.overwrite and at % 2 else completed, directory, row, reference)


def _kill_ranks(campaign: Campaign, case: Case, trials: int) -> None:
    """Kill one of two ranks at random operations; the other one is ended."""
    row, reference = campaign.get_row(str(case)), campaign.get_reference(case)
    counts = [_count_operations_of_rank(campaign, case, rank) for rank in range(min(trials, case.ranks))]
    for trial in range(trials):
        directory, rank = campaign.create_directory(), trial % 2
        fault = Fault(campaign.random.randrange(counts[rank]))
        row.kills += _train_ranks(case, directory, fault, rank) not in (0, None)
        row.trials += 1
        campaign.complete(case, directory, row, reference)


def _fail_and_resume(campaign: Campaign, case: Case, fault: Fault) -> None:
    row, reference, directory = (
        campaign.get_row(f"{case}, errors"),
        campaign.get_reference(case),
        campaign.create_directory(),
    )
    code = _train_with(case, directory, fault)
    row.trials += 1
    bad = [*_check_end(directory, code, fault)]
    if bad:
        row.bad.append(f"{directory}: {fault}: {'; '.join(bad)}")
        return
    campaign.complete(case, directory, row, reference)


def _check_end(directory: Path, code: int | None, fault: Fault) -> list[str]:
    """Return what is wrong with the end of a training after an error of a file operation."""
    bad = [] if code in (0, 1) else [f"exit code {code}"]
    if "Traceback" in (directory / "output.txt").read_text():
        bad.append("traceback")
    status = directory / "run" / "status.json"
    writable = not fault.lasting or fault.number not in UNAVAILABLE
    if writable and status.is_file() and json.loads(status.read_text()).get("outcome") == "running":
        bad.append("status.json: running")
    before, after = _find_newest(directory / COPIES), _find_newest(directory)
    if after < before:
        bad.append(f"newest generation {after}, and {before} before the error")
    return bad


def _find_newest(directory: Path) -> int:
    """Return the newest generation of the valid checkpoints of a training, 0 if there is none."""
    generations = [0]
    for path in (path for name in ("run-out", "run/checkpoints") for path in list_newest_first(directory / name)):
        with suppress(CheckpointError):
            generations.append(verify(path).generation)
    return max(generations)


def _train_with(case: Case, directory: Path, fault: Fault) -> int | None:
    def prepare() -> None:
        disable_fsync()
        fault.arm(directory)

    if fault.action != "kill":
        return finish(ForkedTraining(case, directory, lambda: fault.arm(directory)))
    return finish(ForkedTraining(case, directory, prepare))


def _train_ranks(case: Case, directory: Path, fault: Fault, rank: int) -> int | None:
    """Train with a fault in one of the ranks, and return the exit code."""
    if case.launched:
        return finish(LaunchedTraining(case, directory, fault.get_environment(directory, rank)))
    return finish(ForkedRanks(case, directory, lambda own: fault.arm(directory) if own == rank else None))


def _count_operations(campaign: Campaign, case: Case, prepare: Prepare, *, reads: bool = False) -> int:
    directory = campaign.create_directory()
    prepare(directory)
    fault = Fault(action="error" if reads else "kill", reads=reads)
    assert _train_with(case, directory, fault) == 0, (directory / "output.txt").read_text()
    return _read_count(directory)


def _count_operations_of_rank(campaign: Campaign, case: Case, rank: int) -> int:
    directory = campaign.create_directory()
    _train_ranks(case, directory, Fault(), rank)
    return _read_count(directory) or 1


def _read_count(directory: Path) -> int:
    report = directory / REPORT
    return len(report.read_text().splitlines()) if report.exists() else 0


def _train_before(directory: Path) -> None:
    """Train in the directory, so that the next training overwrites a run."""
    finish(ForkedTraining(Case("Trainer", epochs=SHORT), directory))


def _kill_before(campaign: Campaign, case: Case) -> Prepare:
    """Return a function that leaves the files of a training that was killed in the middle of a save."""
    at = _count_operations(campaign, case, lambda directory: None) * 2 // 3

    def kill(directory: Path) -> None:
        _train_with(case, directory, Fault(at))
        (directory / REPORT).unlink(missing_ok=True)

    return kill
