"""Another data pipeline from some epoch on."""

from __future__ import annotations

from typing import Any

from hookbus import Hook, Run
from hookbus_schedule.border import Border
from hookbus_schedule.config import PipelineSwitchConfig
from hookbus_schedule.pipelines import SwitchPipeline

__all__ = ["PipelineSwitchHook"]


class PipelineSwitchHook(Hook):
    """From an epoch or an iteration on, the data set has another pipeline, in every process that reads it.

    What is switched follows from epoch and iteration alone, so a resumed run needs no memory of it.
    """

    Config = PipelineSwitchConfig
    makes_requests = False
    config: PipelineSwitchConfig

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self._border = Border(self.config.switch_epoch, self.config.switch_iter)
        self._switched = False

    def check(self, run: Run) -> None:
        """See that the data set has a pipeline."""
        if run.train_loader is not None:
            self._switch().check(run.train_loader)

    def before_train(self, run: Run) -> None:
        """Have the data switched while it is read."""
        self._switched = False
        run.training_data.before_reading(self._switch())

    def before_train_iter(self, run: Run) -> None:
        """Say so, when it is done."""
        if self._switched or not self._border.reached(run.epoch, run.iter):
            return
        self._switched = True
        run.training_data.see_that_it_reads(self.name)
        numbers = run.clock.number("epoch"), run.clock.number("iter")
        run.logger.info("%s: another pipeline from epoch %s, iteration %s on.", self.name, *numbers)

    def _switch(self) -> SwitchPipeline:
        return SwitchPipeline(self._border, self.config.switch_pipeline)
