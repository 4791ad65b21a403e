"""Strong augmentation off and the L1 loss on, for the last epochs."""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

from torch import nn

from hookbus import Hook, Run
from hookbus.model.wrappers import unwrapped
from hookbus_schedule.border import Border, last_part
from hookbus_schedule.config import YOLOXModeSwitchConfig
from hookbus_schedule.pipelines import SkipTypes, say_who_reads_along

__all__ = ["YOLOXModeSwitchHook"]


class YOLOXModeSwitchHook(Hook):
    """For the last epochs, the data set leaves transforms such as Mosaic out, and the model adds its L1 loss.

    What is switched follows from epoch and iteration alone, so a resumed run needs no memory of it. The data is
    switched in the process that reads it, with the first sample of these epochs, whatever was fetched ahead.
    """

    Config = YOLOXModeSwitchConfig
    makes_requests = False
    config: YOLOXModeSwitchConfig

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self._border = Border()
        self._switched = False

    def check(self, run: Run) -> None:
        """See that the end of the run is known, and that the data set has a method for this."""
        border = self._border_of(run)
        if run.train_loader is not None and border != Border():
            switch = SkipTypes(border, self.config.skip_type_keys)
            switch.check(run.train_loader)
            say_who_reads_along(run, self.name, switch)

    def before_train(self, run: Run, model: Any) -> None:
        """Find out when, and have the data switched while it is read."""
        self._border, self._switched = self._border_of(run), False
        if self._border != Border():
            run.training_data.before_reading(SkipTypes(self._border, self.config.skip_type_keys))
        if model is not None and not self._border.reached(run.epoch, run.iter):
            _take_back(unwrapped(model))

    def before_train_iter(self, run: Run, model: Any) -> None:
        """Switch the model, where it is time and not done yet."""
        if self._switched or not self._border.reached(run.epoch, run.iter):
            return
        self._switched = True
        run.training_data.see_that_it_reads(self.name)
        switched = _use_l1(unwrapped(model)) if model is not None else 0
        run.logger.info(
            "%s: from epoch %s, iteration %s on without %s; %s modules with L1 loss.",
            self.name,
            run.clock.number("epoch"),
            run.clock.number("iter"),
            ", ".join(self.config.skip_type_keys),
            switched,
        )

    def _border_of(self, run: Run) -> Border:
        return last_part(run, self.config.num_last_epochs, self.config.num_last_iters)


def _use_l1(model: nn.Module) -> int:
    """Switch the L1 loss on in every module that has the switch. Returns how many there are."""
    found = [module for module in model.modules() if isinstance(getattr(module, "use_l1", None), (bool, int))]
    for module in found:
        if not module.use_l1:
            module.use_l1 = True  # type: ignore[assignment]
            _switched_on.add(module)
    return len(found)


def _take_back(model: nn.Module) -> None:
    """Switch off what a training before this one switched on."""
    for module in _switched_on.intersection(model.modules()):
        module.use_l1 = False
        _switched_on.discard(module)


_switched_on: WeakSet[Any] = WeakSet()
"""The modules whose L1 loss this process has switched on."""
