"""Loaders that yield the first batches only, and loaders with a fixed order."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
)

from hookbus import HookBus, build_hook
from hookbus.data.limited_loader import LimitedLoader, LimitedSampler, find_order_problem, fix_order, limit_loader
from hookbus.data.loaders import is_shardable, set_epoch
from hookbus.data.resumable_loader import make_resumable
from hookbus.data.rng import get_rng_state
from hookbus.data.samplers import PassPosition, TrainShard, shard_loader
from hookbus.testing import fingerprint


class Numbers(Dataset[int]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        return index


class Stream(IterableDataset[int]):
    """Stream that counts the samples that were read."""

    def __init__(self) -> None:
        self.read = 0

    def __iter__(self) -> Iterator[int]:
        for index in range(12):
            self.read += 1
            yield index


class StatefulLoader:
    """Loader that saves its own position, as StatefulDataLoader of torchdata does."""

    def __init__(self) -> None:
        self.position, self.restored = 0, 0

    def __len__(self) -> int:
        return 6

    def __iter__(self) -> Iterator[int]:
        start, self.restored = self.restored, 0
        return self._iter_from(start)

    def _iter_from(self, start: int) -> Iterator[int]:
        for index in range(start, 6):
            self.position = index + 1
            yield index

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = self.restored = state["position"]


class Descending(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(11, -1, -1))

    def __len__(self) -> int:
        return 12


def loader(**options: Any) -> DataLoader[int]:
    return DataLoader(Numbers(), **{"batch_size": 2, **options})


def read(data: Any) -> list[Any]:
    return [batch.tolist() if isinstance(batch, torch.Tensor) else batch for batch in data]


def read_pass(data: Any, epoch: int = 0, skip: int = 0, shard: TrainShard | None = None) -> list[Any]:
    return read(make_resumable(data, 3, (), shard).batches(PassPosition(epoch, skip, skip)))


class TestLimitLoader:
    def test_copy_of_a_dataloader_has_its_first_batches(self) -> None:
        limited = limit_loader(loader(), 2)

        assert read(limited) == [[0, 1], [2, 3]]
        assert isinstance(limited, DataLoader)
        assert len(limited) == 2
        assert limited.dataset.__class__ is Numbers

    @pytest.mark.parametrize("limit", [6, 7])
    def test_loader_with_no_more_batches_is_unchanged(self, limit: int) -> None:
        full = loader()
        assert limit_loader(full, limit) is full

    def test_order_is_that_of_the_full_pass(self) -> None:
        full, limited = loader(shuffle=True), limit_loader(loader(shuffle=True), 4)

        for epoch in (0, 1):
            assert read_pass(limited, epoch) == read_pass(full, epoch)[:4]
            assert read_pass(limited, epoch, skip=3) == read_pass(full, epoch)[3:4]
            assert read_pass(limited, epoch, skip=5) == []

    def test_workers_read_no_further_sample(self) -> None:
        limited = limit_loader(loader(num_workers=2, multiprocessing_context="fork"), 3)
        assert read_pass(limited) == [[0, 1], [2, 3], [4, 5]]

    def test_loader_that_does_not_batch_is_limited_in_samples(self) -> None:
        assert read(limit_loader(loader(batch_size=None), 3)) == [0, 1, 2]

    def test_stream_is_read_no_further(self) -> None:
        data = Stream()
        limited = limit_loader(DataLoader(data, batch_size=2), 2)

        assert read_pass(limited) == [[0, 1], [2, 3]]
        assert data.read == 4
        assert len(limited) == 2
        assert read_pass(limited, skip=1) == [[2, 3]]

    def test_stream_that_is_shorter_than_the_limit(self) -> None:
        assert len(read_pass(limit_loader(DataLoader(Stream(), batch_size=2), 9))) == 6

    def test_list_of_batches(self) -> None:
        assert read_pass(limit_loader([1, 2, 3], 2)) == [1, 2]

    def test_loader_that_saves_its_position_continues_within_the_limit(self) -> None:
        limited = make_resumable(limit_loader(StatefulLoader(), 4), 3)
        batches = limited.batches(PassPosition(0))
        assert [next(batches), next(batches)] == [0, 1]
        state = limited.state_dict()

        resumed = make_resumable(limit_loader(StatefulLoader(), 4), 3)
        resumed.load_state_dict(state)
        assert list(resumed.batches(PassPosition(0, 2, 2))) == [2, 3]
        assert list(resumed.batches(PassPosition(1, 0, 4))) == [0, 1, 2, 3]
        assert list(limited.batches(PassPosition(1, 0, 4))) == [0, 1, 2, 3]

    def test_length_of_a_wrapped_loader(self) -> None:
        resumable = make_resumable(limit_loader(StatefulLoader(), 4), 3)
        assert resumable.length == 4
        assert len(LimitedLoader(StatefulLoader(), 9)) == 6

    def test_attributes_of_loader_and_sampler(self) -> None:
        sampler = LimitedSampler(BatchSampler(RandomSampler(range(12)), 5, drop_last=True), 1)

        assert (sampler.batch_size, sampler.drop_last, len(sampler)) == (5, True, 1)
        assert limit_loader(StatefulLoader(), 2).state_dict() == {"position": 0}
        assert len(pickle.loads(pickle.dumps(sampler))) == 1
        assert len(pickle.loads(pickle.dumps(LimitedLoader([1, 2], 1)))) == 1
        assert not hasattr(sampler, "unknown")


class TestShards:
    @pytest.mark.parametrize("rank", [0, 1])
    def test_training_batches_are_assigned_round_robin(self, rank: int) -> None:
        limited = limit_loader(loader(), 4)
        shard = TrainShard(rank, 2)

        assert read_pass(limited, shard=shard) == [[[0, 1], [4, 5]], [[2, 3], [6, 7]]][rank]
        assert make_resumable(limited, 3, (), shard).length == 2

    def test_evaluation_of_all_ranks_reads_the_limited_batches_once(self) -> None:
        limited = limit_loader(loader(), 3)
        shards = [shard_loader(limited, rank, 2, 0) for rank in (0, 1)]
        assert [read(shard) for shard in shards] == [[[0, 1], [4, 5]], [[2, 3]]]

    def test_limit_of_a_distributed_sampler_counts_the_batches_of_each_rank(self) -> None:
        sampler = DistributedSampler(Numbers(), num_replicas=2, rank=1, shuffle=False)
        limited = limit_loader(loader(sampler=sampler), 2)

        assert not is_shardable(limited)
        assert read(limited) == [[1, 3], [5, 7]]
        # The sampler is replaced for an evaluation: 2 x 2 of 6 batches, without padding.
        assert [read(shard_loader(limited, rank, 2, 0)) for rank in (0, 1)] == [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]

    def test_epoch_reaches_the_distributed_sampler(self) -> None:
        sampler = DistributedSampler(Numbers(), num_replicas=2, rank=1)
        set_epoch(limit_loader(loader(sampler=sampler), 2), 5)
        assert sampler.epoch == 5


class TestFixOrder:
    SAMPLERS: ClassVar[dict[str, Any]] = {
        "shuffled": (lambda: {"shuffle": True}, [[0, 1], [2, 3]]),
        "sequential": (dict, [[0, 1], [2, 3]]),
        "distributed": (
            lambda: {"sampler": DistributedSampler(Numbers(), num_replicas=2, rank=1)},
            [[1, 3], [5, 7]],
        ),
        "custom": (lambda: {"sampler": Descending()}, [[11, 10], [9, 8]]),
        "custom batches": (
            lambda: {"batch_size": 1, "batch_sampler": [[5, 6], [7], [8]]},
            [[5, 6], [7]],
        ),
        "not batched": (lambda: {"batch_size": None, "shuffle": True}, [0, 1]),
    }

    @pytest.mark.parametrize("kind", SAMPLERS)
    def test_every_epoch_has_the_same_first_batches(self, kind: str) -> None:
        make, expected = self.SAMPLERS[kind]
        fixed = fix_order(loader(**make()), 2)

        assert [read_pass(fixed, epoch) for epoch in (0, 1, 7)] == [expected] * 3
        assert read_pass(fixed, epoch=7, skip=1) == expected[1:]
        assert read(fixed) == expected

    def test_custom_random_sampler_reads_its_own_samples(self) -> None:
        indices = [3, 5, 8]
        first, second = (fix_order(loader(sampler=SubsetRandomSampler(indices)), 9) for _ in range(2))

        assert sorted(index for batch in read(first) for index in batch) == indices
        # Independent of the global RNGs, so that a resumed run reads the same batches.
        assert read_pass(first) == read_pass(first, 4) == read_pass(second, 9)

    def test_drawing_batches_changes_no_rng(self) -> None:
        generator = torch.Generator()
        sampler, state = SubsetRandomSampler([3, 5, 8], generator=generator), generator.get_state()
        before = fingerprint(get_rng_state())
        fix_order(loader(sampler=sampler), 1)

        assert fingerprint(get_rng_state()) == before
        assert torch.equal(generator.get_state(), state)

    def test_loader_is_not_modified(self) -> None:
        sampler = DistributedSampler(Numbers(), num_replicas=2, rank=0)
        fix_order(loader(sampler=sampler), 2)
        assert sampler.shuffle

    def test_list_is_in_order(self) -> None:
        assert read_pass(fix_order([1, 2, 3], 2), 5) == [1, 2]

    @pytest.mark.parametrize(
        ("make", "reason"),
        [
            (lambda: DataLoader(Stream()), "its dataset is iterable or has no length, so that it has no sampler"),
            (lambda: (i for i in range(3)), "it is no DataLoader but an object of the class generator"),
            (StatefulLoader, "it is no DataLoader but an object of the class StatefulLoader"),
            (lambda: OwnOrder(Numbers()), "OwnOrder defines its own `__iter__`, which may change the order"),
            (lambda: WithState(Numbers()), "WithState saves its own position"),
        ],
    )
    def test_loader_that_cannot_be_rebuilt_is_refused_with_the_reason(self, make: Any, reason: str) -> None:
        assert find_order_problem(make()).startswith(reason)

    @pytest.mark.parametrize("make", [loader, list, lambda: loader(sampler=Descending())])
    def test_other_loaders_are_accepted(self, make: Any) -> None:
        assert find_order_problem(make()) == ""


class OwnOrder(DataLoader[int]):
    def __iter__(self) -> Any:
        return reversed([*super().__iter__()])


class WithState(DataLoader[int]):
    def state_dict(self) -> dict[str, Any]:
        return {}


def test_sampler_that_draws_from_python_random_is_drawn_once() -> None:
    class Shuffled(Descending):
        def __iter__(self) -> Iterator[int]:
            return iter(random.sample(range(12), 12))

    fixed = fix_order(loader(sampler=Shuffled()), 3)
    assert read_pass(fixed, 0) == read_pass(fixed, 1)


def test_custom_loop_resumes_within_the_limited_pass(tmp_path: Path) -> None:
    def train(work_dir: Path, stop_at: int, resume: str = "never") -> list[list[int]]:
        model, batches = torch.nn.Linear(1, 1), list[list[int]]()
        options = {"optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "work_dir": work_dir, "seed": 3}
        limited = limit_loader(loader(shuffle=True), 4)
        bus = HookBus([build_hook({"type": "checkpoint"})])
        with bus.run(model=model, epochs=2, train_loader=limited, resume=resume, **options) as run:
            for _ in run.epochs():
                bus.emit("before_train_epoch")
                for i, batch in run.batches(limited):
                    bus.emit("before_train_iter", batch_idx=i, batch=batch)
                    batches.append(batch.tolist())
                    if run.iters_done + 1 == stop_at:
                        run.request_stop("enough")
                    bus.emit("after_train_iter", batch_idx=i, batch=batch)
                bus.emit("after_train_epoch")
        return batches

    whole = train(tmp_path / "whole", 0)
    assert len(whole) == 8
    assert train(tmp_path / "parts", 6) == whole[:6]
    assert train(tmp_path / "parts", 0, resume="auto") == whole[6:]
