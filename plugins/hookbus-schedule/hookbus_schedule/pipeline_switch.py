"""Switch of the data pipeline during a training."""

from __future__ import annotations

from typing import Any

from hookbus import Hook, Run, Unit, hookimpl
from hookbus.errors import ConfigError
from hookbus_schedule.config import PipelineSwitchConfig
from hookbus_schedule.milestones import Milestone
from hookbus_schedule.pipelines import SwitchPipeline, warn_shared_dataset


class PipelineSwitchHook(Hook):
    """Replace the pipeline of the training dataset from an epoch or iteration, in all processes that read it.

    The pipeline is a function of epoch and iteration, so a resumed run requires no state. Multiple instances of this
    hook apply in the order of their milestones, regardless of hook order.

    Attributes:
        milestone: Milestone from which the pipeline is used.
    """

    Config = PipelineSwitchConfig
    makes_requests = False
    config: PipelineSwitchConfig

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self.milestone = Milestone(self.config.switch_epoch, self.config.switch_iter)
        self._switched = False

    def check(self, run: Run) -> None:
        """Check that the dataset has a pipeline, and that the milestones of all such hooks have an order.

        Raises:
            ConfigError: If one of these conditions is not met.
        """
        switch = SwitchPipeline(_get_stages(run))
        if run.train_loader is not None:
            switch.find_attributes(run.train_loader)
            warn_shared_dataset(run, self.name, switch)

    def get_milestones(self, run: Run) -> dict[str, tuple[int, Unit]]:
        """Return the epoch or iteration in which the pipeline is switched."""
        return self.milestone.get_first_numbers("switch")

    def before_train(self, run: Run) -> None:
        """Register the switch of the dataset."""
        self._switched = False
        # One switch for all instances: separate switches would overwrite the pipelines of each other. The last
        # instance registers it, so that one registered during the run adds its own.
        if _get_hooks(run)[-1] is self:
            run.register_dataset_hook(SwitchPipeline(_get_stages(run)))

    @hookimpl(frequency=False)
    def before_train_iter(self, run: Run) -> None:
        """Log the switch.

        Raises:
            LoopError: If the loop does not read the training data through the run.
        """
        if self._switched or not self.milestone.is_reached(run.epoch, run.iter):
            return
        self._switched = True
        run.require_managed_loader(self.name)
        numbers = run.current("epoch"), run.current("iter")
        run.logger.info("%s: the pipeline is switched from epoch %s, iteration %s.", self.name, *numbers)


def _get_hooks(run: Run) -> list[PipelineSwitchHook]:
    return [hook for hook in run.bus.hooks.values() if isinstance(hook, PipelineSwitchHook)]


def _get_stages(run: Run) -> list[tuple[Milestone, Any]]:
    """Return the pairs (milestone, pipeline) of all hooks in chronological order.

    Raises:
        ConfigError: If the milestones have no order: different units, or the same milestone twice.
    """
    hooks = _get_hooks(run)
    milestones = {hook.milestone for hook in hooks}
    if len({milestone.epoch is None for milestone in milestones}) > 1 or len(milestones) < len(hooks):
        names = " and ".join(repr(hook.name) for hook in hooks)
        raise ConfigError(
            [
                f"hooks {names} switch the pipeline of the same data in an undefined order. Set `switch_epoch` of all "
                "hooks or `switch_iter` of all hooks, to different values."
            ]
        )
    hooks.sort(key=lambda hook: (hook.milestone.epoch or 0, hook.milestone.iteration or 0))
    return [(hook.milestone, hook.config.switch_pipeline) for hook in hooks]
