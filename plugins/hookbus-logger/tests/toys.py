"""Hooks shared by several test modules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console

from hookbus import BestResult, Hook, Priority
from hookbus._run.requests import Request
from hookbus._run.run import Run


class StopAt(Hook):
    """Request the end of the run after the given iteration."""

    def __init__(self, iteration: int) -> None:
        super().__init__()
        self.iteration = iteration

    def after_train_iter(self, run: Run) -> None:
        if run.iters_done == self.iteration:
            run.request_stop("enough")


class ProvideConsole(Hook):
    """Provide the console of a run before any other hook requests it."""

    priority = Priority.HIGHEST

    def __init__(self, console: Console) -> None:
        super().__init__()
        self.console = console

    def before_run(self, run: Run) -> None:
        run.provide("console", self.console)


class TrackBest(Hook):
    """Store the best accuracy when a checkpoint is planned, as a checkpoint hook does."""

    def after_epoch(self, run: Run) -> None:
        run.request_save(saver=self)

    def plan(self, run: Run, requests: list[Request]) -> Path | None:
        score = run.metrics.results["val/accuracy"]
        if "val/accuracy" not in run.best or score > run.best["val/accuracy"].value:
            run.best["val/accuracy"] = BestResult(score, run.epochs_done, run.steps_done)
        return None

    def write(self, run: Run, checkpoint: dict[str, Any]) -> None:
        """Write nothing, as nothing is planned."""
