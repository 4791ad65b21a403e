"""What has a hook left behind: in the process, on the model and its optimizer, and in memory?"""

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

__all__ = ["all_kept", "conduct", "hooks_on", "process_settings"]


def process_settings() -> dict[str, Any]:
    """What anyone could change for the whole process, by name, with its present value."""
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
    settings |= {f"the handler of {each.name}": signal.getsignal(each) for each in signal.Signals}
    # Names that begin with an underscore are notes of libraries to themselves, such as MLflow's about its telemetry.
    variables = {name: value for name, value in os.environ.items() if not name.startswith("_")}
    return settings | {f"the environment variable {name}": value for name, value in variables.items()}


def hooks_on(training: Training) -> dict[str, int]:
    """How many PyTorch hooks each part of the model and the optimizer has at the end, where it has any."""
    parts = {f"model.{name}".rstrip("."): module for name, module in training.model.named_modules()}
    counts = {
        f"{kind.strip('_')} of {name}": len(there)
        for name, part in {**parts, "the optimizer": training.run.optimizer}.items()
        for kind, there in vars(part).items()
        if kind.endswith("_hooks") and isinstance(there, Mapping) and there
    }
    return counts | dict(_hooks_on_parameters(training.model))


def _hooks_on_parameters(model: torch.nn.Module) -> Iterator[tuple[str, int]]:
    for name, parameter in model.named_parameters():
        for kind in ("_backward_hooks", "_post_accumulate_grad_hooks"):
            if there := getattr(parameter, kind):
                yield f"{kind.strip('_')} of model.{name}", len(there)


def conduct(training: Training) -> dict[str, Any]:
    """How the model and its optimizer stand at the end, by name, the weights aside."""
    model, optimizer = training.model, training.run.optimizer
    assert optimizer is not None
    found: dict[str, Any] = {"the state of the optimizer": optimizer.state_dict()}
    for name, module in model.named_modules():
        owner = f"model.{name}".rstrip(".")
        found[f"{owner}.training"] = module.training
        found[f"what vars({owner}) has"] = sorted(vars(module))
    for name, parameter in model.named_parameters():
        found[f"model.{name}.requires_grad"] = parameter.requires_grad
    return found


def all_kept(training: Training) -> bool:
    """Whether something of each iteration is in memory still, its batch or its loss with the graph."""
    gc.collect()
    return all(any(part() is not None for part in iteration) for iteration in training.iterations)
