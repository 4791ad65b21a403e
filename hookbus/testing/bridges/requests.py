"""Checks of the requests of hooks: they are carried out when the record says so, or refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hookbus._run.host import Capabilities
from hookbus._run.run import Run
from hookbus.errors import ConfigError, RequestError
from hookbus.hook import Hook
from hookbus.needs import HostRequest
from hookbus.testing.bridges.results import check_tensors
from hookbus.testing.bridges.trainings import Kit, Observation
from hookbus.testing.hosts import HostTask
from hookbus.testing.states import ensure

REQUEST_AT = 3
"""Number of completed iterations at which a request is made, in the middle of an accumulation of two."""
ACCUMULATE = 2


class Requester(Hook):
    """Make a request in one iteration.

    Args:
        make: Function that makes the request.
        point: Point at which it is made.

    Attributes:
        refusal: Error of the request; None if it was accepted.
    """

    def __init__(self, make: Callable[[Run], object], point: str = "after_train_iter") -> None:
        super().__init__()
        self._make, self._point = make, point
        self.refusal: RequestError | None = None

    def before_train_iter(self, run: Run) -> None:
        """Make the request if it is due."""
        self._request("before_train_iter", run)

    def after_forward(self, run: Run) -> None:
        """Make the request if it is due."""
        self._request("after_forward", run)

    def after_train_iter(self, run: Run) -> None:
        """Make the request if it is due."""
        self._request("after_train_iter", run)

    def _request(self, point: str, run: Run) -> None:
        if point == self._point and run.iters_done == REQUEST_AT:
            try:
                self._make(run)
            except RequestError as error:
                self.refusal = error


class Skipper(Requester):
    """Request to skip one iteration.

    Args:
        point: Point at which it is requested.
    """

    skips_iterations = True

    def __init__(self, point: str) -> None:
        super().__init__(lambda run: run.request_skip_iter("unwanted"), point)


def check_stop(kit: Kit, directory: Path) -> None:
    """Check that the training stops when the record says so."""
    observation = _train(kit, directory, "stop", lambda run: run.request_stop("enough"))
    if observation is None:
        return
    run, expected = observation.run, expected_iteration(kit.capabilities, "stop", observation.task)
    _check_iterations("stop", run.iters_done, expected)
    ensure(run.outcome == "stopped", f"stop: the outcome of the run should be 'stopped', got {run.outcome!r}.")
    completed = expected // observation.task.epoch_length
    ensure(run.epochs_done == completed, f"stop: should complete {completed} epochs, got {run.epochs_done}.")


def check_stop_epoch(kit: Kit, directory: Path) -> None:
    """Check that the epoch ends when the record says so, and counts as complete."""
    observation = _train(kit, directory, "stop_epoch", lambda run: run.request_stop_epoch("next"))
    if observation is None:
        return
    run, task = observation.run, observation.task
    expected = expected_iteration(kit.capabilities, "stop_epoch", task) + (task.epochs - 1) * task.epoch_length
    _check_iterations("stop_epoch", run.iters_done, expected)
    ensure(run.epochs_done == task.epochs, f"stop_epoch: should complete {task.epochs} epochs, got {run.epochs_done}.")


def check_save(kit: Kit, directory: Path) -> None:
    """Check that a checkpoint of the trainer is saved when the record says so."""
    if "host" not in kit.capabilities.checkpoints:
        ensure(not kit.capabilities.honors("save"), "save: the record says that the trainer saves no checkpoints.")
        return
    observation = _train(kit, directory, "save", lambda run: run.request_save("now"))
    if observation is None:
        return
    saves = [moment.counts[1] for moment in observation.probe.select("before_save_checkpoint")]
    expected = expected_iteration(kit.capabilities, "save", observation.task)
    ensure(
        expected in saves,
        f"save: requested after iteration {REQUEST_AT} and expected after {expected}; the trainer has saved after "
        f"{saves or 'none'}.",
    )


def check_validation(kit: Kit, directory: Path) -> None:
    """Check that the trainer validates when the record says so, and that this does not change the training."""
    observation = _train(kit, directory, "validation", lambda run: run.request_validation("now"))
    if observation is None:
        return
    validations = [moment.counts[1] for moment in observation.probe.select("before_val")]
    task = observation.task
    epochs = [task.epoch_length * epoch for epoch in range(1, task.epochs + 1)]
    expected = sorted({expected_iteration(kit.capabilities, "validation", task), *epochs})
    ensure(
        validations == expected,
        f"validation: requested after iteration {REQUEST_AT}; should validate after {expected}, got {validations}.",
    )
    without, _ = kit.pair(directory, ACCUMULATE)
    check_tensors("weights of a training with an additional validation", observation.weights, without.weights)


def check_skip(kit: Kit, directory: Path) -> None:
    """Check that a skipped iteration adds no gradients, as in the Trainer of hookbus."""
    point = "before_train_iter" if kit.capabilities.requests.get("skip") == "now" else "after_forward"
    if not kit.capabilities.honors("skip"):
        _check_refused(kit, directory, Skipper(point))
        return
    host = kit.train(HostTask(), directory / "host", [Skipper(point)])
    reference = kit.train_reference(HostTask(), directory / "reference", [Skipper(point)])
    steps = host.run.steps_done, reference.run.steps_done
    ensure(steps[0] == steps[1], f"skip: should make {steps[1]} optimizer steps, got {steps[0]}.")
    check_tensors("weights of a training with a skipped iteration", host.weights, reference.weights)


def _check_refused(kit: Kit, directory: Path, hook: Hook) -> None:
    """Check that a hook which skips iterations is refused before the training."""
    try:
        kit.train(HostTask(), directory, [hook])
    except ConfigError:
        return
    raise AssertionError("skip: the record says 'never', but a hook that skips iterations was accepted.")


def _train(kit: Kit, directory: Path, name: HostRequest, make: Callable[[Run], object]) -> Observation | None:
    """Train with a request; return None if the record says that it is not carried out, and it was refused."""
    hook: Any = Requester(make)
    accumulate = 1 if name == "stop_epoch" else ACCUMULATE
    observation = kit.train(HostTask(accumulate=accumulate), directory / name, [hook], checkpoints=kit.checkpoints)
    if kit.capabilities.honors(name):
        ensure(hook.refusal is None, f"{name}: the record says that it is carried out, but: {hook.refusal}")
        return observation
    ensure(hook.refusal is not None, f"{name}: the record says 'never', but the request was accepted.")
    return None


def expected_iteration(
    capabilities: Capabilities, name: HostRequest, task: HostTask, requested_at: int = REQUEST_AT
) -> int:
    """Return the number of iterations after which a request takes effect.

    Args:
        capabilities: Record of the trainer.
        name: Name of the request, which is carried out.
        task: The task.
        requested_at: Number of completed iterations at the request.
    """
    size = {"step": task.accumulate, "epoch": task.epoch_length}.get(capabilities.requests[name], 1)
    return -(-requested_at // size) * size


def _check_iterations(name: HostRequest, got: int, expected: int) -> None:
    ensure(
        got == expected,
        f"{name}: requested after iteration {REQUEST_AT}; should make {expected} iterations in total, got {got}.",
    )
