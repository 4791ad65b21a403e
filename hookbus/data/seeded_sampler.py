"""Sampler whose order is a function of seed and position.

The order depends on (seed, epoch), and in a later pass over the data within an epoch on (seed, epoch, ordinal of the
pass). It is read in small parts, so that an epoch takes the time and the memory that the sampler itself takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from hookbus.data.rng import SamplerRNG, derive_seed
from hookbus.data.train_shard import TrainShard

INDICES_PER_READ = 32_768
"""Number of indices that are read at once. Each read exchanges the RNG states, which takes about 0.2 ms."""


@dataclass(frozen=True, slots=True)
class PassPosition:
    """Position of a pass over the training data.

    Attributes:
        epoch: Index of the epoch.
        skip: Number of steps to skip at the start of the pass.
        iteration: Iteration of the first step that is not skipped.
        ordinal: Index of the pass within its epoch.
    """

    epoch: int
    skip: int = 0
    iteration: int = 0
    ordinal: int = 0

    def derive_seed(self, seed: int) -> int:
        """Return the seed of the order of this pass, derived from the seed of the run."""
        return derive_seed(seed, self.epoch, self.ordinal) if self.ordinal else derive_seed(seed, self.epoch)

    @property
    def key(self) -> int:
        """Number that identifies the pass in the keys of a `SeededDataset`: the epoch for the first pass."""
        return derive_seed(self.epoch, self.ordinal) if self.ordinal else self.epoch


class SeededSampler:
    """Sampler or batch sampler that yields the steps of another one in seeded order, from a position on.

    A step is an index, or a batch of indices. An epoch has `len(source)` steps, so `source` may be infinite.

    Args:
        source: The sampler or batch sampler; its length is known.
        batched: Whether `source` yields batches of indices.
        keyed: Whether to convert indices to keys of a `SeededDataset`.
        numbered: Whether to convert indices or keys to keys of a `HookedDataset`.
        shard: The steps to yield. Default: all steps.
    """

    def __init__(
        self, source: Any, *, batched: bool, keyed: bool, numbered: bool = False, shard: TrainShard | None = None
    ) -> None:
        self._source, self._batched, self._keyed, self._numbered = source, batched, keyed, numbered
        self._shard = shard or TrainShard()
        self._position, self._seed, self._length = PassPosition(0), 0, 0

    def __getattr__(self, name: str) -> Any:
        # Accelerate reads the batch size and the number of processes from the batch sampler.
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._source, name)

    def set_position(self, position: PassPosition, seed: int) -> int:
        """Set the position and the seed of iterators that are created afterwards.

        Args:
            position: The position.
            seed: Seed of the order.

        Returns:
            Number of steps of the pass in this shard, including the skipped ones.
        """
        self._position, self._seed = position, seed
        self._length = self._shard.length(self._source, len(self._source))
        return self._length

    def __iter__(self) -> Iterator[Any]:
        return self._iter_keys(self._position, self._seed)

    def __len__(self) -> int:
        return max(self._length - self._position.skip, 0)

    def _iter_keys(self, position: PassPosition, seed: int) -> Iterator[Any]:
        """Yield the steps of this shard from a position on."""
        key = position.key
        # A round of the shard contains one step per rank.
        steps = self._shard.select(self._source, self._read_steps(seed, position.skip * self._shard.world_size))
        for number, step in enumerate(steps, position.iteration):
            keys = self._pair(key, step) if self._keyed else step
            yield self._pair((position.epoch, number), keys) if self._numbered else keys

    def _pair(self, first: Any, step: Any) -> Any:
        return [(first, index) for index in step] if self._batched else (first, step)

    def _read_steps(self, seed: int, skip: int) -> Iterator[Any]:
        """Yield the steps of an epoch from a position on, without changing the state of any RNG."""
        rng = SamplerRNG(self._source, seed)
        with rng.use():
            steps = islice(iter(self._source), len(self._source))
            for _ in islice(steps, skip):
                pass
        while part := self._read_part(rng, steps):
            yield from part

    def _read_part(self, rng: SamplerRNG, steps: Iterator[Any]) -> list[Any]:
        part: list[Any] = []
        count = 0
        with rng.use():
            for step in steps:
                # Batches are copied: a batch sampler may reuse one list for all batches.
                part.append(list(step) if self._batched else step)
                count += len(part[-1]) if self._batched else 1
                if count >= INDICES_PER_READ:
                    break
        return part
