"""What of a checkpoint each of several processes has for itself, so that the run goes on exactly.

These are the random streams, the sums behind the means, the place in the data, and gradients that were not averaged
yet. All else is the same in all processes, and is kept once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hookbus.model.layouts import has_spread
from hookbus.training.rng import get_rng_state, mix, preserved_rng, seed_everything

if TYPE_CHECKING:
    from hookbus.run import Run

__all__ = ["add_parts", "with_own_part"]

OF_RANK = ("rng", "grads")
OF_LOOP = ("metrics", "data")
"""Keys of a checkpoint, and of its `loop`, whose values differ from process to process."""


def add_parts(checkpoint: dict[str, Any], run: Run) -> None:
    """Add, under `ranks`, what each process has for itself. All of them call this; in one process it adds nothing."""
    if run.ranks.world_size == 1:
        return
    own = {key: checkpoint[key] for key in OF_RANK if key in checkpoint and not has_spread(checkpoint[key])}
    own |= {key: checkpoint["loop"][key] for key in OF_LOOP}
    checkpoint["ranks"] = run.ranks.gather("parts of a checkpoint", own)


def with_own_part(checkpoint: Mapping[str, Any], run: Run) -> Mapping[str, Any]:
    """The checkpoint as this process has saved it; its random streams begin anew where it did not take part.

    Args:
        checkpoint: a checkpoint, perhaps of another number of processes.
        run: the run that goes on.
    """
    parts, rank = checkpoint.get("ranks", ()), run.ranks.rank
    if rank < len(parts):
        own = parts[rank]
        loop = {**checkpoint["loop"], **{key: own[key] for key in OF_LOOP}}
        return {**checkpoint, **{key: own[key] for key in OF_RANK if key in own}, "loop": loop}
    return {**checkpoint, "rng": _fresh_streams(checkpoint["loop"], rank)} if rank else checkpoint


def _fresh_streams(loop: Mapping[str, Any], rank: int) -> dict[str, Any]:
    with preserved_rng():
        seed_everything(mix(loop["seed"], rank, loop["clock"]["iters_done"]))
        return get_rng_state()
