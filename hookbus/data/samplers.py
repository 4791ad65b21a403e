"""Samplers whose order is a function of seed and position, and the shards of the data that a rank reads.

The order depends on (seed, epoch), and in a later pass over the data within an epoch on (seed, epoch, ordinal of the
pass). It is read in small parts, so that an epoch takes the time and the memory that the sampler itself takes.

Training batches are assigned to ranks round-robin: the first batches of all ranks together contain the samples that a
single process would read first. Every rank has the same number of batches, because gradients are reduced over all
ranks. Evaluation batches are not split or padded: each sample is evaluated exactly once, in the batch of a single
process, and a rank may have one batch fewer than another, or none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, RandomSampler, SequentialSampler

from hookbus.data.limited_loader import LimitedSampler
from hookbus.data.loaders import clone_loader, index_sampler, is_rebuildable
from hookbus.data.rng import SamplerRNG, derive_seed


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


class EvalShard(TrainShard):
    """Steps of an evaluation that one rank reads: `rank`, `rank + world_size`, ..."""

    def select(self, source: Any, steps: Iterable[Any]) -> Iterator[Any]:
        """Return an iterator over the steps of this rank."""
        return islice(steps, self.rank, None, self.world_size)

    def length(self, source: Any, total: int) -> int:
        """Return the number of steps of this rank."""
        return len(range(self.rank, total, self.world_size))


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


def shard_loader(
    loader: Any, rank: int, world_size: int, seed: int, *, complete: bool = False
) -> DataLoader[Any] | None:
    """Return a copy of a loader that reads the batches `rank`, `rank + world_size`, ... only.

    A torch DistributedSampler, which pads, is replaced with a sequential sampler of the full dataset.

    Args:
        loader: The loader of a single process, equal on all ranks.
        rank: Rank of this process, from 0.
        world_size: Number of processes.
        seed: Seed of the order if the loader shuffles, equal on all ranks.
        complete: Whether to read a dataset that torch's RandomSampler shuffles in its own order, and a last batch that
            `drop_last` of torch's BatchSampler drops. Default: False.

    Returns:
        The loader of this rank. None if the loader cannot be sharded, because it is not a map-style DataLoader or its
        sampler shards the data already (it has an attribute `num_replicas`).
    """
    if not is_rebuildable(loader):
        return None
    batched, source = loader.batch_sampler is not None, _get_full_sampler(loader, complete)
    if source is None:
        return None
    sampler = SeededSampler(source, batched=batched, keyed=False, shard=EvalShard(rank, world_size))
    # The same epoch and seed each time, so that all ranks agree on the order without communication.
    sampler.set_position(PassPosition(0), seed)
    return clone_loader(loader, sampler)


def _get_full_sampler(loader: DataLoader[Any], complete: bool) -> Any:
    """Return the sampler of the full dataset, or None if the loader shards the data itself."""
    source = index_sampler(loader)
    if not isinstance(source, LimitedSampler):
        return _complete_sampler(loader, source, complete)
    full = _complete_sampler(loader, source.source, complete=False)
    if full is None or full is source.source:
        return None if full is None else source
    # The limit is the number of batches of one rank, as that of the DistributedSampler is.
    sampler = source.source if loader.batch_sampler is None else source.sampler
    return LimitedSampler(full, source.limit * sampler.num_replicas)


def _complete_sampler(loader: DataLoader[Any], source: Any, complete: bool) -> Any:
    sampler = source if loader.batch_sampler is None else getattr(source, "sampler", source)
    if not isinstance(sampler, DistributedSampler) and hasattr(sampler, "num_replicas"):
        return None
    # Exact type: a subclass may group the samples.
    completes = complete and (sampler is source or type(source) is BatchSampler)
    full: Any = sampler
    # The padding of a DistributedSampler evaluates some samples twice, which changes the results.
    if isinstance(sampler, DistributedSampler) or (completes and _is_permutation(sampler, loader.dataset)):
        full = SequentialSampler(loader.dataset)  # type: ignore[arg-type]
    if sampler is source:
        return full
    if full is sampler and not (completes and source.drop_last):
        return source
    return BatchSampler(full, source.batch_size, drop_last=source.drop_last and not completes)


def _is_permutation(sampler: Any, dataset: Any) -> bool:
    """Whether a sampler yields each sample of a dataset once, in random order."""
    is_random = type(sampler) is RandomSampler and not sampler.replacement
    return is_random and sampler.data_source is dataset and sampler.num_samples == len(dataset)
