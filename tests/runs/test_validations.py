from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from hookbus import Hook
from hookbus.errors import MetricError, RequestError
from hookbus.markers import hookimpl
from hookbus.run import Run
from hookbus.testing import RecordingBus
from tests import toys


@pytest.fixture
def bus() -> Any:
    return RecordingBus()


def judge(bus: Any, *losses: tuple[float, int], name: str | None = None) -> None:
    """One loader, judged by a loop of one's own: a loss and a number of samples for each batch."""
    bus.emit("before_val_epoch", dataloader_name=name)
    for i, (loss, size) in enumerate(losses):
        batch = torch.zeros(size, 1)
        bus.emit("before_val_iter", batch_idx=i, batch=batch)
        bus.emit("after_val_iter", batch_idx=i, batch=batch, outputs={"loss": loss})
    bus.emit("after_val_epoch", dataloader_name=name)


class TestResults:
    def test_have_full_names(self, bus: Any) -> None:
        with bus.run(validate=lambda: {"accuracy": 0.5, "val/loss": torch.tensor(2.0)}) as run:
            assert dict(run.validate()) == {"val/accuracy": 0.5, "val/loss": 2.0}
            assert run.metrics.results["accuracy"] == 0.5

    def test_are_means_over_samples_of_what_the_batches_gave(self, bus: Any) -> None:
        with bus.run(validate=lambda: judge(bus, (1.0, 3), (5.0, 1))) as run:
            assert dict(run.validate()) == {"val/loss": 2.0}  # (3 * 1 + 1 * 5) / 4

    def test_what_is_logged_on_the_way_belongs_to_them(self, bus: Any) -> None:
        bus.on("after_val_iter")(lambda run, outputs: run.log(twice=2 * outputs["loss"]))
        with bus.run(validate=lambda: judge(bus, (1.0, 3), (5.0, 1))) as run:
            run.log(loss=9.0)
            assert dict(run.validate()) == {"val/loss": 2.0, "val/twice": 4.0}
            assert dict(run.metrics.latest()) == {"train/loss": 9.0, "val/loss": 2.0, "val/twice": 4.0}

    def test_of_several_loaders_are_told_apart_by_their_names(self, bus: Any) -> None:
        def validate() -> None:
            judge(bus, (1.0, 2), name="clean")
            judge(bus, (3.0, 2), (4.0, 2), name="noisy")

        with bus.run(validate=validate) as run:
            assert dict(run.validate()) == {"val/clean/loss": 1.0, "val/noisy/loss": 3.5}

        told = [(each["dataloader_name"], dict(each["metrics"])) for each in bus.arguments("after_val_epoch")]
        assert told == [("clean", {"val/clean/loss": 1.0}), ("noisy", {"val/noisy/loss": 3.5})]
        (whole,) = bus.arguments("after_val")
        assert dict(whole["metrics"]) == {"val/clean/loss": 1.0, "val/noisy/loss": 3.5}

    @pytest.mark.parametrize(
        ("name", "full"), [(0, "val/0/loss"), (1, "val/1/loss"), ("", "val/loss"), (None, "val/loss")]
    )
    def test_of_a_loader_with_a_number_for_a_name_have_it(self, name: Any, full: str, bus: Any) -> None:
        with bus.run(validate=lambda: judge(bus, (1.0, 2), name=name)) as run:
            assert dict(run.validate()) == {full: 1.0}

    def test_that_the_loop_has_found_win_over_means(self, bus: Any) -> None:
        def validate() -> None:
            bus.emit("before_val_epoch")
            bus.emit("after_val_iter", batch_idx=0, batch=torch.zeros(2), outputs={"loss": 1.0, "hits": 3.0})
            bus.emit("after_val_epoch", metrics={"loss": 7.0})

        with bus.run(validate=validate) as run:
            assert dict(run.validate()) == {"val/loss": 7.0, "val/hits": 3.0}

    def test_that_are_not_numbers_stay_what_they_are(self, bus: Any) -> None:
        with bus.run(validate=lambda: {"loss": math.nan, "best": math.inf}) as run:
            results = run.validate()

        assert math.isnan(results["val/loss"])
        assert results["val/best"] == math.inf

    def test_have_texts_as_names(self, bus: Any) -> None:
        with bus.run(validate=lambda: {0: 0.25, 1: 0.5}) as run:
            assert dict(run.validate()) == {"val/0": 0.25, "val/1": 0.5}

    @pytest.mark.parametrize(
        ("found", "problem"),
        [
            ({"f1": [0.5, 0.25]}, "the result 'f1' must be a single number, got list."),
            ({"f1": torch.zeros(2)}, "the result 'f1' must be a single number, got Tensor of shape (2,)."),
            ({"f1": None}, "the result 'f1' must be a single number, got NoneType."),
            ({"f1": 10**400}, "the result 'f1' must be a single number, got int."),
            (0.0, "The validation function must return a mapping or None, got float."),
        ],
    )
    def test_that_cannot_be_read_are_told(self, bus: Any, found: Any, problem: str) -> None:
        with pytest.raises(MetricError, match=re.escape(problem)), bus.run(validate=lambda: found) as run:
            run.validate()

    def test_of_a_validation_stay_until_the_next_one_which_has_its_own_alone(self, bus: Any) -> None:
        found = iter([{"loss": 1.0, "extra": 5.0}, {"loss": 2.0}])
        with bus.run(validate=lambda: next(found)) as run:
            run.validate()
            assert dict(run.metrics.results) == {"val/loss": 1.0, "val/extra": 5.0}
            run.validate()
            assert dict(run.metrics.results) == {"val/loss": 2.0}

    def test_of_a_test_are_not_those_of_a_validation(self) -> None:
        trainer = toys.trainer(val_loader=toys.pairs(1), test_loader=toys.pairs(2))

        assert set(trainer.validate()) == {"val/loss"}
        assert set(trainer.test()) == {"test/loss"}


class TestBatches:
    def test_are_counted_from_zero_in_each_loader_whatever_training_counted(self, bus: Any) -> None:
        seen: list[tuple[str, int, int]] = []

        def look(point: str) -> None:
            bus.on(point, name=point)(lambda run: seen.append((point, run.clock.batch, run.iters_done)))

        look("before_val_iter")
        look("after_val_iter")

        def validate() -> None:
            judge(bus, (1.0, 1), (1.0, 1), name="a")
            judge(bus, (1.0, 1), name="b")

        with bus.run(validate=validate) as run:
            for i in range(3):
                bus.emit("after_train_iter", batch_idx=i)
            run.validate()

        both = ("before_val_iter", "after_val_iter")
        assert seen == [(point, batch, 3) for batch in (0, 1, 0) for point in both]


class Around:
    """Notes what happens around validations, as averaged weights would have to."""

    def __init__(self, *names: str) -> None:
        self.names, self.told = names, list[str]()

    @hookimpl
    def before_run(self, run: Run) -> None:
        for name in self.names:
            run.around_validation(partial(self.context, name))

    @contextmanager
    def context(self, name: str) -> Iterator[None]:
        self.told.append(f"enter {name}")
        yield
        self.told.append(f"leave {name}, gradients {torch.is_grad_enabled()}")

    @hookimpl
    def before_val(self) -> None:
        self.told.append("before_val")

    @hookimpl
    def after_val(self) -> None:
        self.told.append("after_val")

    @hookimpl
    def before_test(self) -> None:
        self.told.append("before_test")

    @hookimpl
    def after_test(self) -> None:
        self.told.append("after_test")


class TestAround:
    LEFT = ("leave b, gradients False", "leave a, gradients False")

    def test_is_entered_before_the_first_event_and_left_after_the_last(self, bus: Any) -> None:
        around = bus.register(Around("a", "b"))
        with bus.run(validate=lambda: {"loss": 1.0}) as run:
            run.validate()
            run.validate()

        assert around.told == ["enter a", "enter b", "before_val", "after_val", *self.LEFT] * 2

    @pytest.mark.parametrize("point", ["before_val", "before_val_epoch", "after_val_epoch", "after_val"])
    def test_is_left_once_when_a_listener_fails(self, bus: Any, point: str) -> None:
        around = bus.register(Around("a", "b"))
        bus.on(point)(lambda: 1 / 0)
        with bus.run(validate=lambda: {"loss": 1.0}) as run:
            with pytest.raises(ZeroDivisionError):
                run.validate()
            assert [each for each in around.told if each.startswith(("enter", "leave"))] == [
                "enter a",
                "enter b",
                *self.LEFT,
            ]

    def test_is_left_when_the_validation_itself_fails(self, bus: Any) -> None:
        around = bus.register(Around("a", "b"))
        with bus.run(validate=lambda: 1 / 0) as run, pytest.raises(ZeroDivisionError):
            run.validate()

        assert around.told == ["enter a", "enter b", "before_val", *self.LEFT]

    def test_surrounds_a_test_as_well(self) -> None:
        around = Around("a")
        toys.trainer(around, test_loader=toys.pairs(1)).test()

        assert around.told == ["enter a", "before_test", "after_test", "leave a, gradients False"]


class TestWhileOneIsGoingOn:
    def test_the_run_says_so(self, bus: Any) -> None:
        seen = []
        with bus.run(validate=lambda run: seen.append((run.validating, run.sanity_checking))) as run:
            run.validate()
            run.validate(sanity=True)
            assert (run.validating, run.sanity_checking) == (False, False)

        assert seen == [(True, False), (True, True)]

    @pytest.mark.parametrize("point", ["before_val", "after_val_epoch", "after_val"])
    def test_another_one_is_refused(self, bus: Any, point: str) -> None:
        bus.on(point)(lambda run: run.validate())
        with bus.run(validate=lambda: {"loss": 1.0}) as run:
            with pytest.raises(RequestError) as raised:
                run.validate()
            assert not run.validating

        assert str(raised.value) == (
            "A validation or test is already in progress. Start another one after its end."
        )


class TestOneThatFails:
    def test_is_over(self, bus: Any) -> None:
        def validate() -> dict[str, float]:
            if not failed:
                failed.append(True)
                bus.emit("before_val_iter", batch_idx=0, batch=torch.zeros(2))
                raise ZeroDivisionError
            return {"loss": 1.0}

        failed: list[bool] = []
        with bus.run(validate=validate) as run:
            with pytest.raises(ZeroDivisionError):
                run.validate()
            assert (run.validating, run.sanity_checking) == (False, False)
            run.log(loss=3.0)
            assert dict(run.metrics.latest()) == {"train/loss": 3.0}, "what is logged is training's again"
            assert dict(run.validate()) == {"val/loss": 1.0}

    def test_is_made_again_when_the_next_one_asks(self, bus: Any) -> None:
        made: list[int] = []

        def validate(run: Run) -> dict[str, float]:
            made.append(run.iters_done)
            if len(made) == 1:
                raise ZeroDivisionError
            return {"loss": 1.0}

        optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters())
        with bus.run(optimizer=optimizer, validate=validate) as run:
            with pytest.raises(ZeroDivisionError):
                run.validate()
            bus.emit("before_train_epoch")
            for i in range(2):
                run.request_validation()
                bus.emit("after_train_iter", batch_idx=i)

        assert made == [0, 1]

    def test_before_training_leaves_the_results_as_they_were(self, bus: Any) -> None:
        def validate(run: Run) -> dict[str, float]:
            if run.sanity_checking:
                run.metrics.results |= {"val/loss": 9.0}
                raise ZeroDivisionError
            return {"loss": 1.0}

        with bus.run(validate=validate) as run:
            run.validate()
            with pytest.raises(ZeroDivisionError):
                run.validate(sanity=True)
            assert dict(run.metrics.results) == {"val/loss": 1.0}


class TestOneThatCountsForNothing:
    def test_returns_its_results_and_keeps_none(self, bus: Any) -> None:
        found = iter([{"loss": 1.0}, {"loss": 9.0, "extra": 1.0}])
        with bus.run(validate=lambda: next(found)) as run:
            run.validate()
            at = run.validations.validated_at
            bus.emit("after_train_iter")
            assert dict(run.validate(sanity=True)) == {"val/loss": 9.0, "val/extra": 1.0}
            assert dict(run.metrics.results) == {"val/loss": 1.0}
            assert run.validations.validated_at == at == 0


class TestWithoutAWay:
    def test_to_validate_the_error_says_what_to_give(self, bus: Any) -> None:
        for way in ("validate", "request_validation"):
            with bus.run() as run, pytest.raises(RequestError) as raised:
                getattr(run, way)()
            assert str(raised.value) == (
                "The run has no validation function. Pass val_loader= to the Trainer, or validate= to bus.run."
            )
        assert "before_val" not in bus.fired

    def test_to_test_the_error_says_what_to_give(self) -> None:
        with pytest.raises(RequestError) as raised:
            toys.trainer().test()

        assert str(raised.value) == "The run has no test function. Pass test_loader= to the Trainer."

    @pytest.mark.parametrize(("kind", "can"), [("val", True), ("test", False)])
    def test_a_run_knows(self, bus: Any, kind: Any, can: bool) -> None:
        with bus.run(validate=lambda: {"loss": 1.0}) as run:
            assert run.validations.can_make(kind) is can


class Brings(Hook):
    """A hook with a validation of its own."""

    @property
    def validates_with(self) -> Any:
        return self.judge

    def judge(self, run: Run) -> None:
        run.bus.fire("before_val_epoch", dataloader_name="mine")
        run.bus.fire("after_val_epoch", metrics={"loss": 2.0}, dataloader_name="mine")


class TestWhereAHookBringsIt:
    def test_it_takes_the_place_of_the_runs(self, bus: Any) -> None:
        bus.register(Brings())
        with bus.run(validate=lambda: {"loss": 9.0}) as run:
            assert dict(run.validate()) == {"val/mine/loss": 2.0}
        names = [each["dataloader_name"] for each in bus.arguments("before_val_epoch")]
        assert names == ["mine"]

    def test_there_is_a_way_to_validate_and_none_to_test(self, bus: Any) -> None:
        bus.register(Brings())
        with bus.run() as run:
            assert run.validations.can_make("val")
            assert not run.validations.can_make("test")

    def test_two_of_them_are_an_error_at_the_start(self, bus: Any) -> None:
        class Schedules(Brings):
            schedules_validation = True

        bus.register(Schedules(), "b")
        bus.register(Brings(), "a")
        with pytest.raises(RequestError, match="a and b each provide a validation function"), bus.run():
            pass


class TestWhatIsMadeOfALoader:
    @pytest.mark.parametrize(("persistent", "made"), [(True, 1), (False, 2)])
    def test_is_kept_in_the_run_where_its_workers_persist(self, persistent: bool, made: int, bus: Any) -> None:
        loader = DataLoader([1, 2], num_workers=1, persistent_workers=persistent)
        with bus.run() as run:
            found = [run.validations.kept(loader, object) for _ in range(2)]

        assert len(set(found)) == made
        assert run.validations.kept(loader, object) not in found
