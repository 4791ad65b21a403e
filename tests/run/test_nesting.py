"""Tests of the automatic nesting of before/after points in custom loops."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from hookbus.errors import PointError
from hookbus.testing import RecordingBus

BEGIN = ["before_run", "before_train"]
END = ["after_train", "after_run", "cleanup"]
VALIDATION = ["before_val", "before_val_epoch", "after_val_epoch", "after_val"]


@pytest.fixture
def bus() -> Any:
    return RecordingBus()


def emit(bus: Any, *points: str) -> None:
    for point in points:
        bus.emit(point)


def fail(bus: Any, *points: str) -> None:
    emit(bus, *points)
    raise ZeroDivisionError


def epoch_of(*inside: str, after: tuple[str, ...] = ()) -> list[str]:
    return ["before_epoch", "before_train_epoch", *inside, "after_train_epoch", *after, "after_epoch"]


# -- minimal loops ---------------------------------------------------------------------------------------------


def test_run_without_events_has_no_training(bus: Any) -> None:
    with bus.run():
        pass
    assert bus.emitted_points == ["before_run", "after_run", "cleanup"]


def test_loop_with_train_epochs_only_gets_the_enclosing_points(bus: Any) -> None:
    with bus.run(epochs=2) as run:
        for _ in run.epochs():
            bus.emit("before_train_epoch")
            bus.emit("after_train_epoch")
    assert bus.emitted_points == [*BEGIN, *epoch_of(), *epoch_of(), *END]
    assert run.epochs_done == 2


def test_loop_with_iterations_only_has_no_epochs(bus: Any) -> None:
    with bus.run() as run:
        for _ in range(2):
            bus.emit("after_train_iter")
    assert bus.emitted_points == [*BEGIN, "after_train_iter", "after_train_iter", *END]
    assert (run.iters_done, run.epochs_done) == (2, 0)


@pytest.mark.parametrize("point", ["before_train_iter", "after_forward", "after_backward", "after_train_iter"])
def test_training_starts_before_its_first_event(bus: Any, point: str) -> None:
    with bus.run():
        bus.emit(point)
    assert bus.emitted_points == [*BEGIN, point, *END]


def test_open_epoch_is_closed_when_the_next_epoch_starts(bus: Any) -> None:
    with bus.run() as run:
        for _ in range(2):
            bus.emit("before_train_epoch")
            bus.emit("after_train_iter")
    assert bus.emitted_points == [*BEGIN, *epoch_of("after_train_iter"), *epoch_of("after_train_iter"), *END]
    assert run.epochs_done == 2


# -- explicit events replace automatic ones ----------------------------------------------------------------------

ITERATION = ("before_train_iter", "after_train_iter")
FULL = [*BEGIN, *epoch_of(*ITERATION), *epoch_of(*ITERATION), *END]


@pytest.mark.parametrize(
    "omitted",
    [
        set(),
        {"before_run", "after_run"},
        {"before_train"},
        {"after_train"},
        {"before_epoch"},
        {"after_epoch"},
        {"before_epoch", "after_epoch"},
        {"after_train_epoch"},
        {"after_train_epoch", "after_epoch"},
        {"before_train", "before_epoch", "after_epoch", "after_train"},
    ],
    ids=lambda points: "-".join(sorted(points)) or "nothing",
)
@pytest.mark.parametrize("checks_stop", [False, True])
def test_omitted_points_are_emitted_automatically(bus: Any, omitted: set[str], checks_stop: bool) -> None:
    with bus.run(epochs=2) as run:
        for point in FULL[:-1]:
            if point not in omitted:
                bus.emit(point)
            if checks_stop and point == "after_train_epoch" and "after_train_epoch" not in omitted:
                assert not run.should_stop
    assert bus.emitted_points == FULL
    assert (run.epochs_done, run.iters_done) == (2, 2)


def test_before_train_is_emitted_once(bus: Any) -> None:
    with bus.run():
        bus.emit("before_train_iter")
        bus.emit("before_train")
        bus.emit("before_train")
    assert bus.emitted_points == [*BEGIN, "before_train_iter", *END]


def test_after_run_is_emitted_on_exit_with_the_outcome(bus: Any) -> None:
    outcomes: list[str] = []
    bus.on("after_run")(lambda run: outcomes.append(run.outcome))
    with bus.run() as run:
        bus.emit("before_train_epoch")
        bus.emit("after_run")
        assert bus.emitted_points == [*BEGIN, *epoch_of(), "after_train"]
        run.request_stop("late")
    assert bus.emitted_points == [*BEGIN, *epoch_of(), *END]
    assert outcomes == ["finished"]


@pytest.mark.parametrize(
    ("name", "before"),
    [("train", []), ("epoch", []), ("train_epoch", []), ("epoch", ["before_epoch", "after_epoch"])],
)
def test_after_point_without_before_point_raises(bus: Any, name: str, before: list[str]) -> None:
    message = f"after_{name}: emitted without before_{name}. Emit before_{name} first"
    with pytest.raises(PointError, match=message), bus.run():
        emit(bus, *before, f"after_{name}")


class TestRepeatedEvents:
    def test_second_start_of_an_epoch_in_a_turn_names_both_places(self, bus: Any) -> None:
        with bus.run(epochs=2) as run:
            for _ in run.epochs():
                bus.emit("before_train_epoch")
                bus.emit("after_train_iter")
                bus.emit("after_train_epoch")
                with pytest.raises(PointError) as raised:
                    bus.emit("before_train_epoch")
                break
        places = re.findall(r"test_nesting\.py:(\d+)", str(raised.value))
        assert int(places[1]) - int(places[0]) == 4
        assert "in epoch 1 after 1 iterations. Emit it once per epoch." in str(raised.value)

    @pytest.mark.parametrize("point", ["before_epoch", "before_train_epoch"])
    def test_second_start_of_an_epoch_without_iterations_raises(self, bus: Any, point: str) -> None:
        with bus.run():
            bus.emit(point)
            with pytest.raises(PointError, match=f"{point}: emitted at .* and again at .*, in epoch 1 after 0 iter"):
                bus.emit(point)

    def test_second_end_of_an_iteration_raises(self, bus: Any) -> None:
        with bus.run() as run:
            emit(bus, "before_train_iter", "after_train_iter")
            with pytest.raises(PointError, match="the iteration has already ended .iteration 1, epoch 1.") as raised:
                bus.emit("after_train_iter")
            assert run.iters_done == 1
        assert len(re.findall(r"test_nesting\.py:\d+", str(raised.value))) == 2

    def test_second_start_of_an_iteration_raises(self, bus: Any) -> None:
        with bus.run():
            emit(bus, "before_train_iter", "after_train_iter", "before_train_iter")
            with pytest.raises(PointError, match="the iteration is still in progress .iteration 2, epoch 1."):
                bus.emit("before_train_iter")

    @pytest.mark.parametrize("point", ["after_val", "after_val_epoch", "after_test"])
    def test_second_end_of_a_validation_raises(self, bus: Any, point: str) -> None:
        before = point.replace("after", "before")
        with bus.run():
            emit(bus, before, point)
            with pytest.raises(PointError, match=f"{point}: emitted without {before}"):
                bus.emit(point)

    def test_validation_that_the_loop_abandons_ends_at_its_next_event(self, bus: Any) -> None:
        exited: list[str] = []

        @contextmanager
        def context() -> Iterator[None]:
            yield
            exited.append("the context")

        bus.on("before_run")(lambda run: run.around_validation(context))
        with bus.run() as run:
            emit(bus, "before_train_epoch", "before_val", "before_val_epoch")
            assert run.validating
            bus.emit("before_train_iter")
            assert (run.validating, exited) == (False, ["the context"])
            emit(bus, "after_train_iter", "before_val", "before_val", "after_val")
            assert not run.validating
        assert bus.emitted_points.count("after_val") == 1

    def test_run_after_a_failed_iteration_begins_a_new_one(self, bus: Any) -> None:
        with pytest.raises(ZeroDivisionError), bus.run():
            fail(bus, "before_train_iter")
        with bus.run() as run:
            emit(bus, "before_train_iter", "after_train_iter")
        assert run.iters_done == 1


def test_events_outside_of_a_run_are_emitted_unchanged(bus: Any) -> None:
    for point in ("after_epoch", "before_train_epoch", "after_run", "before_run"):
        bus.emit(point)
    assert bus.emitted_points == ["after_epoch", "before_train_epoch", "after_run", "before_run"]


@pytest.mark.parametrize(
    "point",
    ["before_train", "before_epoch", "before_train_epoch", "before_train_iter", "after_train_iter", "before_val"],
)
@pytest.mark.parametrize("opened", [False, True])
def test_event_after_the_end_of_a_run_raises_an_error(bus: Any, point: str, opened: bool) -> None:
    if opened:
        run = bus.open(epochs=1)
        emit(bus, "before_train_epoch", "before_train_iter", "after_train_iter")
        run.close()
    else:
        with bus.run(epochs=1) as run:
            emit(bus, "before_train_epoch", "before_train_iter", "after_train_iter")

    emitted = [*bus.emitted_points]
    with pytest.raises(PointError, match=r"emitted at .*test_nesting\.py:\d+, but the run has ended\. Emit"):
        bus.emit(point)
    assert (bus.emitted_points, run.iters_done) == (emitted, 1)
    with bus.run(epochs=2) as later:  # the next run continues the counts of its bus
        emit(bus, "before_train_iter", "after_train_iter")
    assert later.iters_done == 2


# -- epochs are closed lazily ------------------------------------------------------------------------------------


def test_reading_should_stop_and_settling_leave_the_epoch_open(bus: Any) -> None:
    with bus.run(epochs=2) as run:
        for _ in range(2):
            bus.emit("before_train_epoch")
            bus.emit("after_train_iter")
            assert not run.should_stop
            bus.emit("after_train_epoch")
            assert not run.should_stop
            run.settle()
            bus.emit("log_text", text="still inside")
    epoch = epoch_of("after_train_iter", after=("log_text",))
    assert bus.emitted_points == [*BEGIN, *epoch, *epoch, *END]


def test_run_epochs_closes_an_epoch_before_the_next_one_starts(bus: Any) -> None:
    with bus.run(epochs=2) as run:
        for _ in run.epochs():
            bus.emit("before_train_epoch")
            bus.emit("after_train_epoch")
            bus.emit("log_text", text="still inside")
    epoch = epoch_of(after=("log_text",))
    assert bus.emitted_points == [*BEGIN, *epoch, *epoch, *END]


def test_stop_request_in_after_epoch_takes_effect_at_the_end_of_the_epoch(bus: Any) -> None:
    bus.on("after_epoch")(lambda run: run.request_stop("enough"))
    with bus.run(epochs=5) as run:
        for _ in range(5):
            bus.emit("before_train_epoch")
            bus.emit("after_train_epoch")
            bus.emit("after_epoch")
            if run.should_stop:
                break
    assert run.epochs_done == 1
    assert run.outcome == "stopped"


# -- validations -------------------------------------------------------------------------------------------------


def test_validation_after_the_training_part_is_within_the_epoch(bus: Any) -> None:
    with bus.run(epochs=1) as run:
        for _ in run.epochs():
            bus.emit("before_train_epoch")
            bus.emit("after_train_epoch")
            for point in VALIDATION:
                bus.emit(point)
    assert bus.emitted_points == [*BEGIN, *epoch_of(after=tuple(VALIDATION)), *END]


def test_validation_within_an_epoch_does_not_close_it(bus: Any) -> None:
    with bus.run() as run:
        bus.emit("before_train_epoch")
        bus.emit("after_train_iter")
        for point in VALIDATION:
            bus.emit(point)
        bus.emit("after_train_iter")
        bus.emit("after_train_epoch")
    assert bus.emitted_points == [*BEGIN, *epoch_of("after_train_iter", *VALIDATION, "after_train_iter"), *END]
    assert run.iters_done == 2


def test_val_epoch_alone_is_enclosed_by_a_validation(bus: Any) -> None:
    with bus.run():
        for _ in range(2):
            bus.emit("before_val_epoch")
            bus.emit("after_val_epoch", metrics={"accuracy": 0.5})
    assert bus.emitted_points == ["before_run", *VALIDATION, *VALIDATION, "after_run", "cleanup"]


def test_multiple_loaders_share_an_explicit_validation(bus: Any) -> None:
    loaders = ["before_val_epoch", "after_val_epoch", "before_val_epoch", "after_val_epoch"]
    with bus.run():
        for point in ("before_val", *loaders, "after_val"):
            bus.emit(point)
    assert bus.emitted_points == ["before_run", "before_val", *loaders, "after_val", "after_run", "cleanup"]


def test_validation_without_val_epoch_is_unchanged(bus: Any) -> None:
    with bus.run():
        bus.emit("before_val")
        bus.emit("before_val_iter")
        bus.emit("after_val_iter", outputs={"accuracy": 0.5})
        bus.emit("after_val")
    assert bus.emitted_points[1:-2] == ["before_val", "before_val_iter", "after_val_iter", "after_val"]


def test_results_without_before_points_are_stored(bus: Any) -> None:
    with bus.run() as run:
        bus.emit("after_val_epoch", metrics={"accuracy": 0.5})
    assert dict(run.metrics.results) == {"val/accuracy": 0.5}


def test_open_validation_is_closed_on_exit(bus: Any) -> None:
    with bus.run():
        bus.emit("before_train_epoch")
        bus.emit("before_val")
        bus.emit("before_val_epoch")
    assert bus.emitted_points == [*BEGIN, *epoch_of(*VALIDATION), *END]


@pytest.mark.parametrize("mode", ["val", "test"])
def test_outer_after_point_closes_open_inner_points(bus: Any, mode: str) -> None:
    with bus.run():
        bus.emit(f"before_{mode}")
        bus.emit(f"before_{mode}_epoch")
        bus.emit(f"after_{mode}")
        assert bus.emitted_points[1:] == [
            f"before_{mode}",
            f"before_{mode}_epoch",
            f"after_{mode}_epoch",
            f"after_{mode}",
        ]


# -- requested validations ---------------------------------------------------------------------------------------


def silent(run: Any) -> Mapping[str, float]:
    return {"accuracy": 0.75}


def iterating(run: Any) -> None:
    for batch in (torch.zeros(3), torch.zeros(1)):
        run.bus.emit("before_val_iter", batch=batch)
        run.bus.emit("after_val_iter", batch=batch, outputs={"accuracy": 1.0 if len(batch) == 3 else 0.0})


def logging(run: Any) -> None:
    run.log(accuracy=0.5)
    run.log(accuracy=1.0)


def complete(run: Any) -> None:
    run.bus.emit("before_val")
    run.bus.emit("before_val_epoch")
    iterating(run)
    run.bus.emit("after_val_epoch")
    run.bus.emit("after_val")


def reporting(run: Any) -> None:
    run.bus.emit("before_val_epoch")
    run.bus.emit("after_val_epoch", metrics={"accuracy": 0.75})


@pytest.mark.parametrize("validate", [silent, iterating, logging, complete, reporting])
def test_validation_events_are_emitted_once_for_any_validate_function(bus: Any, validate: Any) -> None:
    with bus.run(epochs=1, validate=validate) as run:
        for _ in run.epochs():
            bus.emit("before_train_epoch")
            run.request_validation()
            bus.emit("after_train_epoch")
    points = [point for point in bus.emitted_points if not point.endswith("_iter")]
    assert points == [*BEGIN, *epoch_of(after=tuple(VALIDATION)), *END]
    assert dict(run.metrics.results) == {"val/accuracy": 0.75}
    assert dict(bus.get_arguments("after_val")[0]["metrics"]) == {"val/accuracy": 0.75}


def test_validate_function_may_use_multiple_loaders(bus: Any) -> None:
    def validate() -> None:
        for name in ("clean", "noisy"):
            bus.emit("before_val_epoch", dataloader_name=name)
            bus.emit("after_val_epoch", dataloader_name=name, metrics={"accuracy": len(name) / 10})

    with bus.run(validate=validate) as run:
        bus.emit("before_train_iter")
        run.request_validation()
        bus.emit("after_train_iter")
    pair = ["before_val_epoch", "after_val_epoch"]
    assert bus.emitted_points == [*BEGIN, *ITERATION, "before_val", *pair, *pair, "after_val", *END]
    assert dict(run.metrics.results) == {"val/clean/accuracy": 0.5, "val/noisy/accuracy": 0.5}
    assert [event["dataloader_name"] for event in bus.get_arguments("after_val_epoch")] == ["clean", "noisy"]


def test_failed_validation_leaves_no_open_points(bus: Any) -> None:
    failing = [True]

    def validate() -> None:
        if failing.pop():
            bus.emit("before_val_epoch")
            raise ValueError("no data")

    with bus.run(validate=validate) as run:
        with pytest.raises(ValueError, match="no data"):
            run.validate()
        assert not run.validating
        failing.append(False)
        run.validate()
    assert bus.emitted_points == ["before_run", *VALIDATION[:2], *VALIDATION, "after_run", "cleanup"]


# -- ends --------------------------------------------------------------------------------------------------------


def test_only_final_points_are_emitted_after_an_exception(bus: Any) -> None:
    with pytest.raises(ZeroDivisionError), bus.run():
        fail(bus, "before_train_epoch", "before_val_epoch")
    assert bus.emitted_points == [*BEGIN, *epoch_of()[:2], *VALIDATION[:2], "on_exception", "after_run", "cleanup"]


def test_early_exit_of_the_loop_closes_all_points(bus: Any) -> None:
    with bus.run(epochs=3) as run:
        for epoch in run.epochs():
            bus.emit("before_train_epoch")
            bus.emit("after_train_iter")
            if epoch == 1:
                break
            bus.emit("after_train_epoch")
    assert bus.emitted_points == [*BEGIN, *epoch_of("after_train_iter"), *epoch_of("after_train_iter"), *END]


def test_early_exit_of_the_batch_loop_completes_the_epoch(bus: Any) -> None:
    with bus.run(epochs=2) as run:
        for _ in run.epochs():
            bus.emit("before_train_epoch")
            for i, _ in run.batches([1, 2, 3]):
                bus.emit("after_train_iter", batch_idx=i)
                break
            bus.emit("after_train_epoch")
    assert (run.epochs_done, run.iters_done) == (2, 2)


def test_stop_within_an_epoch_closes_it_without_counting_it(bus: Any) -> None:
    bus.on("after_train_iter")(lambda run: run.request_stop("enough") if run.iters_done == 5 else None)
    with bus.run(epochs=3) as run:
        for _ in run.epochs():
            bus.emit("before_train_epoch")
            for i, _ in run.batches([1, 2, 3]):
                bus.emit("after_train_iter", batch_idx=i)
            bus.emit("after_train_epoch")
    assert bus.emitted_points == [
        *BEGIN,
        *epoch_of(*["after_train_iter"] * 3),
        *epoch_of(*["after_train_iter"] * 2),
        *END,
    ]
    assert (run.epochs_done, run.epoch_complete, run.iters_done) == (1, False, 5)


# -- multiple runs on one bus -------------------------------------------------------------------------------------


def train(bus: Any, epochs: int, **options: Any) -> Any:
    with bus.run(epochs=epochs, **options) as run:
        for _ in run.epochs():
            bus.emit("before_train_epoch")
            bus.emit("after_train_iter")
            bus.emit("after_train_epoch")
    return run


def test_second_run_continues_the_first_run(bus: Any) -> None:
    train(bus, 2)
    bus.events.clear()
    run = train(bus, 3)
    assert bus.emitted_points == [*BEGIN, *epoch_of("after_train_iter"), *END]
    assert (run.epochs_done, run.iters_done) == (3, 3)
    assert bus.get_arguments("before_epoch")[0]["epoch"] == 2


def test_fresh_run_starts_at_zero(bus: Any) -> None:
    first = train(bus, 2)
    second = train(bus, 1, fresh=True)
    assert (second.epochs_done, second.iters_done) == (1, 1)
    assert first.epochs_done == 2


def test_failed_run_leaves_no_open_points_for_the_next_run(bus: Any) -> None:
    with pytest.raises(ZeroDivisionError), bus.run(epochs=2):
        fail(bus, "before_train_epoch")
    bus.events.clear()
    train(bus, 1)
    assert bus.emitted_points == [*BEGIN, *epoch_of("after_train_iter"), *END]
