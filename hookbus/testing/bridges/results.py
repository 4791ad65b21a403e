"""Checks of the results of a training: bitwise parity with the Trainer of hookbus, and exact resume."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import zip_longest
from math import isclose
from pathlib import Path
from typing import Any

from torch import Tensor

from hookbus._run.host import Checkpoints
from hookbus.hook import Hook
from hookbus.testing.bridges.points import TOLERANCE
from hookbus.testing.bridges.trainings import Kit, Observation
from hookbus.testing.hosts import HostTask, TaskError
from hookbus.testing.states import ensure, fingerprint


def check_parity(kit: Kit, directory: Path) -> None:
    """Check that weights and averaged weights are bitwise those of the Trainer of hookbus."""
    for accumulate in (1, 2):
        host, reference = kit.pair(directory, accumulate)
        subject = f"with accumulate={accumulate}, which the Trainer of hookbus trains with the same data and RNG states"
        check_tensors(f"weights {subject}", host.weights, reference.weights)
        check_tensors(f"averaged weights {subject}", host.averages, reference.averages)


def check_records(kit: Kit, directory: Path) -> None:
    """Check that the rows of the JSON lines are those of the Trainer of hookbus, except for the time.

    The means of a validation are computed by the trainer and may differ in the last digits.
    """
    for accumulate in (1, 2):
        host, reference = kit.pair(directory, accumulate)
        rows = [observation.rows for observation in (host, reference)]
        if not kit.capabilities.loss:
            rows = [[_drop_losses(row) for row in of_trainer] for of_trainer in rows]
        check_rows(f"metrics.jsonl with accumulate={accumulate}", *rows)


def _drop_losses(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row without the values of training iterations."""
    values = {name: value for name, value in row["values"].items() if not name.startswith("train/")}
    return {**row, "values": values}


def check_resume(kit: Kit, directory: Path, checkpoints: Checkpoints) -> None:
    """Check that two epochs and two further ones after a resume equal four epochs.

    Args:
        kit: Trainings.
        directory: Directory of the files.
        checkpoints: Owner of the checkpoints.
    """
    whole = kit.train(HostTask(epochs=4), directory / "whole", checkpoints=checkpoints)
    kit.train(HostTask(epochs=2), directory / "parts", checkpoints=checkpoints)
    parts = kit.train(HostTask(epochs=4), directory / "parts", checkpoints=checkpoints, resume=True)
    _check_equal("a training that resumed after 2 of 4 epochs", parts, whole)


def check_resume_after_failure(kit: Kit, directory: Path, checkpoints: Checkpoints) -> None:
    """Check that a training which failed in its second epoch and resumed equals one that did not fail.

    Args:
        kit: Trainings.
        directory: Directory of the files.
        checkpoints: Owner of the checkpoints.
    """
    whole = kit.train(HostTask(), directory / "whole", checkpoints=checkpoints)
    try:
        task = HostTask(fail_at=whole.task.epoch_length + 2)
        kit.train(task, directory / "parts", checkpoints=checkpoints)
    except TaskError:
        parts = kit.train(HostTask(), directory / "parts", checkpoints=checkpoints, resume=True)
        _check_equal("a training that failed in its second epoch and resumed", parts, whole)
        return
    raise AssertionError("the training did not raise the error of the task.")


def _check_equal(subject: str, parts: Observation, whole: Observation) -> None:
    counts = [(run.epochs_done, run.iters_done, run.steps_done, run.samples_done) for run in (parts.run, whole.run)]
    ensure(
        counts[0] == counts[1],
        f"counts of {subject}: epochs, iterations, steps and samples should be {counts[1]}, got {counts[0]}. Add the "
        "result of get_state() to the checkpoint, and pass it to set_state() before open().",
    )
    check_tensors(f"weights of {subject}", parts.weights, whole.weights)
    check_tensors(f"averaged weights of {subject}", parts.averages, whole.averages)
    states = [_get_states(observation) for observation in (parts, whole)]
    ensure(states[0] == states[1], f"states of hooks of {subject}: should be {states[1]}, got {states[0]}.")
    best = [
        {name: (best.value, best.step) for name, best in observation.run.best.items()} for observation in (parts, whole)
    ]
    ensure(best[0] == best[1], f"best results of {subject}: should be {best[1]}, got {best[0]}.")
    check_rows(f"metrics.jsonl of {subject}", parts.rows, whole.rows)


def _get_states(observation: Observation) -> dict[str, Any]:
    """Return the states of the hooks that are not compared as tensors or rows."""
    hooks = observation.run.bus.hooks
    return {name: hook.state_dict() for name in ("early_stopping",) if isinstance(hook := hooks.get(name), Hook)}


def check_tensors(subject: str, got: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Raise if tensors are not bitwise equal. The names are compared at their end: a trainer may wrap the model."""
    for name, tensor in expected.items():
        candidates = [value for key, value in got.items() if f".{key}".endswith(f".{name}")]
        ensure(len(candidates) > 0, f"{subject}: {name} is missing, got {', '.join(got)}.")
        other = candidates[0]
        if fingerprint(other) != fingerprint(tensor):
            difference = float((other - tensor).abs().max()) if other.shape == tensor.shape else float("nan")
            raise AssertionError(f"{subject}: {name} differs by up to {difference:.3g}, of {float(tensor.max()):.3g}.")


def check_rows(subject: str, got: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    """Raise if rows differ, except for the last digits of the results of a validation."""
    for number, (row, other) in enumerate(zip_longest(got, expected), 1):
        if row is None or other is None:
            have, want = len(got), len(expected)
            raise AssertionError(f"{subject}: should have {want} rows, got {have}. Row {number}: {row or other}.")
        ensure(
            _flatten(row) == _flatten(other) or _are_close(row, other),
            f"{subject}, row {number}: should be {other}, got {row}.",
        )


def _are_close(row: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two rows with the results of a validation are equal within the tolerance."""
    if row["kind"] != "val":
        return False
    values, others = dict(_flatten(row)), dict(_flatten(other))
    return values.keys() == others.keys() and all(
        values[name] == value or (isinstance(value, float) and isclose(values[name], value, rel_tol=TOLERANCE))
        for name, value in others.items()
    )


def _flatten(row: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return sorted(_iter_fields(row), key=lambda item: item[0])


def _iter_fields(row: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in row.items():
        yield from value.items() if isinstance(value, Mapping) else [(name, value)]
