"""Rank-specific state of a checkpoint, for a bit-exact resume with the same world size.

Each rank has its own RNG states, sums behind metric means, position in the data, state of its loop, and gradients that
are not yet reduced. All other state is the same on all ranks and is stored once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hookbus.data.rng import derive_seed, get_rng_state, isolate_rng, seed_everything
from hookbus.distributed.sharding import has_sharded_tensors

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
    """Return a checkpoint with the state of this rank; a rank that did not write the checkpoint is reseeded.

    Args:
        checkpoint: Checkpoint, possibly written with another world size.
        run: Run to resume.
    """
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
