"""Checks of a Trainer with named models or several optimizers, which its default steps do not support."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hookbus._utils.arguments import get_by_name, raise_config_error
from hookbus.distributed.process_group import world_size
from hookbus.errors import ConfigError

if TYPE_CHECKING:
    from hookbus.trainer.setup import TrainerSetup

STEP_SETTINGS = {"accumulate": 1, "clip_grad_norm": None}
"""Settings of the default training step, with their defaults."""


def get_only(optimizer: Any) -> Any:
    """Return the only optimizer, None if there is none or several."""
    optimizers = list(get_by_name(optimizer).values())
    return optimizers[0] if len(optimizers) == 1 else None


def check_several(arguments: Mapping[str, Any]) -> None:
    """Check the arguments of a Trainer with named models or several optimizers.

    Args:
        arguments: Arguments by name; other names are ignored.

    Raises:
        ConfigError: If a setting would have no effect, or the gradients would differ across ranks.
    """
    problems, optimizer = [], arguments["optimizer"]
    if isinstance(optimizer, Mapping) and len(optimizer) > 1:
        unused = [name for name, default in STEP_SETTINGS.items() if arguments[name] != default]
        unused += ["precision"] if arguments["precision"] == "fp16" else []
        problems += [
            f"{name}: has no effect with several optimizers, got {arguments[name]!r}. Implement it in the "
            "`train_step` of the hook that steps them."
            for name in unused
        ]
    if isinstance(arguments["model"], Mapping) and world_size() > 1 and arguments["distributed"] != "none":
        problems.append(
            f"distributed: named models require 'none', got {arguments['distributed']!r}. Wrap each model in "
            "DistributedDataParallel, and pass loaders that are sharded."
        )
    raise_config_error(problems)


def check_steps(trainer: TrainerSetup) -> None:
    """Raise if the default steps cannot train or evaluate the models of a Trainer, unless hooks replace them.

    Raises:
        ConfigError: If a step is missing.
    """
    implemented, optimizers = get_implemented(trainer), get_by_name(trainer.optimizer)
    if len(optimizers) > 1 and "train_step" not in implemented:
        raise ConfigError(
            f"optimizer: the default step trains one loss with one optimizer, got {', '.join(optimizers)}. "
            "Register a hook with a `train_step(run, batch)` that steps them, or write a loop with `bus.run`."
        )
    loaders = {"train_step": trainer.train_loader, "val_step": trainer.val_loader, "test_step": trainer.test_loader}
    missing = [step for step, loader in loaders.items() if loader is not None and step not in implemented]
    if trainer.model_names and missing and trainer.steps.step_fn is None:
        raise ConfigError(
            f"model: the default steps call one model, got {', '.join(trainer.model_names)}. Pass "
            f"step_fn(models, batch), or register a hook with {' and '.join(f'`{step}`' for step in missing)}."
        )


def get_implemented(trainer: TrainerSetup) -> set[str]:
    """Return the names of the points and actions that hooks implement."""
    return {target for member in trainer.bus.pm.members.values() for target in member.implementations}
