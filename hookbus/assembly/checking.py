"""What would go wrong? `hookbus check`: everything but the training."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from hookbus._imports import cause_of
from hookbus._packages import package_of
from hookbus.assembly.expected_metrics import ExpectedMetrics
from hookbus.assembly.start_files import file_checks
from hookbus.clock import Clock
from hookbus.errors import ConfigError, HookbusError, LoopError, WorkDirError
from hookbus.hook import Hook
from hookbus.moment import PointMoment
from hookbus.runs.preconditions import check_hooks
from hookbus.runs.workdir import see
from hookbus.training.batches import move
from hookbus.training.data import feed_of
from hookbus.training.evaluation import begin_scores, evaluating, named_loaders, update_scores
from hookbus.training.loaders import length_of
from hookbus.training.outputs import loss_in
from hookbus.training.rng import preserved_rng

if TYPE_CHECKING:
    from hookbus.loop import Trainer

__all__ = ["check_ends", "check_optimizer", "check_ready", "check_trainer"]


LONGEST_TRIAL = 100_000
"""How often a scheduler is stepped at most, to see whether it lasts."""


def check_ready(trainer: Trainer) -> None:
    """See, before the work directory is taken, that a trainer has what a training needs, as far as it shows at once.

    Raises:
        LoopError: there is no optimizer, no data, no limit, or no validation for a scheduler that waits for one.
        ConfigError: what there is does not fit the loop.
    """
    if trainer.optimizer is None:
        raise LoopError("fit needs an optimizer: give optimizer= to the Trainer.")
    if trainer.train_loader is None:
        raise LoopError("fit needs data: give train_loader= to the Trainer.")
    if (trainer.epochs is None) == (trainer.iterations is None):
        raise LoopError("fit needs one limit: give either epochs= or iterations=.")
    if trainer.scheduler.monitor is not None and trainer.val_loader is None:
        raise LoopError(
            f"The scheduler is stepped with {trainer.scheduler.monitor} after each validation, and there is none: "
            "give val_loader= to the Trainer."
        )
    check_optimizer(trainer)
    check_ends(trainer)


def check_optimizer(trainer: Trainer) -> None:
    """See that the loop can make updates, unless a hook makes them.

    Raises:
        ConfigError: the optimizer wants to be given a function for each of its steps.
    """
    assert trainer.optimizer is not None
    wanted = list(inspect.signature(type(trainer.optimizer).step).parameters.values())[1:]
    is_ours = "train_step" not in {target for each in trainer.bus.pm.members.values() for target in each.found}
    if is_ours and any(each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD for each in wanted):
        kind = type(trainer.optimizer).__name__
        raise ConfigError(
            [
                f"optimizer: {kind} wants a function that computes the loss again at each step, which this loop does "
                "not give: take another optimizer, or write a hook with a train_step."
            ]
        )


def check_ends(trainer: Trainer) -> None:
    """See that the end of the training is known to the schedules that ask for it.

    Raises:
        ConfigError: it is not; the message names the hook and the point.
    """
    clock, table = Clock(), trainer.bus.table
    clock.max_epochs, clock.max_iters = trainer.epochs, trainer.iterations
    clock.epoch_length = length_of(trainer.train_loader, trainer.part)
    for name, point in trainer.bus.points.items():
        moment = PointMoment(clock, point)
        for listener in table.listeners(name, trainer.bus.current):
            with _of_listener(listener.hook, name):
                if listener.schedule is not None:
                    listener.schedule.check_end(moment)


@contextmanager
def _of_listener(hook: str, point: str) -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        raise ConfigError([f"hook {hook!r} at {point}: {error}"]) from None


def check_trainer(trainer: Trainer) -> list[str]:
    """See that a trainer could train. Nothing is written, no weight changes, no random number is used up.

    Returns:
        Lines that say what it would do.

    Raises:
        HookbusError: it could not. Where several things are wrong, all of them are in the message, a line each.
    """
    lines: list[str] = []
    failures: list[HookbusError] = []
    for check in _checks(trainer):
        try:
            lines.append(check())
        except HookbusError as error:
            failures.append(error)
    if len(failures) == 1:
        raise failures[0]
    if failures:
        raise HookbusError("\n".join(map(str, failures)))
    return [line for line in lines if line]


def _checks(trainer: Trainer) -> list[Callable[[], str]]:
    loaders: list[tuple[str, str | None, Iterable[Any] | None]] = [("train", None, trainer.train_loader)]
    for kind, given in (("val", trainer.val_loader), ("test", trainer.test_loader)):
        loaders += [(kind, name, loader) for name, loader in named_loaders(given)] if given is not None else []
    expected = ExpectedMetrics(trainer)
    return [
        partial(_describe_model, trainer),
        *(partial(_check_loader, trainer, expected, *each) for each in loaders),
        partial(_describe_limit, trainer),
        partial(_check_hooks, trainer),
        *(partial(_check_metrics, expected, *each) for each in _readers(trainer)),
        partial(_check_scheduler, trainer),
        *file_checks(trainer),
        partial(_check_work_dir, trainer),
    ]


def _readers(trainer: Trainer) -> list[tuple[str, Collection[str]]]:
    """Who reads which results of validations."""
    hooks = {name: hook for name, hook in trainer.bus.hooks.items() if isinstance(hook, Hook)}
    readers = [(f"hook {name!r} ({package_of(hook)})", hook.needs_metrics) for name, hook in hooks.items()]
    monitor = trainer.scheduler.monitor
    return readers if monitor is None else [*readers, ("scheduler", [monitor])]


def _check_metrics(expected: ExpectedMetrics, reader: str, metrics: Collection[str]) -> str:
    expected.look_for(reader, metrics)
    return ""


def _check_scheduler(trainer: Trainer) -> str:
    """See that it can be stepped as often as the training will."""
    try:
        trainer.scheduler.try_out(min(_scheduler_steps(trainer), LONGEST_TRIAL))
    except ConfigError as error:
        raise ConfigError([f"scheduler: {error}"]) from error
    return ""


def _scheduler_steps(trainer: Trainer) -> int:
    """How often the scheduler will be stepped at least; 1 where that is not known."""
    length, scheduler = length_of(trainer.train_loader), trainer.scheduler
    if scheduler.interval == "epoch" and trainer.epochs is not None:
        return trainer.epochs
    iterations = trainer.iterations or (trainer.epochs or 0) * (length or 0)
    per_step = trainer.steps.accumulate if scheduler.interval == "step" else length
    return iterations // per_step if iterations and per_step else 1


def _describe_model(trainer: Trainer) -> str:
    parameters = sum(p.numel() for p in trainer.model.parameters() if p.requires_grad)
    return f"model: {type(trainer.model).__name__}, {parameters:,} parameters to train on {trainer.device}"


def _describe_limit(trainer: Trainer) -> str:
    return f"limit: {trainer.iterations} iterations" if trainer.epochs is None else f"limit: {trainer.epochs} epochs"


def _check_hooks(trainer: Trainer) -> str:
    """See that their order can be told, and that each finds what it needs."""
    trainer.bus.explain()
    check_hooks(trainer.runs.new("train"))
    return f"hooks: {', '.join(trainer.bus.hooks) or 'none'}"


def _check_loader(
    trainer: Trainer, expected: ExpectedMetrics, kind: str, name: str | None, loader: Iterable[Any] | None
) -> str:
    """Take one batch through the model and the scores."""
    title = f"{kind}_loader{f' {name!r}' if name else ''}"
    try:
        batch = _first_batch(trainer, loader)
    except Exception as error:
        raise LoopError(f"The {title} cannot be read: {cause_of(error)}.") from error
    if batch is None:
        raise LoopError(f"The {title} gives no batch.")
    try:
        outputs = _try_batch(trainer, kind, move(batch, trainer.device))
    except HookbusError:
        raise
    except Exception as error:
        raise LoopError(f"A batch of the {title} cannot go through the model: {cause_of(error)}.") from error
    if kind == "val":
        expected.see(name, outputs, trainer.scores)
    begin_scores(trainer.scores, trainer.device)
    length = length_of(loader)
    return f"{kind}{f' {name}' if name else ''}: {'unknown number of' if length is None else length} batches"


def _first_batch(trainer: Trainer, loader: Iterable[Any] | None) -> Any:
    """Read as training reads it, which leaves the random streams alone, the loader's own as well."""
    with preserved_rng():
        return next(feed_of(loader or (), trainer.seed or 0).batches(0, 0), None)


def _try_batch(trainer: Trainer, kind: str, batch: Any) -> Any:
    trying = _as_in_training if kind == "train" else evaluating
    with trying(trainer.model):
        outputs = trainer.steps.eval_step(trainer.bus.current, batch)
    if kind == "train":
        loss_in(outputs, trainer.steps.loss_fn)
    elif trainer.scores:
        begin_scores(trainer.scores, trainer.device)
        update_scores(trainer.scores, batch, outputs)
    return outputs


@contextmanager
def _as_in_training(model: nn.Module) -> Iterator[None]:
    """The model as training finds it; buffers and random streams come back afterwards."""
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    with preserved_rng():
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)


def _check_work_dir(trainer: Trainer) -> str:
    if trainer.work_dir is None:
        return "work dir: none, nothing is written"
    path, reason = see(Path(trainer.work_dir), resume=trainer.resume == "auto", overwrite=trainer.overwrite)
    if reason:
        raise WorkDirError(reason)
    return f"work dir: {path}"
