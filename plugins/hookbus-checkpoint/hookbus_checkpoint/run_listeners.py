"""Listeners of the checkpoint hook that are registered for one run, because only some settings need them."""

from __future__ import annotations

from typing import Any

from hookbus import Run
from hookbus_checkpoint.config import CheckpointConfig
from hookbus_checkpoint.writer import CheckpointWriter

__all__ = ["RunListeners"]


class RunListeners:
    """Listeners for a failure of the run, and for a loop without epochs.

    Args:
        hook: The checkpoint hook.
        config: Its configuration.
        writer: Its writer.
    """

    def __init__(self, hook: Any, config: CheckpointConfig, writer: CheckpointWriter) -> None:
        self._hook, self._config, self._writer = hook, config, writer
        self._names: list[str] = []

    def register(self, run: Run) -> None:
        """Register the listeners that the settings require."""
        # The run records its state after each iteration for a listener that saves after a failure.
        if self._config.save_on_exception:
            self._add(run, "on_exception", "failure", self._request_after_failure)
        # Only a custom loop may omit the events of epochs. A hook that is registered within an epoch has missed them.
        if run.auto_nesting and self._config.saves_epochs_only and not run.epoch_open:
            self._add(run, "before_train_epoch", "epochs", self._remove_epoch_check)
            self._add(run, "after_train_iter", "iterations", self._warn_without_epochs)

    def unregister(self, run: Run) -> None:
        """Unregister the remaining listeners."""
        for name in self._names:
            if name in run.bus.hooks:
                run.bus.unregister(name)
        self._names = []

    def _add(self, run: Run, point: str, suffix: str, listener: Any) -> None:
        name = f"{self._hook.name}.{suffix}"
        run.bus.on(point, name=name)(listener)
        self._names.append(name)

    def _request_after_failure(self, run: Run) -> None:
        self._writer.wait_for_pending(run)
        if self._writer.needs_save(run):
            run.request_save("failure", saver=self._hook)

    def _warn_without_epochs(self, run: Run) -> None:
        run.logger.warning(
            "%s: checkpoints are saved %s, because `by_epoch` is true and the loop has emitted no before_train_epoch "
            "before its first iteration. Set `by_epoch: false` to count iterations, or emit before_train_epoch.",
            self._hook.name,
            "only at the end of the training" if self._config.save_last else "only on request",
        )
        self._remove_epoch_check(run)

    def _remove_epoch_check(self, run: Run) -> None:
        for suffix in ("epochs", "iterations"):
            run.bus.unregister(f"{self._hook.name}.{suffix}")
