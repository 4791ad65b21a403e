"""`run.epochs()` and `run.batches()` yield the remaining epochs and batches."""

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
from hookbus._run.run import Run
from hookbus.errors import LoopError

Position = tuple[int, int]


class EndlessLoader:
    """Loader without length and without end."""

    def __iter__(self) -> Iterator[int]:
        number = 0
        while True:
            yield number
            number += 1


class LoaderWithoutLength:
    """Loader without length."""

    def __init__(self, count: int) -> None:
        self.count, self.read = count, 0

    def __iter__(self) -> Iterator[int]:
        for number in range(self.count):
            self.read += 1
            yield number


class StatefulLoader(LoaderWithoutLength):
    """Loader with a state, without length."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.count_read = 0

    def __iter__(self) -> Iterator[int]:
        while self.count_read < self.count:
            self.read += 1
            self.count_read += 1
            yield self.count_read - 1
        self.count_read = 0

    def state_dict(self) -> dict[str, int]:
        return {"count_read": self.count_read}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.count_read = state["count_read"]


def train(bus: HookBus, loader: Any, **options: Any) -> tuple[list[Position], Run]:
    """Iterate over the remaining data of a run, and return the epoch and index of each batch."""
    positions: list[Position] = []
    with bus.run(**options) as run:
        positions = iterate(run, loader)
    return positions, run


def iterate(run: Run, loader: Iterable[Any]) -> list[Position]:
    positions = []
    for epoch in run.epochs():
        run.bus.emit("before_train_epoch")
        for index, batch in run.batches(loader):
            run.bus.emit("before_train_iter", batch_idx=index, batch=batch)
            positions.append((epoch, index))
            run.bus.emit("after_train_iter", batch_idx=index, batch=batch)
        run.bus.emit("after_train_epoch")
    return positions


def request_at(bus: HookBus, iteration: int, request: Callable[[Run], None]) -> HookBus:
    """Register a listener that makes a request in one iteration, counted from 1."""

    def after_train_iter(run: Run) -> None:
        if run.iters_done == iteration:
            request(run)

    bus.on("after_train_iter")(after_train_iter)
    return bus


class TestLimit:
    @pytest.mark.parametrize("loader", [[1, 2, 3], LoaderWithoutLength(3)], ids=["length", "no length"])
    def test_limit_in_epochs_yields_all_batches_of_each_epoch(self, loader: Any) -> None:
        positions, run = train(HookBus(), loader, epochs=2)
        assert positions == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
        assert (run.epochs_done, run.epoch_complete) == (2, True)

    @pytest.mark.parametrize("loader", [[1, 2, 3], LoaderWithoutLength(3)], ids=["length", "no length"])
    @pytest.mark.parametrize(
        ("iterations", "last", "epochs_done"), [(2, (0, 1), 0), (3, (0, 2), 1), (5, (1, 1), 1), (6, (1, 2), 2)]
    )
    def test_limit_in_iterations_counts_an_epoch_that_is_complete(
        self, loader: Any, iterations: int, last: Position, epochs_done: int
    ) -> None:
        positions, run = train(HookBus(), loader, iterations=iterations)
        assert (positions[-1], len(positions)) == (last, iterations)
        assert (run.epochs_done, run.outcome) == (epochs_done, "finished")

    def test_limit_in_iterations_ends_an_endless_loader(self) -> None:
        positions, run = train(HookBus(), EndlessLoader(), iterations=4)
        assert positions == [(0, 0), (0, 1), (0, 2), (0, 3)]
        assert run.epochs_done == 0

    def test_run_ends_at_the_first_of_two_limits(self) -> None:
        assert len(train(HookBus(), [1, 2, 3], epochs=2, iterations=4)[0]) == 4
        assert len(train(HookBus(), [1, 2, 3], epochs=1, iterations=4)[0]) == 3

    def test_epochs_require_a_limit(self) -> None:
        with pytest.raises(
            LoopError, match=r"run.epochs\(\): the run has no limit. Set epochs=, iterations= or tokens="
        ):
            train(HookBus(), [1])

    @pytest.mark.parametrize("limit", [{"epochs": 0}, {"iterations": 0}], ids=str)
    def test_limit_of_zero_trains_nothing_with_a_warning(
        self, limit: dict[str, int], caplog: pytest.LogCaptureFixture
    ) -> None:
        assert train(HookBus(), [1], **limit)[0] == []
        assert caplog.messages == [
            "Nothing to train: 0 epochs and 0 iterations are already complete. Increase the limit, or start from "
            "scratch."
        ]

    @pytest.mark.parametrize("emits_before_train", [False, True])
    def test_training_at_its_limit_emits_its_first_and_last_event(self, emits_before_train: bool) -> None:
        events: list[str] = []

        class RecordEvents(Hook):
            def before_train(self) -> None:
                events.append("before_train")

            def after_train(self) -> None:
                events.append("after_train")

        bus = HookBus([RecordEvents()])
        with bus.run(epochs=0) as run:
            if emits_before_train:
                bus.emit("before_train")
            assert list(run.epochs()) == []
        assert events == ["before_train", "after_train"]

    def test_limit_may_be_increased_after_it_is_reached(self, caplog: pytest.LogCaptureFixture) -> None:
        bus = HookBus()
        assert train(bus, [1, 2], epochs=1)[0] == [(0, 0), (0, 1)]
        assert train(bus, [1, 2], epochs=1)[0] == []
        assert caplog.messages == [
            "Nothing to train: 1 epochs and 2 iterations are already complete. Increase the limit, or start from "
            "scratch."
        ]
        assert train(bus, [1, 2], epochs=2)[0] == [(1, 0), (1, 1)]


class TestStops:
    @pytest.mark.parametrize("loader", [[1, 2, 3], LoaderWithoutLength(3)], ids=["length", "no length"])
    @pytest.mark.parametrize(
        ("iteration", "epochs_done", "complete"), [(1, 0, False), (2, 0, False), (3, 1, True), (4, 1, False)]
    )
    def test_stop_truncates_the_epoch_unless_it_is_complete(
        self, loader: Any, iteration: int, epochs_done: int, complete: bool
    ) -> None:
        bus = request_at(HookBus(), iteration, lambda run: run.request_stop("enough"))
        positions, run = train(bus, loader, epochs=3)
        assert len(positions) == iteration
        assert (run.epochs_done, run.epoch_complete, run.outcome) == (epochs_done, complete, "stopped")

    def test_stop_before_the_first_epoch_prevents_it(self) -> None:
        bus = HookBus()
        bus.on("before_run")(lambda run: run.request_stop("no"))
        positions, run = train(bus, [1], epochs=3)
        assert (positions, run.outcome, run.epochs_done) == ([], "stopped", 0)

    @pytest.mark.parametrize("point", ["before_epoch", "before_train_epoch"])
    def test_stop_at_the_start_of_an_epoch_leaves_it_empty(self, point: str) -> None:
        bus = HookBus()
        bus.on(point)(lambda run: run.request_stop("no") if run.epoch == 1 else None)
        positions, run = train(bus, [1, 2], epochs=3)
        assert (positions, run.epochs_done, run.epoch_complete) == ([(0, 0), (0, 1)], 1, False)

    def test_stop_of_the_epoch_ends_only_this_epoch_which_counts(self) -> None:
        bus = request_at(HookBus(), 2, lambda run: run.request_stop_epoch("next"))
        positions, run = train(bus, [1, 2, 3], epochs=2)
        assert positions == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]
        assert (run.epochs_done, run.outcome) == (2, "finished")

    def test_stop_of_the_epoch_reads_no_further_batch(self) -> None:
        loader = LoaderWithoutLength(10)
        train(request_at(HookBus(), 2, lambda run: run.request_stop_epoch()), loader, epochs=1)
        assert loader.read == 2

    @pytest.mark.parametrize("left", [0, 1])
    def test_stop_reads_one_more_batch_of_a_loader_without_length(self, left: int) -> None:
        loader = LoaderWithoutLength(2 + left)
        _, run = train(request_at(HookBus(), 2, lambda run: run.request_stop()), loader, epochs=5)
        assert (run.epochs_done, loader.read) == ((1, 2) if left == 0 else (0, 3))


class TestData:
    @pytest.mark.parametrize("loader", [[], DataLoader(cast(Any, []), batch_size=2)], ids=["list", "loader"])
    def test_loader_without_batches_raises_an_error(self, loader: Any) -> None:
        with pytest.raises(LoopError, match="The training loader yielded no batch.*at least one batch"):
            train(HookBus(), loader, epochs=1)

    def test_iterator_raises_an_error_in_the_second_epoch(self) -> None:
        with pytest.raises(LoopError, match="an iterator is exhausted after one"):
            train(HookBus(), iter([1, 2]), epochs=2)

    def test_loader_may_differ_in_each_epoch(self) -> None:
        seen = []
        with HookBus().run(epochs=3) as run:
            for epoch in run.epochs():
                run.bus.emit("before_train_epoch")
                for index, batch in run.batches([epoch * 10, epoch * 10 + 1]):
                    seen.append(batch)
                    run.bus.emit("after_train_iter", batch_idx=index, batch=batch)
                run.bus.emit("after_train_epoch")
        assert seen == [0, 1, 10, 11, 20, 21]

    def test_order_depends_on_seed_and_epoch(self) -> None:
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

    def test_loader_without_state_is_read_again_with_a_warning(self, caplog: pytest.LogCaptureFixture) -> None:
        bus, loader = HookBus(), [1, 2, 3]
        train(bus, loader, iterations=2)
        caplog.clear()
        positions, _ = train(bus, loader, iterations=4)
        assert positions == [(0, 2), (1, 0)]
        assert caplog.messages == [
            "The training loader has no state to restore. Skipping 2 batches by reading them again."
        ]

    def test_seeded_loader_is_positioned_without_reading(self, caplog: pytest.LogCaptureFixture) -> None:
        class RecordReads(list[int]):
            def __init__(self, numbers: Iterable[int]) -> None:
                super().__init__(numbers)
                self.read: list[int] = []

            def __getitem__(self, index: Any) -> Any:
                self.read.append(index)
                return super().__getitem__(index)

        bus, data = HookBus(), RecordReads(range(3))
        loader: DataLoader[Any] = DataLoader(cast(Any, data), batch_size=None)
        train(bus, loader, iterations=2)
        data.read.clear()
        positions, _ = train(bus, loader, iterations=3)
        assert (positions, data.read, caplog.messages) == ([(0, 2)], [2], [])


class TestResume:
    """Resume of a run at the position of another run."""

    @pytest.mark.slow
    @given(
        length=st.integers(1, 4),
        epochs=st.integers(1, 3),
        stops=st.lists(st.integers(0, 12), max_size=3),
        data=st.data(),
    )
    @settings(max_examples=60, deadline=None)
    def test_interrupted_runs_yield_every_batch_once(
        self, length: int, epochs: int, stops: list[int], data: Any
    ) -> None:
        loader = [None] * length
        whole = [(epoch, index) for epoch in range(epochs) for index in range(length)]
        positions: list[Position] = []
        state: dict[str, Any] | None = None
        for stop_at in [*sorted(stops), None]:
            bus = HookBus()
            if stop_at is not None:
                request_at(bus, stop_at, lambda run: run.request_stop("stop"))
            with bus.run(epochs=epochs) as run:
                if state is not None:
                    run.load_state_dict(state)
                positions += iterate(run, loader)
            state = run.state_dict()
        assert positions == whole
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
    def test_run_resumes_from_the_state_at_any_point(self, point: str, iteration: int, left: list[Position]) -> None:
        states: list[dict[str, Any]] = []
        bus = HookBus()
        bus.on(point)(lambda run: states.append(run.state_dict()) if run.iters_done == iteration else None)
        train(bus, [1, 2, 3], epochs=2)
        with HookBus().run(epochs=2) as run:
            run.load_state_dict(states[0])
            assert iterate(run, [1, 2, 3]) == left
            assert run.epochs_done == 2

    def test_stateful_loader_is_not_read_again(self, caplog: pytest.LogCaptureFixture) -> None:
        bus = request_at(HookBus(), 2, lambda run: run.request_stop("stop"))
        _, run = train(bus, StatefulLoader(4), epochs=2)
        loader = StatefulLoader(4)
        with HookBus().run(epochs=2) as other:
            other.load_state_dict(run.state_dict())
            assert iterate(other, loader) == [(0, 2), (0, 3), (1, 0), (1, 1), (1, 2), (1, 3)]
        assert (loader.read, caplog.messages) == (6, [])

    def test_request_to_stop_the_epoch_does_not_apply_to_the_next_epoch(self) -> None:
        bus = request_at(HookBus(), 1, lambda run: run.request_stop_epoch())
        assert train(bus, [1, 2], epochs=3)[0] == [(0, 0), (1, 0), (1, 1), (2, 0), (2, 1)]

    def test_means_of_the_epoch_are_reset_per_epoch_but_not_on_resume(self) -> None:
        bus, means = HookBus(), []
        bus.on("after_train_iter", name="log")(lambda run: run.log(number=float(run.iters_done)))
        bus.on("after_epoch", name="read")(lambda run, metrics: means.append(metrics["train/number"]))
        train(bus, [1, 2, 3], iterations=1)
        train(bus, [1, 2, 3], epochs=2)
        assert means == [1.0, (1 + 2 + 3) / 3, (4 + 5 + 6) / 3]

    def test_position_that_is_not_used_yet_is_saved_again(self) -> None:
        _, run = train(request_at(HookBus(), 2, lambda run: run.request_stop("stop")), StatefulLoader(4), epochs=2)
        with HookBus().run(epochs=2) as other:
            other.load_state_dict(run.state_dict())
            assert other.state_dict()["data"] == run.state_dict()["data"]


class TestMultipleLoadersPerEpoch:
    def test_each_loader_of_an_epoch_is_read_from_its_start(self) -> None:
        bus, seen = HookBus(), []
        with bus.run(epochs=2) as run:
            for _ in run.epochs():
                for loader in (["a0", "a1"], ["b0", "b1", "b2", "b3"]):
                    for i, batch in run.batches(loader):
                        bus.emit("before_train_iter", batch_idx=i, batch=batch)
                        seen.append(batch)
                        bus.emit("after_train_iter", batch_idx=i, batch=batch)
        assert seen == ["a0", "a1", "b0", "b1", "b2", "b3"] * 2


class TestEndOfRun:
    @pytest.mark.slow
    @pytest.mark.parametrize("iterations", [None, 3], ids=["after complete epochs", "within an epoch"])
    def test_workers_of_the_loader_end_with_the_run_without_garbage_collection(self, iterations: int | None) -> None:
        loader: DataLoader[Any] = DataLoader(
            cast(Any, list(range(4))), batch_size=None, num_workers=1, persistent_workers=True
        )
        gc.collect()
        gc.disable()
        try:
            _, run = train(HookBus(), loader, epochs=2 if iterations is None else None, iterations=iterations)
            assert multiprocessing.active_children() == []
        finally:
            gc.enable()
        assert run.outcome == "finished"


class TestDatasetHooks:
    def test_dataset_hook_receives_epoch_and_iteration_also_after_resume(self) -> None:
        calls: list[tuple[int, int]] = []

        def record_call(dataset: Any, epoch: int, iteration: int) -> None:
            calls.append((epoch, iteration))

        def train(iterations: int) -> None:
            with bus.run(iterations=iterations) as run:
                run.register_dataset_hook(record_call)
                for _ in run.epochs():
                    for i, batch in run.batches(loader):
                        bus.emit("after_train_iter", batch_idx=i, batch=batch)

        bus, loader = HookBus(), DataLoader(list(range(6)), batch_size=2)
        train(5)
        train(7)

        assert calls == [(0, 0), (0, 1), (0, 2), (1, 3), (1, 4), (1, 5), (2, 6)]

    def test_hook_that_modifies_the_data_requires_that_the_run_reads_it(self) -> None:
        with HookBus().run(epochs=1) as run:
            with pytest.raises(LoopError, match=r"hook 'a' modifies the training data .* over run\.batches\(loader\)"):
                run.require_managed_loader("a")
            for _ in run.batches([1]):
                run.require_managed_loader("a")

    def test_late_dataset_hook_is_called_from_the_next_pass_on(self, caplog: pytest.LogCaptureFixture) -> None:
        calls: list[tuple[int, int]] = []
        bus, loader = HookBus(), DataLoader(list(range(6)), batch_size=2)
        with bus.run(epochs=3) as run:
            for _ in run.epochs():
                for i, batch in run.batches(loader):
                    bus.emit("after_train_iter", batch_idx=i, batch=batch)
                    if run.iters_done == 4:
                        run.register_dataset_hook(lambda _, epoch, number: calls.append((epoch, number)))
        assert calls == [(2, 6), (2, 7), (2, 8)]
        assert "already being read, so the function is called from the next pass on." in caplog.text
