"""Each call of `run.batches` keeps its own position, from which a resumed run continues."""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from hookbus import HookBus
from hookbus._run.run import Run
from hookbus.errors import LoopError

Seen = list[tuple[Any, ...]]


class Numbers(Dataset[float]):
    """Samples that are numbers from `first` on, with random noise below 1."""

    def __init__(self, count: int, first: int = 0) -> None:
        self.count, self.first = count, first

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> float:
        return self.first + index + random.random()


class Stream(IterableDataset[float]):
    """Stream of shuffled numbers."""

    def __init__(self, count: int, first: int = 0) -> None:
        self.count, self.first = count, first

    def __iter__(self) -> Iterator[float]:
        return iter([self.first + index for index in torch.randperm(self.count).tolist()])


class PositionedLoader:
    """Loader that saves its position, and draws the order of each epoch from its own generator.

    The first iterator after `load_state_dict` continues the epoch of the state.
    """

    def __init__(self, count: int, first: int = 0) -> None:
        self.count, self.first = count, first
        self.rng, self.continues = random.Random(first), False
        self.order: list[int] = []
        self.position = 0

    def __iter__(self) -> Iterator[float]:
        if not self.continues or self.position == self.count:
            self.order, self.position = self.rng.sample(range(self.count), self.count), 0
        self.continues = False
        return self.iter_rest()

    def iter_rest(self) -> Iterator[float]:
        while self.position < self.count:
            self.position += 1
            yield self.first + self.order[self.position - 1]

    def __len__(self) -> int:
        return self.count

    def state_dict(self) -> dict[str, Any]:
        return {"rng": self.rng.getstate(), "order": list(self.order), "position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        version, numbers, gauss = state["rng"]
        self.rng.setstate((version, tuple(numbers), gauss))
        self.order, self.position, self.continues = list(state["order"]), state["position"], True


def make_map_loader(count: int, first: int = 0, **options: Any) -> Any:
    return DataLoader(Numbers(count, first), batch_size=None, shuffle=True, **options)


LOADERS: dict[str, Callable[..., Any]] = {
    "map-style": make_map_loader,
    "stateful": PositionedLoader,
    "replayed": lambda count, first=0: DataLoader(Stream(count, first), batch_size=None),
}
WORKERS: dict[str, Callable[..., Any]] = {
    "2 workers": lambda count, first=0: make_map_loader(count, first, num_workers=2),
    "persistent workers": lambda count, first=0: make_map_loader(count, first, num_workers=2, persistent_workers=True),
}


class Loop:
    """Custom loop that records the batches of each iteration, and the state after each iteration.

    Args:
        build: Builds a loader from the number of batches and the first number.
        run: The run.
    """

    def __init__(self, build: Callable[..., Any], run: Run) -> None:
        self.run = run
        self.seen: Seen = []
        self.states: list[bytes] = []
        self.a, self.b = build(6), build(4, 100)
        run.bus.on("after_train_iter")(self.save_state)

    def save_state(self) -> None:
        buffer = io.BytesIO()
        torch.save((self.run.state_dict(), torch.get_rng_state()), buffer)
        self.states.append(buffer.getvalue())

    def iterate(self, *batches: Any) -> None:
        self.run.bus.emit("before_train_iter", batch=list(batches))
        self.seen.append((self.run.epoch, *map(float, batches)))
        self.run.bus.emit("after_train_iter", batch=list(batches))


def loop_one(loop: Loop) -> None:
    for _, x in loop.run.batches(loop.a):
        loop.iterate(x)


def loop_continue(loop: Loop) -> None:
    for _, x in loop.run.batches(loop.a):
        if int(x) % 3:
            loop.iterate(x)


def loop_two_per_iteration(loop: Loop) -> None:
    for _, x in (batches := loop.run.batches(loop.a)):
        loop.iterate(x, next(batches)[1])


def loop_accumulate(loop: Loop) -> None:
    batches = []
    for i, x in loop.run.batches(loop.a):
        batches.append(x)
        if i % 3 == 2:
            loop.iterate(*batches)
            batches = []


def loop_zip(loop: Loop) -> None:
    for (_, x), (_, y) in zip(loop.run.batches(loop.a), loop.run.batches(loop.b), strict=False):
        loop.iterate(x, y)


def loop_in_sequence(loop: Loop) -> None:
    for _, x in loop.run.batches(loop.a):
        loop.iterate(x)
    for _, x in loop.run.batches(loop.b):
        loop.iterate(x)


def loop_same_loader_twice(loop: Loop) -> None:
    for _ in range(2):
        for _, x in loop.run.batches(loop.b):
            loop.iterate(x)


def loop_restarts_iterator(loop: Loop) -> None:
    others = loop.run.batches(loop.b)
    for _, x in loop.run.batches(loop.a):
        try:
            _, y = next(others)
        except StopIteration:
            others = loop.run.batches(loop.b)
            _, y = next(others)
        loop.iterate(x, y)


def loop_nested_in_iteration(loop: Loop) -> None:
    for _, x in loop.run.batches(loop.a):
        loop.iterate(x, *[y for _, y in islice(loop.run.batches(loop.b), 2)])


def loop_nested_with_variable(loop: Loop) -> None:
    for _, x in loop.run.batches(loop.a):
        others = loop.run.batches(loop.b)
        loop.iterate(x, next(others)[1], next(others)[1])


def loop_nested_iterations(loop: Loop) -> None:
    for _, x in loop.run.batches(loop.a):
        for _, y in loop.run.batches(loop.b):
            loop.iterate(x, y)


def repeat(loop: Loop, loader: Iterable[Any]) -> Iterator[Any]:
    while True:
        for _, x in loop.run.batches(loader):
            yield x


def loop_helper_generator(loop: Loop) -> None:
    for (_, x), y in zip(loop.run.batches(loop.a), repeat(loop, loop.b), strict=False):
        loop.iterate(x, y)


def loop_iterator_and_two_loaders(loop: Loop) -> None:
    others = loop.run.batches(loop.b)
    for _ in range(2):
        for i, x in loop.run.batches(loop.a):
            loop.iterate(x, *([next(others)[1]] if i % 3 == 0 else []))


def loop_first_batch(loop: Loop) -> None:
    _, first = next(loop.run.batches(loop.b))
    for _, x in loop.run.batches(loop.a):
        loop.iterate(x, first)


CONCURRENT = {
    "one": loop_one,
    "continue": loop_continue,
    "two per iteration": loop_two_per_iteration,
    "accumulate": loop_accumulate,
    "zip": loop_zip,
    "in sequence": loop_in_sequence,
    "same loader twice": loop_same_loader_twice,
    "restarts iterator": loop_restarts_iterator,
    "iterator and two loaders": loop_iterator_and_two_loaders,
}
LOOPS = {
    **CONCURRENT,
    "nested in iteration": loop_nested_in_iteration,
    "nested with variable": loop_nested_with_variable,
    "nested iterations": loop_nested_iterations,
    "helper generator": loop_helper_generator,
    "first batch": loop_first_batch,
}


def train(
    body: Callable[[Loop], None], build: Callable[..., Any], state: bytes | None = None, *, epochs: int = 2
) -> tuple[Loop, Run]:
    """Train for several epochs, from a state if one is given."""
    random.seed(1), torch.manual_seed(1)
    with HookBus().run(epochs=epochs, seed=3) as run:
        loop = Loop(build, run)
        if state is not None:
            saved, rng_state = torch.load(io.BytesIO(state), weights_only=True)
            run.load_state_dict(saved)
            torch.set_rng_state(rng_state)
        for _ in run.epochs():
            run.bus.emit("before_train_epoch")
            body(loop)
            run.bus.emit("after_train_epoch")
    return loop, run


def check_resume(body: Callable[[Loop], None], build: Callable[..., Any], every: int = 1) -> None:
    """Resume after each iteration, and once more after the next one."""
    whole, _ = train(body, build)
    for done in range(1, len(whole.seen) + 1, every):
        resumed, run = train(body, build, whole.states[done - 1])
        assert resumed.seen == whole.seen[done:], f"after {done} iterations"
        assert (run.epochs_done, run.iters_done) == (2, len(whole.seen))
        if resumed.states:
            assert train(body, build, resumed.states[0])[0].seen == whole.seen[done + 1 :]


class TestResume:
    @pytest.mark.slow
    @pytest.mark.parametrize("kind", LOOPS)
    def test_run_resumes_after_any_iteration(self, kind: str) -> None:
        check_resume(LOOPS[kind], LOADERS["map-style"])

    @pytest.mark.slow
    @pytest.mark.parametrize("kind", CONCURRENT)
    @pytest.mark.parametrize("loader", ["stateful", "replayed"])
    def test_run_with_other_loaders_resumes_after_any_iteration(self, loader: str, kind: str) -> None:
        check_resume(CONCURRENT[kind], LOADERS[loader])

    @pytest.mark.slow
    @pytest.mark.parametrize("kind", ["zip", "same loader twice", "nested in iteration"])
    @pytest.mark.parametrize("workers", WORKERS)
    def test_run_with_workers_resumes(self, workers: str, kind: str) -> None:
        check_resume(LOOPS[kind], WORKERS[workers], every=5)

    def test_former_state_counts_the_batches_of_all_loaders_together(self) -> None:
        seen = []
        with (bus := HookBus()).run(epochs=1) as run:
            run.clock.load_state_dict({**run.clock.state_dict(), "iters_done": 5, "epoch_open": True})
            run.training_data.load_state_dict({})
            for _ in run.epochs():
                for loader in ([0, 1, 2], [10, 11, 12, 13]):
                    for _, x in run.batches(loader):
                        seen.append(x)
                        bus.emit("after_train_iter", batch=[x])

        assert seen == [12, 13]

    def test_run_without_epochs_resumes_after_any_iteration(self) -> None:
        def train(state: bytes | None = None) -> Loop:
            with HookBus().run(seed=3) as run:
                loop = Loop(make_map_loader, run)
                if state is not None:
                    run.load_state_dict(torch.load(io.BytesIO(state), weights_only=True)[0])
                for _ in range(3):
                    loop_one(loop)
            return loop

        whole = train()

        assert len(set(whole.seen)) == 18
        for done in range(1, 18):
            assert train(whole.states[done - 1]).seen == whole.seen[done:]
        # Complete passes are merged, so that the state does not grow.
        assert len(whole.states[17]) == len(whole.states[12])

    def test_iterator_over_several_epochs_resumes_after_any_iteration(self) -> None:
        def train(state: bytes | None = None) -> Loop:
            with HookBus().run(epochs=3, seed=3) as run:
                loop = Loop(make_map_loader, run)
                if state is not None:
                    run.load_state_dict(torch.load(io.BytesIO(state), weights_only=True)[0])
                others = run.batches(make_map_loader(12, 200))
                for _ in run.epochs():
                    for _, x in run.batches(loop.b):
                        loop.iterate(x, next(others)[1])
            return loop

        whole = train()

        for done in range(1, 12):
            assert train(whole.states[done - 1]).seen == whole.seen[done:]

    def test_loader_of_another_length_is_reported(self, caplog: pytest.LogCaptureFixture) -> None:
        whole, _ = train(loop_one, make_map_loader)
        resumed, _ = train(loop_one, lambda count, first=0: make_map_loader(count + 2, first), whole.states[1])

        assert len(resumed.seen) == 6 + 8
        assert caplog.messages == [
            "resume: the loader of this pass had 6 batches when the checkpoint was written, and has 8. The pass "
            "continues after batch 2. Call run.batches for the same loaders in the same order."
        ]


class TestOrder:
    def test_passes_of_an_epoch_have_different_orders(self) -> None:
        def read_equal_loaders(loop: Loop) -> None:
            pairs = zip(loop.run.batches(loop.a), loop.run.batches(make_map_loader(6)), strict=True)
            orders.append([(int(x), int(y)) for (_, x), (_, y) in pairs])

        orders: list[list[tuple[int, int]]] = []
        train(read_equal_loaders, make_map_loader)
        first, second = zip(*orders[0], strict=True)

        assert sorted(first) == sorted(second) == list(range(6))
        assert first != second
        assert orders[0] != orders[1]

    def test_first_pass_of_an_epoch_has_the_order_of_an_epoch_with_one_pass(self) -> None:
        one, several = train(loop_one, make_map_loader)[0], train(loop_in_sequence, make_map_loader)[0]

        assert one.seen[:6] == several.seen[:6]
        assert one.seen[6:] == several.seen[10:16]

    def test_samples_of_two_passes_have_different_randomness(self) -> None:
        loop, _ = train(loop_same_loader_twice, make_map_loader, epochs=1)

        assert {int(x) for _, x in loop.seen[:4]} == {int(x) for _, x in loop.seen[4:]}
        assert not {x for _, x in loop.seen[:4]} & {x for _, x in loop.seen[4:]}


class TestEpochEnd:
    """A stop at the last iteration counts the epoch as complete if the loop has no further batch to read."""

    @staticmethod
    def stop_at(body: Callable[[Loop], None], iteration: int, build: Callable[..., Any]) -> Run:
        with (bus := HookBus()).run(epochs=3, seed=3) as run:
            bus.on("after_train_iter", name="stop")(
                lambda run: run.request_stop("stop") if run.iters_done == iteration else None
            )
            loop = Loop(build, run)
            for _ in run.epochs():
                bus.emit("before_train_epoch")
                body(loop)
                bus.emit("after_train_epoch")
        return run

    @pytest.mark.parametrize("loader", LOADERS)
    @pytest.mark.parametrize("kind", ["one", "two per iteration", "accumulate", "zip", "in sequence"])
    def test_only_a_stop_at_the_last_iteration_completes_the_epoch(self, kind: str, loader: str) -> None:
        body, build = CONCURRENT[kind], LOADERS[loader]
        count = len(train(body, build, epochs=1)[0].seen)
        epochs_done = [self.stop_at(body, done, build).epochs_done for done in range(1, count + 2)]

        # The end of a loader without length is unknown while `zip` reads another one.
        is_known = (kind, loader) != ("zip", "replayed")
        assert epochs_done == [0] * (count - 1) + [int(is_known), 1]

    def test_epoch_is_truncated_while_an_inner_loop_has_further_batches(self) -> None:
        counts = [self.stop_at(loop_nested_iterations, done, make_map_loader).epochs_done for done in (23, 24, 25)]

        assert counts == [0, 1, 1]


class TestMisuse:
    def test_loader_that_saves_its_position_is_read_by_one_iterator(self) -> None:
        loader = PositionedLoader(6)

        def read_twice(loop: Loop) -> None:
            for (_, x), (_, y) in zip(loop.run.batches(loader), loop.run.batches(loader), strict=True):
                loop.iterate(x, y)

        with pytest.raises(LoopError, match="a second iterator reads the loader.* Create a second loader"):
            train(read_twice, make_map_loader)

    def test_iterator_of_an_earlier_epoch_is_an_error(self) -> None:
        iterators: list[Iterator[Any]] = []

        def read_first(loop: Loop) -> None:
            if not iterators:
                iterators.append(loop.run.batches(loop.b))
            for _, x in loop.run.batches(loop.a):
                loop.iterate(x, *(next(iterators[0])[1:] if x < 1 else ()))

        with pytest.raises(LoopError, match="an iterator of an earlier epoch is read. Call run.batches in each epoch"):
            train(read_first, make_map_loader)

    def test_position_before_a_batch_that_a_loader_has_handed_out_cannot_be_saved(self) -> None:
        errors = []

        def save_within_iteration(loop: Loop) -> None:
            for _, x in loop.run.batches(loop.a):
                if not errors:
                    with pytest.raises(
                        LoopError, match=r"after batch 1, so the run cannot resume after batch 0"
                    ) as error:
                        loop.run.state_dict()
                    errors.append(error)
                loop.iterate(x)

        assert train(save_within_iteration, PositionedLoader)[1].outcome == "finished"
        assert len(errors) == 1


Body = Callable[[Run], Iterator[None]]


class WrongLength(list[int]):
    """Loader with a wrong length."""

    def __init__(self, count: int, length: int) -> None:
        super().__init__(range(count))
        self.length = length

    def __len__(self) -> int:
        return self.length


def read_one(run: Run) -> Iterator[None]:
    for _ in run.batches([0] * 6):
        yield


def read_zip(run: Run) -> Iterator[None]:
    for _ in zip(run.batches([0] * 6), run.batches([0] * 4), strict=False):
        yield


def read_sequence(run: Run) -> Iterator[None]:
    for _ in run.batches([0] * 6):
        yield
    for _ in run.batches([0] * 4):
        yield


def read_pairs(run: Run) -> Iterator[None]:
    for _ in (batches := run.batches([0] * 6)):
        next(batches)
        yield


def read_with_continue(run: Run) -> Iterator[None]:
    for index, _ in run.batches([0] * 6):
        if index % 3:
            yield


def read_more(run: Run) -> Iterator[None]:
    for _ in run.batches(WrongLength(6, 4)):
        yield


def read_less(run: Run) -> Iterator[None]:
    for _ in run.batches(WrongLength(4, 6)):
        yield


def train_epochs(
    body: Body, state: dict[str, Any] | None = None, epochs: int = 3, **options: Any
) -> tuple[list[Any], Run]:
    """Train, and return the expected epoch length, the estimate and the states after each iteration."""
    rows: list[Any] = []
    with (bus := HookBus()).run(**{"epochs": epochs, **options}) as run:
        if state is not None:
            run.load_state_dict(state)
        for _ in run.epochs():
            bus.emit("before_train_epoch")
            for _ in body(run):
                bus.emit("before_train_iter", batch=[0])
                bus.emit("after_train_iter", batch=[0])
                rows.append((run.epoch_length, run.clock.expected_epoch_length, run.state_dict()))
            bus.emit("after_train_epoch")
    return rows, run


# The loops are generators, so that all loaders are read through a generator function, as with tqdm.
@pytest.mark.parametrize(
    ("body", "first", "later"),
    [
        (read_one, [6] * 6, [6] * 6),
        (read_zip, [6] * 4, [4] * 4),
        (read_sequence, [6] * 6 + [10] * 4, [10] * 10),
        (read_pairs, [6] * 3, [3] * 3),
        (read_with_continue, [6] * 4, [4] * 4),
        (read_more, [4] * 6, [6] * 6),
        (read_less, [6] * 4, [4] * 4),
    ],
)
def test_length_is_corrected_after_the_first_complete_epoch(body: Body, first: list[int], later: list[int]) -> None:
    rows, run = train_epochs(body)

    assert [length for length, _, _ in rows] == first + later * 2
    assert [length for _, length, _ in rows] == first + [len(later)] * (2 * len(later))
    assert run.epochs_done == 3


@pytest.mark.parametrize("body", [read_sequence, read_pairs, read_less])
def test_length_is_restored(body: Body) -> None:
    rows, _ = train_epochs(body)
    for done in range(1, len(rows)):
        resumed, _ = train_epochs(body, rows[done - 1][2])

        assert [row[:2] for row in resumed] == [row[:2] for row in rows[done:]]


def test_zip_ends_with_its_shortest_loader() -> None:
    lengths = []
    with (bus := HookBus()).run(epochs=1) as run:
        for _ in run.epochs():
            for _ in zip(run.batches([0] * 6), run.batches([0] * 4), strict=False):
                bus.emit("after_train_iter", batch=[0])
                lengths.append(run.epoch_length)

    assert lengths == [4] * 4


def test_epochs_of_different_lengths_do_not_correct_the_length() -> None:
    def read_growing(run: Run) -> Iterator[None]:
        for index, _ in run.batches([0] * 6):
            if index <= run.epoch + 1:
                yield

    rows, _ = train_epochs(read_growing)

    assert [length for length, _, _ in rows] == [6] * 2 + [2] * 3 + [6] * 4
    assert [length for _, length, _ in rows] == [6] * 2 + [2] * 3 + [3] * 4


def test_epoch_that_a_hook_ends_is_not_counted() -> None:
    bus = HookBus()
    bus.on("after_train_iter")(lambda run: run.request_stop_epoch() if run.iters_done == 2 else None)
    with bus.run(epochs=2) as run:
        for _ in run.epochs():
            bus.emit("before_train_epoch")
            for _ in run.batches([0] * 6):
                bus.emit("after_train_iter", batch=[0])
            bus.emit("after_train_epoch")
            assert run.observed_epoch_length == (None if run.epoch == 0 else 6)
            assert run.epoch_length == 6


def test_wrong_length_of_a_loader_that_the_loop_reads_itself_is_corrected() -> None:
    lengths = []
    with (bus := HookBus()).run(epochs=2, train_loader=[0] * 9) as run:
        for _ in run.epochs():
            bus.emit("before_train_epoch")
            for _ in range(4):
                bus.emit("after_train_iter", batch=[0])
            lengths.append(run.epoch_length)
            bus.emit("after_train_epoch")

    assert lengths == [9, 4]
