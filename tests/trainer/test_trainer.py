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

from hookbus._events.markers import hookimpl
from hookbus._events.schedules import every
from hookbus._run.requests import Request
from hookbus._run.run import Run
from hookbus.errors import ConfigError, LoopError, RequestError
from hookbus.hook import Hook
from hookbus.testing import fingerprint
from hookbus.trainer.trainer import Trainer
from tests import toys


class PointRecorder(Hook):
    """Record every emitted point, and the position of the training after each iteration and epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.points: list[str] = []
        self.batches: list[tuple[int, int]] = []
        self.epochs: list[tuple[int, bool]] = []

    def listen(self, trainer: Trainer) -> PointRecorder:
        for point in trainer.bus.points:
            self._listen(trainer, point)
        return self

    def _listen(self, trainer: Trainer, point: str) -> None:
        trainer.bus.on(point, name=f"story at {point}")(lambda: self.points.append(point))

    def after_train_iter(self, run: Run, batch_idx: int) -> None:
        self.batches.append((run.epoch, batch_idx))

    def after_epoch(self, run: Run) -> None:
        self.epochs.append((run.epochs_done, run.epoch_complete))


class FixedLosses(Hook):
    """Return the given losses in consecutive validations."""

    def __init__(self, *losses: float) -> None:
        super().__init__()
        self.losses = iter(losses)

    @hookimpl
    def val_step(self, batch: Any) -> dict[str, float]:
        return {"loss": next(self.losses)}


class CallAtPoint(Hook):
    """Call a function at one point, optionally only after the given number of iterations."""

    def __init__(self, point: str, do: Callable[[Run], Any], when: int | None = None) -> None:
        super().__init__()
        setattr(self, point, hookimpl(lambda run: do(run) if when in (None, run.iters_done) else None))


class WithoutLength:
    """Batches without a length."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[Any]:
        return iter(toys.pairs(self.count))


LOADERS = {"a list": toys.pairs, "a loader without length": WithoutLength}


class ValidationRecorder(Hook):
    """Record the number of optimizer steps at each validation."""

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
    LOGGED_VALIDATION = VALIDATION.replace("after_val_epoch", "after_val_epoch log_scalars")
    EPOCH = f"""
        before_epoch
          before_train_epoch
            {TRAIN_ITER}
            {TRAIN_ITER}
          after_train_epoch
          {LOGGED_VALIDATION}
        after_epoch
    """

    def test_events_of_two_epochs_with_validation(self) -> None:
        trainer = toys.trainer(train_loader=toys.pairs(2), val_loader=toys.pairs(1), epochs=2)
        story = PointRecorder().listen(trainer)
        trainer.fit()

        expected = f"before_run before_train {self.EPOCH} {self.EPOCH} after_train after_run cleanup"
        assert story.points == expected.split()

    def test_events_of_a_validation_before_training(self) -> None:
        trainer = toys.trainer(val_loader=toys.pairs(1), epochs=0, validate_first=True)
        story = PointRecorder().listen(trainer)
        trainer.fit()

        expected = f"before_run before_train {self.VALIDATION} after_train after_run cleanup"
        assert story.points == expected.split()

    @pytest.mark.parametrize("mode", ["val", "test"])
    def test_events_of_a_separate_validation_and_test(self, mode: str) -> None:
        trainer = toys.trainer(val_loader=toys.pairs(1), test_loader=toys.pairs(1))
        story = PointRecorder().listen(trainer)
        modes: list[str] = []
        trainer.bus.on("before_run")(lambda mode: modes.append(mode))
        _ = trainer.validate() if mode == "val" else trainer.test()

        assert story.points == f"before_run {self.LOGGED_VALIDATION} after_run cleanup".replace("val", mode).split()
        assert modes == [mode]

    def test_optimizer_events_follow_the_accumulation(self) -> None:
        trainer = toys.trainer(train_loader=toys.pairs(2), epochs=1, accumulate=2)
        story = PointRecorder().listen(trainer)
        trainer.fit()

        without = self.TRAIN_ITER.replace("before_optimizer_step", "").replace("after_optimizer_step", "")
        inside = f"before_epoch before_train_epoch {without} {self.TRAIN_ITER} after_train_epoch after_epoch"
        assert story.points == f"before_run before_train {inside} after_train after_run cleanup".split()

    def test_after_train_iter_receives_loss_and_outputs(self) -> None:
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
    def test_epoch_limit(self, loader: Any) -> None:
        story = PointRecorder()
        run = toys.trainer(story, train_loader=loader(2), epochs=2).fit()

        assert story.batches == [(0, 0), (0, 1), (1, 0), (1, 1)]
        assert story.epochs == [(1, True), (2, True)]
        assert run.outcome == "finished"

    @pytest.mark.parametrize("loader", LOADERS.values(), ids=LOADERS)
    @pytest.mark.parametrize(
        ("iterations", "epochs"),
        [(1, [(0, False)]), (2, [(0, False)]), (3, [(1, True)]), (4, [(1, True), (1, False)])],
    )
    def test_iteration_limit(self, loader: Any, iterations: int, epochs: list[Any]) -> None:
        story = PointRecorder()
        trainer = toys.trainer(story, train_loader=loader(3), iterations=iterations)
        run = trainer.fit()

        assert story.batches == [(0, 0), (0, 1), (0, 2), (1, 0)][:iterations]
        assert story.epochs == epochs
        assert (run.iters_done, run.outcome) == (iterations, "finished")

    def test_truncated_last_epoch_is_validated(self) -> None:
        validations = ValidationRecorder()
        toys.trainer(validations, val_loader=toys.pairs(1), iterations=4).fit()

        assert validations.at == [3, 4]

    @pytest.mark.parametrize("limit", [{"epochs": 0}, {"iterations": 0}])
    def test_limit_of_zero_does_not_train(self, limit: Any, caplog: pytest.LogCaptureFixture) -> None:
        trainer = toys.trainer(**limit)
        story, weights = PointRecorder().listen(trainer), fingerprint(trainer.model.state_dict())
        run = trainer.fit()

        assert story.points == ["before_run", "before_train", "after_train", "after_run", "cleanup"]
        assert fingerprint(trainer.model.state_dict()) == weights
        assert run.outcome == "finished"
        assert caplog.messages == [
            "Nothing to train: 0 epochs and 0 iterations are already complete. "
            "Increase the limit, or start from scratch."
        ]


class TestSchedulers:
    """Learning rates of a schedule that halves 1 at every step, recorded after each iteration."""

    @staticmethod
    def rates(*hooks: object, interval: Any, **options: Any) -> list[float]:
        learning_rates: list[float] = []
        model = toys.net()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        scheduler = ExponentialLR(optimizer, 0.5)
        options_ = {"train_loader": toys.pairs(3), "epochs": 2, "scheduler": scheduler, "scheduler_interval": interval}
        trainer = toys.trainer(*hooks, model=model, optimizer=optimizer, **{**options_, **options})
        trainer.bus.on("after_train_iter")(lambda: learning_rates.append(rate(trainer)))
        trainer.fit()
        return [*learning_rates, rate(trainer)]

    def test_scheduler_is_stepped_per_epoch(self) -> None:
        assert self.rates(interval="epoch") == [1, 1, 1, 0.5, 0.5, 0.5, 0.25]

    def test_scheduler_is_stepped_per_optimizer_step(self) -> None:
        assert self.rates(interval="step") == [0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.015625]

    def test_scheduler_is_stepped_per_accumulated_step(self) -> None:
        assert self.rates(interval="step", accumulate=2) == [1, 0.5, 0.5, 0.25, 0.25, 0.125, 0.125]

    def test_after_epoch_has_the_new_learning_rate(self) -> None:
        learning_rates: list[float] = []

        class RecordRates(Hook):
            def after_train_epoch(self, run: Run) -> None:
                learning_rates.append(run.scheduler.get_last_lr()[0])

            def after_epoch(self, run: Run) -> None:
                learning_rates.append(run.scheduler.get_last_lr()[0])

        self.rates(RecordRates(), interval="epoch")

        assert learning_rates == [1, 0.5, 0.5, 0.25]

    def test_truncated_epoch_does_not_step_the_scheduler(self) -> None:
        assert self.rates(interval="epoch", epochs=None, iterations=4) == [1, 1, 1, 0.5, 0.5]

    def test_epoch_ended_by_a_hook_steps_the_scheduler(self) -> None:
        ends = CallAtPoint("after_train_iter", lambda run: run.request_stop_epoch(), when=1)

        assert self.rates(ends, interval="epoch") == [1, 0.5, 0.5, 0.5, 0.25]


class TestSchedulersWithMetric:
    @staticmethod
    def trainer(*hooks: object, **options: Any) -> Trainer:
        model = toys.net()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        scheduler = ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
        defaults = {"val_loader": toys.pairs(1), "scheduler": scheduler, "epochs": 4}
        return toys.trainer(*hooks, model=model, optimizer=optimizer, **{**defaults, **options})

    def test_validation_steps_the_scheduler(self) -> None:
        learning_rates: list[float] = []
        trainer = self.trainer(
            FixedLosses(3.0, 2.0, 2.5, 2.5), CallAtPoint("after_epoch", lambda _: learning_rates.append(rate(trainer)))
        )
        trainer.fit()

        assert learning_rates == [1.0, 1.0, 0.5, 0.25]

    def test_checkpoint_after_the_epoch_has_the_new_learning_rate(self) -> None:
        saved: list[tuple[float, int]] = []

        class Saves(Hook):
            def after_epoch(self, run: Run) -> None:
                run.request_save(saver=self)

            def plan(self, run: Run, requests: list[Request]) -> Path:
                return Path("nowhere")

            def write(self, run: Run, checkpoint: dict[str, Any]) -> None:
                saved.append((checkpoint["optimizer"]["param_groups"][0]["lr"], checkpoint["scheduler"]["last_epoch"]))

        self.trainer(FixedLosses(2.0, 3.0, 1.0), Saves(), epochs=3).fit()

        assert saved == [(1.0, 1), (0.5, 2), (0.5, 3)]

    def test_sanity_and_separate_validations_do_not_step_it(self) -> None:
        trainer = self.trainer(FixedLosses(1.0, 5.0, 9.0, 4.0), epochs=1, validate_first=True)
        trainer.fit()
        trainer.validate()
        assert rate(trainer) == 1.0, "5.0 is the first result that is recorded"

        trainer.validate_first = False
        trainer.fit(epochs=2)
        assert rate(trainer) == 1.0, "4.0 is better than 5.0"

    def test_nan_loss_is_not_an_improvement(self) -> None:
        trainer = self.trainer(FixedLosses(1.0, float("nan")), epochs=2)
        run = trainer.fit()

        assert rate(trainer) == 0.5
        assert run.outcome == "finished"

    def test_scheduler_with_a_metric_requires_validations(self) -> None:
        with pytest.raises(ConfigError) as raised:
            self.trainer(val_loader=None).fit()

        assert str(raised.value) == (
            "scheduler: requires 'val/loss' of a validation, but the run has no validation function. Pass val_loader= "
            "to the Trainer (in a run file: a dataset with the split `val`), or validate= to bus.run."
        )


class TestValidations:
    def test_every_epoch_is_validated(self) -> None:
        validations = ValidationRecorder()
        run = toys.trainer(validations, FixedLosses(3.0, 2.0), val_loader=toys.pairs(1), epochs=2).fit()

        assert validations.at == [3, 6]
        assert dict(run.metrics.results) == {"val/loss": 2.0}

    def test_hook_may_schedule_the_validations(self) -> None:
        class SchedulesValidation(Hook):
            schedules_validation = True

            @hookimpl(when=every(10, unit="step"))
            def after_train_iter(self, run: Run) -> None:
                run.request_validation()

        validations = ValidationRecorder()
        toys.trainer(
            SchedulesValidation(), validations, train_loader=toys.pairs(8), val_loader=toys.pairs(1), iterations=40
        ).fit()

        assert validations.at == [10, 20, 30, 40]

    def test_validation_is_not_repeated_without_a_step(self) -> None:
        asks, validations = CallAtPoint("after_train_iter", lambda run: run.request_validation()), ValidationRecorder()
        toys.trainer(asks, validations, val_loader=toys.pairs(1), accumulate=2, epochs=2).fit()

        # Six iterations and three optimizer steps; no step precedes the first iteration.
        assert validations.at == [0, 1, 2, 3]

    def test_sanity_check_is_not_recorded(self) -> None:
        records: list[Any] = []

        class RecordMetrics(Hook):
            def after_val(self, run: Run, metrics: Any) -> None:
                records.append((run.sanity_checking, dict(metrics)))

            def before_train_epoch(self, run: Run) -> None:
                records.append(dict(run.metrics.results))

        trainer = toys.trainer(
            RecordMetrics(), FixedLosses(0.99, 0.5, 0.6), val_loader=toys.pairs(1), epochs=2, validate_first=True
        )
        run = trainer.fit()

        assert records == [
            (True, {"val/loss": 0.99}),
            {},
            (False, {"val/loss": 0.5}),
            {"val/loss": 0.5},
            (False, {"val/loss": 0.6}),
        ]
        assert dict(run.metrics.results) == {"val/loss": 0.6}

    def test_sanity_check_does_not_change_the_training(self) -> None:
        def weights(**options: Any) -> str:
            trainer = toys.trainer(val_loader=toys.pairs(2), epochs=2, **options)
            trainer.fit()
            return fingerprint(trainer.model.state_dict())

        assert weights(validate_first=True) == weights()

    def test_sanity_check_requires_a_loader(self) -> None:
        with pytest.raises(ConfigError, match="^validate_first: requires validations, but the run has no validation"):
            toys.trainer(epochs=1, validate_first=True).fit()

    def test_validate_and_test_return_results(self) -> None:
        trainer = toys.trainer(FixedLosses(3.0), val_loader=toys.pairs(1), test_loader=toys.pairs(1))

        assert dict(trainer.validate()) == {"val/loss": 3.0}
        assert set(trainer.test()) == {"test/loss"}

    def test_validate_requires_a_loader(self) -> None:
        with pytest.raises(RequestError, match="The run has no validation function. Pass val_loader= to the Trainer"):
            toys.trainer().validate()


class TestSecondFit:
    @staticmethod
    def final_state(trainer: Trainer, run: Run) -> str:
        assert trainer.optimizer is not None
        clock = {name: value for name, value in run.clock.state_dict().items() if "second" not in name}
        return fingerprint(
            [trainer.model.state_dict(), trainer.optimizer.state_dict(), clock, dict(run.metrics.results)]
        )

    @pytest.mark.parametrize("key", ["epochs", "iterations"])
    @pytest.mark.parametrize(("first", "then"), [(1, 3), (2, 5), (3, 4)])
    def test_second_fit_equals_one_long_training(self, key: str, first: int, then: int) -> None:
        def train(*limits: int) -> str:
            trainer = toys.trainer(train_loader=toys.pairs(3), val_loader=toys.pairs(1), accumulate=2)
            runs = [trainer.fit(**{key: limit}) for limit in limits]
            return self.final_state(trainer, runs[-1])

        assert train(first, then) == train(then)
        assert train(first) != train(then)

    def test_second_fit_continues_within_the_epoch(self) -> None:
        story = PointRecorder()
        trainer = toys.trainer(story, iterations=4)
        trainer.fit()
        trainer.fit(iterations=8)

        assert story.batches == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (2, 0), (2, 1)]
        assert story.epochs == [(1, True), (1, False), (2, True), (2, False)]

    def test_second_fit_continues_after_a_stop(self) -> None:
        story = PointRecorder()
        stops = CallAtPoint("after_train_iter", lambda run: run.request_stop("enough"), when=2)
        trainer = toys.trainer(story, stops, epochs=2)
        assert trainer.fit().outcome == "stopped"
        assert trainer.fit().outcome == "finished"

        assert story.batches == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
        assert story.epochs == [(0, False), (1, True), (2, True)]

    def test_second_fit_continues_after_a_validation(self) -> None:
        story = PointRecorder()
        trainer = toys.trainer(story, val_loader=toys.pairs(1), test_loader=toys.pairs(1), iterations=2)
        trainer.fit()
        trainer.validate()
        trainer.test()
        trainer.fit(iterations=4)

        assert story.batches == [(0, 0), (0, 1), (0, 2), (1, 0)]

    def test_second_fit_with_the_same_limit_logs_a_warning(self, caplog: pytest.LogCaptureFixture) -> None:
        trainer = toys.trainer(epochs=2)
        trainer.fit()
        weights = fingerprint(trainer.model.state_dict())
        trainer.fit()

        assert fingerprint(trainer.model.state_dict()) == weights
        assert caplog.messages == [
            "Nothing to train: 2 epochs and 6 iterations are already complete. "
            "Increase the limit, or start from scratch."
        ]

    def test_limit_in_another_unit_replaces_the_first(self) -> None:
        trainer = toys.trainer(iterations=2)
        trainer.fit()
        run = trainer.fit(epochs=2)

        assert (run.epochs_done, run.iters_done, run.max_iters) == (2, 6, None)


def is_nested(points: list[str]) -> bool:
    """Return whether `before_*` and `after_*` points are nested; some `after_*` points have no counterpart."""
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
    def fit(point: str, when: int | None, loader: Any = None, **options: Any) -> tuple[PointRecorder, list[int], Run]:
        story, validations = PointRecorder(), ValidationRecorder()
        stops = CallAtPoint(point, lambda run: run.request_stop("enough"), when)
        defaults = {"train_loader": loader or toys.pairs(3), "val_loader": toys.pairs(1), "epochs": 3}
        trainer = toys.trainer(story, stops, validations, **{**defaults, **options})
        story.listen(trainer)
        run = trainer.fit()
        assert is_nested(story.points)
        assert story.points[-3:] == ["after_train", "after_run", "cleanup"]
        assert run.outcome == "stopped"
        assert run.stop_reasons == ["call_at_point: enough"]
        return story, validations.at, run

    @pytest.mark.parametrize("loader", LOADERS.values(), ids=LOADERS)
    def test_stop_within_an_epoch_truncates_it(self, loader: Any) -> None:
        story, at, run = self.fit("after_train_iter", 5, loader(3))

        assert story.batches == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
        assert story.epochs == [(1, True), (1, False)]
        assert (run.epochs_done, run.iters_done) == (1, 5)
        assert at == [3], "a truncated epoch is not validated"

    @pytest.mark.parametrize("loader", LOADERS.values(), ids=LOADERS)
    def test_stop_at_the_last_batch_completes_the_epoch(self, loader: Any) -> None:
        story, at, run = self.fit("after_train_iter", 6, loader(3))

        assert story.epochs == [(1, True), (2, True)]
        assert (run.epochs_done, run.iters_done) == (2, 6)
        assert at == [3, 6]

    @pytest.mark.parametrize("point", ["before_train_iter", "after_forward", "after_optimizer_step"])
    def test_stop_within_an_iteration_completes_it(self, point: str) -> None:
        story, _, run = self.fit(point, 1)

        assert story.batches == [(0, 0), (0, 1)]
        assert (run.iters_done, run.steps_done) == (2, 2)

    @pytest.mark.parametrize("point", ["after_train_epoch", "after_val", "after_epoch"])
    def test_stop_at_the_end_of_an_epoch_completes_it(self, point: str) -> None:
        story, at, _ = self.fit(point, None)

        assert story.epochs == [(1, True)]
        assert at == [3]

    @pytest.mark.parametrize("point", ["before_epoch", "before_train_epoch"])
    def test_stop_before_the_first_batch_skips_the_epoch(self, point: str) -> None:
        story, at, run = self.fit(point, 3)

        assert len(story.batches) == 3
        assert story.epochs == [(1, True), (1, False)]
        assert (run.epochs_done, at) == (1, [3])

    def test_stop_epoch_continues_with_the_next_epoch(self) -> None:
        story = PointRecorder()
        ends = CallAtPoint("after_train_iter", lambda run: run.request_stop_epoch("seen enough"), when=1)
        validations = ValidationRecorder()
        run = toys.trainer(story, ends, validations, val_loader=toys.pairs(1), epochs=2).fit()

        assert story.batches == [(0, 0), (1, 0), (1, 1), (1, 2)]
        assert story.epochs == [(1, True), (2, True)]
        assert validations.at == [1, 4]
        assert run.outcome == "finished"

    def test_skip_iteration_omits_the_step(self) -> None:
        seen: list[Any] = []

        class Skips(Hook):
            def before_train_iter(self, run: Run, batch_idx: int) -> None:
                if batch_idx == 1:
                    run.request_skip_iter("a bad batch")

            def after_train_iter(self, run: Run, outputs: Any) -> None:
                seen.append((outputs is None, run.stepped, run.iters_done, run.steps_done))

        trainer = toys.trainer(Skips(), epochs=1)
        story = PointRecorder().listen(trainer)
        trainer.fit()

        assert seen == [(False, True, 1, 1), (True, False, 2, 1), (False, True, 3, 2)]
        assert story.points.count("after_forward") == 2


def _normal(run: Run) -> None:
    """Do nothing."""


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
        ("action", "error", "outcome", "points"),
        [
            (_normal, None, "finished", []),
            (_stop, None, "stopped", []),
            (_fail, ZeroDivisionError, "failed", ["on_exception"]),
            (_interrupt, KeyboardInterrupt, "interrupted", ["on_exception"]),
            (_interrupt_in_order, KeyboardInterrupt, "interrupted", ["after_train"]),
        ],
        ids=["normal end", "stop", "exception", "interrupt at once", "interrupt after the iteration"],
    )
    def test_end_points_are_emitted_once_for_every_outcome(
        self, action: Any, error: Any, outcome: str, points: list[str]
    ) -> None:
        trainer = toys.trainer(CallAtPoint("after_train_iter", action, when=3), epochs=2)
        story = PointRecorder().listen(trainer)
        if error is None:
            trainer.fit()
        else:
            with pytest.raises(error):
                trainer.fit()

        assert trainer.bus.current.outcome == outcome
        assert story.points[-2:] == ["after_run", "cleanup"]
        assert story.points.count("after_run") == story.points.count("cleanup") == 1
        assert [point for point in story.points[-3:] if point in points] == points


class TestSteps:
    def test_hook_may_wrap_the_step(self) -> None:
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

    def test_hook_may_retry_the_step(self) -> None:
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
            trainer.model[2] = nn.Identity()  # dropout would draw other numbers in the second attempt
            run = trainer.fit()
            assert run.steps_done == 3

        assert fingerprint(retried.model.state_dict()) == fingerprint(plain.model.state_dict())

    def test_hook_may_replace_the_step(self) -> None:
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

    def test_step_releases_the_graph_of_the_previous_one(self) -> None:
        graphs: list[Any] = []
        alive: list[int] = []

        class Token:
            def __call__(self, *gradients: Any) -> None:
                """Do nothing; the graph references the object as a hook."""

        class KeepsItsGraph:
            @hookimpl
            def train_step(self, run: Run, batch: Any) -> dict[str, Any]:
                alive.append(sum(graph() is not None for graph in graphs))
                loss = run.trainer.model(batch[0]).sum()
                token = Token()
                loss.grad_fn.register_hook(token)
                graphs.append(weakref.ref(token))
                return {"loss": loss}

        gc.disable()  # objects that only the garbage collector frees would still be alive
        try:
            toys.trainer(KeepsItsGraph(), epochs=1).fit()
        finally:
            gc.enable()

        assert alive == [0, 0, 0]


class TestInitialWeights:
    def test_initial_weights_are_loaded_from_a_file(self, tmp_path: Path) -> None:
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
        assert paths == saver.files * 2, "a run that continues does not load them again"


class TestErrors:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"optimizer": None, "epochs": 1}, "fit: the optimizer is missing. Pass optimizer= to the Trainer."),
            (
                {"train_loader": None, "epochs": 1},
                "fit: the training data are missing. Pass train_loader= to the Trainer.",
            ),
            ({}, "fit: exactly one limit is required. Pass one of epochs=, iterations= and tokens=."),
            (
                {"epochs": 1, "iterations": 1},
                "fit: exactly one limit is required. Pass one of epochs=, iterations= and tokens=.",
            ),
            (
                {"train_loader": [], "epochs": 1},
                "The training loader yielded no batch. Pass a loader that can be iterated in every epoch (an iterator "
                "is exhausted after one) and has at least one batch (check drop_last).",
            ),
            (
                {"train_loader": iter(toys.pairs(2)), "epochs": 2},
                "The training loader yielded no batch. Pass a loader that can be iterated in every epoch (an iterator "
                "is exhausted after one) and has at least one batch (check drop_last).",
            ),
            (
                {"loss_fn": None, "epochs": 1},
                "loss: missing from the outputs of the model, got {output: tensor of shape (4, 2)}. Pass `loss_fn` "
                "(for example F.cross_entropy), return a single number or a mapping with 'loss' from the model, or "
                "pass `step_fn`.",
            ),
        ],
        ids=["optimizer", "data", "no limit", "two limits", "empty", "an iterator", "loss"],
    )
    def test_missing_argument_is_named(self, options: Any, message: str) -> None:
        trainer = toys.trainer(model=OneInput(), **options)
        with pytest.raises(ConfigError if message.startswith("fit: ") else LoopError) as raised:
            trainer.fit()

        assert str(raised.value) == message

    def test_invalid_limit_of_fit_is_named(self) -> None:
        with pytest.raises(ConfigError, match="epochs: expected an integer >= 0, got 'two'."):
            toys.trainer().fit(epochs="two")  # type: ignore[arg-type]


class OneInput(nn.Linear):
    """Model that takes a batch of inputs and targets and returns logits without a loss."""

    def __init__(self) -> None:
        super().__init__(4, 2)

    def forward(self, inputs: torch.Tensor, targets: Any = None) -> torch.Tensor:
        return super().forward(inputs)


class TestIncompleteGroup:
    """Seven micro-batches with two per optimizer step."""

    def train(self, **options: Any) -> Any:
        return toys.trainer(train_loader=toys.pairs(7), accumulate=2, **{"epochs": 1, **options})

    def test_incomplete_group_is_a_warning_at_the_end_of_the_run(self, caplog: pytest.LogCaptureFixture) -> None:
        self.train(epochs=3).fit()

        assert [message for message in caplog.messages if "micro-batches" in message] == [
            "The last 1 of 2 accumulated micro-batches did not trigger an optimizer step. Resuming the run uses them; "
            "to avoid it, set the number of iterations to a multiple of `accumulate`."
        ]

    def test_incomplete_group_is_used_by_a_longer_run(self) -> None:
        (whole := self.train(epochs=2)).fit()
        (again := self.train()).fit()
        run = again.fit(epochs=2)

        assert (run.steps_done, run.accumulated) == (7, 0)
        assert fingerprint(again.model.state_dict()) == fingerprint(whole.model.state_dict())

    @pytest.mark.parametrize("options", [{"epochs": 2}, {"accumulate": 7}])
    def test_complete_group_does_not_warn(self, options: Any, caplog: pytest.LogCaptureFixture) -> None:
        toys.trainer(train_loader=toys.pairs(7), **{"epochs": 1, "accumulate": 2, **options}).fit()

        assert not [message for message in caplog.messages if "micro-batches" in message]
