from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR, ReduceLROnPlateau

from hookbus.errors import ConfigError, LoopError, RequestError
from hookbus.hook import Hook
from hookbus.loop import Trainer
from hookbus.markers import hookimpl
from hookbus.requests import Request
from hookbus.run import Run
from hookbus.testing import fingerprint
from hookbus.when import every
from tests import toys


class Story(Hook):
    """Writes down every point that is fired, and where training is at the end of each iteration and epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.points: list[str] = []
        self.batches: list[tuple[int, int]] = []
        self.epochs: list[tuple[int, bool]] = []

    def listen(self, trainer: Trainer) -> Story:
        for point in trainer.bus.points:
            self._listen(trainer, point)
        return self

    def _listen(self, trainer: Trainer, point: str) -> None:
        trainer.bus.on(point, name=f"story at {point}")(lambda: self.points.append(point))

    def after_train_iter(self, run: Run, batch_idx: int) -> None:
        self.batches.append((run.epoch, batch_idx))

    def after_epoch(self, run: Run) -> None:
        self.epochs.append((run.epochs_done, run.epoch_complete))


class Scores(Hook):
    """Validations find these losses, one after the other."""

    def __init__(self, *losses: float) -> None:
        super().__init__()
        self.losses = iter(losses)

    @hookimpl
    def val_step(self, batch: Any) -> dict[str, float]:
        return {"loss": next(self.losses)}


class Calls(Hook):
    """Does something at one point; `when` tells at which of its events, by the number of iterations done."""

    def __init__(self, point: str, do: Callable[[Run], Any], when: int | None = None) -> None:
        super().__init__()
        setattr(self, point, hookimpl(lambda run: do(run) if when in (None, run.iters_done) else None))


class WithoutLength:
    """Batches that nobody can count before they were read."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[Any]:
        return iter(toys.pairs(self.count))


LOADERS = {"a list": toys.pairs, "a loader without length": WithoutLength}


class Validations(Hook):
    """Notes the steps at which validations are made."""

    def __init__(self) -> None:
        super().__init__()
        self.at: list[int] = []

    def after_val(self, run: Run) -> None:
        self.at.append(run.steps_done)


def rate(trainer: Trainer) -> float:
    assert trainer.optimizer is not None
    return float(trainer.optimizer.param_groups[0]["lr"])


class TestEvents:
    TRAIN_ITER = """
        before_train_iter
        after_forward
        after_backward
        before_optimizer_step
        after_optimizer_step
        after_train_iter
    """
    VALIDATION = """
        before_val
          before_val_epoch
            before_val_iter after_val_iter
          after_val_epoch
        after_val
    """
    EPOCH = f"""
        before_epoch
          before_train_epoch
            {TRAIN_ITER}
            {TRAIN_ITER}
          after_train_epoch
          {VALIDATION}
        after_epoch
    """

    def test_of_two_epochs_with_validation(self) -> None:
        trainer = toys.trainer(train_loader=toys.pairs(2), val_loader=toys.pairs(1), epochs=2)
        story = Story().listen(trainer)
        trainer.fit()

        expected = f"before_run before_train {self.EPOCH} {self.EPOCH} after_train after_run cleanup"
        assert story.points == expected.split()

    def test_of_a_validation_before_training(self) -> None:
        trainer = toys.trainer(val_loader=toys.pairs(1), epochs=0, validate_first=True)
        story = Story().listen(trainer)
        trainer.fit()

        expected = f"before_run before_train {self.VALIDATION} after_train after_run cleanup"
        assert story.points == expected.split()

    @pytest.mark.parametrize("mode", ["val", "test"])
    def test_of_a_validation_and_a_test_alone(self, mode: str) -> None:
        trainer = toys.trainer(val_loader=toys.pairs(1), test_loader=toys.pairs(1))
        story = Story().listen(trainer)
        modes: list[str] = []
        trainer.bus.on("before_run")(lambda mode: modes.append(mode))
        _ = trainer.validate() if mode == "val" else trainer.test()

        assert story.points == f"before_run {self.VALIDATION} after_run cleanup".replace("val", mode).split()
        assert modes == [mode]

    def test_with_accumulation_updates_are_told_where_they_are_made(self) -> None:
        trainer = toys.trainer(train_loader=toys.pairs(2), epochs=1, accumulate=2)
        story = Story().listen(trainer)
        trainer.fit()

        without = self.TRAIN_ITER.replace("before_optimizer_step", "").replace("after_optimizer_step", "")
        inside = f"before_epoch before_train_epoch {without} {self.TRAIN_ITER} after_train_epoch after_epoch"
        assert story.points == f"before_run before_train {inside} after_train after_run cleanup".split()

    def test_loss_and_outputs_reach_the_end_of_the_iteration(self) -> None:
        seen: list[Any] = []
        trainer = toys.trainer(train_loader=toys.pairs(1), epochs=1)
        trainer.bus.on("after_train_iter")(lambda outputs, loss, batch: seen.append((outputs, loss, batch)))
        trainer.fit()

        ((outputs, loss, batch),) = seen
        assert loss is outputs["loss"]
        assert torch.equal(batch[0], toys.pairs(1)[0][0])
        assert outputs["output"].shape == (4, 2)


class TestLimits:
    @pytest.mark.parametrize("loader", LOADERS.values(), ids=LOADERS)
    def test_epochs(self, loader: Any) -> None:
        story = Story()
        run = toys.trainer(story, train_loader=loader(2), epochs=2).fit()

        assert story.batches == [(0, 0), (0, 1), (1, 0), (1, 1)]
        assert story.epochs == [(1, True), (2, True)]
        assert run.outcome == "finished"

    @pytest.mark.parametrize("loader", LOADERS.values(), ids=LOADERS)
    @pytest.mark.parametrize(
        ("iterations", "epochs"),
        [(1, [(0, False)]), (2, [(0, False)]), (3, [(1, True)]), (4, [(1, True), (1, False)])],
    )
    def test_iterations(self, loader: Any, iterations: int, epochs: list[Any]) -> None:
        story = Story()
        trainer = toys.trainer(story, train_loader=loader(3), iterations=iterations)
        run = trainer.fit()

        assert story.batches == [(0, 0), (0, 1), (0, 2), (1, 0)][:iterations]
        assert story.epochs == epochs
        assert (run.iters_done, run.outcome) == (iterations, "finished")

    def test_after_the_last_iteration_of_a_cut_epoch_there_is_a_validation(self) -> None:
        validations = Validations()
        toys.trainer(validations, val_loader=toys.pairs(1), iterations=4).fit()

        assert validations.at == [3, 4]

    @pytest.mark.parametrize("limit", [{"epochs": 0}, {"iterations": 0}])
    def test_of_zero_leaves_everything_as_it_was(self, limit: Any, caplog: pytest.LogCaptureFixture) -> None:
        trainer = toys.trainer(**limit)
        story, weights = Story().listen(trainer), fingerprint(trainer.model.state_dict())
        run = trainer.fit()

        assert story.points == ["before_run", "before_train", "after_train", "after_run", "cleanup"]
        assert fingerprint(trainer.model.state_dict()) == weights
        assert run.outcome == "finished"
        assert caplog.messages == [
            "Nothing to train: 0 epochs and 0 iterations are done already. Raise the limit, or begin afresh."
        ]


class TestRates:
    """Learning rates of a schedule that halves 1 with every step, noted after each iteration."""

    @staticmethod
    def rates(*hooks: object, interval: Any, **options: Any) -> list[float]:
        found: list[float] = []
        model = toys.net()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        scheduler = ExponentialLR(optimizer, 0.5)
        given = {"train_loader": toys.pairs(3), "epochs": 2, "scheduler": scheduler, "scheduler_interval": interval}
        trainer = toys.trainer(*hooks, model=model, optimizer=optimizer, **{**given, **options})
        trainer.bus.on("after_train_iter")(lambda: found.append(rate(trainer)))
        trainer.fit()
        return [*found, rate(trainer)]

    def test_per_epoch(self) -> None:
        assert self.rates(interval="epoch") == [1, 1, 1, 0.5, 0.5, 0.5, 0.25]

    def test_per_step(self) -> None:
        assert self.rates(interval="step") == [0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.015625]

    def test_per_step_with_accumulation(self) -> None:
        assert self.rates(interval="step", accumulate=2) == [1, 0.5, 0.5, 0.25, 0.25, 0.125, 0.125]

    def test_per_epoch_the_new_rate_is_there_at_the_end_of_the_epoch(self) -> None:
        found: list[float] = []

        class Looks(Hook):
            def after_train_epoch(self, run: Run) -> None:
                found.append(run.scheduler.get_last_lr()[0])

            def after_epoch(self, run: Run) -> None:
                found.append(run.scheduler.get_last_lr()[0])

        self.rates(Looks(), interval="epoch")

        assert found == [1, 0.5, 0.5, 0.25]

    def test_an_epoch_that_was_cut_is_no_epoch(self) -> None:
        assert self.rates(interval="epoch", epochs=None, iterations=4) == [1, 1, 1, 0.5, 0.5]

    def test_an_epoch_that_a_hook_ended_is_one(self) -> None:
        ends = Calls("after_train_iter", lambda run: run.request_stop_epoch(), when=1)

        assert self.rates(ends, interval="epoch") == [1, 0.5, 0.5, 0.5, 0.25]


class TestRatesByMetric:
    @staticmethod
    def trainer(*hooks: object, **options: Any) -> Trainer:
        model = toys.net()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        scheduler = ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
        given = {"val_loader": toys.pairs(1), "scheduler": scheduler, "epochs": 4}
        return toys.trainer(*hooks, model=model, optimizer=optimizer, **{**given, **options})

    def test_it_is_stepped_by_each_validation(self) -> None:
        found: list[float] = []
        trainer = self.trainer(Scores(3.0, 2.0, 2.5, 2.5), Calls("after_epoch", lambda _: found.append(rate(trainer))))
        trainer.fit()

        assert found == [1.0, 1.0, 0.5, 0.25]

    def test_what_is_saved_after_the_epoch_has_the_new_rate(self) -> None:
        saved: list[tuple[float, int]] = []

        class Saves(Hook):
            def after_epoch(self, run: Run) -> None:
                run.request_save(saver=self)

            def plan(self, run: Run, requests: list[Request]) -> Path:
                return Path("nowhere")

            def write(self, run: Run, checkpoint: dict[str, Any]) -> None:
                saved.append((checkpoint["optimizer"]["param_groups"][0]["lr"], checkpoint["scheduler"]["last_epoch"]))

        self.trainer(Scores(2.0, 3.0, 1.0), Saves(), epochs=3).fit()

        assert saved == [(1.0, 1), (0.5, 2), (0.5, 3)]

    def test_validations_that_count_for_nothing_or_stand_alone_do_not_step_it(self) -> None:
        trainer = self.trainer(Scores(1.0, 5.0, 9.0, 4.0), epochs=1, validate_first=True)
        trainer.fit()
        trainer.validate()
        assert rate(trainer) == 1.0, "5.0 is the first that counts"

        trainer.validate_first = False
        trainer.fit(epochs=2)
        assert rate(trainer) == 1.0, "4.0 is better than 5.0"

    def test_a_loss_that_is_nan_is_no_improvement(self) -> None:
        trainer = self.trainer(Scores(1.0, float("nan")), epochs=2)
        run = trainer.fit()

        assert rate(trainer) == 0.5
        assert run.outcome == "finished"

    def test_without_validations_it_is_refused(self) -> None:
        with pytest.raises(LoopError) as raised:
            self.trainer(val_loader=None).fit()

        assert str(raised.value) == (
            "The scheduler is stepped with val/loss after each validation, and there is none: give val_loader= to the "
            "Trainer."
        )


class TestValidations:
    def test_are_made_after_every_epoch(self) -> None:
        validations = Validations()
        run = toys.trainer(validations, Scores(3.0, 2.0), val_loader=toys.pairs(1), epochs=2).fit()

        assert validations.at == [3, 6]
        assert dict(run.metrics.results) == {"val/loss": 2.0}

    def test_are_made_where_a_hook_says_so_if_one_does(self) -> None:
        class Decides(Hook):
            schedules_validation = True

            @hookimpl(when=every(10, unit="step"))
            def after_train_iter(self, run: Run) -> None:
                run.request_validation()

        validations = Validations()
        toys.trainer(Decides(), validations, train_loader=toys.pairs(8), val_loader=toys.pairs(1), iterations=40).fit()

        assert validations.at == [10, 20, 30, 40]

    def test_are_not_repeated_without_an_update_in_between(self) -> None:
        asks, validations = Calls("after_train_iter", lambda run: run.request_validation()), Validations()
        toys.trainer(asks, validations, val_loader=toys.pairs(1), accumulate=2, epochs=2).fit()

        # Six iterations and three updates; the first iteration has none before it.
        assert validations.at == [0, 1, 2, 3]

    def test_before_training_one_counts_for_nothing(self) -> None:
        told: list[Any] = []

        class Tells(Hook):
            def after_val(self, run: Run, metrics: Any) -> None:
                told.append((run.sanity_checking, dict(metrics)))

            def before_train_epoch(self, run: Run) -> None:
                told.append(dict(run.metrics.results))

        trainer = toys.trainer(Tells(), Scores(0.99, 0.5, 0.6), val_loader=toys.pairs(1), epochs=2, validate_first=True)
        run = trainer.fit()

        assert told == [
            (True, {"val/loss": 0.99}),
            {},
            (False, {"val/loss": 0.5}),
            {"val/loss": 0.5},
            (False, {"val/loss": 0.6}),
        ]
        assert dict(run.metrics.results) == {"val/loss": 0.6}

    def test_before_training_one_takes_nothing_from_training(self) -> None:
        def weights(**options: Any) -> str:
            trainer = toys.trainer(val_loader=toys.pairs(2), epochs=2, **options)
            trainer.fit()
            return fingerprint(trainer.model.state_dict())

        assert weights(validate_first=True) == weights()

    def test_before_training_one_needs_a_loader(self) -> None:
        with pytest.raises(RequestError) as raised:
            toys.trainer(epochs=1, validate_first=True).fit()

        assert str(raised.value) == (
            "This run has no way to validate: give val_loader= to the Trainer, or validate= to bus.run."
        )

    def test_return_their_results(self) -> None:
        trainer = toys.trainer(Scores(3.0), val_loader=toys.pairs(1), test_loader=toys.pairs(1))

        assert dict(trainer.validate()) == {"val/loss": 3.0}
        assert set(trainer.test()) == {"test/loss"}

    def test_need_a_loader(self) -> None:
        with pytest.raises(RequestError, match="This run has no way to validate: give val_loader= to the Trainer"):
            toys.trainer().validate()


class TestFitAgain:
    @staticmethod
    def left_behind(trainer: Trainer, run: Run) -> str:
        assert trainer.optimizer is not None
        clock = {name: value for name, value in run.clock.state_dict().items() if "second" not in name}
        return fingerprint(
            [trainer.model.state_dict(), trainer.optimizer.state_dict(), clock, dict(run.metrics.results)]
        )

    @pytest.mark.parametrize("key", ["epochs", "iterations"])
    @pytest.mark.parametrize(("first", "then"), [(1, 3), (2, 5), (3, 4)])
    def test_with_a_higher_limit_is_one_long_training(self, key: str, first: int, then: int) -> None:
        def train(*limits: int) -> str:
            trainer = toys.trainer(train_loader=toys.pairs(3), val_loader=toys.pairs(1), accumulate=2)
            runs = [trainer.fit(**{key: limit}) for limit in limits]
            return self.left_behind(trainer, runs[-1])

        assert train(first, then) == train(then)
        assert train(first) != train(then)

    def test_goes_on_in_the_middle_of_the_epoch(self) -> None:
        story = Story()
        trainer = toys.trainer(story, iterations=4)
        trainer.fit()
        trainer.fit(iterations=8)

        assert story.batches == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (2, 0), (2, 1)]
        assert story.epochs == [(1, True), (1, False), (2, True), (2, False)]

    def test_goes_on_after_a_stop(self) -> None:
        story = Story()
        stops = Calls("after_train_iter", lambda run: run.request_stop("enough"), when=2)
        trainer = toys.trainer(story, stops, epochs=2)
        assert trainer.fit().outcome == "stopped"
        assert trainer.fit().outcome == "finished"

        assert story.batches == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
        assert story.epochs == [(0, False), (1, True), (2, True)]

    def test_after_a_validation_goes_on_as_well(self) -> None:
        story = Story()
        trainer = toys.trainer(story, val_loader=toys.pairs(1), test_loader=toys.pairs(1), iterations=2)
        trainer.fit()
        trainer.validate()
        trainer.test()
        trainer.fit(iterations=4)

        assert story.batches == [(0, 0), (0, 1), (0, 2), (1, 0)]

    def test_with_the_same_limit_says_that_there_is_nothing_to_do(self, caplog: pytest.LogCaptureFixture) -> None:
        trainer = toys.trainer(epochs=2)
        trainer.fit()
        weights = fingerprint(trainer.model.state_dict())
        trainer.fit()

        assert fingerprint(trainer.model.state_dict()) == weights
        assert caplog.messages == [
            "Nothing to train: 2 epochs and 6 iterations are done already. Raise the limit, or begin afresh."
        ]

    def test_another_kind_of_limit_replaces_the_first(self) -> None:
        trainer = toys.trainer(iterations=2)
        trainer.fit()
        run = trainer.fit(epochs=2)

        assert (run.epochs_done, run.iters_done, run.max_iters) == (2, 6, None)


def balanced(points: list[str]) -> bool:
    """Whether every `before_x` has its `after_x`, and they lie inside each other; some `after_x` stand alone."""
    still_open: list[str] = []
    for point in points:
        side, _, name = point.partition("_")
        if side == "before":
            still_open.append(name)
        elif side == "after" and name not in ("forward", "backward") and still_open.pop() != name:
            return False
    return not still_open


class TestStops:
    @staticmethod
    def fit(point: str, when: int | None, loader: Any = None, **options: Any) -> tuple[Story, list[int], Run]:
        story, validations = Story(), Validations()
        stops = Calls(point, lambda run: run.request_stop("enough"), when)
        given = {"train_loader": loader or toys.pairs(3), "val_loader": toys.pairs(1), "epochs": 3}
        trainer = toys.trainer(story, stops, validations, **{**given, **options})
        story.listen(trainer)
        run = trainer.fit()
        assert balanced(story.points)
        assert story.points[-3:] == ["after_train", "after_run", "cleanup"]
        assert run.outcome == "stopped"
        assert run.stop_reasons == ["calls: enough"]
        return story, validations.at, run

    @pytest.mark.parametrize("loader", LOADERS.values(), ids=LOADERS)
    def test_in_the_middle_of_an_epoch_cut_it(self, loader: Any) -> None:
        story, at, run = self.fit("after_train_iter", 5, loader(3))

        assert story.batches == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
        assert story.epochs == [(1, True), (1, False)]
        assert (run.epochs_done, run.iters_done) == (1, 5)
        assert at == [3], "an epoch that was cut is not validated"

    @pytest.mark.parametrize("loader", LOADERS.values(), ids=LOADERS)
    def test_at_the_last_batch_leave_it_whole(self, loader: Any) -> None:
        story, at, run = self.fit("after_train_iter", 6, loader(3))

        assert story.epochs == [(1, True), (2, True)]
        assert (run.epochs_done, run.iters_done) == (2, 6)
        assert at == [3, 6]

    @pytest.mark.parametrize("point", ["before_train_iter", "after_forward", "after_optimizer_step"])
    def test_inside_an_iteration_let_it_end(self, point: str) -> None:
        story, _, run = self.fit(point, 1)

        assert story.batches == [(0, 0), (0, 1)]
        assert (run.iters_done, run.steps_done) == (2, 2)

    @pytest.mark.parametrize("point", ["after_train_epoch", "after_val", "after_epoch"])
    def test_at_the_end_of_an_epoch_let_it_end(self, point: str) -> None:
        story, at, _ = self.fit(point, None)

        assert story.epochs == [(1, True)]
        assert at == [3]

    @pytest.mark.parametrize("point", ["before_epoch", "before_train_epoch"])
    def test_before_the_first_batch_of_an_epoch_leave_it_empty(self, point: str) -> None:
        story, at, run = self.fit(point, 3)

        assert len(story.batches) == 3
        assert story.epochs == [(1, True), (1, False)]
        assert (run.epochs_done, at) == (1, [3])

    def test_of_an_epoch_let_the_next_one_begin(self) -> None:
        story = Story()
        ends = Calls("after_train_iter", lambda run: run.request_stop_epoch("seen enough"), when=1)
        validations = Validations()
        run = toys.trainer(story, ends, validations, val_loader=toys.pairs(1), epochs=2).fit()

        assert story.batches == [(0, 0), (1, 0), (1, 1), (1, 2)]
        assert story.epochs == [(1, True), (2, True)]
        assert validations.at == [1, 4]
        assert run.outcome == "finished"

    def test_of_an_iteration_leave_it_out(self) -> None:
        seen: list[Any] = []

        class Skips(Hook):
            def before_train_iter(self, run: Run, batch_idx: int) -> None:
                if batch_idx == 1:
                    run.request_skip_iter("a bad batch")

            def after_train_iter(self, run: Run, outputs: Any) -> None:
                seen.append((outputs is None, run.stepped, run.iters_done, run.steps_done))

        trainer = toys.trainer(Skips(), epochs=1)
        story = Story().listen(trainer)
        trainer.fit()

        assert seen == [(False, True, 1, 1), (True, False, 2, 1), (False, True, 3, 2)]
        assert story.points.count("after_forward") == 2


def _normal(run: Run) -> None:
    """Nothing happens."""


def _stop(run: Run) -> None:
    run.request_stop("enough")


def _fail(run: Run) -> None:
    raise ZeroDivisionError


def _interrupt(run: Run) -> None:
    raise KeyboardInterrupt


def _interrupt_in_order(run: Run) -> None:
    run.interrupt()


class TestEnds:
    @pytest.mark.parametrize(
        ("what", "error", "outcome", "heard"),
        [
            (_normal, None, "finished", []),
            (_stop, None, "stopped", []),
            (_fail, ZeroDivisionError, "failed", ["on_exception"]),
            (_interrupt, KeyboardInterrupt, "interrupted", ["on_exception"]),
            (_interrupt_in_order, KeyboardInterrupt, "interrupted", ["after_train"]),
        ],
        ids=["normal end", "stop", "exception", "interrupt at once", "interrupt after the iteration"],
    )
    def test_are_told_once_whatever_happened(self, what: Any, error: Any, outcome: str, heard: list[str]) -> None:
        trainer = toys.trainer(Calls("after_train_iter", what, when=3), epochs=2)
        story = Story().listen(trainer)
        if error is None:
            trainer.fit()
        else:
            with pytest.raises(error):
                trainer.fit()

        assert trainer.bus.current.outcome == outcome
        assert story.points[-2:] == ["after_run", "cleanup"]
        assert story.points.count("after_run") == story.points.count("cleanup") == 1
        assert [point for point in story.points[-3:] if point in heard] == heard


class TestSteps:
    def test_may_be_wrapped(self) -> None:
        seen: list[Any] = []

        class Wraps:
            @hookimpl(wrapper=True)
            def train_step(self, run: Run) -> Any:
                before = run.steps_done
                outputs = yield
                seen.append((before, run.steps_done, sorted(outputs)))
                return {**outputs, "extra": 1.0}

        extras: list[Any] = []
        trainer = toys.trainer(Wraps(), epochs=1)
        trainer.bus.on("after_train_iter")(lambda outputs: extras.append(outputs["extra"]))
        trainer.fit()

        assert seen == [(i, i + 1, ["loss", "output"]) for i in range(3)]
        assert extras == [1.0] * 3

    def test_may_be_tried_again(self) -> None:
        failures = iter([True, False, False, False])

        class Retries:
            @hookimpl
            def train_step(self, run: Run, batch: Any) -> Any:
                try:
                    return run.trainer.steps.train_step(run, batch)
                except MemoryError:
                    return run.trainer.steps.train_step(run, batch)

        class RunsOut(Hook):
            def after_backward(self) -> None:
                if next(failures):
                    raise MemoryError

        retried, plain = toys.trainer(Retries(), RunsOut(), epochs=1), toys.trainer(epochs=1)
        for trainer in (retried, plain):
            trainer.model[2] = nn.Identity()  # type: ignore[operator]  # a second try would draw other numbers
            run = trainer.fit()
            assert run.steps_done == 3

        assert fingerprint(retried.model.state_dict()) == fingerprint(plain.model.state_dict())

    def test_may_be_replaced(self) -> None:
        class Replaces:
            @hookimpl
            def train_step(self, batch: Any) -> dict[str, float]:
                return {"loss": 7.0}

        trainer = toys.trainer(Replaces(), epochs=1)
        weights = fingerprint(trainer.model.state_dict())
        run = trainer.fit()

        assert run.metrics.latest()["train/loss"] == 7.0
        assert (run.iters_done, run.steps_done) == (3, 0)
        assert fingerprint(trainer.model.state_dict()) == weights

    def test_leave_nothing_alive_for_the_next_one(self) -> None:
        graphs: list[Any] = []
        alive: list[int] = []

        class Token:
            def __call__(self, *gradients: Any) -> None:
                """The graph keeps it as a hook."""

        class KeepsItsGraph:
            @hookimpl
            def train_step(self, run: Run, batch: Any) -> dict[str, Any]:
                alive.append(sum(graph() is not None for graph in graphs))
                loss = run.trainer.model(batch[0]).sum()
                token = Token()
                loss.grad_fn.register_hook(token)
                graphs.append(weakref.ref(token))
                return {"loss": loss}

        gc.disable()  # what only the collector frees would be alive
        try:
            toys.trainer(KeepsItsGraph(), epochs=1).fit()
        finally:
            gc.enable()

        assert alive == [0, 0, 0]


class TestDevice:
    def test_model_and_batches_are_on_it(self) -> None:
        seen: list[str] = []
        trainer = toys.trainer(train_loader=toys.pairs(1), epochs=1, device="meta")
        trainer.bus.on("before_train_iter")(lambda batch: seen.extend(each.device.type for each in batch))
        run = trainer.fit()

        assert seen == ["meta", "meta"]
        assert {parameter.device.type for parameter in trainer.model.parameters()} == {"meta"}
        assert run.device == torch.device("meta")


class TestWhatItIsGiven:
    def test_a_seed_makes_two_trainings_the_same(self) -> None:
        def weights(seed: int) -> str:
            trainer = toys.trainer(epochs=2, seed=seed)
            torch.rand(3)
            trainer.fit()
            return fingerprint(trainer.model.state_dict())

        assert weights(1) == weights(1)
        assert weights(1) != weights(2)

    def test_hooks_may_come_later(self) -> None:
        story = Story()
        trainer = toys.trainer(epochs=1)
        assert trainer.register_hook(story, "mine", priority=7) is story
        trainer.train()

        assert trainer.bus.hooks == {"mine": story}
        assert len(story.batches) == 3

    def test_weights_may_come_from_a_file(self, tmp_path: Path) -> None:
        saver = toys.Saver("after_train")
        first = toys.trainer(saver, epochs=1, work_dir=tmp_path / "first")
        first.fit()
        then = toys.trainer(epochs=0, load_from=saver.files[0])
        paths: list[Path] = []
        then.bus.on("after_load_checkpoint")(lambda path: paths.append(path))
        assert fingerprint(then.model.state_dict()) != fingerprint(first.model.state_dict())
        then.fit()

        assert fingerprint(then.model.state_dict()) == fingerprint(first.model.state_dict())
        assert paths == saver.files
        trained = then.fit(epochs=1)
        assert (trained.epochs_done, paths) == (1, saver.files * 2)
        then.fit(epochs=2)
        assert paths == saver.files * 2, "where training has begun, they are not loaded again"


class TestWhatItCannotUse:
    @pytest.mark.parametrize("resume", [True, False, None, 3, ""])
    def test_a_resume_that_is_neither_a_word_nor_a_file(self, resume: Any) -> None:
        with pytest.raises(ConfigError) as caught:
            toys.trainer(epochs=1, resume=resume)
        assert str(caught.value) == (
            f"resume: should be auto, never or the path of a checkpoint, but it is {resume!r}."
        )


class TestErrors:
    def test_of_a_file_in_the_place_of_the_model_name_what_reads_files(self) -> None:
        with pytest.raises(ConfigError, match=r"but it is a str. A trainer of a run file is made by Trainer.from_file"):
            Trainer("run.yaml")  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"optimizer": None, "epochs": 1}, "fit needs an optimizer: give optimizer= to the Trainer."),
            ({"train_loader": None, "epochs": 1}, "fit needs data: give train_loader= to the Trainer."),
            ({}, "fit needs one limit: give either epochs= or iterations=."),
            ({"epochs": 1, "iterations": 1}, "fit needs one limit: give either epochs= or iterations=."),
            (
                {"train_loader": [], "epochs": 1},
                "The training loader gave no batch. An iterator can be read only once: give a loader that can be "
                "iterated in every epoch, with at least one batch (drop_last may have left none).",
            ),
            (
                {"train_loader": iter(toys.pairs(2)), "epochs": 2},
                "The training loader gave no batch. An iterator can be read only once: give a loader that can be "
                "iterated in every epoch, with at least one batch (drop_last may have left none).",
            ),
            (
                {"loss_fn": None, "epochs": 1},
                "There is no loss to train on; the model returned {output: tensor of shape (4, 2)}. Give loss_fn= (for "
                "example F.cross_entropy), let the model return a single number or a mapping with 'loss', or give "
                "step_fn=.",
            ),
        ],
        ids=["optimizer", "data", "no limit", "two limits", "empty", "an iterator", "loss"],
    )
    def test_of_a_training_that_cannot_be_say_what_to_give(self, options: Any, message: str) -> None:
        trainer = toys.trainer(model=OneInput(), **options)
        with pytest.raises(LoopError) as raised:
            trainer.fit()

        assert str(raised.value) == message

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"epochs": -1}, "epochs: -1 is not a whole number of at least 0."),
            ({"iterations": 1.5}, "iterations: 1.5 is not a whole number of at least 0."),
            ({"scheduler_interval": "batch"}, "scheduler_interval: 'batch' is neither 'epoch' nor 'step'."),
            ({"order": "random"}, "order: 'random' is neither 'nested' nor 'ascending'."),
            ({"metrics": ["acuracy"]}, "metrics: there is no built-in metric 'acuracy'. Did you mean 'accuracy'?"),
        ],
    )
    def test_of_settings_that_do_not_hold_name_them(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigError) as raised:
            toys.trainer(**options)

        assert str(raised.value) == message

    def test_of_a_limit_given_to_fit_name_it(self) -> None:
        with pytest.raises(ConfigError, match="epochs: 'two' is not a whole number of at least 0."):
            toys.trainer().fit(epochs="two")  # type: ignore[arg-type]

    def test_an_argument_that_does_not_exist_is_named_by_python(self) -> None:
        with pytest.raises(TypeError, match="unexpected keyword argument 'learning_rate'"):
            toys.trainer(learning_rate=0.1)


class OneInput(nn.Linear):
    """Takes a batch of inputs and targets, and returns scores without a loss."""

    def __init__(self) -> None:
        super().__init__(4, 2)

    def forward(self, inputs: torch.Tensor, targets: Any = None) -> torch.Tensor:
        return super().forward(inputs)


class TestAnIncompleteGroup:
    """Seven micro-batches, two of which make an update."""

    def train(self, **options: Any) -> Any:
        return toys.trainer(train_loader=toys.pairs(7), accumulate=2, **{"epochs": 1, **options})

    def test_at_the_end_of_the_run_is_told_of_once(self, caplog: pytest.LogCaptureFixture) -> None:
        self.train(epochs=3).fit()

        assert [each for each in caplog.messages if "micro-batches" in each] == [
            "The last micro-batches, 1 of the 2 that make an update, have changed no weights. A run that goes on uses "
            "them; for none to be left, let the number of iterations be a multiple of accumulate."
        ]

    def test_is_used_by_a_longer_run(self) -> None:
        (whole := self.train(epochs=2)).fit()
        (again := self.train()).fit()
        run = again.fit(epochs=2)

        assert (run.steps_done, run.accumulated) == (7, 0)
        assert fingerprint(again.model.state_dict()) == fingerprint(whole.model.state_dict())

    @pytest.mark.parametrize("options", [{"epochs": 2}, {"accumulate": 7}])
    def test_is_not_told_of_where_there_is_none(self, options: Any, caplog: pytest.LogCaptureFixture) -> None:
        toys.trainer(train_loader=toys.pairs(7), **{"epochs": 1, "accumulate": 2, **options}).fit()

        assert not [each for each in caplog.messages if "micro-batches" in each]
