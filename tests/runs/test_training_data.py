"""`run.epochs()` and `run.batches()` give what is left to do."""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from hookbus import Hook, HookBus
from hookbus.errors import LoopError
from hookbus.run import Run

Place = tuple[int, int]


class Endless:
    """Has no length and knows no end."""

    def __iter__(self) -> Iterator[int]:
        number = 0
        while True:
            yield number
            number += 1


class Unmeasured:
    """So many batches, which nobody knows before they are read."""

    def __init__(self, count: int) -> None:
        self.count, self.read = count, 0

    def __iter__(self) -> Iterator[int]:
        for number in range(self.count):
            self.read += 1
            yield number


class Remembers(Unmeasured):
    """Knows its own place, and goes on from it."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.given = 0

    def __iter__(self) -> Iterator[int]:
        while self.given < self.count:
            self.read += 1
            self.given += 1
            yield self.given - 1
        self.given = 0

    def state_dict(self) -> dict[str, int]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.given = state["given"]


def go(bus: HookBus, loader: Any, **options: Any) -> tuple[list[Place], Run]:
    """Go through what is left; which batch of which epoch was given."""
    places: list[Place] = []
    with bus.run(**options) as run:
        places = walk(run, loader)
    return places, run


def walk(run: Run, loader: Iterable[Any]) -> list[Place]:
    places = []
    for epoch in run.epochs():
        run.bus.emit("before_train_epoch")
        for index, batch in run.batches(loader):
            run.bus.emit("before_train_iter", batch_idx=index, batch=batch)
            places.append((epoch, index))
            run.bus.emit("after_train_iter", batch_idx=index, batch=batch)
        run.bus.emit("after_train_epoch")
    return places


def asking(bus: HookBus, iteration: int, ask: Callable[[Run], None]) -> HookBus:
    """Something is asked for in this iteration, counted from 1."""

    def after_train_iter(run: Run) -> None:
        if run.iters_done == iteration:
            ask(run)

    bus.on("after_train_iter")(after_train_iter)
    return bus


class TestLimit:
    @pytest.mark.parametrize("loader", [[1, 2, 3], Unmeasured(3)], ids=["length", "no length"])
    def test_in_epochs(self, loader: Any) -> None:
        places, run = go(HookBus(), loader, epochs=2)
        assert places == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
        assert (run.epochs_done, run.epoch_complete) == (2, True)

    @pytest.mark.parametrize("loader", [[1, 2, 3], Unmeasured(3)], ids=["length", "no length"])
    @pytest.mark.parametrize(
        ("iterations", "last", "epochs_done"), [(2, (0, 1), 0), (3, (0, 2), 1), (5, (1, 1), 1), (6, (1, 2), 2)]
    )
    def test_in_iterations_counts_an_epoch_that_is_whole(
        self, loader: Any, iterations: int, last: Place, epochs_done: int
    ) -> None:
        places, run = go(HookBus(), loader, iterations=iterations)
        assert (places[-1], len(places)) == (last, iterations)
        assert (run.epochs_done, run.outcome) == (epochs_done, "finished")

    def test_in_iterations_ends_a_loader_without_end(self) -> None:
        places, run = go(HookBus(), Endless(), iterations=4)
        assert places == [(0, 0), (0, 1), (0, 2), (0, 3)]
        assert run.epochs_done == 0

    def test_in_both_ends_at_the_first(self) -> None:
        assert len(go(HookBus(), [1, 2, 3], epochs=2, iterations=4)[0]) == 4
        assert len(go(HookBus(), [1, 2, 3], epochs=1, iterations=4)[0]) == 3

    def test_is_needed_for_epochs(self) -> None:
        with pytest.raises(LoopError, match=r"run.epochs\(\): the run has no limit. Set epochs= or iterations="):
            go(HookBus(), [1])

    @pytest.mark.parametrize("limit", [{"epochs": 0}, {"iterations": 0}], ids=str)
    def test_of_zero_leaves_nothing_to_do_and_says_so(
        self, limit: dict[str, int], caplog: pytest.LogCaptureFixture
    ) -> None:
        assert go(HookBus(), [1], **limit)[0] == []
        assert caplog.messages == [
            "Nothing to train: 0 epochs and 0 iterations are already complete. Increase the limit, or start from "
            "scratch."
        ]

    @pytest.mark.parametrize("begins_by_itself", [False, True])
    def test_that_was_reached_leaves_a_training_that_begins_and_ends(self, begins_by_itself: bool) -> None:
        heard: list[str] = []

        class Hears(Hook):
            def before_train(self) -> None:
                heard.append("before_train")

            def after_train(self) -> None:
                heard.append("after_train")

        bus = HookBus([Hears()])
        with bus.run(epochs=0) as run:
            if begins_by_itself:
                bus.emit("before_train")
            assert list(run.epochs()) == []
        assert heard == ["before_train", "after_train"]

    def test_that_was_reached_may_be_raised(self, caplog: pytest.LogCaptureFixture) -> None:
        bus = HookBus()
        assert go(bus, [1, 2], epochs=1)[0] == [(0, 0), (0, 1)]
        assert go(bus, [1, 2], epochs=1)[0] == []
        assert caplog.messages == [
            "Nothing to train: 1 epochs and 2 iterations are already complete. Increase the limit, or start from "
            "scratch."
        ]
        assert go(bus, [1, 2], epochs=2)[0] == [(1, 0), (1, 1)]


class TestStops:
    @pytest.mark.parametrize("loader", [[1, 2, 3], Unmeasured(3)], ids=["length", "no length"])
    @pytest.mark.parametrize(
        ("iteration", "epochs_done", "complete"), [(1, 0, False), (2, 0, False), (3, 1, True), (4, 1, False)]
    )
    def test_cut_the_epoch_unless_it_was_at_its_end(
        self, loader: Any, iteration: int, epochs_done: int, complete: bool
    ) -> None:
        bus = asking(HookBus(), iteration, lambda run: run.request_stop("enough"))
        places, run = go(bus, loader, epochs=3)
        assert len(places) == iteration
        assert (run.epochs_done, run.epoch_complete, run.outcome) == (epochs_done, complete, "stopped")

    def test_before_the_first_epoch_let_none_begin(self) -> None:
        bus = HookBus()
        bus.on("before_run")(lambda run: run.request_stop("no"))
        places, run = go(bus, [1], epochs=3)
        assert (places, run.outcome, run.epochs_done) == ([], "stopped", 0)

    @pytest.mark.parametrize("point", ["before_epoch", "before_train_epoch"])
    def test_at_the_beginning_of_an_epoch_leave_it_empty(self, point: str) -> None:
        bus = HookBus()
        bus.on(point)(lambda run: run.request_stop("no") if run.epoch == 1 else None)
        places, run = go(bus, [1, 2], epochs=3)
        assert (places, run.epochs_done, run.epoch_complete) == ([(0, 0), (0, 1)], 1, False)

    def test_of_the_epoch_end_it_alone_and_it_counts(self) -> None:
        bus = asking(HookBus(), 2, lambda run: run.request_stop_epoch("next"))
        places, run = go(bus, [1, 2, 3], epochs=2)
        assert places == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]
        assert (run.epochs_done, run.outcome) == (2, "finished")

    def test_read_no_batch_too_many(self) -> None:
        loader = Unmeasured(10)
        go(asking(HookBus(), 2, lambda run: run.request_stop_epoch()), loader, epochs=1)
        assert loader.read == 2

    @pytest.mark.parametrize("left", [0, 1])
    def test_of_a_loader_without_length_look_whether_more_would_come(self, left: int) -> None:
        loader = Unmeasured(2 + left)
        _, run = go(asking(HookBus(), 2, lambda run: run.request_stop()), loader, epochs=5)
        assert (run.epochs_done, loader.read) == ((1, 2) if left == 0 else (0, 3))


class TestData:
    @pytest.mark.parametrize("loader", [[], DataLoader(cast(Any, []), batch_size=2)], ids=["list", "loader"])
    def test_that_gives_no_batch_is_an_error(self, loader: Any) -> None:
        with pytest.raises(LoopError, match="The training loader yielded no batch.*at least one batch"):
            go(HookBus(), loader, epochs=1)

    def test_that_can_be_read_only_once_is_an_error_in_the_second_epoch(self) -> None:
        with pytest.raises(LoopError, match="an iterator is exhausted after one"):
            go(HookBus(), iter([1, 2]), epochs=2)

    def test_may_be_another_loader_in_each_epoch(self) -> None:
        seen = []
        with HookBus().run(epochs=3) as run:
            for epoch in run.epochs():
                run.bus.emit("before_train_epoch")
                for index, batch in run.batches([epoch * 10, epoch * 10 + 1]):
                    seen.append(batch)
                    run.bus.emit("after_train_iter", batch_idx=index, batch=batch)
                run.bus.emit("after_train_epoch")
        assert seen == [0, 1, 10, 11, 20, 21]

    def test_order_follows_from_seed_and_epoch(self) -> None:
        def order(seed: int) -> list[list[int]]:
            seen: list[list[int]] = []
            loader: DataLoader[Any] = DataLoader(cast(Any, list(range(8))), batch_size=None, shuffle=True)
            with HookBus().run(epochs=2, seed=seed) as run:
                for _ in run.epochs():
                    run.bus.emit("before_train_epoch")
                    seen.append([])
                    for _, batch in run.batches(loader):
                        seen[-1].append(int(batch))
                        run.bus.emit("after_train_iter")
                    run.bus.emit("after_train_epoch")
            return seen

        first, second = order(1)
        assert sorted(first) == sorted(second) == list(range(8))
        assert first != second
        assert order(1) == [first, second]
        assert order(2) != [first, second]

    def test_that_cannot_be_positioned_is_read_again_and_that_is_said(self, caplog: pytest.LogCaptureFixture) -> None:
        bus, loader = HookBus(), [1, 2, 3]
        go(bus, loader, iterations=2)
        caplog.clear()
        places, _ = go(bus, loader, iterations=4)
        assert places == [(0, 2), (1, 0)]
        assert caplog.messages == [
            "The training loader has no state to restore. Skipping 2 batches by reading them again."
        ]

    def test_of_a_known_order_is_positioned_without_reading(self, caplog: pytest.LogCaptureFixture) -> None:
        class Reads(list[int]):
            def __init__(self, numbers: Iterable[int]) -> None:
                super().__init__(numbers)
                self.read: list[int] = []

            def __getitem__(self, index: Any) -> Any:
                self.read.append(index)
                return super().__getitem__(index)

        bus, data = HookBus(), Reads(range(3))
        loader: DataLoader[Any] = DataLoader(cast(Any, data), batch_size=None)
        go(bus, loader, iterations=2)
        data.read.clear()
        places, _ = go(bus, loader, iterations=3)
        assert (places, data.read, caplog.messages) == ([(0, 2)], [2], [])


class TestGoingOn:
    """A run is put where another one was, and does what is left."""

    @given(
        length=st.integers(1, 4),
        epochs=st.integers(1, 3),
        cuts=st.lists(st.integers(0, 12), max_size=3),
        data=st.data(),
    )
    @settings(max_examples=60, deadline=None)
    def test_in_pieces_gives_every_batch_once(self, length: int, epochs: int, cuts: list[int], data: Any) -> None:
        loader = [None] * length
        whole = [(epoch, index) for epoch in range(epochs) for index in range(length)]
        given: list[Place] = []
        state: dict[str, Any] | None = None
        for cut in [*sorted(cuts), None]:
            bus = HookBus()
            if cut is not None:
                asking(bus, cut, lambda run: run.request_stop("cut"))
            with bus.run(epochs=epochs) as run:
                if state is not None:
                    run.load_state_dict(state)
                given += walk(run, loader)
            state = run.state_dict()
        assert given == whole
        assert (run.epochs_done, run.iters_done) == (epochs, len(whole))

    @pytest.mark.parametrize(
        ("point", "iteration", "left"),
        [
            ("after_train_iter", 1, [(0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]),
            ("after_train_iter", 3, [(1, 0), (1, 1), (1, 2)]),
            ("after_epoch", 3, [(1, 0), (1, 1), (1, 2)]),
            ("before_epoch", 3, [(1, 0), (1, 1), (1, 2)]),
            ("before_train_epoch", 0, [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]),
        ],
    )
    def test_from_any_point(self, point: str, iteration: int, left: list[Place]) -> None:
        states: list[dict[str, Any]] = []
        bus = HookBus()
        bus.on(point)(lambda run: states.append(run.state_dict()) if run.iters_done == iteration else None)
        go(bus, [1, 2, 3], epochs=2)
        with HookBus().run(epochs=2) as run:
            run.load_state_dict(states[0])
            assert walk(run, [1, 2, 3]) == left
            assert run.epochs_done == 2

    def test_a_loader_that_knows_its_place_is_not_read_again(self, caplog: pytest.LogCaptureFixture) -> None:
        bus = asking(HookBus(), 2, lambda run: run.request_stop("cut"))
        _, run = go(bus, Remembers(4), epochs=2)
        loader = Remembers(4)
        with HookBus().run(epochs=2) as other:
            other.load_state_dict(run.state_dict())
            assert walk(other, loader) == [(0, 2), (0, 3), (1, 0), (1, 1), (1, 2), (1, 3)]
        assert (loader.read, caplog.messages) == (6, [])

    def test_a_request_to_end_the_epoch_is_not_carried_into_the_next(self) -> None:
        bus = asking(HookBus(), 1, lambda run: run.request_stop_epoch())
        assert go(bus, [1, 2], epochs=3)[0] == [(0, 0), (1, 0), (1, 1), (2, 0), (2, 1)]

    def test_means_of_the_epoch_begin_anew_with_each_but_go_on_in_one_that_is_open(self) -> None:
        bus, means = HookBus(), []
        bus.on("after_train_iter", name="log")(lambda run: run.log(number=float(run.iters_done)))
        bus.on("after_epoch", name="read")(lambda run, metrics: means.append(metrics["train/number"]))
        go(bus, [1, 2, 3], iterations=1)
        go(bus, [1, 2, 3], epochs=2)
        assert means == [1.0, (1 + 2 + 3) / 3, (4 + 5 + 6) / 3]

    def test_a_place_that_was_not_used_is_handed_on(self) -> None:
        with HookBus().run() as run:
            run.training_data.load_state_dict({"place": 3})
            assert run.training_data.state_dict() == {"place": 3}


class TestSeveralLoadersInOneEpoch:
    def test_are_each_read_from_their_beginning(self) -> None:
        bus, seen = HookBus(), []
        with bus.run(epochs=2) as run:
            for _ in run.epochs():
                for loader in (["a0", "a1"], ["b0", "b1", "b2", "b3"]):
                    for i, batch in run.batches(loader):
                        bus.emit("before_train_iter", batch_idx=i, batch=batch)
                        seen.append(batch)
                        bus.emit("after_train_iter", batch_idx=i, batch=batch)
        assert seen == ["a0", "a1", "b0", "b1", "b2", "b3"] * 2


class TestTheEndOfARun:
    @pytest.mark.parametrize("iterations", [None, 3], ids=["after whole epochs", "in the middle of one"])
    def test_ends_the_workers_of_its_loader_without_waiting_for_the_garbage_collector(
        self, iterations: int | None
    ) -> None:
        loader: DataLoader[Any] = DataLoader(
            cast(Any, list(range(4))), batch_size=None, num_workers=1, persistent_workers=True
        )
        gc.collect()
        gc.disable()
        try:
            _, run = go(HookBus(), loader, epochs=2 if iterations is None else None, iterations=iterations)
            assert multiprocessing.active_children() == []
        finally:
            gc.enable()
        assert run.outcome == "finished"


class TestWhatIsDoneBeforeReading:
    def test_is_told_the_iteration_of_each_batch_also_when_a_run_goes_on(self) -> None:
        told: list[tuple[int, int]] = []

        def tell(dataset: Any, epoch: int, iteration: int) -> None:
            told.append((epoch, iteration))

        def train(iterations: int) -> None:
            with bus.run(iterations=iterations) as run:
                run.training_data.before_reading(tell)
                for _ in run.epochs():
                    for i, batch in run.batches(loader):
                        bus.emit("after_train_iter", batch_idx=i, batch=batch)

        bus, loader = HookBus(), DataLoader(list(range(6)), batch_size=2)
        train(5)
        train(7)

        assert told == [(0, 0), (0, 1), (0, 2), (1, 3), (1, 4), (1, 5), (2, 6)]

    def test_is_said_before_the_data_is_read(self) -> None:
        bus = HookBus()
        with bus.run(epochs=1) as run:
            with pytest.raises(LoopError, match=r"hook 'a' modifies the training data .* over run\.batches\(loader\)"):
                run.training_data.see_that_it_reads("a")
            for _ in run.batches([1]):
                run.training_data.see_that_it_reads("a")
                with pytest.raises(LoopError, match="already being read. Register the function at before_run or"):
                    run.training_data.before_reading(lambda *_: None)
