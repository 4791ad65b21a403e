"""Going on with another number of processes than a checkpoint was made by.

The place in the data is counted in iterations, so an iteration has to be of as many samples as before: then the order
of the samples, the learning rates and what an update means stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from hookbus.errors import CheckpointError

if TYPE_CHECKING:
    from hookbus.run import Run

__all__ = ["resized", "size_of"]


def size_of(run: Run) -> dict[str, Any]:
    """What a checkpoint tells of this: `processes`, and `batch_size` of each, None where the loader does not tell."""
    size = getattr(run.train_loader, "batch_size", None)
    return {"processes": run.ranks.world_size, "batch_size": size if isinstance(size, int) else None}


def resized(checkpoint: Mapping[str, Any], run: Run) -> Mapping[str, Any]:
    """A checkpoint as the processes of a run go on from it, if they are not as many as have made it.

    Gradients that wait for an update become their mean, as they would have been averaged; the sums behind means are
    those of the main process; and a process that is new gets random streams of its own.

    Args:
        checkpoint: the checkpoint.
        run: the run that goes on.

    Raises:
        CheckpointError: an iteration would be of another number of samples.
    """
    before, now = {"processes": 1, "batch_size": None, **checkpoint["meta"]}, size_of(run)
    if before["processes"] == now["processes"]:
        return checkpoint
    _check_batch(before, now, run)
    parts: Sequence[Mapping[str, Any]] = checkpoint.get("ranks", ())
    grads = _mean([part["grads"] for part in parts if "grads" in part])
    common = {**(parts[0] if parts else {}), **grads}
    return {**checkpoint, **grads, "ranks": [{**common, "rng": part["rng"]} for part in parts]}


def _check_batch(before: Mapping[str, Any], now: Mapping[str, Any], run: Run) -> None:
    if before["batch_size"] is None or now["batch_size"] is None:
        run.logger.warning(
            "The checkpoint is of %s processes, and this run has %s: see that an iteration has as many samples in all.",
            before["processes"],
            now["processes"],
        )
        return
    samples, wanted = (each["processes"] * each["batch_size"] for each in (before, now))
    if samples == wanted:
        return
    size, rest = divmod(samples, now["processes"])
    how = f"Say dataset.batch_size: {size}" if not rest else f"Take a number of processes that divides {samples}"
    raise CheckpointError(
        f"dataset.batch_size: the checkpoint is of {before['processes']} processes with {before['batch_size']} samples "
        f"each, and this run of {now['processes']} with {now['batch_size']}: an iteration would be of {wanted} samples "
        f"instead of {samples}. {how} (batch_size of the train_loader), or load_from to start from the weights alone."
    )


def _mean(grads: Sequence[Mapping[str, torch.Tensor]]) -> dict[str, Any]:
    """The mean gradients under their key; nothing where no process had any."""
    if not grads:
        return {}
    names = {name for each in grads for name in each}
    zero = {name: torch.zeros_like(next(each[name] for each in grads if name in each)) for name in names}
    return {"grads": {n: sum((each.get(n, zero[n]) for each in grads), zero[n]) / len(grads) for n in sorted(names)}}
