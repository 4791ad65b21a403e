"""Rank-specific state of a checkpoint, and resume with another world size than the one it was written with.

Each rank has its own RNG states, sums behind metric means, position in the data, state of its loop, and gradients that
are not yet reduced. All other state is the same on all ranks and is stored once.

The position in the data is counted in iterations, so the number of samples per iteration must stay the same. Then the
order of the samples, the learning rates and the effective batch size of an optimizer step are unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from hookbus.data.rng import derive_seed, get_rng_state, isolate_rng, seed_everything
from hookbus.distributed.sharding import has_sharded_tensors
from hookbus.errors import CheckpointError
from hookbus.metrics.rank_states import average_states

if TYPE_CHECKING:
    from hookbus._run.run import Run


RANK_KEYS = ("rng", "grads", "state")
"""Keys of a checkpoint whose values differ between ranks."""

RANK_LOOP_KEYS = ("metrics", "data")
"""Keys of `loop` in a checkpoint whose values differ between ranks."""


def add_rank_states(checkpoint: dict[str, Any], run: Run) -> None:
    """Add the state of each rank under the key `ranks`. A collective call; a no-op in a single process."""
    if run.ranks.world_size == 1:
        return
    # Sharded gradients are written with the sharded tensors, so they are not gathered here.
    own = {key: checkpoint[key] for key in RANK_KEYS if key in checkpoint and not has_sharded_tensors(checkpoint[key])}
    own |= {key: checkpoint["loop"][key] for key in RANK_LOOP_KEYS}
    checkpoint["ranks"] = run.ranks.all_gather("parts of a checkpoint", own)


def select_rank_state(checkpoint: Mapping[str, Any], run: Run) -> Mapping[str, Any]:
    """Return a checkpoint with the state of this rank; a rank that did not write the checkpoint is reseeded."""
    rank_states, rank = checkpoint.get("ranks", ()), run.ranks.rank
    if rank < len(rank_states):
        own = rank_states[rank]
        loop = {**checkpoint["loop"], **{key: own[key] for key in RANK_LOOP_KEYS}}
        return {**checkpoint, **{key: own[key] for key in RANK_KEYS if key in own}, "loop": loop}
    # Rank 0 has the common state. Other ranks would draw the same random numbers as rank 0 without a new seed.
    return {**checkpoint, "rng": _fresh_rng_state(checkpoint["loop"], rank)} if rank else checkpoint


def _fresh_rng_state(loop: Mapping[str, Any], rank: int) -> dict[str, Any]:
    # The iteration is part of the seed: otherwise a second resume would repeat the random numbers of the first.
    with isolate_rng():
        seed_everything(derive_seed(loop["seed"], rank, loop["clock"]["iters_done"]))
        return get_rng_state()


def get_parallel_metadata(run: Run) -> dict[str, Any]:
    """Return `processes` and the per-rank `batch_size` of a run; None if the loader has no integer `batch_size`."""
    size = getattr(run.train_loader, "batch_size", None)
    return {"processes": run.ranks.world_size, "batch_size": size if isinstance(size, int) else None}


def reshard(checkpoint: Mapping[str, Any], run: Run) -> Mapping[str, Any]:
    """Return a checkpoint adapted to the world size of a run.

    Accumulated gradients are replaced by their mean over the ranks, as DistributedDataParallel would average them, and
    so are the logged values of which means are computed. New ranks are reseeded.

    Raises:
        CheckpointError: If the number of samples per iteration would change.
    """
    # A checkpoint without these keys counts as written by a single process.
    before, now = {"processes": 1, "batch_size": None, **checkpoint["meta"]}, get_parallel_metadata(run)
    if before["processes"] == now["processes"]:
        return checkpoint
    # A size that was set by `run.set_batch_size` replaces that of the loader.
    size = checkpoint["loop"]["data"].get("batch_size")
    if size is not None:
        now["batch_size"] = max(size * before["processes"] // now["processes"], 1)
        checkpoint = _replace_batch_size(checkpoint, now["batch_size"])
    _check_samples_per_iter(before, now, run)
    rank_states: Sequence[Mapping[str, Any]] = checkpoint.get("ranks", ())
    grads = _average_grads([state["grads"] for state in rank_states if "grads" in state])
    if not rank_states:
        return {**checkpoint, **grads}
    metrics = average_states([state["metrics"] for state in rank_states])
    common = {**rank_states[0], **grads, "metrics": metrics}
    ranks = [{**common, "rng": state["rng"]} for state in rank_states]
    return {**checkpoint, **grads, "loop": {**checkpoint["loop"], "metrics": metrics}, "ranks": ranks}


def _replace_batch_size(checkpoint: Mapping[str, Any], size: int) -> Mapping[str, Any]:
    """Return a checkpoint with another batch size in the position in the data of each rank."""
    loop, ranks = (
        [{**part, "data": {**part["data"], "batch_size": size}} for part in parts]
        for parts in ([checkpoint["loop"]], checkpoint.get("ranks", ()))
    )
    return {**checkpoint, "loop": loop[0], **({"ranks": ranks} if ranks else {})}


def _check_samples_per_iter(before: Mapping[str, Any], now: Mapping[str, Any], run: Run) -> None:
    if before["batch_size"] is None or now["batch_size"] is None:
        run.logger.warning(
            "The checkpoint was written with world size %s, and this run has world size %s. Check that the number of "
            "samples per iteration, summed over the ranks, is the same.",
            before["processes"],
            now["processes"],
        )
        return
    expected, samples = (size["processes"] * size["batch_size"] for size in (before, now))
    if expected == samples:
        return
    size, remainder = divmod(expected, now["processes"])
    fix = f"Set `dataset.batch_size` to {size}" if not remainder else f"Use a world size that divides {expected}"
    raise CheckpointError(
        f"dataset.batch_size: the checkpoint has {before['processes']} processes with {before['batch_size']} samples "
        f"each, and this run {now['processes']} with {now['batch_size']}: expected {expected} samples per iteration, "
        f"got {samples}. {fix} (`batch_size` of the train_loader), or set `load_from` to start from the weights alone."
    )


def _average_grads(grads: Sequence[Mapping[str, torch.Tensor]]) -> dict[str, Any]:
    """Return the mean gradients under the key `grads`, an empty dict if no rank has gradients."""
    if not grads:
        return {}
    names = {name for rank_grads in grads for name in rank_grads}
    # A parameter without a gradient on a rank contributes zero to the mean, as in DistributedDataParallel.
    zero = {name: torch.zeros_like(next(g[name] for g in grads if name in g)) for name in names}
    return {"grads": {n: sum((g.get(n, zero[n]) for g in grads), zero[n]) / len(grads) for n in sorted(names)}}
