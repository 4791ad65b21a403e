"""Search for the largest batch size before the training."""

from __future__ import annotations

from itertools import islice
from typing import Any

from torch import nn

from hookbus import Needs, Priority, Run, hookimpl, once
from hookbus.checkpoint import schema
from hookbus.distributed import sharding_of
from hookbus.errors import ConfigError, LoopError
from hookbus_finders.config import BatchSizeFinderConfig
from hookbus_finders.finder import FinderHook
from hookbus_finders.memory import is_out_of_memory, release_memory
from hookbus_finders.size_search import SizeSearch, search_size
from hookbus_finders.trials import find_limit, train_steps


class BatchSizeFinderHook(FinderHook):
    """Train with growing batch sizes before the training, until the memory is exceeded.

    The steps leave no trace, see `run.sandbox`. The result is available as the service `batch_size_finder`, a
    `SizeSearch`. A resumed run does not repeat the search.

    Attributes:
        result: Result of the search; None before it.
    """

    Config = BatchSizeFinderConfig
    subject, service = "batch size", "batch_size_finder"
    # After the hooks have prepared their training steps, and before the range test for the learning rate.
    priority = Priority.VERY_LOW
    config: BatchSizeFinderConfig
    result: SizeSearch | None
    state_schema = schema.record(
        {
            "result": schema.nullable(
                schema.record(
                    {
                        "sizes": schema.list_of(schema.integer(1)),
                        "fits": schema.list_of(schema.boolean),
                        "margin": schema.number(0),
                    }
                )
            )
        }
    )

    @property
    def needs(self) -> Needs:
        """The step to execute, and with `apply` the training loader to replace."""
        return Needs(actions=("train_step",), optimizer=True, data=self.config.apply)

    @hookimpl(when=once(), frequency=False)
    def after_train_iter(self, run: Run) -> None:
        """Check that the loop reads the training data through the run.

        Raises:
            LoopError: If it does not, so that the batch size is that of its loader.
        """
        if self.config.apply:
            run.require_managed_loader(self.name)

    def state_dict(self) -> dict[str, Any]:
        """Return the result."""
        result = self.result
        if result is None:
            return {"result": None}
        sizes, fits = ([trial[i] for trial in result.trials] for i in (0, 1))
        return {"result": {"sizes": sizes, "fits": fits, "margin": result.margin}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state returned by `state_dict()`."""
        saved = state["result"]
        trials = () if saved is None else tuple(zip(saved["sizes"], saved["fits"], strict=True))
        self.result = None if saved is None else SizeSearch(trials, float(saved["margin"]))

    def _check_training(self, run: Run) -> None:
        if find_limit(run):
            return
        _ = run.max_batch_size  # raises the reason why the batch size of the loader cannot be changed
        if run.ranks.world_size > 1:
            _check_ranks(run)

    def _get_obstacle(self, limit: str) -> str:
        return limit

    def _apply(self, run: Run, result: SizeSearch) -> None:
        if result.size is not None:
            run.set_batch_size(result.size)  # a checkpoint contains it

    def _search(self, run: Run) -> SizeSearch:
        config, limit = self.config, self.config.max_val
        if run.max_batch_size is not None:
            limit = min(limit, run.max_batch_size)
        result = search_size(
            lambda size: all(run.ranks.call_on_all(f"trial of {self.name}", lambda: self._try_size(run, size))),
            first=config.init_val,
            limit=limit,
            max_trials=config.max_trials,
            mode=config.mode,
            margin=config.margin,
        )
        if result.largest is None:
            raise LoopError(
                f"{self.name}: out of memory with each batch size, got {', '.join(str(n) for n, _ in result.trials)}. "
                "Use a smaller model or less memory per sample."
            )
        return result

    def _try_size(self, run: Run, size: int) -> bool:
        """Return whether training steps with a batch size fit into the memory of this rank."""
        try:
            self._train(run, size)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            fits = False
        else:
            fits = True
        # After the `except` clause: the traceback of the error references the tensors of the step.
        release_memory()
        return fits

    def _train(self, run: Run, size: int) -> None:
        # Each size has a sandbox of its own: an error within a step leaves half of its changes.
        with run.sandbox(local=True) as trial:
            steps = train_steps(run, trial, size)
            for _ in islice(steps, self.config.steps_per_trial):
                pass
            steps.close()

    def _report(self, run: Run, result: SizeSearch) -> None:
        failed = min((size for size, fits in result.trials if not fits), default=None)
        limit = "no size has failed" if failed is None else f"{failed} exceeds the memory"
        run.logger.info(
            "%s: batch size %s, after %s trials: %s fits, %s",
            self.name,
            result.size,
            len(result.trials),
            result.largest,
            limit,
        )
        run.bus.emit("log_scalars", values={f"{self.name}/size": result.size})


def _check_ranks(run: Run) -> None:
    """Raise if a rank that runs out of memory would block the others."""
    reason = ""
    if run.trainer is None:
        reason = "a custom loop, whose steps may communicate. Use the Trainer"
    elif run.model is not None and sharding_of(run.model) is not None:
        reason = "sharded parameters, which each step gathers. Use `distributed: ddp`"
    elif run.model is not None and any(isinstance(part, nn.SyncBatchNorm) for part in run.model.modules()):
        reason = "SyncBatchNorm, which communicates in each step. Use BatchNorm during the search"
    if reason:
        raise ConfigError(
            f"a rank that runs out of memory would block the other {run.ranks.world_size - 1}, got {reason}, or a "
            "single process."
        )
