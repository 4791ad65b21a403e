"""Hooks shared by several test modules."""

from __future__ import annotations

from hookbus import Hook
from hookbus._run.run import Run


class StopAt(Hook):
    """Request the end of the run after the given iteration."""

    def __init__(self, iteration: int) -> None:
        super().__init__()
        self.iteration = iteration

    def after_train_iter(self, run: Run) -> None:
        if run.iters_done == self.iteration:
            run.request_stop("enough")
