"""Shard of the training data that a rank reads.

Batches are assigned to ranks round-robin: the first batches of all ranks together contain the samples that a single
process would read first. Every rank has the same number of batches, because gradients are reduced over all ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch.utils.data import BatchSampler


@dataclass(frozen=True, slots=True)
class TrainShard:
    """Steps of an epoch that one rank reads.

    A step is a batch of indices, or an index. A round contains one step per rank. If the batches come from torch's
    BatchSampler, the samples of the last round are assigned to ranks one by one, so that fewer than `world_size`
    samples are dropped. With any other sampler, the steps of an incomplete last round are dropped. No sample is read
    twice.

    Attributes:
        rank: Rank of this process, from 0.
        world_size: Number of processes.
    """

    rank: int = 0
    world_size: int = 1

    def select(self, source: Any, steps: Iterable[Any]) -> Iterator[Any]:
        """Return an iterator over the steps of this rank, which reads at most one round ahead.

        Args:
            source: The sampler or batch sampler of the steps.
            steps: All steps of the epoch, in order.
        """
        return iter(steps) if self.world_size == 1 else self._iter_rounds(source, steps)

    def _iter_rounds(self, source: Any, steps: Iterable[Any]) -> Iterator[Any]:
        """Yield the step of this rank in each round."""
        current: list[Any] = []
        for step in steps:
            if len(current) == self.world_size:
                yield current[self.rank]
                current = []
            current.append(step)
        # Exact type: batches of a subclass may have a structure, such as one class each, that must not be broken up.
        if type(source) is BatchSampler:
            current = [
                [index for step in current for index in step][rank :: self.world_size]
                for rank in range(self.world_size)
            ]
            current = current if current[-1] else []
        if len(current) == self.world_size:
            yield current[self.rank]

    def length(self, source: Any, total: int) -> int:
        """Return the number of steps per rank.

        Args:
            source: The sampler or batch sampler of the steps.
            total: Number of steps of all ranks together.
        """
        if self.world_size == 1:
            return total
        full, rest = self._count_unchanged_steps(source, total), 0
        if type(source) is BatchSampler:
            # With `drop_last`, the batches contain fewer samples than the sampler yields.
            rest = min(total * source.batch_size, len(source.sampler)) - full * source.batch_size  # type: ignore[arg-type]
        return full // self.world_size + (rest >= self.world_size)

    def _count_unchanged_steps(self, source: Any, total: int) -> int:
        """Return the number of steps that are assigned unchanged: those of all rounds, or of all but the last."""
        # The last round of a BatchSampler is redistributed even if it is complete, because its last batch may be small.
        if type(source) is BatchSampler and total:
            return (total - 1) // self.world_size * self.world_size
        return total // self.world_size * self.world_size
