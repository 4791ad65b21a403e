"""Frozen modules, for a while or throughout."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from hookbus import Hook, Run
from hookbus.errors import ConfigError, HookError, did_you_mean
from hookbus.model.wrappers import unwrapped
from hookbus_schedule.config import FreezeConfig

__all__ = ["FreezeHook"]


class FreezeHook(Hook):
    """Keeps modules as they are: no gradients, no updates, no weight decay, no running statistics.

    What is frozen follows from epoch and iteration alone, so a resumed run needs no memory of it. Parameters that were
    frozen before stay so afterwards. At the end of the run the model is as it was before it.
    """

    Config = FreezeConfig
    makes_requests = False
    config: FreezeConfig

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self._frozen: list[nn.Parameter] = []
        self._layers: list[nn.Module] = []

    def check(self, run: Run) -> None:
        """See that there is a model, and that each name means something in it.

        Raises:
            HookError, ConfigError: there is none, or a name means nothing.
        """
        if run.model is None:
            raise HookError("it freezes modules of a model: give model= to the run.")
        _check_names(self.config.modules, unwrapped(run.model))

    def before_train(self, run: Run, model: nn.Module) -> None:
        """Freeze, unless the time for that is over."""
        model = unwrapped(model)
        if self._is_over(run.epochs_done, run.iters_done):
            return
        parameters = {name: each for name, each in model.named_parameters() if each.requires_grad}
        self._frozen = [each for name, each in parameters.items() if _is_meant(name, self.config.modules)]
        for parameter in self._frozen:
            parameter.requires_grad_(False)
            parameter.grad = None
        if self.config.keep_statistics:
            self._layers = _normalising(model, self.config.modules)

    def before_train_iter(self, run: Run) -> None:
        """Thaw, where it is time; otherwise see that the loop has not switched statistics on again."""
        if self._frozen and self._is_over(run.epoch, run.iter):
            self._thaw()
            numbers = run.clock.number("epoch"), run.clock.number("iter")
            run.logger.info("%s: thawed at epoch %s, iteration %s.", self.name, *numbers)
        for layer in self._layers:
            if layer.training:
                layer.eval()

    def cleanup(self) -> None:
        """Leave the model as it was."""
        self._thaw()

    def _is_over(self, epoch: int, iteration: int) -> bool:
        if self.config.until_iter is not None:
            return iteration >= self.config.until_iter
        return self.config.until_epoch is not None and epoch >= self.config.until_epoch

    def _thaw(self) -> None:
        for parameter in self._frozen:
            parameter.requires_grad_(True)
        for layer in self._layers:
            layer.train()
        self._frozen, self._layers = [], []


def _is_meant(name: str, patterns: Iterable[str]) -> bool:
    """Whether a pattern names a module or parameter, or something that it is inside of."""
    parts = name.split(".")
    around = [".".join(parts[: i + 1]) for i in range(len(parts))]
    return any(fnmatchcase(each, pattern) for each in around for pattern in patterns)


def _normalising(model: nn.Module, patterns: Sequence[str]) -> list[nn.Module]:
    """The layers with running statistics, as far as a pattern means them, that gather them now."""
    return [
        module
        for name, module in model.named_modules()
        if getattr(module, "track_running_stats", False) and module.training and _is_meant(name, patterns)
    ]


def _check_names(patterns: Iterable[str], model: nn.Module) -> None:
    names = [name for name, _ in (*model.named_modules(), *model.named_parameters()) if name]
    problems = [
        f"modules: {pattern!r} is no module and no parameter of the model.{did_you_mean(pattern, names)}"
        for pattern in patterns
        if not any(fnmatchcase(name, pattern) for name in names)
    ]
    if problems:
        raise ConfigError(problems)
