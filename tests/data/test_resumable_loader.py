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

from hookbus.data.iterated_loaders import ReplayLoader, StatefulLoader
from hookbus.data.loaders import is_shardable, iter_datasets, loader_length
from hookbus.data.resumable_loader import ResumableLoader, SeededLoader, make_resumable
from hookbus.data.rng import derive_seed, get_rng_state, set_rng_state
from hookbus.data.samplers import PassPosition, TrainShard
from hookbus.errors import LoopError
from hookbus.testing import fingerprint

SEED = 11


class NoisyDataset(Dataset[Any]):
    """Ten samples, augmented with random numbers of torch, Python and NumPy."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: Any) -> torch.Tensor:
        indices = index if isinstance(index, list) else [index]
        noise = torch.rand(()) + random.random() + float(np.random.rand())
        return torch.tensor([float(i) for i in indices]) + noise


class BatchDataset(NoisyDataset):
    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        return [self[index] for index in indices]


class NamedDataset(NoisyDataset):
    def __getitem__(self, index: Any) -> torch.Tensor:
        return super().__getitem__(len(index))


class PairSampler(Sampler[list[int]]):
    """Batch sampler with its own generator, which advances in every epoch."""

    def __init__(self) -> None:
        self.rng = random.Random(3)

    def __len__(self) -> int:
        return 4

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(4):
            yield [self.rng.randrange(10), self.rng.randrange(10)]


def random_collate(samples: list[torch.Tensor]) -> torch.Tensor:
    return default_collate(samples) * torch.rand(()) + random.random()


def init_worker(worker: int) -> None:
    random.seed(worker)


def make_generator() -> torch.Generator:
    return torch.Generator().manual_seed(5)


LOADERS: dict[str, Callable[..., DataLoader[Any]]] = {
    "in order": lambda **o: DataLoader(NoisyDataset(), batch_size=3, **o),
    "shuffled": lambda **o: DataLoader(NoisyDataset(), batch_size=3, shuffle=True, **o),
    "drop_last": lambda **o: DataLoader(NoisyDataset(), batch_size=3, shuffle=True, drop_last=True, **o),
    "with a generator": lambda **o: DataLoader(
        NoisyDataset(), batch_size=3, shuffle=True, generator=make_generator(), **o
    ),
    "weighted": lambda **o: DataLoader(
        NoisyDataset(), batch_size=4, sampler=WeightedRandomSampler(range(1, 11), 12), **o
    ),
    "subset sampler": lambda **o: DataLoader(
        NoisyDataset(), batch_size=2, sampler=SubsetRandomSampler([1, 3, 5, 7, 9]), **o
    ),
    "tensor of indices": lambda **o: DataLoader(
        NoisyDataset(), batch_size=2, sampler=SubsetRandomSampler(torch.arange(7)), **o
    ),
    "batch sampler": lambda **o: DataLoader(NoisyDataset(), batch_sampler=PairSampler(), **o),
    "no batching": lambda **o: DataLoader(NoisyDataset(), batch_size=None, shuffle=True, **o),
    "lists of indices": lambda **o: DataLoader(
        NoisyDataset(), batch_size=None, sampler=BatchSampler(RandomSampler(range(10)), 4, drop_last=False), **o
    ),
    "collate function": lambda **o: DataLoader(
        NoisyDataset(), batch_size=3, shuffle=True, collate_fn=random_collate, **o
    ),
    "collate function without batching": lambda **o: DataLoader(
        NoisyDataset(), batch_size=None, collate_fn=lambda x: x * random.random(), **o
    ),
    "deterministic data with a collate function": lambda **o: DataLoader(
        [torch.ones(2)] * 6, batch_size=3, collate_fn=random_collate, **o
    ),
    "deterministic data": lambda **o: DataLoader(TensorDataset(torch.arange(10)), batch_size=3, shuffle=True, **o),
    "worker_init_fn": lambda **o: DataLoader(NoisyDataset(), batch_size=3, worker_init_fn=init_worker, **o),
    "Subset": lambda **o: DataLoader(Subset(BatchDataset(), [8, 6, 4, 2, 0]), batch_size=2, shuffle=True, **o),
    "ConcatDataset": lambda **o: DataLoader(
        ConcatDataset([NoisyDataset(), NoisyDataset()]), batch_size=6, shuffle=True, **o
    ),
    "dataset that loads batches": lambda **o: DataLoader(BatchDataset(), batch_size=4, shuffle=True, **o),
    "string indices": lambda **o: DataLoader(NamedDataset(), batch_size=2, sampler=["a", "bb", "c", "ddd"], **o),
}


def get_fingerprints(batches: Iterator[Any]) -> list[str]:
    """Return a comparable fingerprint of each batch."""
    return [fingerprint(batch) for batch in batches]


class TestSeededLoader:
    @pytest.mark.parametrize("kind", LOADERS)
    def test_every_position_of_every_epoch_is_reached(self, kind: str) -> None:
        feed = make_resumable(LOADERS[kind](), SEED)
        assert isinstance(feed, SeededLoader)
        epochs = {epoch: get_fingerprints(feed.batches(PassPosition(epoch))) for epoch in (0, 1)}

        assert len(epochs[0]) == feed.length == len(LOADERS[kind]())
        for epoch in (1, 0):
            for skip in range(len(epochs[epoch]) + 1):
                torch.rand(3), random.random(), np.random.rand()
                assert get_fingerprints(feed.batches(PassPosition(epoch, skip))) == epochs[epoch][skip:]

    @pytest.mark.slow
    @pytest.mark.parametrize("kind", LOADERS)
    def test_workers_read_the_same_batches(self, kind: str) -> None:
        expected = get_fingerprints(make_resumable(LOADERS[kind](), SEED).batches(PassPosition(1, 1)))

        assert (
            get_fingerprints(make_resumable(LOADERS[kind](num_workers=2), SEED).batches(PassPosition(1, 1))) == expected
        )

    @pytest.mark.parametrize("kind", LOADERS)
    def test_batches_differ_between_epochs_and_seeds(self, kind: str) -> None:
        feed, other = make_resumable(LOADERS[kind](), SEED), make_resumable(LOADERS[kind](), SEED + 1)
        epochs = [tuple(get_fingerprints(feed.batches(PassPosition(epoch)))) for epoch in range(3)]

        assert len(set(epochs)) == 3
        assert tuple(get_fingerprints(other.batches(PassPosition(0)))) != epochs[0]

    @pytest.mark.parametrize("kind", LOADERS)
    def test_reading_preserves_the_rng_states(self, kind: str) -> None:
        feed = make_resumable(LOADERS[kind](), SEED)
        before = fingerprint(get_rng_state())
        list(feed.batches(PassPosition(0, 1)))

        assert fingerprint(get_rng_state()) == before

    def test_generator_of_the_user_is_not_advanced(self) -> None:
        generator = make_generator()
        loader = DataLoader(NoisyDataset(), batch_size=3, shuffle=True, generator=generator)
        list(make_resumable(loader, SEED).batches(PassPosition(0)))

        assert torch.equal(generator.get_state(), make_generator().get_state())

    def test_order_is_that_of_the_seeded_loader(self) -> None:
        loader = DataLoader(TensorDataset(torch.arange(10)), batch_size=3, shuffle=True)
        torch.manual_seed(derive_seed(SEED, 4))
        order = list(loader.batch_sampler)

        assert [batch.tolist() for [batch] in make_resumable(loader, SEED).batches(PassPosition(4))] == order

    def test_persistent_workers_read_every_epoch_from_its_start(self) -> None:
        class PidDataset(NoisyDataset):
            def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
                return os.getpid(), super().__getitem__(index)

        def build(**options: Any) -> ResumableLoader:
            return make_resumable(DataLoader(PidDataset(), batch_size=2, shuffle=True, **options), SEED)

        feed, reference = build(num_workers=2, persistent_workers=True), build()
        processes = set()
        for epoch, skip in [(0, 0), (1, 0), (1, 3), (0, 2)]:
            batches = list(feed.batches(PassPosition(epoch, skip)))
            processes |= {int(pid) for pids, _ in batches for pid in pids}
            assert get_fingerprints(sample for _, sample in batches) == get_fingerprints(
                sample for _, sample in reference.batches(PassPosition(epoch, skip))
            )

        assert len(processes) == 2

    def test_epoch_that_ended_early_does_not_affect_the_next(self) -> None:
        feed = make_resumable(LOADERS["shuffled"](num_workers=2, persistent_workers=True), SEED)
        next(feed.batches(PassPosition(0)))

        assert get_fingerprints(feed.batches(PassPosition(1))) == get_fingerprints(
            make_resumable(LOADERS["shuffled"](), SEED).batches(PassPosition(1))
        )

    def test_worker_init_fn_receives_the_dataset_of_the_user(self) -> None:
        class OpenedDataset(NoisyDataset):
            offset = 0

            def open(self, offset: int) -> None:
                self.offset = offset

            def __getitem__(self, index: int) -> int:
                os.kill(os.getpid(), signal.SIGINT)  # ignored in a worker
                return index + self.offset

        def open_dataset(worker: int) -> None:
            get_worker_info().dataset.open(100)

        loader = DataLoader(OpenedDataset(), batch_size=5, num_workers=1, worker_init_fn=open_dataset)
        batches = [batch.tolist() for batch in make_resumable(loader, SEED).batches(PassPosition(0))]

        assert batches == [[100, 101, 102, 103, 104], [105, 106, 107, 108, 109]]

    def test_length_may_depend_on_the_epoch(self) -> None:
        class GrowingSampler(Sampler[int]):
            epoch = 0

            def set_epoch(self, epoch: int) -> None:
                self.epoch = epoch

            def __len__(self) -> int:
                return 2 + self.epoch

            def __iter__(self) -> Iterator[int]:
                return iter(range(len(self)))

        feed = make_resumable(DataLoader(NoisyDataset(), batch_size=1, sampler=GrowingSampler()), SEED)
        lengths = []
        for epoch in range(3):
            assert len(list(feed.batches(PassPosition(epoch, 1)))) == 1 + epoch
            lengths.append(feed.length)

        assert lengths == [2, 3, 4]

    def test_state_is_empty(self) -> None:
        feed = make_resumable(LOADERS["shuffled"](), SEED)
        list(feed.batches(PassPosition(2)))
        fresh = make_resumable(LOADERS["shuffled"](), SEED)
        fresh.load_state_dict(feed.state_dict())

        assert feed.state_dict() == {}
        assert get_fingerprints(fresh.batches(PassPosition(2))) == get_fingerprints(feed.batches(PassPosition(2)))


class RecordingSampler(Sampler[int]):
    """Sampler that records calls of `set_epoch` and `__iter__`."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def set_epoch(self, epoch: int) -> None:
        self.calls.append(epoch)

    def __len__(self) -> int:
        return 4

    def __iter__(self) -> Iterator[int]:
        self.calls.append("iterated")
        return iter(range(4))


class EpochDataset(Dataset[int]):
    """Dataset whose samples are the epoch passed to `set_epoch`."""

    epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return self.epoch


class TestSetEpoch:
    EXPECTED = (0, "iterated", 1, "iterated", 2, "iterated")

    @pytest.mark.parametrize("wrap", [lambda data: data, lambda data: ConcatDataset([Subset(data, range(4))])])
    @pytest.mark.parametrize("persistent", [False, True])
    def test_set_epoch_of_the_dataset_is_called_in_the_workers(self, persistent: bool, wrap: Any) -> None:
        loader = DataLoader(wrap(EpochDataset()), batch_size=2, num_workers=2, persistent_workers=persistent)
        feed = make_resumable(loader, SEED)

        assert [[batch.tolist() for batch in feed.batches(PassPosition(epoch))] for epoch in (0, 1, 5)] == [
            [[epoch, epoch], [epoch, epoch]] for epoch in (0, 1, 5)
        ]

    @staticmethod
    def read(loader: Any) -> None:
        feed = make_resumable(loader, SEED)
        for epoch in range(3):
            list(feed.batches(PassPosition(epoch)))

    @pytest.mark.parametrize(
        "build",
        [
            lambda sampler: DataLoader(NoisyDataset(), batch_size=2, sampler=sampler),
            lambda sampler: DataLoader(NoisyDataset(), batch_size=None, sampler=sampler),
            lambda sampler: DataLoader(NoisyDataset(), batch_sampler=BatchSampler(sampler, 2, drop_last=False)),
        ],
    )
    def test_set_epoch_of_the_sampler_is_called_once_before_each_epoch(self, build: Callable[[Any], Any]) -> None:
        sampler = RecordingSampler()
        self.read(build(sampler))

        assert tuple(sampler.calls) == self.EXPECTED

    def test_set_epoch_of_the_batch_sampler_is_called(self) -> None:
        class RecordingBatchSampler(RecordingSampler):
            def __iter__(self) -> Iterator[Any]:
                super().__iter__()
                return iter([[0, 1], [2], [3], [4]])

        batches = RecordingBatchSampler()
        self.read(DataLoader(NoisyDataset(), batch_sampler=batches))

        assert tuple(batches.calls) == self.EXPECTED

    def test_set_epoch_of_the_sampler_of_a_custom_loader_is_called(self) -> None:
        class CustomLoader(DataLoader[Any]):
            def __iter__(self) -> Any:
                return super().__iter__()

        sampler = RecordingSampler()
        loader = CustomLoader(NoisyDataset(), batch_size=2, sampler=sampler)
        assert isinstance(make_resumable(loader, SEED), ReplayLoader)
        self.read(loader)

        assert tuple(sampler.calls) == self.EXPECTED

    def test_set_epoch_of_loader_and_iterable_dataset_is_called(self) -> None:
        class EpochStream(IterableDataset[int]):
            epochs: tuple[int, ...] = ()

            def set_epoch(self, epoch: int) -> None:
                self.epochs += (epoch,)

            def __iter__(self) -> Iterator[int]:
                return iter([len(self.epochs)])

        class Loader:
            dataset = EpochStream()
            epochs: tuple[int, ...] = ()

            def set_epoch(self, epoch: int) -> None:
                self.epochs += (epoch,)

            def __iter__(self) -> Iterator[int]:
                return iter(self.dataset)

        loader = Loader()
        self.read(loader)
        stream = EpochStream()
        self.read(DataLoader(stream, batch_size=None))

        assert loader.epochs == loader.dataset.epochs == stream.epochs == (0, 1, 2)

    def test_set_epoch_of_a_stateful_loader_is_called_after_a_resume(self) -> None:
        class EpochLoader(PositionedLoader):
            epochs: tuple[int, ...] = ()

            def set_epoch(self, epoch: int) -> None:
                self.epochs += (epoch,)

        loader = EpochLoader()
        self.read(loader)
        assert loader.epochs == (0, 1, 2)
        resumed = EpochLoader()
        feed = make_resumable(resumed, SEED)
        feed.load_state_dict(make_resumable(loader, SEED).state_dict())
        list(feed.batches(PassPosition(3)))
        assert resumed.epochs == (3,)


class PositionedLoader:
    """Loader that saves its position and draws the order of each epoch from its own generator."""

    def __init__(self) -> None:
        self.rng = random.Random(0)
        self.order: list[int] = []
        self.position = 0
        self.ended = True
        self.is_resuming = False

    def __len__(self) -> int:
        return 5

    def __iter__(self) -> Iterator[int]:
        if self.ended or not self.is_resuming:
            self.order, self.position = self.rng.sample(range(100), 5), 0
        self.is_resuming = self.ended = False
        return self.iter_rest()

    def iter_rest(self) -> Iterator[int]:
        while self.position < 5:
            self.position += 1
            yield self.order[self.position - 1]
        self.ended = True

    def state_dict(self) -> dict[str, Any]:
        return {"rng": self.rng.getstate(), "order": list(self.order), "position": self.position, "ended": self.ended}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rng.setstate(state["rng"])
        self.order, self.position, self.ended, self.is_resuming = (
            list(state["order"]),
            state["position"],
            state["ended"],
            True,
        )


def make_resumed(feed: ResumableLoader, loader: Any) -> ResumableLoader:
    fresh = make_resumable(loader, SEED)
    fresh.load_state_dict(feed.state_dict())
    return fresh


class TestStatefulLoader:
    @staticmethod
    def epochs() -> list[list[int]]:
        feed = make_resumable(PositionedLoader(), SEED)
        assert isinstance(feed, StatefulLoader)
        return [list(feed.batches(PassPosition(epoch))) for epoch in range(3)]

    @pytest.mark.parametrize("position", [1, 3, 5])
    def test_stateful_loader_resumes_within_an_epoch(self, position: int) -> None:
        expected = self.epochs()
        feed = make_resumable(PositionedLoader(), SEED)
        list(feed.batches(PassPosition(0))), list(islice(feed.batches(PassPosition(1)), position))
        resumed = make_resumed(feed, PositionedLoader())

        assert [list(resumed.batches(PassPosition(1, position))), list(resumed.batches(PassPosition(2)))] == [
            expected[1][position:],
            expected[2],
        ]

    def test_stateful_loader_resumes_with_the_next_epoch_after_a_complete_one(self) -> None:
        feed = make_resumable(PositionedLoader(), SEED)
        list(feed.batches(PassPosition(0)))
        resumed = make_resumed(feed, PositionedLoader())

        assert [list(resumed.batches(PassPosition(1))), list(resumed.batches(PassPosition(2)))] == self.epochs()[1:]

    @pytest.mark.parametrize("position", [1, 4, 5])
    def test_stateful_loader_starts_the_next_epoch_after_one_that_ended_early(self, position: int) -> None:
        feed = make_resumable(PositionedLoader(), SEED)
        list(islice(feed.batches(PassPosition(0)), position))
        resumed = make_resumed(feed, PositionedLoader())

        assert list(resumed.batches(PassPosition(1))) == list(feed.batches(PassPosition(1)))

    def test_complete_epoch_yields_no_batches_even_if_the_loader_restarts(self) -> None:
        class RestartingLoader(PositionedLoader):
            def __iter__(self) -> Iterator[int]:
                self.ended = self.position == 5
                return super().__iter__()

        feed = make_resumable(RestartingLoader(), SEED)
        list(islice(feed.batches(PassPosition(0)), 5))

        assert list(make_resumed(feed, RestartingLoader()).batches(PassPosition(0, 5))) == []

    def test_resume_draws_the_same_random_numbers_as_the_uninterrupted_run(self) -> None:
        class DrawingLoader(PositionedLoader):
            def __iter__(self) -> Iterator[int]:
                torch.rand(())
                return super().__iter__()

        feed = make_resumable(DrawingLoader(), SEED)
        list(islice(feed.batches(PassPosition(0)), 2))
        within, after = make_resumed(feed, DrawingLoader()), make_resumed(feed, DrawingLoader())
        before = fingerprint(get_rng_state())
        within.batches(PassPosition(0, 2))
        assert fingerprint(get_rng_state()) == before

        torch.manual_seed(1)
        after.batches(PassPosition(1))
        resumed = fingerprint(get_rng_state())
        torch.manual_seed(1)
        feed.batches(PassPosition(1))
        assert fingerprint(get_rng_state()) == resumed

    def test_loaded_position_that_is_not_used_yet_is_saved_again(self) -> None:
        feed = make_resumable(PositionedLoader(), SEED)
        list(islice(feed.batches(PassPosition(0)), 2))
        again = make_resumed(make_resumed(feed, PositionedLoader()), PositionedLoader())

        assert list(again.batches(PassPosition(0, 2))) == self.epochs()[0][2:]

    def test_loader_without_a_saved_position_is_read_up_to_it(self) -> None:
        feed = make_resumable(PositionedLoader(), SEED)

        assert list(feed.batches(PassPosition(0, 2))) == self.epochs()[0][2:]


class LookAheadLoader:
    """Wrapper that reads one batch ahead and cannot save its position, as DataLoaderShard of Accelerate."""

    def __init__(self, base: Any) -> None:
        self.base_dataloader = base

    def __len__(self) -> int:
        return len(self.base_dataloader)

    def __iter__(self) -> Iterator[tuple[str, bool]]:
        batches = iter(self.base_dataloader)
        current = next(batches)
        for following in batches:
            yield fingerprint(current), False
            current = following
        yield fingerprint(current), True

    def state_dict(self) -> dict[str, Any]:
        return self.saved_state  # type: ignore[attr-defined, no-any-return]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise AttributeError("load_state_dict")


class TestWrapper:
    @staticmethod
    def build(**options: Any) -> LookAheadLoader:
        return LookAheadLoader(DataLoader(NoisyDataset(), batch_size=3, shuffle=True, **options))

    @pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"num_workers": 1, "persistent_workers": True}])
    def test_wrapper_is_positioned_without_reading_batches_again(self, options: dict[str, Any]) -> None:
        feed = make_resumable(self.build(**options), SEED)
        plain = make_resumable(DataLoader(NoisyDataset(), batch_size=3, shuffle=True), SEED)
        whole = list(feed.batches(PassPosition(1)))

        assert isinstance(feed, SeededLoader)
        assert whole == list(zip(get_fingerprints(plain.batches(PassPosition(1))), [False] * 3 + [True], strict=True))
        for skip in range(5):
            assert list(make_resumable(self.build(**options), SEED).batches(PassPosition(1, skip))) == whole[skip:]

    def test_two_passes_over_a_wrapper_do_not_disturb_each_other(self) -> None:
        feed = make_resumable(self.build(), SEED)
        first, second = (list(feed.batches(PassPosition(0, ordinal=ordinal))) for ordinal in (0, 1))
        pairs = zip(feed.batches(PassPosition(0)), feed.batches(PassPosition(0, ordinal=1)), strict=True)

        assert list(pairs) == list(zip(first, second, strict=True))

    def test_loader_whose_state_cannot_be_read_is_replayed(self) -> None:
        class BrokenLoader(PositionedLoader):
            def state_dict(self) -> dict[str, Any]:
                raise NotImplementedError

        assert isinstance(make_resumable(BrokenLoader(), SEED), ReplayLoader)


class Stream(IterableDataset[float]):
    """Stream whose order depends on the RNG state at the start of the epoch."""

    def __iter__(self) -> Iterator[float]:
        order = torch.randperm(6)
        return iter(order.tolist())


REPLAYED: dict[str, Callable[[], Any]] = {
    "iterable dataset": lambda: DataLoader(Stream(), batch_size=None),
    "iterable dataset with workers": lambda: DataLoader(Stream(), batch_size=None, num_workers=1),
    "list": lambda: [torch.tensor(i) for i in range(6)],
    "infinite sampler": lambda: DataLoader(NoisyDataset(), batch_size=2, sampler=InfiniteSampler()),
}


class InfiniteSampler(Sampler[int]):
    """Infinite sampler, as used by detection libraries."""

    def __iter__(self) -> Iterator[int]:
        while True:
            yield from torch.randperm(10).tolist()


class TestReplayLoader:
    @staticmethod
    def first(batches: Iterator[Any]) -> list[str]:
        return get_fingerprints(islice(batches, 6))

    @pytest.mark.parametrize("kind", REPLAYED)
    def test_replay_reads_up_to_the_position(self, kind: str) -> None:
        torch.manual_seed(1)
        feed = make_resumable(REPLAYED[kind](), SEED)
        assert isinstance(feed, ReplayLoader)
        self.first(feed.batches(PassPosition(0))), torch.rand(1)
        start = feed.get_start_state()
        batches = feed.batches(PassPosition(1))
        next(batches), next(batches)
        fresh = make_resumable(REPLAYED[kind](), SEED)
        state = get_rng_state()
        rest = self.first(batches)
        set_rng_state(state)

        assert self.first(fresh.batches(PassPosition(1, 2), start)) == rest

    def test_replay_preserves_the_rng_states_of_the_checkpoint(self) -> None:
        feed = make_resumable(REPLAYED["iterable dataset"](), SEED)
        start = feed.get_start_state()
        torch.rand(3)
        before = fingerprint(get_rng_state())
        feed.batches(PassPosition(0, 3), start)

        assert fingerprint(get_rng_state()) == before

    def test_position_without_a_state_is_counted_from_the_current_one(self) -> None:
        assert list(make_resumable([1, 2, 3], SEED).batches(PassPosition(0, 2))) == [3]

    def test_loader_without_generators_has_no_state(self) -> None:
        feed = make_resumable([1], SEED)

        assert feed.state_dict() == {}
        feed.load_state_dict({})
        assert list(feed.batches(PassPosition(0))) == [1]

    @pytest.mark.parametrize("build", [make_generator, lambda: np.random.default_rng(1), lambda: random.Random(2)])
    def test_generator_of_a_loader_is_restored(self, build: Callable[[], Any]) -> None:
        def make_feed() -> ResumableLoader:
            return make_resumable(LoaderWithGenerator(build()), SEED)

        feed = make_feed()
        list(feed.batches(PassPosition(0)))
        between, start = feed.state_dict(), feed.get_start_state()
        expected = [list(feed.batches(PassPosition(epoch))) for epoch in (1, 2)]
        next_epoch, within = make_feed(), make_feed()
        next_epoch.load_state_dict(between)

        assert [list(next_epoch.batches(PassPosition(epoch))) for epoch in (1, 2)] == expected
        assert list(within.batches(PassPosition(1, 2), start)) == expected[0][2:]
        assert list(within.batches(PassPosition(2))) == expected[1]


class LoaderWithGenerator:
    """Loader without state that draws the order of each epoch from its own generator."""

    def __init__(self, generator: Any) -> None:
        self.generator = generator

    def __iter__(self) -> Iterator[float]:
        return iter([self.draw() for _ in range(4)])

    def draw(self) -> float:
        if isinstance(self.generator, torch.Generator):
            return float(torch.rand((), generator=self.generator))
        return float(self.generator.random())


class TestLength:
    def test_length_is_known_for_every_type_of_loader(self) -> None:
        sequential = DataLoader(NoisyDataset(), sampler=SequentialSampler(range(10)))

        assert [
            make_resumable(loader, SEED).length for loader in (sequential, PositionedLoader(), [1, 2], iter([1]))
        ] == [
            10,
            5,
            2,
            None,
        ]

    def test_position_is_exact_unless_batches_are_replayed(self) -> None:
        assert [make_resumable(loader, SEED).exact for loader in (LOADERS["shuffled"](), PositionedLoader(), [1])] == [
            True,
            True,
            False,
        ]


class TestTrainShard:
    """Two ranks that read 10 samples in batches of 3: each rank has a batch of 3 and a batch of 2."""

    LOADER = DataLoader(NoisyDataset(), batch_size=3, shuffle=True)

    def make_shard(self, rank: int) -> ResumableLoader:
        return make_resumable(self.LOADER, SEED, shard=TrainShard(rank, 2))

    def test_shards_contain_the_samples_of_a_single_process(self) -> None:
        samples = get_fingerprints(
            make_resumable(DataLoader(NoisyDataset(), batch_size=1, shuffle=True), SEED).batches(PassPosition(1))
        )
        batches = [batch for rank in (0, 1) for batch in self.make_shard(rank).batches(PassPosition(1))]

        assert [len(batch) for batch in batches] == [3, 2, 3, 2]
        assert sorted(get_fingerprints(sample[None] for batch in batches for sample in batch)) == sorted(samples)

    def test_shard_is_read_from_any_position(self) -> None:
        assert (
            get_fingerprints(self.make_shard(1).batches(PassPosition(1, 1)))
            == get_fingerprints(self.make_shard(1).batches(PassPosition(1)))[1:]
        )

    def test_shard_has_a_length_before_it_is_read(self) -> None:
        assert loader_length(self.LOADER, TrainShard(0, 2)) == self.make_shard(0).length == 2

    def test_distributed_sampler_is_not_sharded_again(self) -> None:
        data: Any = range(8)
        loader = DataLoader(data, batch_size=2, sampler=DistributedSampler(data, 2, 1, shuffle=False))

        assert not is_shardable(loader)
        assert loader_length(loader, TrainShard(1, 2)) == 2
        assert [
            batch.tolist() for batch in make_resumable(loader, SEED, shard=TrainShard(1, 2)).batches(PassPosition(0))
        ] == [
            [1, 3],
            [5, 7],
        ]

    @pytest.mark.parametrize("loader", [[1, 2, 3], DataLoader(Stream(), batch_size=2)], ids=["list", "stream"])
    def test_other_iterables_are_not_sharded(self, loader: Any) -> None:
        assert not is_shardable(loader)
        assert loader_length([1, 2, 3], TrainShard(1, 2)) == 3


class ScaledDataset(Dataset[Any]):
    """Dataset with samples (scale, index), whose scale is set by a dataset hook."""

    def __init__(self, count: int = 10) -> None:
        self.count, self.scale = count, -1

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[int, int]:
        return self.scale, index


class ScaledBatchDataset(ScaledDataset):
    def __getitems__(self, indices: list[int]) -> list[tuple[int, int]]:
        return [self[index] for index in indices]


class ScaledStream(IterableDataset[Any]):
    def __init__(self) -> None:
        self.scale = -1

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return ((self.scale, index) for index in range(10))


def set_scale(dataset: Any, epoch: int, iteration: int) -> None:
    for nested in iter_datasets(dataset):
        if hasattr(nested, "scale"):
            nested.scale = 100 * epoch + iteration


SCALED: dict[str, Callable[..., Any]] = {
    "in order": lambda **o: DataLoader(ScaledDataset(), batch_size=3, **o),
    "shuffled": lambda **o: DataLoader(ScaledDataset(), batch_size=3, shuffle=True, **o),
    "Subset": lambda **o: DataLoader(Subset(ScaledDataset(), list(range(10))), batch_size=3, **o),
    "ConcatDataset": lambda **o: DataLoader(ConcatDataset([ScaledDataset(4), ScaledDataset(6)]), batch_size=3, **o),
    "dataset that loads batches": lambda **o: DataLoader(ScaledBatchDataset(), batch_size=3, **o),
    "collate function": lambda **o: DataLoader(ScaledDataset(), batch_size=3, collate_fn=list, **o),
    "batch sampler": lambda **o: DataLoader(ScaledDataset(), batch_sampler=PairSampler(), **o),
}
IN_MAIN_PROCESS: dict[str, Callable[[], Any]] = {
    "stream": lambda: DataLoader(ScaledStream(), batch_size=3),
    "stateful loader": lambda: StatefulScaleLoader(),
}


class StatefulScaleLoader(Dataset[Any]):
    """Stateful loader that reads from a dataset."""

    def __init__(self) -> None:
        self.dataset, self.position = ScaledDataset(), 0

    def __iter__(self) -> Iterator[list[Any]]:
        while self.position < 4:
            self.position += 1
            yield [[self.dataset.scale]]
        self.position = 0

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]


def get_scales(batches: Iterator[Any]) -> list[int]:
    """Return the scale of each batch, which all samples of the batch share."""
    scales = []
    for batch in batches:
        values = batch[0] if isinstance(batch[0], torch.Tensor) else [scale for scale, *_ in batch]
        (scale,) = {int(value) for value in values}
        scales.append(scale)
    return scales


class TestDatasetHooks:
    @pytest.mark.slow
    @pytest.mark.parametrize("kind", SCALED)
    @pytest.mark.parametrize("workers", [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}])
    def test_hook_is_called_for_every_batch_in_the_reading_process(self, kind: str, workers: dict[str, Any]) -> None:
        feed = make_resumable(SCALED[kind](**workers), SEED, [set_scale])

        assert get_scales(feed.batches(PassPosition(0))) == [0, 1, 2, 3]
        assert get_scales(feed.batches(PassPosition(2, 0, 8))) == [208, 209, 210, 211]
        assert get_scales(feed.batches(PassPosition(2, 2, 10))) == [210, 211]

    @pytest.mark.slow
    def test_hook_is_called_in_spawned_workers(self) -> None:
        loader = DataLoader(ScaledDataset(), batch_size=5, num_workers=1, multiprocessing_context="spawn")

        assert get_scales(make_resumable(loader, SEED, [set_scale]).batches(PassPosition(1, 0, 7))) == [107, 108]

    def test_hook_is_called_for_single_samples(self) -> None:
        batches = make_resumable(DataLoader(ScaledDataset(3), batch_size=None), SEED, [set_scale]).batches(
            PassPosition(1, 1, 4)
        )

        assert [scale for scale, _ in batches] == [104, 105]

    @pytest.mark.parametrize("kind", IN_MAIN_PROCESS)
    def test_hook_is_called_for_loaders_read_in_the_main_process(self, kind: str) -> None:
        assert get_scales(
            make_resumable(IN_MAIN_PROCESS[kind](), SEED, [set_scale]).batches(PassPosition(1, 0, 5))
        ) == [
            105,
            106,
            107,
            108,
        ]

    def test_hook_is_called_for_replayed_batches(self) -> None:
        calls: list[tuple[int, int]] = []
        feed = ReplayLoader(range(5), [lambda dataset, epoch, iteration: calls.append((epoch, iteration))])
        list(feed.batches(PassPosition(1, 0, 5)))
        calls.clear()
        batches = list(feed.batches(PassPosition(1, 3, 8)))

        assert batches == [3, 4]
        assert calls == [(1, 5), (1, 6), (1, 7), (1, 8), (1, 9), (1, 10)]

    def test_hook_changes_neither_order_nor_random_numbers(self) -> None:
        for kind, loader in LOADERS.items():
            expected = get_fingerprints(make_resumable(loader(), SEED).batches(PassPosition(1, 1)))
            feed = make_resumable(loader(), SEED, [lambda *_: torch.rand(2)])
            assert get_fingerprints(feed.batches(PassPosition(1, 1))) == expected, kind

    def test_worker_init_fn_receives_the_dataset_inside_the_wrappers(self) -> None:
        loader = DataLoader(ScaledDataset(), batch_size=5, num_workers=1, worker_init_fn=check_worker_dataset)

        assert get_scales(make_resumable(loader, SEED, [set_scale]).batches(PassPosition(0))) == [0, 1]

    def test_hook_with_workers_of_a_stream_is_an_error(self) -> None:
        loader = DataLoader(ScaledStream(), num_workers=2)

        with pytest.raises(LoopError, match="got DataLoader with num_workers=2. Use a map-style dataset, or set"):
            make_resumable(loader, SEED, [set_scale])
        assert isinstance(make_resumable(loader, SEED), ReplayLoader)


def check_worker_dataset(worker: int) -> None:
    assert type(get_worker_info().dataset) is ScaledDataset  # type: ignore[union-attr]
