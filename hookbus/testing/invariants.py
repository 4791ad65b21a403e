"""Detection of side effects: process-wide settings, PyTorch hooks, training state and memory."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from hookbus.testing.training import Training


def process_settings() -> dict[str, Any]:
    """Return the process-wide settings that a hook could change, by description."""
    settings = {
        "the current directory": os.getcwd(),
        "sys.excepthook": sys.excepthook,
        "sys.stdout": sys.stdout,
        "sys.stderr": sys.stderr,
        "gc.isenabled()": gc.isenabled(),
        "logging.getLogger().handlers": tuple(logging.getLogger().handlers),
        "torch.get_default_dtype()": torch.get_default_dtype(),
        "torch.is_grad_enabled()": torch.is_grad_enabled(),
        "torch.is_anomaly_enabled()": torch.is_anomaly_enabled(),
        "torch.are_deterministic_algorithms_enabled()": torch.are_deterministic_algorithms_enabled(),
        "torch.backends.cudnn.benchmark": torch.backends.cudnn.benchmark,
        "torch.get_num_threads()": torch.get_num_threads(),
        "torch.initial_seed()": torch.initial_seed(),
    }
    settings |= {f"the handler of {number.name}": signal.getsignal(number) for number in signal.Signals}
    # Libraries use names with a leading underscore internally, for example MLflow for its telemetry.
    variables = {name: value for name, value in os.environ.items() if not name.startswith("_")}
    return settings | {f"the environment variable {name}": value for name, value in variables.items()}


def count_pytorch_hooks(training: Training) -> dict[str, int]:
    """Return the number of PyTorch hooks on each module, parameter and optimizer that has any."""
    owners = {f"model.{name}".rstrip("."): module for name, module in training.model.named_modules()}
    counts = {
        f"{kind.strip('_')} of {name}": len(handles)
        for name, owner in {**owners, "the optimizer": training.run.optimizer}.items()
        for kind, handles in vars(owner).items()
        # PyTorch has no public API to list the hooks of a module (as of 2.13).
        if kind.endswith("_hooks") and isinstance(handles, Mapping) and handles
    }
    return counts | dict(_count_parameter_hooks(training.model))


def _count_parameter_hooks(model: torch.nn.Module) -> Iterator[tuple[str, int]]:
    for name, parameter in model.named_parameters():
        for kind in ("_backward_hooks", "_post_accumulate_grad_hooks"):
            if handles := getattr(parameter, kind):
                yield f"{kind.strip('_')} of model.{name}", len(handles)


def training_state(training: Training) -> dict[str, Any]:
    """Return the state of the model and the optimizer at the end of a training, except the weights."""
    model, optimizer = training.model, training.run.optimizer
    assert optimizer is not None
    state: dict[str, Any] = {"the optimizer state": optimizer.state_dict()}
    for name, module in model.named_modules():
        owner = f"model.{name}".rstrip(".")
        state[f"{owner}.training"] = module.training
        state[f"the attributes of {owner}"] = sorted(vars(module))
    for name, parameter in model.named_parameters():
        state[f"model.{name}.requires_grad"] = parameter.requires_grad
    return state


def leaks_iterations(training: Training) -> bool:
    """Return whether the batch, the loss or the autograd graph of every iteration is still referenced."""
    # Reference cycles would otherwise be reported as leaks.
    gc.collect()
    return all(any(reference() is not None for reference in iteration) for iteration in training.iterations)
