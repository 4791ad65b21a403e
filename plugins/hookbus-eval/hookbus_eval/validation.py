"""Validation that replaces the one of the run: other data, additional metrics, or a custom function."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from hookbus import Run
from hookbus.errors import ConfigError, HookError
from hookbus.evaluation import build_metrics, evaluate, named_loaders
from hookbus_eval.config import EvalConfig

LOADERS = ("train_loader", "val_loader", "test_loader")
"""Services that are the loaders of a Trainer."""


class CustomValidation:
    """Validation with the data, metrics and function of a configuration.

    Args:
        config: The configuration.
        owner: Name of the hook, for messages.
    """

    def __init__(self, config: EvalConfig, owner: str) -> None:
        self._config, self._owner = config, owner
        self._metrics = build_metrics(config.metrics, streaming=config.efficient_test)

    def __call__(self, run: Run) -> None:
        """Validate the model and emit the validation events.

        Batches are sharded across ranks. `test_fn` is called on every rank with the complete loader.

        Args:
            run: The run.

        Raises:
            ServiceError: If the run has no service of the configured name.
            HookError: If no `val_step` is registered, or `test_fn` does not return a mapping.
            LoopError: If a loader yields no batch, or a metric cannot be computed.
        """
        loaders = self.get_loaders(run)
        if self._config.test_fn is not None:
            self._run_test_fn(run, loaders)
        else:
            self._run_val_steps(run, loaders)

    def get_loaders(self, run: Run) -> Any:
        """Return the validation data: a loader, or a mapping of name to loader. Names of services are resolved.

        Raises:
            ServiceError: If the run has no service of the configured name.
        """
        dataloader = self._config.dataloader
        if isinstance(dataloader, Mapping):
            return {name: _resolve_loader(run, loader) for name, loader in dataloader.items()}
        return _resolve_loader(run, dataloader)

    def check_loaders(self, run: Run) -> None:
        """Check the loaders of the Trainer that the configuration names. Other services may be registered later.

        Args:
            run: Run of a Trainer.

        Raises:
            ConfigError: If the Trainer has no such loader.
        """
        dataloader = self._config.dataloader
        names = [*dataloader.values()] if isinstance(dataloader, Mapping) else [dataloader]
        missing = [name for name in names if isinstance(name, str) and name in LOADERS and run.get(name) is None]
        if missing:
            raise ConfigError(
                f"dataloader: the Trainer has no {name}, got {name!r}. Pass {name}= to the Trainer (in a run file: a "
                "dataset of this split), or set another loader."
                for name in missing
            )

    def _run_val_steps(self, run: Run, loaders: Any) -> None:
        if not run.bus.has_action("val_step"):
            raise HookError(
                f"hook {self._owner!r}: no `val_step` is registered to evaluate a batch of the configured data. Call "
                '`bus.action("val_step", step)`, or set `test_fn`.'
            )
        # Metrics of this configuration are added to those of the Trainer, and replace metrics of the same name.
        evaluate(run, "val", loaders, {**run.eval_metrics, **self._metrics}, _get_device(run))

    def _run_test_fn(self, run: Run, loaders: Any) -> None:
        assert self._config.test_fn is not None
        for name, loader in named_loaders(loaders):
            run.bus.emit("before_val_epoch", dataloader_name=name)
            results = self._config.test_fn(run.model, loader)
            if not isinstance(results, Mapping):
                kind = type(results).__name__
                raise HookError(f"hook {self._owner!r}: test_fn must return a mapping of name to number, got {kind}.")
            run.bus.emit("after_val_epoch", metrics=results, dataloader_name=name)


def _resolve_loader(run: Run, loader: Any) -> Any:
    return run.require(loader) if isinstance(loader, str) else loader


def _get_device(run: Run) -> torch.device:
    """Return the device of the run, or of the model if the run has none."""
    if run.device is not None:
        return torch.device(run.device)
    parameter = None if run.model is None else next(run.model.parameters(), None)
    return torch.device("cpu") if parameter is None else parameter.device
