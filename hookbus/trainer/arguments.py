"""Validation and conversion of the arguments of a Trainer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from hookbus._config.hooks import get_default_hooks, merge_defaults
from hookbus._events.checks import as_hook_list
from hookbus._run.hook_budget import check_hook_budget
from hookbus._run.objects import find_object_problems, freeze_names
from hookbus._run.tokens import check_batch_tokens, check_token_limit, to_token_limit
from hookbus._run.work_dir import check_resume
from hookbus._utils.arguments import (
    check_bool,
    check_callable,
    check_choice,
    check_count,
    check_is_instance,
    check_loader,
    check_mapping,
    check_path,
    check_seed,
    get_by_name,
    raise_config_error,
)
from hookbus.distributed.process_group import local_device, world_size
from hookbus.errors import ConfigError
from hookbus.trainer.short_runs import find_problems

FLAGS = ("default_hooks", "validate_first", "load_strict", "overwrite", "report")

LOADERS = ("train_loader", "val_loader", "test_loader", "predict_loader")

STEP_SETTINGS = {"accumulate": 1, "clip_grad_norm": None}
"""Settings of the default training step, with their defaults."""


def check_model(model: object) -> None:
    """Raise if the model is not a module.

    Raises:
        ConfigError: If `model` is another object, such as a run file.
    """
    if isinstance(model, (nn.Module, Mapping)):
        return
    type_name = type(model).__name__
    raise ConfigError(
        f"model: should be a torch.nn.Module or a configuration, got {type_name}. Use Trainer.from_file(path) or "
        "Trainer(load_config(path)) for a run file."
    )


def check_arguments(arguments: Mapping[str, Any]) -> None:
    """Validate the arguments of a Trainer.

    Raises:
        ConfigError: If an argument is invalid. All problems are listed.
    """
    raise_config_error(
        [
            *(check_bool(name, arguments[name]) for name in FLAGS),
            *(check_loader(name, arguments[name]) for name in LOADERS),
            *(check_is_instance(name, arguments[name]) for name in ("loss_fn", "step_fn", "batch_size")),
            *(check_path(name, arguments[name]) for name in ("work_dir", "load_from")),
            check_callable("loss_fn", arguments["loss_fn"], "a function such as torch.nn.functional.cross_entropy"),
            check_callable("step_fn", arguments["step_fn"], "a function of model and batch"),
            check_callable("batch_size", arguments["batch_size"], "a function of a batch"),
            check_batch_tokens(arguments["batch_tokens"]),
            check_token_limit(to_token_limit(arguments["tokens"])),
            check_choice("load_weights", arguments["load_weights"], ("raw", "averaged")),
            check_seed("seed", arguments["seed"]),
            check_hook_budget(arguments["hook_budget"]),
            check_resume("resume", arguments["resume"]),
            check_mapping("config", arguments["config"]),
            *find_object_problems(
                _get_mapping(arguments["model"]), _get_mapping(arguments["optimizer"]), arguments["scheduler"]
            ),
            *find_problems(arguments),
            *_find_conflicts(arguments),
        ]
    )


def _get_mapping(value: Any) -> Any:
    """Return a mapping of names, or a list that should be one; None for an argument that is validated elsewhere."""
    return value if isinstance(value, (Mapping, list, tuple)) else None


def resolve_device(device: str | torch.device) -> torch.device:
    """Return the device of this process, with its index.

    Args:
        device: Device, or "auto" for the available accelerator, else the CPU.

    Returns:
        The device.

    Raises:
        ConfigError: If the device cannot be used.
    """
    if device == "auto":
        accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        return local_device(accelerator or torch.device("cpu"))
    try:
        return torch.empty(0, device=local_device(torch.device(device))).device
    except (
        AssertionError,
        RuntimeError,
        TypeError,
    ) as error:  # torch raises different types for unknown names, missing backends and invalid indices
        reason = str(error).partition("\n")[0].rstrip(".")
        raise ConfigError(
            f"device: {device!r} cannot be used: {reason}. Pass 'auto' to use the available device."
        ) from None


def resolve_optimizer(
    optimizer: Optimizer | Callable[[Iterable[nn.Parameter]], Optimizer] | Mapping[str, Optimizer] | None,
    parameters: Iterable[nn.Parameter],
) -> Any:
    """Return the optimizer; call a factory with the parameters.

    Raises:
        ConfigError: If the argument is neither an optimizer nor callable.
    """
    if isinstance(optimizer, Mapping):
        return freeze_names(optimizer)
    # A class is a factory, even if it defines `param_groups` as a class attribute.
    if optimizer is None or (hasattr(optimizer, "param_groups") and not isinstance(optimizer, type)):
        return optimizer
    if not callable(optimizer):
        raise ConfigError(f"optimizer: should be an optimizer or a function of the parameters, got {optimizer!r}.")
    return optimizer(parameters)


def validate_limit(name: str, limit: int | None) -> int | None:
    """Return a validated training limit.

    Raises:
        ConfigError: If the limit is not a non-negative integer.
    """
    if limit is not None:
        check_count(limit, name, minimum=0)
    return limit


def resolve_hooks(hooks: Iterable[object], default_hooks: bool, work_dir: object) -> list[Any]:
    """Return the hooks of a Trainer: the default hooks that no user hook replaces, then the user hooks."""
    defaults = get_default_hooks() if default_hooks else []
    return merge_defaults(
        as_hook_list(hooks), [hook for hook in defaults if work_dir is not None or not hook.requires_work_dir]
    )


def get_only(optimizer: Any) -> Any:
    """Return the only optimizer, None if there is none or several."""
    optimizers = list(get_by_name(optimizer).values())
    return optimizers[0] if len(optimizers) == 1 else None


def _find_conflicts(arguments: Mapping[str, Any]) -> Iterator[str]:
    """Yield the settings without an effect on several optimizers, and those that named models do not support."""
    optimizer = arguments["optimizer"]
    if isinstance(optimizer, Mapping) and len(optimizer) > 1:
        unused = [name for name, default in STEP_SETTINGS.items() if arguments[name] != default]
        for name in [*unused, "precision"] if arguments["precision"] == "fp16" else unused:
            yield (
                f"{name}: has no effect with several optimizers, got {arguments[name]!r}. Implement it in the "
                "`train_step` of the hook that steps them."
            )
    if isinstance(arguments["model"], Mapping) and world_size() > 1 and arguments["distributed"] != "none":
        yield (
            f"distributed: named models require 'none', got {arguments['distributed']!r}. Wrap each model in "
            "DistributedDataParallel, and pass loaders that are sharded."
        )
