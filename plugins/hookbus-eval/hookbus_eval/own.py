"""A validation in the place of the run's: other data, further metrics, or a function of one's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from hookbus import Run
from hookbus.errors import HookError
from hookbus.training.evaluation import judge, named_loaders
from hookbus.training.scores import scores_from
from hookbus_eval.config import EvalConfig

__all__ = ["OwnValidation"]


class OwnValidation:
    """Validates a run as the settings say.

    Args:
        config: the settings.
        owner: the name of the hook, for messages.
    """

    def __init__(self, config: EvalConfig, owner: str) -> None:
        self._config, self._owner = config, owner
        self._scores = scores_from(config.metrics, streaming=config.efficient_test)

    def __call__(self, run: Run) -> None:
        """Validate, and emit the events of it. Several processes share the batches; `test_fn` has them all on each.

        Raises:
            ServiceError: there is no loader of the name that was given.
            HookError: there is no way to judge a batch, or `test_fn` does not return results.
            LoopError: a loader gives no batch, or a metric cannot be measured.
        """
        loaders = self.loaders(run)
        if self._config.test_fn is not None:
            self._by_function(run, loaders)
        else:
            self._by_steps(run, loaders)

    def loaders(self, run: Run) -> Any:
        """What is judged: a loader, or a mapping of name to loader.

        Raises:
            ServiceError: there is no loader of the name that was given.
        """
        return self._found(run, self._config.dataloader)

    def _found(self, run: Run, given: Any) -> Any:
        if isinstance(given, Mapping):
            return {name: self._found(run, each) for name, each in given.items()}
        return run.require(given) if isinstance(given, str) else given

    def _by_steps(self, run: Run, loaders: Any) -> None:
        if "val_step" not in run.bus.table.steps:
            raise HookError(
                f"hook {self._owner!r} has data to validate on, but this loop does not say how a batch is judged. Say "
                'so by bus.action("val_step", step), or give test_fn.'
            )
        own = {} if run.trainer is None else run.trainer.scores
        judge(run, "val", loaders, {**own, **self._scores}, _device_of(run))

    def _by_function(self, run: Run, loaders: Any) -> None:
        assert self._config.test_fn is not None
        for name, loader in named_loaders(loaders):
            run.bus.fire("before_val_epoch", dataloader_name=name)
            results = self._config.test_fn(run.model, loader)
            if not isinstance(results, Mapping):
                raise HookError(
                    f"hook {self._owner!r}: test_fn returned {type(results).__name__}; wanted is a mapping of name to "
                    "number."
                )
            run.bus.fire("after_val_epoch", metrics=results, dataloader_name=name)


def _device_of(run: Run) -> torch.device:
    """The device of the run, else that of the model."""
    if run.device is not None:
        return torch.device(run.device)
    parameter = None if run.model is None else next(run.model.parameters(), None)
    return torch.device("cpu") if parameter is None else parameter.device
