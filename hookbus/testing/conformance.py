"""Conformance check of hooks."""

from __future__ import annotations

import contextlib
import inspect
import os
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from hookbus._events.instrumentation import trace_hooks
from hookbus.bus import HookBus
from hookbus.data.rng import isolate_rng
from hookbus.errors import ConfigError, HookbusError, HookWarning, format_error
from hookbus.hook import Hook
from hookbus.lifecycle import POINTS
from hookbus.testing.common_keys import check_common_keys
from hookbus.testing.instances import check_two_instances
from hookbus.testing.leaks import (
    child_processes,
    count_pytorch_hooks,
    find_shared_tensor,
    leaked_processes,
    leaks_iterations,
    process_settings,
    reseeded_generators,
    rng_states,
    training_state,
)
from hookbus.testing.side_effects import record_device_reads, record_file_writes
from hookbus.testing.states import (
    check_copies,
    check_state_dict,
    ensure,
    explain_errors,
    fingerprint,
    initial_fingerprint,
)
from hookbus.testing.trainer import SmallTrainer
from hookbus.testing.training import Training, fake_training

UNKNOWN_SETTING = "unknown_setting_of_the_conformance_check"
SEED = 1_000_003
"""Seed of the trainings, chosen so that no hook uses the same value by chance."""
DEVICES = tuple(Path("/dev") / name for name in ("null", "zero", "full", "tty", "pts", "fd", "stdout", "stderr"))
"""Paths that are no files: `/dev/shm` contains some."""
PASS_SETTINGS = "Define `__init__(self, config=None, **settings)` and call `super().__init__(config, **settings)`."


@isolate_rng()
def check_hook(cls: type[Hook], **settings: Any) -> None:
    """Check that a hook class meets the requirements of every hook.

    * Configuration: the hook can be created with its defaults (or `settings`), from keywords and from a dict, rejects
      unknown settings, and does not modify its settings.
    * Registration: the signatures of its listeners match the points.
    * Common keys: each of `frequency`, `when`, `priority` and `on_error` affects a listener, or is refused with a
      message that names the hook, the key and the value. `frequency: 1` is accepted.
    * Training: a small training of a custom loop with the hook ends without an error, and so does a second one of the
      Trainer, with loaders, validations and checkpoints. At least one listener of the hook is called.
    * Files: the hook writes below the work directory only. The trainings run in a temporary current directory.
    * Synchronization: listeners that are called at every iteration do not read values from the device, nor do wrappers
      of the step or PyTorch hooks on the model. Listeners with `when=` are exempt.
    * State: `state_dict` contains built-in types and tensors only; a new instance that loads it has the same state.
      Neither saving nor loading modifies the state or the loaded data, instances share no state, and the state contains
      no tensor of the model or the optimizer, which training would modify.
    * Resources: no thread outlives a training, no process outlives a training, and not every batch or loss is kept in
      memory.
    * Process: process-wide settings, RNG seeds, and the PyTorch hooks of the model and the optimizer are restored.
    * Copies: `copy.deepcopy` and `pickle` copy the hook before and after a training.
    * Unregistration: nothing remains on the bus.
    * Instances: two instances with the same settings have the same results in either order and after a resume, or are
      refused before the first iteration.
    * Observers: the weights, modes, optimizer and RNG states equal those of a training without the hook.

    Args:
        cls: Hook class.
        settings: Required settings of the hook.

    Raises:
        AssertionError: If a requirement is not met. The message states which one.
    """
    name = cls.__name__
    _check_config(cls, settings)
    hook = cls(dict(settings))
    bus = _register(hook)
    check_common_keys(cls, settings)
    initial = initial_fingerprint(cls, settings)
    check_copies(hook)
    config = fingerprint(hook.config.model_dump())
    with _temporary_directory() as directory:
        without = fake_training(scores=_scores, work_dir=directory / "without", seed=SEED)
        with _check_side_effects(bus, directory, name), _check_threads(name), _check_process_settings(name):
            with _record_calls(bus) as called:
                with_hook = _train(bus, directory / "first", name)
            check_state_dict(cls, settings, hook, initial)
            _check_shared_memory(hook, with_hook)
            implemented = set(bus.pm.members[hook.name].implementations)
            bus.unregister(hook)
            # Checked in the second training only: libraries start helper processes once, in the first one.
            with _check_processes(name):
                called |= _train_with_trainer(hook, directory / "second", implemented)
        ensure(fingerprint(hook.config.model_dump()) == config, f"{name} changes its own settings while it trains.")
        _check_empty(bus, name)
        _check_called(name, implemented, called)
        _check_leaks(with_hook, without, name)
        check_copies(hook)
        if cls.observer:
            _check_observer(with_hook, without, name)
    with _temporary_directory() as directory:
        check_two_instances(cls, settings, directory=directory, scores=_scores, seed=SEED)


def _check_config(cls: type[Hook], settings: Mapping[str, Any]) -> None:
    name = cls.__name__
    fix = "" if _takes_settings(cls) else f". {PASS_SETTINGS}"
    message = f"{name} cannot be built from {dict(settings)}: "
    with explain_errors(message, (ConfigError, TypeError), lambda error: f"{error}{fix}"):
        built = [cls(dict(settings)), cls(**settings)]
    ensure(built[0].config == built[1].config, f"{name} differs between creation from keywords and from a dict.")
    try:
        cls({**settings, UNKNOWN_SETTING: 1})
    except ConfigError:
        return
    reason = fix or ". Set extra='forbid' in its Config, as HookConfig does."
    raise AssertionError(f"{name} accepts an unknown setting{reason}")


def _takes_settings(cls: type[Hook]) -> bool:
    """Return whether a class takes the settings of a run file, and not only parameters of its own."""
    parameters = inspect.signature(cls).parameters.values()
    return any(parameter.name == "config" or parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters)


def _register(hook: Hook) -> HookBus:
    with explain_errors("", (HookbusError,)):
        bus = HookBus([hook])
        bus.pm.check_pending()
    return bus


def _check_empty(bus: HookBus, name: str) -> None:
    remaining = [*bus.hooks, *(f"a listener at {point}" for point in bus.explain().points)]
    ensure(not remaining, f"{name} remains on the bus after unregistration: {', '.join(remaining)}.")


def _check_called(name: str, implemented: set[str], called: set[str]) -> None:
    """Check that a listener was called, unless the hook has none or implements an action, which needs no listener."""
    points = implemented & POINTS.keys()
    ensure(
        bool(called) or points != implemented or not points,
        f"{name} was not called: none of its listeners ({', '.join(sorted(points))}) was due in two epochs of three "
        "iterations. Pass settings with which one is due, such as check_hook(..., interval=1).",
    )


def _check_leaks(with_hook: Training, without: Training, name: str) -> None:
    leaked = _describe_difference(count_pytorch_hooks(with_hook), count_pytorch_hooks(without))
    fix = "Store their handles and remove them in cleanup."
    ensure(not leaked, f"{name} does not remove its PyTorch hooks: {leaked}. {fix}")
    ensure(
        not leaks_iterations(with_hook),
        f"{name} keeps the batch, the loss or the graph of every iteration in memory. Store loss.detach(), and only "
        "the last few.",
    )


def _check_shared_memory(hook: Hook, training: Training) -> None:
    name, path = type(hook).__name__, find_shared_tensor(hook.state_dict(), training)
    ensure(
        path is None,
        f"{name}.state_dict(){path} is a tensor of the model or its optimizer, which training modifies. Store a "
        "clone, or omit it: checkpoints contain both.",
    )


def _check_observer(with_hook: Training, without: Training, name: str) -> None:
    ensure(
        fingerprint(with_hook.model.state_dict()) == fingerprint(without.model.state_dict()),
        f"{name} is declared an observer, but the weights differ from a training without it.",
    )
    changed = _describe_difference(training_state(with_hook), training_state(without))
    ensure(not changed, f"{name} is declared an observer, but changes {changed}.")
    ensure(
        fingerprint(with_hook.rng) == fingerprint(without.rng),
        f"{name} is declared an observer, but uses the RNGs of the training. Use a separate generator.",
    )


def _describe_difference(actual: Mapping[str, Any], expected: Mapping[str, Any]) -> str:
    """Return the names of the values that differ."""
    names = sorted(actual.keys() | expected.keys())
    return ", ".join(name for name in names if fingerprint(actual.get(name)) != fingerprint(expected.get(name)))


@contextlib.contextmanager
def _temporary_directory() -> Iterator[Path]:
    """Context manager that creates an empty temporary directory and makes it the current one."""
    with tempfile.TemporaryDirectory() as path, contextlib.chdir(path):
        yield Path(path).resolve()


@contextlib.contextmanager
def _check_side_effects(bus: HookBus, directory: Path, name: str) -> Iterator[None]:
    """Check the file writes and device reads inside the context. Work directories are located in `directory`."""
    with record_file_writes() as written, record_device_reads(bus) as reads:
        yield
    ensure(
        not reads,
        f"{name} synchronizes with the device at every iteration ({', '.join(dict.fromkeys(reads))}). Pass the tensor "
        "to run.log or run.request_record, or set a schedule with @hookimpl(when=...).",
    )
    strays = [str(path) for path in sorted(written | set(directory.rglob("*"))) if _is_outside(path, directory)]
    ensure(
        not strays,
        f"{name} writes outside the work directory: {', '.join(strays)}. Write below a directory that the run "
        'provides: self.get_service("experiment_dir").',
    )


@contextlib.contextmanager
def _check_threads(name: str) -> Iterator[None]:
    """Check that no thread that starts inside the context outlives it."""
    before = set(threading.enumerate())
    yield
    leaked = [thread.name for thread in threading.enumerate() if thread not in before]
    ensure(not leaked, f"{name} leaves threads running after a training: {', '.join(leaked)}. Join them in cleanup.")


@contextlib.contextmanager
def _check_processes(name: str) -> Iterator[None]:
    """Check that no process that starts inside the context outlives it."""
    before = child_processes()
    yield
    leaked = ", ".join(leaked_processes(before))
    ensure(not leaked, f"{name} leaves processes running after a training: {leaked}. Terminate them in cleanup.")


@contextlib.contextmanager
def _check_process_settings(name: str) -> Iterator[None]:
    """Check that process-wide settings and RNG seeds are unchanged after the context."""
    with isolate_rng():
        torch.manual_seed(SEED)
        before, states = process_settings(), rng_states()
        yield
        after, reseeded = process_settings(), reseeded_generators(states)
        # New environment variables are allowed.
        changed = _describe_difference({name: after.get(name) for name in before}, before)
    ensure(
        not reseeded,
        f"{name} calls {' and '.join(reseeded)}, which affects all users of the global RNG. Use a separate generator: "
        "random.Random(seed), numpy.random.default_rng(seed).",
    )
    ensure(not changed, f"{name} changes process-wide settings: {changed}. Restore them at the end of the run.")


def _is_outside(path: Path, directory: Path) -> bool:
    """Return whether a written path still exists outside the work directories, caches and devices."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    allowed = (*(directory / name for name in ("without", "first", "second")), cache, *DEVICES)
    return path.exists() and "__pycache__" not in path.parts and not any(map(path.is_relative_to, allowed))


def _train(bus: HookBus, work_dir: Path, name: str) -> Training:
    with _explain_failure(name, "a small training"):
        return fake_training(bus=bus, scores=_scores, work_dir=work_dir, seed=SEED)


def _train_with_trainer(hook: Hook, work_dir: Path, implemented: set[str]) -> set[str]:
    """Train with the Trainer, and return the points at which listeners of the hook were called."""
    with _explain_failure(type(hook).__name__, "a small training of the Trainer with loaders and a validation"):
        trainer = SmallTrainer(hook, work_dir, SEED)
        with _record_calls(trainer.bus, hook.name) as called:
            trainer.run(implemented)
    trainer.bus.unregister(hook)
    return called


@contextlib.contextmanager
def _explain_failure(name: str, training: str) -> Iterator[None]:
    """Context manager that converts an error or warning of a training to an AssertionError."""
    with explain_errors(f"{name} fails in {training}: ", form=format_error), warnings.catch_warnings():
        warnings.simplefilter("error", HookWarning)  # an error in an observer is only a warning
        yield


@contextlib.contextmanager
def _record_calls(bus: HookBus, name: str | None = None) -> Iterator[set[str]]:
    """Context manager that records the points at which listeners are called.

    Args:
        bus: The bus.
        name: Instance name of the only hook to record. Default: all hooks.
    """
    called: set[str] = set()

    def record(hook: str, point: str) -> None:
        if name is None or hook == name:
            called.add(point)

    with trace_hooks(bus, record):
        yield called


def _scores(epoch: int) -> dict[str, float]:
    return {"accuracy": 0.5 + 0.1 * epoch, "loss": 1.0 / (1 + epoch)}
