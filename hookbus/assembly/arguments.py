"""What a Trainer is given: checked, and in the form that it works with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from hookbus import _arguments
from hookbus._numbers import check_count
from hookbus.dispatch.checks import listed
from hookbus.distributed import local_device
from hookbus.errors import ConfigError
from hookbus.runfile.builder import get_default_hooks
from hookbus.runfile.defaults import with_defaults

__all__ = ["check_arguments", "check_model", "device_of", "hooks_of", "limit_of", "optimizer_of"]

FLAGS = ("default_hooks", "validate_first", "load_strict", "overwrite")


def check_model(model: object) -> None:
    """See that there is a model.

    Raises:
        ConfigError: it is something else, such as a run file.
    """
    if isinstance(model, nn.Module):
        return
    what = type(model).__name__
    raise ConfigError(
        [
            f"model: should be a torch.nn.Module, but it is a {what}. A trainer of a run file is made by "
            "Trainer.from_file(path), and one of a configuration that was read already by "
            "hookbus.assembly.assemble.trainer_from_config(Trainer, config)."
        ]
    )


def check_arguments(given: Mapping[str, Any]) -> None:
    """See that what a Trainer is given can be what it is meant to be.

    Args:
        given: its arguments by name; others are not looked at.

    Raises:
        ConfigError: something cannot; all of it is told.
    """
    _arguments.refuse(
        [
            *(_arguments.truth(name, given[name]) for name in FLAGS),
            *(_arguments.batches(name, given[name]) for name in ("train_loader", "val_loader", "test_loader")),
            *(_arguments.instance(name, given[name]) for name in ("loss_fn", "step_fn", "scheduler")),
            *(_arguments.path(name, given[name]) for name in ("work_dir", "load_from")),
            _arguments.function("loss_fn", given["loss_fn"], "a function such as torch.nn.functional.cross_entropy"),
            _arguments.function("step_fn", given["step_fn"], "a function of model and batch"),
            _arguments.one_of("load_weights", given["load_weights"], ("raw", "averaged")),
            _arguments.seed("seed", given["seed"]),
            _arguments.settings("config", given["config"]),
            _arguments.with_method("scheduler", given["scheduler"], "step"),
        ]
    )


def device_of(given: str | torch.device) -> torch.device:
    """The device of this process, with its index where it has one.

    Args:
        given: a device, or "auto" for the accelerator that is there, else the CPU.

    Raises:
        ConfigError: it cannot be used here.
    """
    if given == "auto":
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        return local_device(accelerator if accelerator is not None else torch.device("cpu"))
    try:
        return torch.empty(0, device=local_device(torch.device(given))).device
    except (AssertionError, RuntimeError, TypeError) as error:  # torch raises each of them
        reason = str(error).partition("\n")[0].rstrip(".")
        raise ConfigError([f"device: {given!r} cannot be used here: {reason}. 'auto' takes what there is."]) from None


def optimizer_of(
    given: Optimizer | Callable[[Iterable[nn.Parameter]], Optimizer] | None, model: nn.Module
) -> Optimizer | None:
    """The optimizer, made from the parameters of the model where a function was given; None for none.

    Raises:
        ConfigError: it is neither.
    """
    if given is None or (hasattr(given, "param_groups") and not isinstance(given, type)):
        return given  # type: ignore[return-value]
    if not callable(given):
        raise ConfigError([f"optimizer: {given!r} is neither an optimizer nor a function of the parameters."])
    return given(model.parameters())


def limit_of(name: str, given: int | None) -> int | None:
    """A limit of the training; None for none.

    Args:
        name: "epochs" or "iterations", for the message.
        given: how many.

    Raises:
        ConfigError: it is no whole number, or less than 0.
    """
    if given is not None:
        check_count(given, name, least=0)
    return given


def hooks_of(given: Iterable[object], default_hooks: bool, work_dir: object) -> list[Any]:
    """The hooks of a Trainer: the default ones that none of the given ones replaces, then the given ones.

    Args:
        given: hooks.
        default_hooks: whether there are default hooks.
        work_dir: the work directory; without one only those come by default that can do without.
    """
    defaults = get_default_hooks() if default_hooks else []
    return with_defaults(listed(given), [hook for hook in defaults if work_dir is not None or not hook.needs_work_dir])
