"""Trial steps that the finders have in common."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from typing import Any

from hookbus import Run
from hookbus.errors import ConfigError, HookError, LoopError


def check_training(run: Run) -> None:
    """Check that a run has an optimizer and a training loader.

    Raises:
        HookError: If the run has no optimizer.
        ConfigError: If the run has no training loader.
    """
    if run.optimizer is None:
        raise HookError("requires the optimizer of the run, got None. Pass `optimizer` to the run.")
    if run.train_loader is None:
        raise ConfigError("requires the training loader of the run, got None. Pass `train_loader` to `bus.run()`.")


def find_limit(run: Run) -> str:
    """Return the setting of the Trainer that limits the batches of the training; "" if none does."""
    short_run = getattr(run.trainer, "short_run", None)
    return "" if short_run is None else str(short_run.train_limit)


def is_possible(run: Run, hook: str, limit: str) -> bool:
    """Return whether a hook searches: at the start of a training that is not limited. Otherwise log a warning.

    Args:
        run: The run.
        hook: Name of the hook.
        limit: Setting that limits the batches, so that the hook does not search; "" if it does.
    """
    if run.iters_done:
        run.logger.warning(
            "%s: not executed, because the training continues after iteration %s. Start a new training, or remove the "
            "hook.",
            hook,
            run.iters_done,
        )
    elif limit:
        run.logger.warning("%s: not executed, because the training is limited by `%s`.", hook, limit)
    return not (run.iters_done or limit)


def train_steps(run: Run, trial: Any, batch_size: int | None = None) -> Generator[float]:
    """Execute an optimizer step of a trial each time, and yield its loss: the mean over the accumulated micro-batches.

    The training loader is read again and again. A custom loop, whose accumulation is unknown, trains on one micro-batch
    each time.

    Args:
        run: The run.
        trial: Result of `run.sandbox()`.
        batch_size: Number of samples per batch. Default: that of the training loader.

    Raises:
        LoopError: If the loader is empty, or a step returns no loss.
    """
    batches, count = _repeat(trial, batch_size), run.accumulate or 1
    while True:
        yield sum(get_loss(trial.train_step(next(batches))) for _ in range(count)) / count


def _repeat(trial: Any, batch_size: int | None) -> Iterator[Any]:
    is_empty = True
    while True:
        for batch in trial.batches(batch_size=batch_size):
            is_empty = False
            yield batch
        if is_empty:
            raise LoopError("the training loader yielded no batch. Check its dataset and `drop_last`.")


def get_loss(outputs: Any) -> float:
    """Return the loss among the outputs of a training step. Synchronizes with the device.

    Args:
        outputs: The loss, or a mapping with "loss".

    Raises:
        LoopError: If there is no loss.
    """
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
    try:
        return float(loss)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError):
        kind = f"a mapping with {', '.join(map(str, outputs))}" if isinstance(outputs, Mapping) else type(outputs)
        raise LoopError(
            f"train_step: expected the loss, or a mapping with 'loss', got {kind}. Return it from the step of the loop."
        ) from None
