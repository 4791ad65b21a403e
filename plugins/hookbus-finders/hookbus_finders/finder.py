"""Base class of the hooks that search once, before a training."""

from __future__ import annotations

from typing import Any, ClassVar

from hookbus import Hook, Run
from hookbus.errors import ConfigError
from hookbus_finders.config import BatchSizeFinderConfig, LRFinderConfig
from hookbus_finders.trials import check_training, find_limit, is_possible


class FinderHook(Hook):
    """Search before a training, provide the result as a service, and apply it if requested.

    Attributes:
        subject: What is searched for.
        service: Name of the service with the result.
        result: Result of the search; None before it.
    """

    makes_requests = False
    subject: ClassVar[str]
    service: ClassVar[str]
    config: LRFinderConfig | BatchSizeFinderConfig
    result: Any

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self.result = None

    def check(self, run: Run) -> None:
        """Check that the run has an optimizer and a training loader, and that no other hook searches.

        Raises:
            HookError: If the run has no optimizer.
            ConfigError: If one of the other conditions is not met.
        """
        if run.mode == "train":
            self.check_unique(run, f"searches for the {self.subject}", "Remove one of them.")
            check_training(run)
            if obstacle := run.trial_obstacle:
                raise ConfigError(
                    f"requires a training loader that can be read before the training, got {obstacle}. Pass a loader "
                    "that is no iterator, saves no position, and has no persistent workers of an iterable dataset."
                )
            self._check_training(run)

    def before_run(self, run: Run) -> None:
        """Discard the result of an earlier training."""
        if run.mode == "train" and run.iters_done == 0:
            self.result = None

    def before_train(self, run: Run) -> None:
        """Execute the search, unless the training continues or is limited."""
        if self.result is None and is_possible(run, self.name, self._get_obstacle(find_limit(run))):
            self.result = self._search(run)
            self._report(run, self.result)
            if self.config.apply:
                self._apply(run, self.result)
        if self.result is not None:
            run.provide(self.service, self.result)

    def _check_training(self, run: Run) -> None:
        """Raise if the search cannot be executed in a training."""
        raise NotImplementedError

    def _get_obstacle(self, limit: str) -> str:
        """Return the setting because of which the search is not executed; "" if it is.

        Args:
            limit: Setting that limits the batches of the training; "" if none does.
        """
        raise NotImplementedError

    def _search(self, run: Run) -> Any:
        """Return the result."""
        raise NotImplementedError

    def _report(self, run: Run, result: Any) -> None:
        """Log a result."""
        raise NotImplementedError

    def _apply(self, run: Run, result: Any) -> None:
        """Train with a result."""
        raise NotImplementedError
