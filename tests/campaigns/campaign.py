"""Trials of a campaign: uninterrupted trainings, comparison with them, and counts."""

from __future__ import annotations

import json
import random
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Set
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.campaigns.processes import finish, start
from tests.campaigns.training import Case, read_losses

LOG = "run/logs/metrics.jsonl"
LOG_RESULTS = ("log", "last.pth: jsonl")
"""Results that contain the log, or the position in it."""
REPORTED = "hook 'jsonl' (hookbus-logger 0.1.0) failed at before_train"
"""Part of the warning that the file of the log could not be created; the training continues without it."""
KEPT_LOG = re.compile(r"/metrics-old(-\d+)?\.jsonl$")


@dataclass
class Reference:
    """Uninterrupted training of a case."""

    results: dict[str, Any]
    losses: dict[str, dict[int, str]]
    seconds: float
    files: frozenset[str]


@dataclass
class Row:
    """Counts of a case in the table."""

    trials: int = 0
    kills: int = 0
    refused: int = 0
    seconds: float = 0
    bad: list[str] = field(default_factory=list)


class Campaign:
    """Trials of all cases in a directory, and their counts.

    Args:
        directory: Directory for the trainings.
        seed: Seed of the random numbers.
    """

    def __init__(self, directory: Path, seed: int) -> None:
        self._directory, self.random = directory, random.Random(seed)
        self._references: dict[Case, Reference] = {}
        self.rows: dict[str, Row] = {}

    def complete(
        self, case: Case, directory: Path, row: Row, reference: Reference, stopped: Set[str] = frozenset()
    ) -> None:
        """Complete a training, and compare its results."""
        code = finish(start(case, directory))
        if REPORTED in (directory / "output.txt").read_text():
            reference = without_log(reference)
        bad = [f"exit code {code} of the last resume"] if code != 0 else [*compare(directory, reference, stopped)]
        if bad:
            row.bad.append(f"{directory}: {'; '.join(bad)}")
        else:
            shutil.rmtree(directory)

    def get_row(self, name: str) -> Row:
        """Return the counts with a name."""
        return self.rows.setdefault(name, Row())

    def get_reference(self, case: Case) -> Reference:
        """Return the uninterrupted training of a case."""
        if case not in self._references:
            self._references[case] = self._train_without_interruption(case)
        return self._references[case]

    def _train_without_interruption(self, case: Case) -> Reference:
        directory = self.create_directory()
        training = start(case, directory)
        begin = time.monotonic()
        code = finish(training)
        seconds = time.monotonic() - begin
        assert code == 0, (directory / "output.txt").read_text()
        losses = {name.split()[0]: losses for name, losses in read_losses(directory)}
        results = flatten(json.loads((directory / "results.json").read_text()))
        return Reference(results, losses, seconds, list_files(directory))

    def create_directory(self) -> Path:
        """Return a new directory for a training."""
        return Path(tempfile.mkdtemp(dir=self._directory))


def without_log(reference: Reference) -> Reference:
    """Return a reference of which the log is not compared."""
    results = {name: value for name, value in reference.results.items() if name not in LOG_RESULTS}
    return replace(reference, results=results, files=reference.files - {LOG})


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
    ignored = {LOG} - reference.files
    if files := list_files(directory) - ignored ^ reference.files:
        yield f"other files: {', '.join(sorted(files))}"
    attempts = [(*name.split(), losses) for name, losses in read_losses(directory)]
    for rank, _, losses in attempts:
        first = next((i for i, loss in losses.items() if reference.losses[rank].get(i) != loss), None)
        yield from [f"loss of iteration {first} differs"] if first else []
    for (_, process, losses), (*_, following) in pairwise(attempts):
        if process in stopped and min(following) != max(losses) + 1:
            yield f"iteration {min(following)} after a stop at iteration {max(losses)}"


def flatten(results: dict[str, Any]) -> dict[str, Any]:
    """Return results with the parts of the last file by name."""
    parts = {f"last.pth: {name}": value for name, value in results["last.pth"].items()}
    return {name: value for name, value in results.items() if name != "last.pth"} | parts


def list_files(directory: Path) -> frozenset[str]:
    """Return the files of a training, without what a restart from scratch keeps of an earlier log."""
    roots = [directory / "run", directory / "run-out"]
    paths = (path for root in roots for path in root.rglob("*") if not path.is_dir() or path.is_symlink())
    names = {path.relative_to(directory).as_posix() for path in paths}
    return frozenset(name for name in names if not KEPT_LOG.search(name))


def select_positions(count: int, trials: int | None, chooser: random.Random) -> list[int]:
    """Return numbers below a count: all of them, or one in each of several equal parts."""
    if trials is None or trials >= count:
        return list(range(count))
    return [min(count - 1, int((part + chooser.random()) * count / trials)) for part in range(trials)]
