"""Interrupt trainings at random times, and compare the results with those of uninterrupted trainings.

    python -m tests.campaigns [--only resume|ranks|faults] [--trials N] [--seed S]

The seed determines the cases, the signals, their delays and the errors. The exit code is 1 if a result differs.
"""

from __future__ import annotations

import argparse
import errno
import json
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.campaigns.faults import Fault, FaultyFiles, find_newest_generation
from tests.campaigns.processes import ForkedTraining, finish, interrupt, start
from tests.campaigns.training import LOOPS, Case, read_losses, train
from tests.interruptions import pairwise_combinations

SIGNALS = (signal.SIGKILL, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
STOPS = {signal.SIGINT: 130, signal.SIGTERM: 75, signal.SIGUSR1: 75}
MAX_KILLS = 3
SAVING: tuple[bool | str, ...] = (False, True, "overlap")


@dataclass
class Reference:
    """Uninterrupted training of a case."""

    results: dict[str, Any]
    losses: dict[str, dict[int, str]]
    seconds: float


@dataclass
class Row:
    """Counts of a case in the table."""

    kills: int = 0
    stops: int = 0
    resumes: int = 0
    bad: list[str] = field(default_factory=list)


class Campaign:
    """Trials of all cases in a directory.

    Args:
        directory: Directory for the trainings.
        seed: Seed of the random numbers.
    """

    def __init__(self, directory: Path, seed: int) -> None:
        self._directory, self._random = directory, random.Random(seed)
        self._references: dict[Case, Reference] = {}
        self._operations: dict[Case, int] = {}
        self.rows: dict[str, Row] = {}

    def interrupt_and_resume(self, case: Case) -> None:
        """Interrupt a training at random times, complete it, and compare the results."""
        row, reference = self._get_row(str(case)), self._get_reference(case)
        directory, stopped = self._create_directory(), set()
        for _ in range(self._random.randint(1, MAX_KILLS)):
            number, group = self._random.choice(SIGNALS), self._random.random() < 0.5 or case.ranks > 1
            training = start(case, directory)
            if not interrupt(training, number, self._random.uniform(0, 0.9 * reference.seconds), group=group):
                break
            code = finish(training)
            row.kills += number == signal.SIGKILL
            row.stops += number != signal.SIGKILL
            row.resumes += 1
            if case.ranks == 1 and code not in (0, -number, STOPS.get(number)):
                row.bad.append(f"{directory}: exit code {code} after {number.name}")
                return
            if code == STOPS.get(number):
                stopped.add(str(training.pid))
        self._complete(case, directory, row, reference, stopped)

    def fail_and_resume(self, case: Case) -> None:
        """Let a file operation of a training fail, complete the training, and compare the results."""
        row, reference = self._get_row(f"{case}, I/O errors"), self._get_reference(case)
        directory = self._create_directory()
        at = self._random.randrange(self._count_operations(case))
        fault = Fault(at, self._random.choice((errno.ENOSPC, errno.EIO)), lasting=self._random.random() < 0.5)
        code = finish(ForkedTraining(case, directory, FaultyFiles(directory, fault).install))
        row.stops += 1
        row.resumes += 1
        before = directory / "fault.json"
        newest = json.loads(before.read_text()) if before.exists() else 0
        if code is None or find_newest_generation(directory) < newest:
            row.bad.append(f"{directory}: {fault}: {'no end' if code is None else f'generation {newest} is lost'}")
            return
        self._complete(case, directory, row, reference)

    def _complete(
        self, case: Case, directory: Path, row: Row, reference: Reference, stopped: Set[str] = frozenset()
    ) -> None:
        code = finish(start(case, directory))
        bad = [f"exit code {code} of the last resume"] if code != 0 else [*compare(directory, reference, stopped)]
        if bad:
            row.bad.append(f"{directory}: {'; '.join(bad)}")
        else:
            shutil.rmtree(directory)

    def _get_row(self, name: str) -> Row:
        return self.rows.setdefault(name, Row())

    def _get_reference(self, case: Case) -> Reference:
        if case not in self._references:
            self._references[case] = self._train_without_interruption(case)
        return self._references[case]

    def _train_without_interruption(self, case: Case) -> Reference:
        directory = self._create_directory()
        training = start(case, directory)
        begin = time.monotonic()
        code = finish(training)
        seconds = time.monotonic() - begin
        assert code == 0, (directory / "output.txt").read_text()
        losses = {name.split()[0]: losses for name, losses in read_losses(directory)}
        results = flatten(json.loads((directory / "results.json").read_text()))
        return Reference(results, losses, seconds)

    def _count_operations(self, case: Case) -> int:
        if case not in self._operations:
            directory = self._create_directory()
            finish(ForkedTraining(case, directory, FaultyFiles(directory, None).install))
            self._operations[case] = int((directory / "operations.txt").read_text())
        return self._operations[case]

    def _create_directory(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self._directory))


def compare(directory: Path, reference: Reference, stopped: Set[str]) -> Iterator[str]:
    """Yield the differences between a resumed training and the uninterrupted one.

    Args:
        directory: Directory of the resumed training.
        reference: The uninterrupted training.
        stopped: Processes that ended with a checkpoint, after which no iteration is repeated.
    """
    results = flatten(json.loads((directory / "results.json").read_text()))
    wrong = ", ".join(name for name, value in reference.results.items() if results.get(name) != value)
    yield from [f"different: {wrong}"] if wrong else []
    attempts = [(*name.split(), losses) for name, losses in read_losses(directory)]
    for rank, _, losses in attempts:
        first = next((i for i, loss in losses.items() if reference.losses[rank].get(i) != loss), None)
        yield from [f"loss of iteration {first} differs"] if first else []
    for (_, process, losses), (*_, following) in pairwise(attempts):
        if process in stopped and min(following) != max(losses) + 1:
            yield f"iteration {min(following)} after a stop at iteration {max(losses)}"


def flatten(results: dict[str, Any]) -> dict[str, Any]:
    """Return results with the parts of the last file by name."""
    return {**results, **{f"last.pth: {name}": value for name, value in results.pop("last.pth").items()}}


def select_resume_cases() -> list[Case]:
    """Return cases of one process that contain each pair of values of any two settings."""
    return [Case(*values) for values in pairwise_combinations([("Trainer", *LOOPS), SAVING, (0, 2)])]


CAMPAIGNS: dict[str, tuple[Callable[[Campaign, Case], None], list[Case]]] = {
    "resume": (Campaign.interrupt_and_resume, select_resume_cases()),
    "ranks": (Campaign.interrupt_and_resume, [Case("Trainer", False, 0, 2), Case("epochs", True, 2, 2)]),
    "faults": (Campaign.fail_and_resume, [*(Case("Trainer", saving) for saving in SAVING), Case("epochs")]),
}
"""Campaigns by name: the trial of a case, and the cases."""


def print_table(rows: dict[str, Row]) -> None:
    """Print the counts of each case and the differences."""
    lines = [f"{'case':60} {'kills':>6} {'stops':>6} {'resumes':>8} {'bad':>4}"]
    lines += [f"{name:60} {r.kills:6} {r.stops:6} {r.resumes:8} {len(r.bad):4}" for name, r in rows.items()]
    kills, stops = sum(row.kills for row in rows.values()), sum(row.stops for row in rows.values())
    resumes, bad = sum(row.resumes for row in rows.values()), [text for row in rows.values() for text in row.bad]
    lines.append(f"{'total':60} {kills:6} {stops:6} {resumes:8} {len(bad):4}")
    sys.stdout.write("\n".join([*lines, *bad]) + "\n")


def main() -> int:
    """Run the campaigns, and return the exit code."""
    parser = argparse.ArgumentParser(prog="tests.campaigns", description=__doc__)
    parser.add_argument("--only", choices=CAMPAIGNS, help="campaign to run (default: all)")
    parser.add_argument("--trials", type=int, default=5, help="trials of each case")
    parser.add_argument("--seed", type=int, default=0, help="seed of the campaign")
    arguments = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="campaigns-"))
    train(Case(), directory)  # imports everything, so that the forks need not
    campaign = Campaign(directory, arguments.seed)
    for name in [arguments.only] if arguments.only else list(CAMPAIGNS):
        trial, cases = CAMPAIGNS[name]
        for case in cases * arguments.trials:
            trial(campaign, case)
    print_table(campaign.rows)
    if any(row.bad for row in campaign.rows.values()):
        return 1
    shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
