"""The expected number of iterations per epoch follows from the loaders of an epoch and from completed epochs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hookbus import HookBus
from hookbus._run.run import Run

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


def train(body: Body, state: dict[str, Any] | None = None, epochs: int = 3, **options: Any) -> tuple[list[Any], Run]:
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
    rows, run = train(body)

    assert [length for length, _, _ in rows] == first + later * 2
    assert [length for _, length, _ in rows] == first + [len(later)] * (2 * len(later))
    assert run.epochs_done == 3


@pytest.mark.parametrize("body", [read_sequence, read_pairs, read_less])
def test_length_is_restored(body: Body) -> None:
    rows, _ = train(body)
    for done in range(1, len(rows)):
        resumed, _ = train(body, rows[done - 1][2])

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

    rows, _ = train(read_growing)

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
