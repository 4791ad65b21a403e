"""Detection of leaks: reseeded RNGs, child processes, and references to model tensors in the state of a hook."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import random
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, strided

from hookbus._utils.values import iter_leaves
from hookbus.testing.training import Training

MT_STATE_WORDS = 624
"""Number of 32-bit words in the state of a Mersenne Twister, which are regenerated together."""

MAX_REGENERATIONS = 10_000
"""Maximum number of state regenerations to search, more than a small training can consume."""

TIMEOUT_S = 5.0
"""Time that a process may take to exit after it was terminated, in seconds."""

PARAMETER_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")

PROC_DIRECTORY = Path("/proc")
"""Process information of the Linux kernel."""


def rng_states() -> dict[str, tuple[Any, ...]]:
    """Return the RNG states of Python and, if imported, NumPy by the name of the seeding function."""
    states: dict[str, tuple[Any, ...]] = {"random.seed": random.getstate()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        _, words, position, *_ = numpy.random.get_state()
        states["numpy.random.seed"] = (3, (*words.tolist(), position), None)
    return states


def reseeded_generators(before: Mapping[str, tuple[Any, ...]]) -> list[str]:
    """Return the seeding functions that were called since `before` was recorded."""
    # Drawing numbers only advances an RNG; reseeding leads to a state that cannot be reached by drawing.
    return [name for name, state in rng_states().items() if name in before and not _is_reachable(state, before[name])]


def _is_reachable(state: tuple[Any, ...], before: tuple[Any, ...]) -> bool:
    """Return whether a Mersenne Twister reaches a state by drawing from an earlier one."""
    twister = random.Random()
    twister.setstate(before)
    for _ in range(MAX_REGENERATIONS):
        if twister.getstate()[1][:MT_STATE_WORDS] == state[1][:MT_STATE_WORDS]:
            return True
        twister.getrandbits(32 * MT_STATE_WORDS)
    return False


def child_processes() -> dict[int, str]:
    """Return the running child processes of this process: names by process ID.

    Linux lists all of them; on other systems only those of `multiprocessing` are known.
    """
    names = {process.pid: process.name for process in multiprocessing.active_children() if process.pid is not None}
    for stat_file in PROC_DIRECTORY.glob("[0-9]*/stat"):
        with suppress(OSError):  # the process has exited in the meantime
            # The name of the process is in parentheses and may contain spaces.
            name, _, fields = stat_file.read_text("utf-8", "replace").partition("(")[2].rpartition(")")
            state, parent = fields.split()[:2]
            if int(parent) == os.getpid() and state != "Z":
                names.setdefault(int(stat_file.parent.name), name)
    return names


def leaked_processes(before: Mapping[int, str]) -> list[str]:
    """Return the names of processes that started after `before` and do not exit within `TIMEOUT_S` seconds."""
    end = time.monotonic() + TIMEOUT_S
    while (leaked := [name for pid, name in child_processes().items() if pid not in before]) and time.monotonic() < end:
        time.sleep(0.02)
    return leaked


def find_shared_tensor(state: Any, training: Training) -> str | None:
    """Return the path of a tensor in a state that shares memory with the model or the optimizer, or None."""
    optimizer = training.run.optimizer
    owners = (training.model.state_dict(keep_vars=True), {} if optimizer is None else list(optimizer.state.values()))
    addresses = {_data_pointer(value) for _, value in iter_items(owners)} - {0}
    return next((path for path, value in iter_items(state) if _data_pointer(value) in addresses), None)


def iter_items(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the values in nested containers with their paths, such as `['best'][0]`."""
    for path, leaf in iter_leaves(value):
        yield "".join(f"[{key!r}]" for key in path), leaf


def _data_pointer(value: Any) -> int:
    """Return the data pointer of the storage of a tensor, 0 if it has none and for any other value."""
    return value.untyped_storage().data_ptr() if isinstance(value, Tensor) and value.layout is strided else 0


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
    # PyTorch has no public API to list the hooks of a module (as of 2.13).
    owners = {f"model.{name}".rstrip("."): vars(module) for name, module in training.model.named_modules()}
    for name, parameter in training.model.named_parameters():
        owners[f"model.{name}"] = {kind: getattr(parameter, kind) for kind in PARAMETER_HOOKS}
    owners["the optimizer"] = vars(training.run.optimizer)
    return {
        f"{kind.strip('_')} of {name}": len(handles)
        for name, attributes in owners.items()
        for kind, handles in attributes.items()
        if kind.endswith("_hooks") and isinstance(handles, Mapping) and handles
    }


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
    if not _has_references(training):
        return False
    # Reference cycles would otherwise be reported as leaks. Not at once, because it takes long.
    gc.collect()
    return _has_references(training)


def _has_references(training: Training) -> bool:
    return all(any(reference() is not None for reference in iteration) for iteration in training.iterations)
