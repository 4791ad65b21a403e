"""What would go wrong? `hookbus check`: everything but the training."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookbus import files
from hookbus.data import length_of
from hookbus.errors import CheckpointError, LoopError, RequestError, WorkDirError
from hookbus.evaluation import evaluating, named_loaders, update_scores
from hookbus.hook import Hook
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
        HookbusError: it could not.
    """
    hooks = trainer.bus.hooks
    trainer.bus.explain()
    for name, hook in hooks.items():
        if isinstance(hook, Hook) and hook.schedules_validation and trainer.val_loader is None:
            raise RequestError(f"hook {name!r} will ask for validations, and there is no val_loader.")
    _check_files(trainer)
    with evaluating(trainer.model):
        lines = [_check_loader(trainer, "train", None, trainer.train_loader)]
        for kind, loaders in (("val", trainer.val_loader), ("test", trainer.test_loader)):
            if loaders is not None:
                lines += [_check_loader(trainer, kind, name, loader) for name, loader in named_loaders(loaders)]
    parameters = sum(p.numel() for p in trainer.model.parameters() if p.requires_grad)
    limit = f"{trainer.epochs} epochs" if trainer.epochs is not None else f"{trainer.iterations} iterations"
    return [
        f"model: {type(trainer.model).__name__}, {parameters:,} parameters to train on {trainer.device}",
        *lines,
        f"limit: {limit}",
        f"hooks: {', '.join(hooks) or 'none'}",
        f"work dir: {_work_dir(trainer)}",
    ]


def _check_files(trainer: Trainer) -> None:
    for name, path in (("resume", trainer.resume), ("load_from", trainer.load_from)):
        if path not in (None, "auto", "never"):
            if not Path(str(path)).is_file():
                raise CheckpointError(f"{name}: {path}: there is no such file.")
            if files.read_sidecar(Path(str(path))) is not None:
                files.verify(Path(str(path)))


def _check_loader(trainer: Trainer, kind: str, name: str | None, loader: Iterable[Any] | None) -> str:
    """Take one batch through the model, and the scores."""
    batch = next(iter(loader or ()), None)
    if batch is None:
        raise LoopError(f"The {kind}_loader{f' {name!r}' if name else ''} gives no batch.")
    batch = move(batch, trainer.device)
    outputs = trainer.steps.forward(batch)
    if kind == "train":
        trainer.steps.check_loss(outputs)
    elif trainer.scores:
        update_scores(trainer.scores, batch, outputs)
    length = length_of(loader)
    return f"{kind}{f' {name}' if name else ''}: {'unknown number of' if length is None else length} batches"


def _work_dir(trainer: Trainer) -> str:
    if trainer.work_dir is None:
        return "none, nothing is written"
    path, reason = see(Path(trainer.work_dir), resume=trainer.resume == "auto", overwrite=trainer.overwrite)
    if reason:
        raise WorkDirError(reason)
    return str(path)
