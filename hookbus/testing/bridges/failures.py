"""Checks of trainings that fail, and of what they leave behind."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from hookbus._run.run import Run
from hookbus._run.services import ACTIVE_RUNS
from hookbus.bridge.bridge import Bridge
from hookbus.bus import HookBus
from hookbus.errors import ConfigError, LoopError
from hookbus.testing.bridges.points import compare_order
from hookbus.testing.bridges.requests import expected_iteration
from hookbus.testing.bridges.results import check_rows, check_tensors
from hookbus.testing.bridges.trainings import Kit, Observation, get_probe, make_hook
from hookbus.testing.hosts import HostTask, TaskError
from hookbus.testing.leaks import process_settings
from hookbus.testing.states import ensure

FAIL_AT = 8
"""Iteration that fails, in the second epoch."""
NAN_AT = 2

OF_THE_TRAINER = ("the handler of", "torch.initial_seed()", "logging.getLogger()", "the environment variable")
"""Process-wide settings that trainers change themselves."""


def check_failure(kit: Kit, directory: Path) -> None:
    """Check that a failure ends the run, reaches the hooks and the caller unchanged, and leaves nothing behind."""
    expected, _ = kit.pair(directory)  # the trainer has then changed the settings that it does not restore
    before, bus = _read_settings(), kit.make_bus()
    error = _fail(kit, bus, directory / "failing")
    run = bus.current
    ensure(not run.is_running and run not in ACTIVE_RUNS, "failure: the run is still open. Call close(error).")
    ensure(run.outcome == "failed", f"failure: the outcome of the run should be 'failed', got {run.outcome!r}.")
    ensure(run.exception is error, f"failure: hooks should receive the error of the task, got {run.exception!r}.")
    _check_end_points(get_probe(bus).points)
    ensure(not (changed := _describe_changes(before)), f"failure: the process-wide settings differ: {changed}.")
    _check_leaks(run)
    again = kit.train(HostTask(), directory / "again")
    check_tensors("weights of the training after a failure", again.weights, expected.weights)


def _fail(kit: Kit, bus: HookBus, directory: Path) -> TaskError:
    """Train until the failure, and return the error that the trainer has raised."""
    try:
        kit.train(HostTask(fail_at=FAIL_AT), directory, bus=bus)
    except TaskError as error:
        return error
    except Exception as error:
        raise AssertionError(f"failure: should raise the TaskError of the task unchanged, got {error!r}.") from error
    raise AssertionError("failure: the training should raise the TaskError of the task, got none.")


def _check_end_points(points: list[str]) -> None:
    for point in ("on_exception", "after_run", "cleanup"):
        count = points.count(point)
        ensure(count == 1, f"failure: {point} should be emitted once, got {count} times. Call close(error) once.")
    ensure(points[-1] == "cleanup", f"failure: cleanup should be the last point, got {points[-1]}.")


def _read_settings() -> Mapping[str, Any]:
    return {name: value for name, value in process_settings().items() if not name.startswith(OF_THE_TRAINER)}


def _describe_changes(before: Mapping[str, Any]) -> str:
    after = _read_settings()
    changed = [name for name, value in before.items() if after[name] != value]
    return "; ".join(f"{name}: before {before[name]!r}, after {after[name]!r}" for name in changed)


def _check_leaks(run: Run) -> None:
    """Check that no function of the bridge is left on the trainer, the model and the optimizers."""
    bridge = run.host
    assert isinstance(bridge, Bridge)
    bridge.detach()
    leaked = [*_find_functions(bridge.host, "the trainer", bridge)]
    for name, module in () if run.model is None else run.model.named_modules():
        leaked += _find_functions(module, f"model.{name}".rstrip("."), bridge)
    for name, optimizer in run.optimizers.items():
        leaked += _find_functions(optimizer, f"optimizer {name}", bridge)
    ensure(
        not leaked,
        f"failure: functions of the bridge are left after the run and detach(): {', '.join(leaked)}. Replace "
        "attributes by Bridge.replace, and remove PyTorch hooks in close() and detach().",
    )


def _find_functions(owner: object, label: str, bridge: Bridge) -> Iterator[str]:
    """Yield the attributes and PyTorch hooks of an object and its classes that a bridge has replaced or added."""
    packages = {"hookbus", type(bridge).__module__.partition(".")[0]}
    for scope in (owner, *type(owner).__mro__):
        if isinstance(scope, type) and scope.__module__.partition(".")[0] in packages:
            continue  # a trainer in the package of the bridge
        for name, value in vars(scope).items() if hasattr(scope, "__dict__") else ():
            values = value.values() if name.endswith("_hooks") and isinstance(value, Mapping) else (value,)
            if any(_is_from(function, packages) for function in values):
                yield f"{label}.{name}"


def _is_from(value: object, packages: set[str]) -> bool:
    """Return whether a value is a function that is defined in one of the packages."""
    while isinstance(value, partial):
        value = value.func
    if not isinstance(value, (types.FunctionType, types.MethodType)):
        return False
    module = getattr(value, "__module__", None) or ""
    return module.partition(".")[0] in packages and not module.startswith("hookbus.testing")


def check_second_training(kit: Kit, directory: Path) -> None:
    """Check that a second training with the same bus starts from scratch and equals the first one."""
    bus = kit.make_bus()
    first = kit.train(HostTask(), directory / "first", bus=bus)
    moments, rows = [*first.probe.moments], first.rows
    first.probe.moments.clear()
    second = kit.train(HostTask(), directory / "second", bus=bus)
    check_tensors("weights of a second training with one bus", second.weights, first.weights)
    is_equal, difference = compare_order(second.probe.moments, moments)
    ensure(is_equal, f"second training with one bus: {difference}")
    check_rows("metrics.jsonl of a second training with one bus", second.rows, rows)


def check_invalid_loss(kit: Kit, directory: Path, policy: str) -> None:
    """Check that a policy for a loss that is NaN takes effect, unless the hook is refused before the training.

    Args:
        kit: Trainings.
        directory: Directory of the files.
        policy: Policy of the hook `check_invalid_loss`: "raise", "skip" or "stop".
    """
    hook = make_hook("check_invalid_loss", interval=1, policy=policy)
    bus, task = kit.make_bus([hook]), HostTask(nan_at=NAN_AT)
    try:
        observation = kit.train(task, directory / "host", bus=bus)
    except LoopError as error:
        ensure(policy == "raise", f"policy {policy}: should not raise, got: {error}")
        ensure(bus.current.iters_done == NAN_AT + 1, f"policy raise: raised after {bus.current.iters_done} iterations.")
        return
    except ConfigError as error:
        # The trainer does not meet the needs of the hook, and the message says so.
        ensure(kit.capabilities.host in str(error), f"policy {policy}: {error}")
        return
    ensure(policy != "raise", "policy raise: should raise the LoopError of the hook, got none.")
    (_check_skipped if policy == "skip" else _check_aborted)(kit, observation, directory)


def _check_skipped(kit: Kit, observation: Observation, directory: Path) -> None:
    hook = make_hook("check_invalid_loss", interval=1, policy="skip")
    reference = kit.train_reference(HostTask(nan_at=NAN_AT), directory / "reference", [hook])
    steps = observation.run.steps_done, reference.run.steps_done
    ensure(steps[0] == steps[1], f"policy skip: should make {steps[1]} optimizer steps, got {steps[0]}.")
    check_tensors("weights with policy skip", observation.weights, reference.weights)


def _check_aborted(kit: Kit, observation: Observation, _directory: Path) -> None:
    run, requested_at = observation.run, NAN_AT + 1
    expected = expected_iteration(kit.capabilities, "stop", observation.task, requested_at)
    ensure(run.iters_done == expected, f"policy stop: should make {expected} iterations, got {run.iters_done}.")
    ensure(run.outcome == "aborted", f"policy stop: the outcome should be 'aborted', got {run.outcome!r}.")
