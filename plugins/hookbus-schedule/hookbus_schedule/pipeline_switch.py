"""Another data pipeline from some epoch on."""

from __future__ import annotations

from typing import Any

from hookbus import Hook, Run
from hookbus.errors import ConfigError
from hookbus_schedule.border import Border
from hookbus_schedule.config import PipelineSwitchConfig
from hookbus_schedule.pipelines import SwitchPipeline, say_who_reads_along

__all__ = ["PipelineSwitchHook"]


class PipelineSwitchHook(Hook):
    """From an epoch or an iteration on, the data set has another pipeline, in every process that reads it.

    What is switched follows from epoch and iteration alone, so a resumed run needs no memory of it. Several of these
    hooks come one after the other, in whatever order they are listed.

    Attributes:
        border: where its pipeline begins.
    """

    Config = PipelineSwitchConfig
    makes_requests = False
    config: PipelineSwitchConfig

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self.border = Border(self.config.switch_epoch, self.config.switch_iter)
        self._switched = False

    def check(self, run: Run) -> None:
        """See that the data set has a pipeline, and that several of these hooks come one after the other."""
        switch = SwitchPipeline(_stages(run))
        if run.train_loader is not None:
            switch.check(run.train_loader)
            say_who_reads_along(run, self.name, switch)

    def before_train(self, run: Run) -> None:
        """Have the data switched while it is read; the first of several such hooks does so for all of them."""
        self._switched = False
        if _all_of(run)[0] is self:
            run.training_data.before_reading(SwitchPipeline(_stages(run)))

    def before_train_iter(self, run: Run) -> None:
        """Say so, when it is done."""
        if self._switched or not self.border.reached(run.epoch, run.iter):
            return
        self._switched = True
        run.training_data.see_that_it_reads(self.name)
        numbers = run.clock.number("epoch"), run.clock.number("iter")
        run.logger.info("%s: another pipeline from epoch %s, iteration %s on.", self.name, *numbers)


def _all_of(run: Run) -> list[PipelineSwitchHook]:
    return [each for each in run.bus.hooks.values() if isinstance(each, PipelineSwitchHook)]


def _stages(run: Run) -> list[tuple[Border, Any]]:
    """Which pipeline begins where, in the order of time.

    Raises:
        ConfigError: which of two comes first cannot be told.
    """
    hooks = _all_of(run)
    borders = {each.border for each in hooks}
    if len({border.epoch is None for border in borders}) > 1 or len(borders) < len(hooks):
        names = " and ".join(repr(each.name) for each in hooks)
        raise ConfigError(
            [
                f"hooks {names} switch the pipeline of the same data, and which comes first cannot be told: say all of "
                "it by switch_epoch or all by switch_iter, each with a number of its own."
            ]
        )
    hooks.sort(key=lambda each: (each.border.epoch or 0, each.border.iteration or 0))
    return [(each.border, each.config.switch_pipeline) for each in hooks]
