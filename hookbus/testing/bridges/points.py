"""Checks of the emitted points: their order, the counts, and what they provide."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import zip_longest
from math import isclose
from pathlib import Path

import torch

from hookbus._run.host import GRADIENT_POINTS, Capabilities
from hookbus.lifecycle import POINTS
from hookbus.testing.bridges.probe import Moment
from hookbus.testing.bridges.trainings import Kit, Observation
from hookbus.testing.states import ensure

SAVE_POINTS = ("before_save_checkpoint", "after_save_checkpoint", "after_load_checkpoint")
"""Points whose place depends on the owner of the checkpoints."""

BATCH_POINTS = ("before_train_iter", "after_forward", "after_backward", "after_train_iter")
LOSS_POINTS = ("after_forward", "after_backward", "after_train_iter")
COUNTS = ("epochs_done", "iters_done", "steps_done", "samples_done")
TOLERANCE = 1e-6
"""Relative tolerance of numbers that a trainer computes in another order."""


def check_order(kit: Kit, directory: Path) -> None:
    """Check that each point is emitted once, in the order of the Trainer of hookbus."""
    _check_order(kit, directory, accumulate=1)


def check_order_with_accumulation(kit: Kit, directory: Path) -> None:
    """Check that the order is right if an optimizer step takes two iterations."""
    _check_order(kit, directory, accumulate=2)


def _check_order(kit: Kit, directory: Path, accumulate: int) -> None:
    host, reference = kit.pair(directory, accumulate)
    ignored = {*kit.capabilities.missing, *SAVE_POINTS}
    emitted, expected = (
        [moment for moment in observation.probe.moments if moment.point not in ignored]
        for observation in (host, reference)
    )
    ensure(*compare_order(emitted, expected))


def compare_order(emitted: Sequence[Moment], expected: Sequence[Moment]) -> tuple[bool, str]:
    """Return whether two sequences of events are equal, and a description of the first difference."""
    points = [[moment.point for moment in moments] for moments in (emitted, expected)]
    pairs = enumerate(zip_longest(*points, fillvalue="the end"))
    index = next((index for index, (got, want) in pairs if got != want), None)
    if index is None:
        return True, ""
    got, want = ((points[i][index : index + 1] or ["the end"])[0] for i in (0, 1))
    before = ", ".join(points[0][max(index - 3, 0) : index]) or "the start"
    iteration = emitted[min(index, len(emitted) - 1)].iteration if emitted else 0
    return False, f"order of points: expected {want} after {before} (event {index}, iteration {iteration}), got {got}."


def check_counts(kit: Kit, directory: Path) -> None:
    """Check that epochs, iterations, steps and samples are counted as in the Trainer of hookbus."""
    for accumulate in (1, 2):
        # Without the batch, the number of samples is unknown.
        known = len(COUNTS) if kit.capabilities.batch else COUNTS.index("samples_done")
        for host, reference in _iter_pairs(*kit.pair(directory, accumulate)):
            got, expected = host.counts[:known], reference.counts[:known]
            names = ", ".join(COUNTS[:known])
            ensure(
                got == expected,
                f"counts at {host.point} of iteration {host.iteration} with accumulate={accumulate}: {names} should be "
                f"{expected}, got {got}.",
            )


def _iter_pairs(host: Observation, reference: Observation) -> Iterator[tuple[Moment, Moment]]:
    """Yield the events of each point that is emitted as often as in the reference; the order is another check."""
    for point in POINTS:
        pairs = [*host.probe.select(point)], [*reference.probe.select(point)]
        if len(pairs[0]) == len(pairs[1]):
            yield from zip(*pairs, strict=True)


def check_batches(kit: Kit, directory: Path) -> None:
    """Check that the points of an iteration receive its batch and the outputs of the model, if the record says so."""
    host, _ = kit.pair(directory)
    capabilities = kit.capabilities

    def has_batch(moment: Moment) -> bool:
        inputs = host.task.inputs[moment.iteration]
        return any(torch.equal(tensor, inputs) for tensor in moment.batch or () if tensor.shape == inputs.shape)

    _check_provided(host, capabilities, "batch", has_batch, BATCH_POINTS)
    points = ("after_train_iter", "after_val_iter")
    _check_provided(host, capabilities, "outputs", lambda moment: moment.has_outputs, points)


def check_losses(kit: Kit, directory: Path) -> None:
    """Check that the points of an iteration receive the unscaled loss of its micro-batch, if the record says so."""
    for accumulate in (1, 2):
        host, _ = kit.pair(directory, accumulate)
        _check_provided(host, kit.capabilities, "loss", lambda moment: moment.loss is not None, LOSS_POINTS)
        for moment in _select(host, kit.capabilities, LOSS_POINTS):
            if moment.loss is not None:
                _check_loss(moment, float(host.task.losses[moment.iteration]), accumulate)


def _check_loss(moment: Moment, expected: float, accumulate: int) -> None:
    assert moment.loss is not None
    ensure(
        isclose(moment.loss, expected, rel_tol=TOLERANCE),
        f"loss at {moment.point} of iteration {moment.iteration} with accumulate={accumulate}: should be that of the "
        f"micro-batch, {expected:.6g}, got {moment.loss:.6g}, {moment.loss / expected:.4g} times as much.",
    )


def _check_provided(
    host: Observation, capabilities: Capabilities, name: str, is_given: Callable[[Moment], bool], points: Sequence[str]
) -> None:
    """Compare an entry of the record with what the points received."""
    moments = [*_select(host, capabilities, points)]
    lacking = next((moment for moment in moments if not is_given(moment)), None)
    if getattr(capabilities, name):
        ensure(
            lacking is None,
            f"{name}: the record says that the points of an iteration receive it, but {lacking and lacking.point} of "
            f"iteration {lacking and lacking.iteration} did not. Pass it to `emit`, or set {name}=False.",
        )
    else:
        ensure(lacking is not None, f"{name}: the record says {name}=False, but each point received it.")


def _select(host: Observation, capabilities: Capabilities, points: Collection[str]) -> Iterator[Moment]:
    """Yield the events of points that the record does not call approximate."""
    return host.probe.select(*(point for point in points if point not in capabilities.approximate))


def check_gradients(kit: Kit, directory: Path) -> None:
    """Check that gradients are available where the record says, and equal those of the Trainer of hookbus."""
    recorded, approximate = kit.capabilities.gradients, kit.capabilities.approximate
    for point in GRADIENT_POINTS:
        host, _ = kit.pair(directory)
        has_gradients = [moment.gradient is not None for moment in host.probe.select(point)]
        if point in recorded:
            missing = has_gradients.index(False) if False in has_gradients else None
            ensure(missing is None, f"gradients: the record lists {point}, but its event {missing} has none.")
        elif has_gradients:
            ensure(not all(has_gradients), f"gradients: the record does not list {point}, but each event has them.")
    for accumulate in (1, 2):
        for host_moment, moment in _iter_pairs(*kit.pair(directory, accumulate)):
            if moment.point in recorded and moment.point not in approximate:
                _check_norm(host_moment, moment, accumulate)


def _check_norm(host: Moment, reference: Moment, accumulate: int) -> None:
    norms = host.gradient or 0.0, reference.gradient or 0.0
    ensure(
        isclose(*norms, rel_tol=TOLERANCE),
        f"gradients at {host.point} of iteration {host.iteration} with accumulate={accumulate}: their norm should be "
        f"{norms[1]:.6g}, got {norms[0]:.6g}.",
    )


def check_averaged_weights(kit: Kit, directory: Path) -> None:
    """Check that the averaged weights are in the model from before_val to after_val, and at no other time."""
    host, _ = kit.pair(directory)
    for moment in host.probe.moments:
        if moment.is_averaged is None or (moment.point == "before_train_iter" and moment.iteration == 0):
            continue
        expected = moment.point != "before_train_iter"
        ensure(
            moment.is_averaged == expected,
            f"weights at {moment.point} after {moment.counts[1]} iterations: the model should contain the "
            f"{'averaged' if expected else 'raw'} weights. Call run.begin_validation() before the first forward pass "
            "of the validation, and run.end_validation() after the last one.",
        )
