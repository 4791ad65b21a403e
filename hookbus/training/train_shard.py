"""Which part of the training data does a rank read?

Batches are dealt out in turn, so that the first batches of all ranks together are the first samples of the order in
which one process would read. Every rank has the same number of batches, since it waits for the others' gradients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch.utils.data import BatchSampler

__all__ = ["Part"]


@dataclass(frozen=True, slots=True)
class Part:
    """What one rank reads of an epoch.

    The samples of the last turn are dealt out one by one where torch's own BatchSampler has made its batches: all ranks
    have as many batches, and no sample is read twice. Left out are fewer than `world_size` samples; of another
    sampler, the batches of a last turn that is not complete.

    Attributes:
        rank: the number of this process, from 0.
        world_size: how many processes read.
    """

    rank: int = 0
    world_size: int = 1

    def of(self, source: Any, steps: list[Any]) -> list[Any]:
        """The steps of this rank.

        Args:
            source: the sampler or batch sampler that has drawn the steps.
            steps: all of them, in order.
        """
        if self.world_size == 1:
            return steps
        whole = self._whole(source, len(steps))
        rest = [index for step in steps[whole:] for index in step] if type(source) is BatchSampler else []
        last = [rest[self.rank :: self.world_size]] if len(rest) >= self.world_size else []
        return steps[self.rank : whole : self.world_size] + last

    def length(self, source: Any, total: int) -> int:
        """How many steps each rank has.

        Args:
            source: as for `of`.
            total: how many steps there are.
        """
        if self.world_size == 1:
            return total
        whole, rest = self._whole(source, total), 0
        if type(source) is BatchSampler:
            rest = min(total * source.batch_size, len(source.sampler)) - whole * source.batch_size  # type: ignore[arg-type]
        return whole // self.world_size + (rest >= self.world_size)

    def _whole(self, source: Any, total: int) -> int:
        """How many steps are dealt out as they are: complete turns, but for a last one that can be evened out."""
        if type(source) is BatchSampler and total:
            return (total - 1) // self.world_size * self.world_size
        return total // self.world_size * self.world_size
