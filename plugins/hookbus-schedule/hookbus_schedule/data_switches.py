"""Hooks that switch the training data: its pipeline, or the transforms that the final phase of YOLOX skips."""

from __future__ import annotations

from typing import Any, TypeVar
from weakref import WeakSet

from torch import nn

from hookbus import Hook, Needs, Run, Unit, hookimpl
from hookbus.distributed import unwrap_model
from hookbus.errors import ConfigError
from hookbus_schedule.config import PipelineSwitchConfig, YOLOXModeSwitchConfig
from hookbus_schedule.milestones import Milestone, final_phase_start, get_start_points
from hookbus_schedule.pipelines import SkipTypes, SwitchPipeline, warn_shared_dataset

HookT = TypeVar("HookT", bound=Hook)


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

    @property
    def needs(self) -> Needs:
        """Access to the data, and the start of epochs if the milestone counts them."""
        return Needs(points=() if self.milestone.epoch is None else ("before_train_epoch",), data=True)

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
        if _get_hooks(run, PipelineSwitchHook)[-1] is self:
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


def _get_hooks(run: Run, kind: type[HookT]) -> list[HookT]:
    return [hook for hook in run.bus.hooks.values() if isinstance(hook, kind)]


def _get_stages(run: Run) -> list[tuple[Milestone, Any]]:
    """Return the pairs (milestone, pipeline) of all hooks in chronological order.

    Raises:
        ConfigError: If the milestones have no order: different units, or the same milestone twice.
    """
    hooks = _get_hooks(run, PipelineSwitchHook)
    milestones = {hook.milestone for hook in hooks}
    if len({milestone.epoch is None for milestone in milestones}) > 1 or len(milestones) < len(hooks):
        names = " and ".join(repr(hook.name) for hook in hooks)
        raise ConfigError(
            f"hooks {names} switch the pipeline of the same data in an undefined order. Set `switch_epoch` of all "
            "hooks or `switch_iter` of all hooks, to different values."
        )
    hooks.sort(key=lambda hook: (hook.milestone.epoch or 0, hook.milestone.iteration or 0))
    return [(hook.milestone, hook.config.switch_pipeline) for hook in hooks]


class YOLOXModeSwitchHook(Hook):
    """Skip transforms such as Mosaic and enable the L1 loss of the model in the final phase of a training.

    The mode is a function of epoch and iteration, so a resumed run requires no state. Each process that reads the
    dataset switches with the first sample of the final phase, regardless of prefetching. Multiple instances of this
    hook skip the transforms of all final phases that have begun, regardless of hook order.
    """

    Config = YOLOXModeSwitchConfig
    makes_requests = False
    config: YOLOXModeSwitchConfig

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self._milestone = Milestone()
        self._switched = False

    @property
    def needs(self) -> Needs:
        """Access to the data, and the start of what the length of the final phase counts."""
        return Needs(points=get_start_points("epoch" if self.config.num_last_iters is None else "iter"), data=True)

    def check(self, run: Run) -> None:
        """Check that the end of the run is known, and that the dataset can skip transforms.

        Raises:
            ConfigError: If the start of the final phase is unknown, or the dataset has no `update_skip_type_keys`.
        """
        milestone = self._get_milestone(run)
        if run.train_loader is not None and milestone != Milestone():
            switch = SkipTypes([(milestone, self.config.skip_type_keys)])
            switch.find_attributes(run.train_loader)
            warn_shared_dataset(run, self.name, switch)

    def before_train(self, run: Run, model: Any) -> None:
        """Determine the start of the final phase, and register the switch of the dataset."""
        self._milestone, self._switched = self._get_milestone(run), False
        # One switch for all instances: separate switches would overwrite the types of each other. The last
        # instance registers it, so that one registered during the run adds its own.
        phases = _get_phases(run)
        if phases and _get_hooks(run, YOLOXModeSwitchHook)[-1] is self:
            run.register_dataset_hook(SkipTypes(phases))
        # An earlier training of the same model may have ended in its final phase.
        if model is not None and not self._milestone.is_reached(run.epoch, run.iter):
            _disable_l1(unwrap_model(model))

    @hookimpl(frequency=False)
    def before_train_iter(self, run: Run, model: Any) -> None:
        """Enable the L1 loss at the start of the final phase.

        Raises:
            LoopError: If the loop does not read the training data through the run.
        """
        if self._switched or not self._milestone.is_reached(run.epoch, run.iter):
            return
        self._switched = True
        run.require_managed_loader(self.name)
        switched = _enable_l1(unwrap_model(model)) if model is not None else 0
        run.logger.info(
            "%s: final phase from epoch %s, iteration %s: transforms %s are skipped, %s modules use the L1 loss.",
            self.name,
            run.current("epoch"),
            run.current("iter"),
            ", ".join(self.config.skip_type_keys),
            switched,
        )

    def _get_milestone(self, run: Run) -> Milestone:
        return final_phase_start(run, self.config.num_last_epochs, self.config.num_last_iters)


def _get_phases(run: Run) -> list[tuple[Milestone, list[str]]]:
    """Return the pairs (start, types to skip) of the final phases of all hooks, in an order without the hooks' one."""
    hooks = sorted(_get_hooks(run, YOLOXModeSwitchHook), key=lambda hook: hook.name)
    phases = [(hook._get_milestone(run), hook.config.skip_type_keys) for hook in hooks]
    return [(start, keys) for start, keys in phases if start != Milestone()]


def _enable_l1(model: nn.Module) -> int:
    """Set `use_l1` of all modules that have this flag.

    Returns:
        Number of modules.
    """
    # Only flags: `use_l1` may also be a method or a module.
    modules = [module for module in model.modules() if isinstance(getattr(module, "use_l1", None), (bool, int))]
    for module in modules:
        if not module.use_l1:
            module.use_l1 = True  # type: ignore[assignment]
            _l1_modules.add(module)
    return len(modules)


def _disable_l1(model: nn.Module) -> None:
    """Reset `use_l1` of the modules for which an earlier training has set it."""
    for module in _l1_modules.intersection(model.modules()):
        module.use_l1 = False
        _l1_modules.discard(module)


_l1_modules: WeakSet[Any] = WeakSet()
"""Modules whose L1 loss this process has enabled."""
