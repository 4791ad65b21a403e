from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
    get_worker_info,
)

from hookbus.errors import LoopError
from hookbus.testing import fingerprint
from hookbus.training.data import Feed, ReplayFeed, SeededFeed, StatefulFeed, feed_of
from hookbus.training.loaders import can_be_divided, datasets_in, length_of
from hookbus.training.rng import get_rng_state, mix, set_rng_state
from hookbus.training.train_shard import Part

SEED = 11


class Noisy(Dataset[Any]):
    """Ten samples, augmented at random from the streams of torch, Python and NumPy."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: Any) -> torch.Tensor:
        indices = index if isinstance(index, list) else [index]
        noise = torch.rand(()) + random.random() + float(np.random.rand())
        return torch.tensor([float(i) for i in indices]) + noise


class ReadsBatches(Noisy):
    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        return [self[index] for index in indices]


class ByName(Noisy):
    def __getitem__(self, index: Any) -> torch.Tensor:
        return super().__getitem__(len(index))


class Pairs(Sampler[list[int]]):
    """A batch sampler with a generator of its own, which it moves on with every epoch."""

    def __init__(self) -> None:
        self.rng = random.Random(3)

    def __len__(self) -> int:
        return 4

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(4):
            yield [self.rng.randrange(10), self.rng.randrange(10)]


def mixed_up(samples: list[torch.Tensor]) -> torch.Tensor:
    return default_collate(samples) * torch.rand(()) + random.random()


def start(worker: int) -> None:
    random.seed(worker)


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(5)


LOADERS: dict[str, Callable[..., DataLoader[Any]]] = {
    "in order": lambda **o: DataLoader(Noisy(), batch_size=3, **o),
    "shuffled": lambda **o: DataLoader(Noisy(), batch_size=3, shuffle=True, **o),
    "last one dropped": lambda **o: DataLoader(Noisy(), batch_size=3, shuffle=True, drop_last=True, **o),
    "with a generator": lambda **o: DataLoader(Noisy(), batch_size=3, shuffle=True, generator=generator(), **o),
    "weighted": lambda **o: DataLoader(Noisy(), batch_size=4, sampler=WeightedRandomSampler(range(1, 11), 12), **o),
    "a part": lambda **o: DataLoader(Noisy(), batch_size=2, sampler=SubsetRandomSampler([1, 3, 5, 7, 9]), **o),
    "indices in a tensor": lambda **o: DataLoader(
        Noisy(), batch_size=2, sampler=SubsetRandomSampler(torch.arange(7)), **o
    ),
    "a batch sampler": lambda **o: DataLoader(Noisy(), batch_sampler=Pairs(), **o),
    "no batches": lambda **o: DataLoader(Noisy(), batch_size=None, shuffle=True, **o),
    "lists of indices": lambda **o: DataLoader(
        Noisy(), batch_size=None, sampler=BatchSampler(RandomSampler(range(10)), 4, drop_last=False), **o
    ),
    "a collating function": lambda **o: DataLoader(Noisy(), batch_size=3, shuffle=True, collate_fn=mixed_up, **o),
    "one for single samples": lambda **o: DataLoader(
        Noisy(), batch_size=None, collate_fn=lambda x: x * random.random(), **o
    ),
    "plain data, mixed up": lambda **o: DataLoader([torch.ones(2)] * 6, batch_size=3, collate_fn=mixed_up, **o),
    "plain data": lambda **o: DataLoader(TensorDataset(torch.arange(10)), batch_size=3, shuffle=True, **o),
    "a start function": lambda **o: DataLoader(Noisy(), batch_size=3, worker_init_fn=start, **o),
    "a subset": lambda **o: DataLoader(Subset(ReadsBatches(), [8, 6, 4, 2, 0]), batch_size=2, shuffle=True, **o),
    "data in two": lambda **o: DataLoader(ConcatDataset([Noisy(), Noisy()]), batch_size=6, shuffle=True, **o),
    "data read in batches": lambda **o: DataLoader(ReadsBatches(), batch_size=4, shuffle=True, **o),
    "indices that are texts": lambda **o: DataLoader(ByName(), batch_size=2, sampler=["a", "bb", "c", "ddd"], **o),
}


def seen(batches: Iterator[Any]) -> list[str]:
    """What the batches hold, in a form that can be compared."""
    return [fingerprint(batch) for batch in batches]


class TestSeededFeed:
    @pytest.mark.parametrize("kind", LOADERS)
    def test_every_place_of_every_epoch_is_reached_at_once(self, kind: str) -> None:
        feed = feed_of(LOADERS[kind](), SEED)
        assert isinstance(feed, SeededFeed)
        whole = {epoch: seen(feed.batches(epoch, 0)) for epoch in (0, 1)}

        assert len(whole[0]) == feed.length == len(LOADERS[kind]())
        for epoch in (1, 0):
            for skip in range(len(whole[epoch]) + 1):
                torch.rand(3), random.random(), np.random.rand()
                assert seen(feed.batches(epoch, skip)) == whole[epoch][skip:]

    @pytest.mark.parametrize("kind", LOADERS)
    def test_workers_read_the_same(self, kind: str) -> None:
        expected = seen(feed_of(LOADERS[kind](), SEED).batches(1, 1))

        assert seen(feed_of(LOADERS[kind](num_workers=2), SEED).batches(1, 1)) == expected

    @pytest.mark.parametrize("kind", LOADERS)
    def test_epochs_and_seeds_differ(self, kind: str) -> None:
        feed, other = feed_of(LOADERS[kind](), SEED), feed_of(LOADERS[kind](), SEED + 1)
        epochs = [tuple(seen(feed.batches(epoch, 0))) for epoch in range(3)]

        assert len(set(epochs)) == 3
        assert tuple(seen(other.batches(0, 0))) != epochs[0]

    @pytest.mark.parametrize("kind", LOADERS)
    def test_the_random_streams_of_the_training_are_untouched(self, kind: str) -> None:
        feed = feed_of(LOADERS[kind](), SEED)
        before = fingerprint(get_rng_state())
        list(feed.batches(0, 1))

        assert fingerprint(get_rng_state()) == before

    def test_a_generator_of_the_users_is_untouched(self) -> None:
        own = generator()
        loader = DataLoader(Noisy(), batch_size=3, shuffle=True, generator=own)
        list(feed_of(loader, SEED).batches(0, 0))

        assert torch.equal(own.get_state(), generator().get_state())

    def test_the_order_is_what_the_loader_draws_after_that_seed(self) -> None:
        loader = DataLoader(TensorDataset(torch.arange(10)), batch_size=3, shuffle=True)
        torch.manual_seed(mix(SEED, 4))
        order = list(loader.batch_sampler)

        assert [batch.tolist() for [batch] in feed_of(loader, SEED).batches(4, 0)] == order

    def test_workers_that_persist_read_every_epoch_anew(self) -> None:
        class Who(Noisy):
            def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
                return os.getpid(), super().__getitem__(index)

        def build(**options: Any) -> Feed:
            return feed_of(DataLoader(Who(), batch_size=2, shuffle=True, **options), SEED)

        feed, alone = build(num_workers=2, persistent_workers=True), build()
        processes = set()
        for epoch, skip in [(0, 0), (1, 0), (1, 3), (0, 2)]:
            batches = list(feed.batches(epoch, skip))
            processes |= {int(pid) for pids, _ in batches for pid in pids}
            assert seen(sample for _, sample in batches) == seen(sample for _, sample in alone.batches(epoch, skip))

        assert len(processes) == 2

    def test_an_epoch_that_was_left_early_does_not_disturb_the_next(self) -> None:
        feed = feed_of(LOADERS["shuffled"](num_workers=2, persistent_workers=True), SEED)
        next(feed.batches(0, 0))

        assert seen(feed.batches(1, 0)) == seen(feed_of(LOADERS["shuffled"](), SEED).batches(1, 0))

    def test_a_start_function_finds_its_own_data_set(self) -> None:
        class Opened(Noisy):
            offset = 0

            def open(self, offset: int) -> None:
                self.offset = offset

            def __getitem__(self, index: int) -> int:
                os.kill(os.getpid(), signal.SIGINT)  # ignored in a worker
                return index + self.offset

        def opening(worker: int) -> None:
            get_worker_info().dataset.open(100)

        loader = DataLoader(Opened(), batch_size=5, num_workers=1, worker_init_fn=opening)
        found = [batch.tolist() for batch in feed_of(loader, SEED).batches(0, 0)]

        assert found == [[100, 101, 102, 103, 104], [105, 106, 107, 108, 109]]

    def test_the_length_is_that_of_the_epoch(self) -> None:
        class Grows(Sampler[int]):
            epoch = 0

            def set_epoch(self, epoch: int) -> None:
                self.epoch = epoch

            def __len__(self) -> int:
                return 2 + self.epoch

            def __iter__(self) -> Iterator[int]:
                return iter(range(len(self)))

        feed = feed_of(DataLoader(Noisy(), batch_size=1, sampler=Grows()), SEED)
        lengths = []
        for epoch in range(3):
            assert len(list(feed.batches(epoch, 1))) == 1 + epoch
            lengths.append(feed.length)

        assert lengths == [2, 3, 4]

    def test_nothing_has_to_be_kept(self) -> None:
        feed = feed_of(LOADERS["shuffled"](), SEED)
        list(feed.batches(2, 0))
        fresh = feed_of(LOADERS["shuffled"](), SEED)
        fresh.load_state_dict(feed.state_dict())

        assert feed.state_dict() == {}
        assert seen(fresh.batches(2, 0)) == seen(feed.batches(2, 0))


class RecordsEpochs(Sampler[int]):
    """A sampler that writes down what it is told, and when it is iterated."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def set_epoch(self, epoch: int) -> None:
        self.calls.append(epoch)

    def __len__(self) -> int:
        return 4

    def __iter__(self) -> Iterator[int]:
        self.calls.append("iterated")
        return iter(range(4))


class KnowsItsEpoch(Dataset[int]):
    """Samples that are the epoch which the data set was told of."""

    epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return self.epoch


class TestSetEpoch:
    EXPECTED = (0, "iterated", 1, "iterated", 2, "iterated")

    @pytest.mark.parametrize("around", [lambda data: data, lambda data: ConcatDataset([Subset(data, range(4))])])
    @pytest.mark.parametrize("persistent", [False, True])
    def test_the_data_set_is_told_in_the_workers_that_read_it(self, persistent: bool, around: Any) -> None:
        loader = DataLoader(around(KnowsItsEpoch()), batch_size=2, num_workers=2, persistent_workers=persistent)
        feed = feed_of(loader, SEED)

        assert [[batch.tolist() for batch in feed.batches(epoch, 0)] for epoch in (0, 1, 5)] == [
            [[epoch, epoch], [epoch, epoch]] for epoch in (0, 1, 5)
        ]

    @staticmethod
    def read(loader: Any) -> None:
        feed = feed_of(loader, SEED)
        for epoch in range(3):
            list(feed.batches(epoch, 0))

    @pytest.mark.parametrize(
        "build",
        [
            lambda sampler: DataLoader(Noisy(), batch_size=2, sampler=sampler),
            lambda sampler: DataLoader(Noisy(), batch_size=None, sampler=sampler),
            lambda sampler: DataLoader(Noisy(), batch_sampler=BatchSampler(sampler, 2, drop_last=False)),
        ],
    )
    def test_a_sampler_is_told_once_before_each_epoch_is_drawn(self, build: Callable[[Any], Any]) -> None:
        sampler = RecordsEpochs()
        self.read(build(sampler))

        assert tuple(sampler.calls) == self.EXPECTED

    def test_a_batch_sampler_is_told(self) -> None:
        class Batches(RecordsEpochs):
            def __iter__(self) -> Iterator[Any]:
                super().__iter__()
                return iter([[0, 1], [2], [3], [4]])

        batches = Batches()
        self.read(DataLoader(Noisy(), batch_sampler=batches))

        assert tuple(batches.calls) == self.EXPECTED

    def test_the_sampler_of_a_loader_that_is_read_as_it_is_is_told(self) -> None:
        class Own(DataLoader[Any]):
            def __iter__(self) -> Any:
                return super().__iter__()

        sampler = RecordsEpochs()
        loader = Own(Noisy(), batch_size=2, sampler=sampler)
        assert isinstance(feed_of(loader, SEED), ReplayFeed)
        self.read(loader)

        assert tuple(sampler.calls) == self.EXPECTED

    def test_a_loader_and_a_data_set_are_told(self) -> None:
        class Streams(IterableDataset[int]):
            told: tuple[int, ...] = ()

            def set_epoch(self, epoch: int) -> None:
                self.told += (epoch,)

            def __iter__(self) -> Iterator[int]:
                return iter([len(self.told)])

        class Loader:
            dataset = Streams()
            told: tuple[int, ...] = ()

            def set_epoch(self, epoch: int) -> None:
                self.told += (epoch,)

            def __iter__(self) -> Iterator[int]:
                return iter(self.dataset)

        loader = Loader()
        self.read(loader)
        streams = Streams()
        self.read(DataLoader(streams, batch_size=None))

        assert loader.told == loader.dataset.told == streams.told == (0, 1, 2)

    def test_a_stateful_loader_is_told_also_when_it_goes_on(self) -> None:
        class Told(Remembers):
            told: tuple[int, ...] = ()

            def set_epoch(self, epoch: int) -> None:
                self.told += (epoch,)

        loader = Told()
        self.read(loader)
        assert loader.told == (0, 1, 2)
        resumed = Told()
        feed = feed_of(resumed, SEED)
        feed.load_state_dict(feed_of(loader, SEED).state_dict())
        list(feed.batches(3, 0))
        assert resumed.told == (3,)


class Remembers:
    """A loader that knows its place, and draws the order of each epoch from a generator of its own."""

    def __init__(self) -> None:
        self.rng = random.Random(0)
        self.order: list[int] = []
        self.at = 0
        self.ended = True
        self.goes_on = False

    def __len__(self) -> int:
        return 5

    def __iter__(self) -> Iterator[int]:
        if self.ended or not self.goes_on:
            self.order, self.at = self.rng.sample(range(100), 5), 0
        self.goes_on = self.ended = False
        return self.rest()

    def rest(self) -> Iterator[int]:
        while self.at < 5:
            self.at += 1
            yield self.order[self.at - 1]
        self.ended = True

    def state_dict(self) -> dict[str, Any]:
        return {"rng": self.rng.getstate(), "order": list(self.order), "at": self.at, "ended": self.ended}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rng.setstate(state["rng"])
        self.order, self.at, self.ended, self.goes_on = list(state["order"]), state["at"], state["ended"], True


def resumed_feed(feed: Feed, loader: Any) -> Feed:
    fresh = feed_of(loader, SEED)
    fresh.load_state_dict(feed.state_dict())
    return fresh


class TestStatefulFeed:
    @staticmethod
    def epochs() -> list[list[int]]:
        feed = feed_of(Remembers(), SEED)
        assert isinstance(feed, StatefulFeed)
        return [list(feed.batches(epoch, 0)) for epoch in range(3)]

    @pytest.mark.parametrize("place", [1, 3, 5])
    def test_goes_on_in_the_middle_of_an_epoch(self, place: int) -> None:
        whole = self.epochs()
        feed = feed_of(Remembers(), SEED)
        list(feed.batches(0, 0)), list(islice(feed.batches(1, 0), place))
        resumed = resumed_feed(feed, Remembers())

        assert [list(resumed.batches(1, place)), list(resumed.batches(2, 0))] == [whole[1][place:], whole[2]]

    def test_goes_on_with_the_next_epoch_after_a_whole_one(self) -> None:
        feed = feed_of(Remembers(), SEED)
        list(feed.batches(0, 0))
        resumed = resumed_feed(feed, Remembers())

        assert [list(resumed.batches(1, 0)), list(resumed.batches(2, 0))] == self.epochs()[1:]

    @pytest.mark.parametrize("place", [1, 4, 5])
    def test_begins_the_next_epoch_after_one_that_was_left_early(self, place: int) -> None:
        feed = feed_of(Remembers(), SEED)
        list(islice(feed.batches(0, 0), place))
        resumed = resumed_feed(feed, Remembers())

        assert list(resumed.batches(1, 0)) == list(feed.batches(1, 0))

    def test_nothing_is_left_of_an_epoch_of_which_all_was_read_even_if_the_loader_begins_again(self) -> None:
        class BeginsAgain(Remembers):
            def __iter__(self) -> Iterator[int]:
                self.ended = self.at == 5
                return super().__iter__()

        feed = feed_of(BeginsAgain(), SEED)
        list(islice(feed.batches(0, 0), 5))

        assert list(resumed_feed(feed, BeginsAgain()).batches(0, 5)) == []

    def test_going_on_draws_nothing_that_the_uninterrupted_run_did_not_draw(self) -> None:
        class Draws(Remembers):
            def __iter__(self) -> Iterator[int]:
                torch.rand(())
                return super().__iter__()

        feed = feed_of(Draws(), SEED)
        list(islice(feed.batches(0, 0), 2))
        within, after = resumed_feed(feed, Draws()), resumed_feed(feed, Draws())
        before = fingerprint(get_rng_state())
        within.batches(0, 2)
        assert fingerprint(get_rng_state()) == before

        torch.manual_seed(1)
        after.batches(1, 0)
        resumed = fingerprint(get_rng_state())
        torch.manual_seed(1)
        feed.batches(1, 0)
        assert fingerprint(get_rng_state()) == resumed

    def test_a_place_that_was_loaded_and_not_yet_used_is_handed_on(self) -> None:
        feed = feed_of(Remembers(), SEED)
        list(islice(feed.batches(0, 0), 2))
        again = resumed_feed(resumed_feed(feed, Remembers()), Remembers())

        assert list(again.batches(0, 2)) == self.epochs()[0][2:]

    def test_a_loader_whose_place_nobody_kept_is_read_up_to_it(self) -> None:
        feed = feed_of(Remembers(), SEED)

        assert list(feed.batches(0, 2)) == self.epochs()[0][2:]


class Stream(IterableDataset[float]):
    """Numbers that depend on the random stream at the beginning of the epoch."""

    def __iter__(self) -> Iterator[float]:
        order = torch.randperm(6)
        return iter(order.tolist())


REPLAYED: dict[str, Callable[[], Any]] = {
    "an iterable data set": lambda: DataLoader(Stream(), batch_size=None),
    "one read by workers": lambda: DataLoader(Stream(), batch_size=None, num_workers=1),
    "a list": lambda: [torch.tensor(i) for i in range(6)],
    "an endless sampler": lambda: DataLoader(Noisy(), batch_size=2, sampler=WithoutLength()),
}


class WithoutLength(Sampler[int]):
    """Draws for ever, as those of detection libraries do."""

    def __iter__(self) -> Iterator[int]:
        while True:
            yield from torch.randperm(10).tolist()


class TestReplayFeed:
    @staticmethod
    def first(batches: Iterator[Any]) -> list[str]:
        return seen(islice(batches, 6))

    @pytest.mark.parametrize("kind", REPLAYED)
    def test_reads_up_to_the_place(self, kind: str) -> None:
        torch.manual_seed(1)
        feed = feed_of(REPLAYED[kind](), SEED)
        assert isinstance(feed, ReplayFeed)
        self.first(feed.batches(0, 0)), torch.rand(1)
        batches = feed.batches(1, 0)
        next(batches), next(batches)
        fresh = feed_of(REPLAYED[kind](), SEED)
        fresh.load_state_dict(feed.state_dict())
        state = get_rng_state()
        rest = self.first(batches)
        set_rng_state(state)

        assert self.first(fresh.batches(1, 2)) == rest

    def test_leaves_the_random_streams_where_the_checkpoint_had_them(self) -> None:
        feed = feed_of(REPLAYED["an iterable data set"](), SEED)
        next(feed.batches(0, 0))
        fresh = feed_of(REPLAYED["an iterable data set"](), SEED)
        fresh.load_state_dict(feed.state_dict())
        before = fingerprint(get_rng_state())
        fresh.batches(0, 3)

        assert fingerprint(get_rng_state()) == before

    def test_without_a_state_the_place_is_counted_from_here(self) -> None:
        assert list(feed_of([1, 2, 3], SEED).batches(0, 2)) == [3]

    def test_before_the_first_epoch_there_is_nothing_to_keep(self) -> None:
        feed = feed_of([1], SEED)

        assert feed.state_dict() == {}
        feed.load_state_dict({})
        assert list(feed.batches(0, 0)) == [1]


class TestLength:
    def test_every_kind_of_feed_knows_it(self) -> None:
        sequential = DataLoader(Noisy(), sampler=SequentialSampler(range(10)))

        assert [feed_of(each, SEED).length for each in (sequential, Remembers(), [1, 2], iter([1]))] == [10, 5, 2, None]

    def test_only_what_is_found_without_reading_is_exact(self) -> None:
        assert [feed_of(each, SEED).exact for each in (LOADERS["shuffled"](), Remembers(), [1])] == [True, True, False]


class TestAPartOfTheData:
    """Of 10 samples in batches of 3, two ranks read 2 batches each: one of 3, and one of 2."""

    LOADER = DataLoader(Noisy(), batch_size=3, shuffle=True)

    def part(self, rank: int) -> Feed:
        return feed_of(self.LOADER, SEED, part=Part(rank, 2))

    def test_is_that_of_the_order_that_one_process_reads(self) -> None:
        whole = seen(feed_of(DataLoader(Noisy(), batch_size=1, shuffle=True), SEED).batches(1, 0))
        batches = [batch for rank in (0, 1) for batch in self.part(rank).batches(1, 0)]

        assert [len(batch) for batch in batches] == [3, 2, 3, 2]
        assert sorted(seen(sample[None] for batch in batches for sample in batch)) == sorted(whole)

    def test_is_read_from_any_place(self) -> None:
        assert seen(self.part(1).batches(1, 1)) == seen(self.part(1).batches(1, 0))[1:]

    def test_has_a_length_before_it_is_read(self) -> None:
        assert length_of(self.LOADER, Part(0, 2)) == self.part(0).length == 2

    def test_is_made_by_a_sampler_that_knows_of_processes(self) -> None:
        data: Any = range(8)
        loader = DataLoader(data, batch_size=2, sampler=DistributedSampler(data, 2, 1, shuffle=False))

        assert not can_be_divided(loader)
        assert length_of(loader, Part(1, 2)) == 2
        assert [each.tolist() for each in feed_of(loader, SEED, part=Part(1, 2)).batches(0, 0)] == [[1, 3], [5, 7]]

    @pytest.mark.parametrize("loader", [[1, 2, 3], DataLoader(Stream(), batch_size=2)], ids=["list", "stream"])
    def test_of_anything_else_is_all_of_it(self, loader: Any) -> None:
        assert not can_be_divided(loader)
        assert length_of([1, 2, 3], Part(1, 2)) == 3


class Scaled(Dataset[Any]):
    """Gives (scale, index); the scale is what it was last told."""

    def __init__(self, count: int = 10) -> None:
        self.count, self.scale = count, -1

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[int, int]:
        return self.scale, index


class ScaledInBatches(Scaled):
    def __getitems__(self, indices: list[int]) -> list[tuple[int, int]]:
        return [self[index] for index in indices]


class ScaledStream(IterableDataset[Any]):
    def __init__(self) -> None:
        self.scale = -1

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return ((self.scale, index) for index in range(10))


def tell(dataset: Any, epoch: int, iteration: int) -> None:
    for each in datasets_in(dataset):
        if hasattr(each, "scale"):
            each.scale = 100 * epoch + iteration


SCALED: dict[str, Callable[..., Any]] = {
    "in order": lambda **o: DataLoader(Scaled(), batch_size=3, **o),
    "shuffled": lambda **o: DataLoader(Scaled(), batch_size=3, shuffle=True, **o),
    "a part": lambda **o: DataLoader(Subset(Scaled(), list(range(10))), batch_size=3, **o),
    "two": lambda **o: DataLoader(ConcatDataset([Scaled(4), Scaled(6)]), batch_size=3, **o),
    "in batches": lambda **o: DataLoader(ScaledInBatches(), batch_size=3, **o),
    "mixed up": lambda **o: DataLoader(Scaled(), batch_size=3, collate_fn=list, **o),
    "a batch sampler": lambda **o: DataLoader(Scaled(), batch_sampler=Pairs(), **o),
}
READ_HERE: dict[str, Callable[[], Any]] = {
    "a stream": lambda: DataLoader(ScaledStream(), batch_size=3),
    "a loader of one's own": lambda: RemembersScale(),
}


class RemembersScale(Dataset[Any]):
    """A loader with a place, which reads from a data set."""

    def __init__(self) -> None:
        self.dataset, self.at = Scaled(), 0

    def __iter__(self) -> Iterator[list[Any]]:
        while self.at < 4:
            self.at += 1
            yield [[self.dataset.scale]]
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


def scales(batches: Iterator[Any]) -> list[int]:
    """The one scale of each batch."""
    found = []
    for batch in batches:
        told = {int(each) for each in (batch[0] if isinstance(batch[0], torch.Tensor) else [s for s, *_ in batch])}
        assert len(told) == 1
        found.append(told.pop())
    return found


class TestWhatIsDoneBeforeReading:
    @pytest.mark.parametrize("kind", SCALED)
    @pytest.mark.parametrize("workers", [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}])
    def test_reaches_every_batch_wherever_it_is_read(self, kind: str, workers: dict[str, Any]) -> None:
        feed = feed_of(SCALED[kind](**workers), SEED, [tell])

        assert scales(feed.batches(0, 0)) == [0, 1, 2, 3]
        assert scales(feed.batches(2, 0, 8)) == [208, 209, 210, 211]
        assert scales(feed.batches(2, 2, 10)) == [210, 211]

    def test_reaches_workers_that_are_spawned(self) -> None:
        loader = DataLoader(Scaled(), batch_size=5, num_workers=1, multiprocessing_context="spawn")

        assert scales(feed_of(loader, SEED, [tell]).batches(1, 0, 7)) == [107, 108]

    def test_reaches_samples_that_come_one_by_one(self) -> None:
        batches = feed_of(DataLoader(Scaled(3), batch_size=None), SEED, [tell]).batches(1, 1, 4)

        assert [scale for scale, _ in batches] == [104, 105]

    @pytest.mark.parametrize("kind", READ_HERE)
    def test_reaches_loaders_that_are_read_in_this_process(self, kind: str) -> None:
        assert scales(feed_of(READ_HERE[kind](), SEED, [tell]).batches(1, 0, 5)) == [105, 106, 107, 108]

    def test_counts_the_batches_that_are_read_again(self) -> None:
        told: list[tuple[int, int]] = []
        feed = ReplayFeed(range(5), [lambda dataset, epoch, iteration: told.append((epoch, iteration))])
        list(feed.batches(1, 0, 5))
        del told[:]
        batches = list(feed.batches(1, 3, 8))

        assert batches == [3, 4]
        assert told == [(1, 5), (1, 6), (1, 7), (1, 8), (1, 9), (1, 10)]

    def test_changes_neither_order_nor_samples(self) -> None:
        for kind, loader in LOADERS.items():
            plain = seen(feed_of(loader(), SEED).batches(1, 1))
            assert seen(feed_of(loader(), SEED, [lambda *_: torch.rand(2)]).batches(1, 1)) == plain, kind

    def test_a_worker_is_started_with_the_users_own_data_set(self) -> None:
        loader = DataLoader(Scaled(), batch_size=5, num_workers=1, worker_init_fn=expects_scaled)

        assert scales(feed_of(loader, SEED, [tell]).batches(0, 0)) == [0, 1]

    def test_says_why_it_cannot_reach_the_workers_of_a_stream(self) -> None:
        loader = DataLoader(ScaledStream(), num_workers=2)

        with pytest.raises(LoopError, match=r"cannot reach the workers of this DataLoader: give a DataLoader of a map"):
            feed_of(loader, SEED, [tell])
        assert isinstance(feed_of(loader, SEED), ReplayFeed)


def expects_scaled(worker: int) -> None:
    assert type(get_worker_info().dataset) is Scaled  # type: ignore[union-attr]
