"""What would go wrong? `hookbus check`: everything but the training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from hookbus import files
from hookbus._imports import cause_of
from hookbus.data import feed_of, length_of
from hookbus.errors import CheckpointError, HookbusError, LoopError, RequestError, WorkDirError
from hookbus.evaluation import evaluating, named_loaders, update_scores
from hookbus.hook import Hook
from hookbus.rng import preserved_rng
from hookbus.steps import move
from hookbus.workdir import see

if TYPE_CHECKING:
    from hookbus.loop import Trainer

__all__ = ["check_trainer"]


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
    return [
        partial(_describe_model, trainer),
        *(partial(_check_loader, trainer, *each) for each in loaders),
        partial(_describe_limit, trainer),
        partial(_check_hooks, trainer),
        partial(_check_file, "resume", trainer.resume),
        partial(_check_file, "load_from", trainer.load_from),
        partial(_check_work_dir, trainer),
    ]


def _describe_model(trainer: Trainer) -> str:
    parameters = sum(p.numel() for p in trainer.model.parameters() if p.requires_grad)
    return f"model: {type(trainer.model).__name__}, {parameters:,} parameters to train on {trainer.device}"


def _describe_limit(trainer: Trainer) -> str:
    return f"limit: {trainer.iterations} iterations" if trainer.epochs is None else f"limit: {trainer.epochs} epochs"


def _check_hooks(trainer: Trainer) -> str:
    """See that their order can be told, and that there are validations for those that ask for them."""
    trainer.bus.explain()
    for name, hook in trainer.bus.hooks.items():
        if isinstance(hook, Hook) and hook.schedules_validation and trainer.val_loader is None:
            raise RequestError(f"hook {name!r} will ask for validations, and there is no val_loader.")
    return f"hooks: {', '.join(trainer.bus.hooks) or 'none'}"


def _check_file(key: str, path: str | Path | None) -> str:
    """See that a checkpoint that is asked for is there and whole."""
    if path is None or path in ("auto", "never"):
        return ""
    if not Path(path).is_file():
        raise CheckpointError(f"{key}: {path}: there is no such file.")
    if files.read_sidecar(Path(path)) is not None:
        files.verify(Path(path))
    return f"{key}: {path}"


def _check_loader(trainer: Trainer, kind: str, name: str | None, loader: Iterable[Any] | None) -> str:
    """Take one batch through the model and the scores."""
    title = f"{kind}_loader{f' {name!r}' if name else ''}"
    try:
        batch = _first_batch(trainer, loader)
    except Exception as error:
        raise LoopError(f"The {title} cannot be read: {cause_of(error)}.") from error
    if batch is None:
        raise LoopError(f"The {title} gives no batch.")
    try:
        _try_batch(trainer, kind, move(batch, trainer.device))
    except HookbusError:
        raise
    except Exception as error:
        raise LoopError(f"A batch of the {title} cannot go through the model: {cause_of(error)}.") from error
    length = length_of(loader)
    return f"{kind}{f' {name}' if name else ''}: {'unknown number of' if length is None else length} batches"


def _first_batch(trainer: Trainer, loader: Iterable[Any] | None) -> Any:
    """Read as training reads it, which leaves the random streams alone, the loader's own as well."""
    with preserved_rng():
        return next(feed_of(loader or (), trainer.seed or 0).batches(0, 0), None)


def _try_batch(trainer: Trainer, kind: str, batch: Any) -> None:
    trying = _as_in_training if kind == "train" else evaluating
    with trying(trainer.model):
        outputs = trainer.steps.eval_step(trainer.bus.current, batch)
    if kind == "train":
        trainer.steps.check_loss(outputs)
    elif trainer.scores:
        update_scores(trainer.scores, batch, outputs)
        for score in trainer.scores.values():
            score.reset()


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
