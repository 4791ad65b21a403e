"""What is known before a training: its limit, and the settings of the Trainer with which hooks cannot work."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

from transformers import Trainer

from hookbus import Hook
from hookbus.data import loader_length


def find_problems(trainer: Any, hooks: Iterable[Hook]) -> Iterator[str]:
    """Yield a message for each setting of the Trainer with which the hooks of a bus cannot work.

    Args:
        trainer: The Trainer.
        hooks: Hooks of the bus.
    """
    if trainer.is_deepspeed_enabled:
        yield "deepspeed: the engine of DeepSpeed steps the optimizer itself, which is not supported. Use FSDP or DDP."
    hooks = list(hooks)
    names = [repr(hook.name) for hook in hooks if hook.skips_iterations]
    if names and trainer.accelerator.scaler is not None:
        yield (
            f"fp16: hook {', '.join(names)} skips iterations, which the gradient scaler does not support. Use bf16, or "
            "remove the hook."
        )
    yield from _find_validation_problems(trainer, hooks)


def _find_validation_problems(trainer: Any, hooks: list[Hook]) -> Iterator[str]:
    is_scheduled = any(hook.schedules_validation for hook in hooks)
    is_evaluated = trainer.args.eval_strategy != "no"
    if is_scheduled and not _has_eval_data(trainer) and all(hook.validation_fn is None for hook in hooks):
        names = [repr(hook.name) for hook in hooks if hook.schedules_validation]
        yield (
            f"eval_dataset: hook {', '.join(names)} schedules validations, got None. Pass eval_dataset to the Trainer."
        )
    names = [repr(hook.name) for hook in hooks if hook.requires_validation]
    if names and not (is_scheduled or is_evaluated):
        yield (
            f"eval_strategy: hook {', '.join(names)} requires validations, got 'no'. Set it to 'epoch' or 'steps', or "
            "add the hook eval (pip install hookbus-eval)."
        )


def _has_eval_data(trainer: Any) -> bool:
    """Return whether the Trainer has a dataset for evaluations, or a subclass may provide one."""
    is_overridden = type(trainer).get_eval_dataloader is not Trainer.get_eval_dataloader
    return trainer.eval_dataset is not None or is_overridden


def get_limit(trainer: Any, loader: Any) -> dict[str, int]:
    """Return the limit of a training: `epochs` if it consists of complete epochs, otherwise `iterations`.

    Args:
        trainer: The Trainer, at the start of a training.
        loader: Its training loader.
    """
    steps, per_epoch = trainer.state.max_steps, count_steps(trainer, loader)
    group = trainer.args.gradient_accumulation_steps
    if per_epoch is None:
        return {"iterations": steps * group}
    epochs, rest = divmod(steps, per_epoch)
    return {"iterations": epochs * len(loader) + rest * group} if rest else {"epochs": epochs}


def count_steps(trainer: Any, loader: Any) -> int | None:
    """Return the number of optimizer steps per epoch, None if the length of the loader is unknown."""
    length = loader_length(loader)
    return math.ceil(length / trainer.args.gradient_accumulation_steps) if length else None
