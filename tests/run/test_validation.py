"""Validations and tests of a run: context, events and results."""

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
from hookbus._events.markers import hookimpl
from hookbus._run.run import Run
from hookbus.errors import ConfigError, MetricError, RequestError
from hookbus.testing import RecordingBus
from tests import toys


@pytest.fixture
def bus() -> Any:
    return RecordingBus()


def emit_loader(bus: Any, *losses: tuple[float, int], name: str | None = None) -> None:
    """Emit the events of a validation loader, with a loss and a number of samples per batch."""
    bus.emit("before_val_epoch", dataloader_name=name)
    for i, (loss, size) in enumerate(losses):
        batch = torch.zeros(size, 1)
        bus.emit("before_val_iter", batch_idx=i, batch=batch)
        bus.emit("after_val_iter", batch_idx=i, batch=batch, outputs={"loss": loss})
    bus.emit("after_val_epoch", dataloader_name=name)


class TestResults:
    def test_results_have_full_names(self, bus: Any) -> None:
        with bus.run(validate=lambda: {"accuracy": 0.5, "val/loss": torch.tensor(2.0)}) as run:
            assert dict(run.validate()) == {"val/accuracy": 0.5, "val/loss": 2.0}
            assert run.metrics.results["accuracy"] == 0.5

    def test_results_are_means_of_the_batch_outputs_over_samples(self, bus: Any) -> None:
        with bus.run(validate=lambda: emit_loader(bus, (1.0, 3), (5.0, 1))) as run:
            assert dict(run.validate()) == {"val/loss": 2.0}  # (3 * 1 + 1 * 5) / 4

    def test_batch_of_declared_size_zero_has_no_weight(self, bus: Any) -> None:
        with bus.run(
            validate=lambda: emit_loader(bus, (1.0, 3), (5.0, 1)), batch_size=lambda batch: 3 if len(batch) == 3 else 0
        ) as run:
            assert dict(run.validate()) == {"val/loss": 1.0}

    def test_batch_of_unknown_size_counts_as_one_sample(self, bus: Any) -> None:
        def validate() -> None:
            for loss in (1.0, 5.0):
                bus.emit("after_val_iter", batch="text", outputs={"loss": loss})

        with bus.run(validate=validate) as run:
            assert dict(run.validate()) == {"val/loss": 3.0}

    def test_batch_may_be_passed_after_the_iteration_only(self, bus: Any) -> None:
        def validate() -> None:
            for loss, size in ((1.0, 3), (5.0, 1)):
                bus.emit("before_val_iter")
                bus.emit("after_val_iter", batch=torch.zeros(size, 1), outputs={"loss": loss})

        with bus.run(validate=validate) as run:
            assert dict(run.validate()) == {"val/loss": 2.0}

    def test_values_logged_during_a_validation_are_results(self, bus: Any) -> None:
        bus.on("after_val_iter")(lambda run, outputs: run.log(twice=2 * outputs["loss"]))
        with bus.run(validate=lambda: emit_loader(bus, (1.0, 3), (5.0, 1))) as run:
            run.log(loss=9.0)
            assert dict(run.validate()) == {"val/loss": 2.0, "val/twice": 4.0}
            assert dict(run.metrics.latest()) == {"train/loss": 9.0, "val/loss": 2.0, "val/twice": 4.0}

    def test_results_of_multiple_loaders_contain_the_loader_name(self, bus: Any) -> None:
        def validate() -> None:
            emit_loader(bus, (1.0, 2), name="clean")
            emit_loader(bus, (3.0, 2), (4.0, 2), name="noisy")

        with bus.run(validate=validate) as run:
            assert dict(run.validate()) == {"val/clean/loss": 1.0, "val/noisy/loss": 3.5}

        metrics = [
            (arguments["dataloader_name"], dict(arguments["metrics"]))
            for arguments in bus.get_arguments("after_val_epoch")
        ]
        assert metrics == [("clean", {"val/clean/loss": 1.0}), ("noisy", {"val/noisy/loss": 3.5})]
        (arguments,) = bus.get_arguments("after_val")
        assert dict(arguments["metrics"]) == {"val/clean/loss": 1.0, "val/noisy/loss": 3.5}

    @pytest.mark.parametrize(
        ("name", "full"), [(0, "val/0/loss"), (1, "val/1/loss"), ("", "val/loss"), (None, "val/loss")]
    )
    def test_results_contain_an_integer_loader_name(self, name: Any, full: str, bus: Any) -> None:
        with bus.run(validate=lambda: emit_loader(bus, (1.0, 2), name=name)) as run:
            assert dict(run.validate()) == {full: 1.0}

    def test_results_of_the_loop_have_precedence_over_means(self, bus: Any) -> None:
        def validate() -> None:
            bus.emit("before_val_epoch")
            bus.emit("after_val_iter", batch_idx=0, batch=torch.zeros(2), outputs={"loss": 1.0, "hits": 3.0})
            bus.emit("after_val_epoch", metrics={"loss": 7.0})

        with bus.run(validate=validate) as run:
            assert dict(run.validate()) == {"val/loss": 7.0, "val/hits": 3.0}

    def test_results_may_be_nan_and_infinite(self, bus: Any) -> None:
        with bus.run(validate=lambda: {"loss": math.nan, "best": math.inf}) as run:
            results = run.validate()

        assert math.isnan(results["val/loss"])
        assert results["val/best"] == math.inf

    def test_result_names_are_converted_to_strings(self, bus: Any) -> None:
        with bus.run(validate=lambda: {0: 0.25, 1: 0.5}) as run:
            assert dict(run.validate()) == {"val/0": 0.25, "val/1": 0.5}

    @pytest.mark.parametrize(
        ("returned", "problem"),
        [
            ({"f1": [0.5, 0.25]}, "the result 'f1' must be a single number, got list."),
            ({"f1": torch.zeros(2)}, "the result 'f1' must be a single number, got Tensor of shape (2,)."),
            ({"f1": None}, "the result 'f1' must be a single number, got NoneType."),
            ({"f1": 10**400}, "the result 'f1' must be a single number, got int."),
            (0.0, "The validation function must return a mapping or None, got float."),
        ],
    )
    def test_invalid_result_raises_an_error(self, bus: Any, returned: Any, problem: str) -> None:
        with pytest.raises(MetricError, match=re.escape(problem)), bus.run(validate=lambda: returned) as run:
            run.validate()

    def test_results_are_replaced_by_those_of_the_next_validation(self, bus: Any) -> None:
        results = iter([{"loss": 1.0, "extra": 5.0}, {"loss": 2.0}])
        with bus.run(validate=lambda: next(results)) as run:
            run.validate()
            assert dict(run.metrics.results) == {"val/loss": 1.0, "val/extra": 5.0}
            run.validate()
            assert dict(run.metrics.results) == {"val/loss": 2.0}

    def test_results_of_a_test_are_separate_from_those_of_a_validation(self) -> None:
        trainer = toys.trainer(val_loader=toys.pairs(1), test_loader=toys.pairs(2))

        assert set(trainer.validate()) == {"val/loss"}
        assert set(trainer.test()) == {"test/loss"}


class TestBatches:
    def test_batches_are_counted_from_zero_in_each_loader(self, bus: Any) -> None:
        seen: list[tuple[str, int, int]] = []

        def record_batch(point: str) -> None:
            bus.on(point, name=point)(lambda run: seen.append((point, run.clock.batch, run.iters_done)))

        record_batch("before_val_iter")
        record_batch("after_val_iter")

        def validate() -> None:
            emit_loader(bus, (1.0, 1), (1.0, 1), name="a")
            emit_loader(bus, (1.0, 1), name="b")

        with bus.run(validate=validate) as run:
            for i in range(3):
                bus.emit("after_train_iter", batch_idx=i)
            run.validate()

        both = ("before_val_iter", "after_val_iter")
        assert seen == [(point, batch, 3) for batch in (0, 1, 0) for point in both]


class RecordContexts:
    """Hook that records the contexts and events of validations."""

    def __init__(self, *names: str) -> None:
        self.names, self.calls = names, list[str]()

    @hookimpl
    def before_run(self, run: Run) -> None:
        for name in self.names:
            run.around_validation(partial(self.context, name))

    @contextmanager
    def context(self, name: str) -> Iterator[None]:
        self.calls.append(f"enter {name}")
        yield
        self.calls.append(f"leave {name}, gradients {torch.is_grad_enabled()}")

    @hookimpl
    def before_val(self) -> None:
        self.calls.append("before_val")

    @hookimpl
    def after_val(self) -> None:
        self.calls.append("after_val")

    @hookimpl
    def before_test(self) -> None:
        self.calls.append("before_test")

    @hookimpl
    def after_test(self) -> None:
        self.calls.append("after_test")


class TestContext:
    EXITS = ("leave b, gradients False", "leave a, gradients False")

    def test_context_is_entered_before_the_first_event_and_exited_after_the_last(self, bus: Any) -> None:
        recorder = bus.register(RecordContexts("a", "b"))
        with bus.run(validate=lambda: {"loss": 1.0}) as run:
            run.validate()
            run.validate()

        assert recorder.calls == ["enter a", "enter b", "before_val", "after_val", *self.EXITS] * 2

    @pytest.mark.parametrize("point", ["before_val", "before_val_epoch", "after_val_epoch", "after_val"])
    def test_context_is_exited_once_if_a_listener_fails(self, bus: Any, point: str) -> None:
        recorder = bus.register(RecordContexts("a", "b"))
        bus.on(point)(lambda: 1 / 0)
        with bus.run(validate=lambda: {"loss": 1.0}) as run:
            with pytest.raises(ZeroDivisionError):
                run.validate()
            assert [call for call in recorder.calls if call.startswith(("enter", "leave"))] == [
                "enter a",
                "enter b",
                *self.EXITS,
            ]

    def test_context_is_exited_if_the_validation_function_fails(self, bus: Any) -> None:
        recorder = bus.register(RecordContexts("a", "b"))
        with bus.run(validate=lambda: 1 / 0) as run, pytest.raises(ZeroDivisionError):
            run.validate()

        assert recorder.calls == ["enter a", "enter b", "before_val", *self.EXITS]

    def test_context_wraps_a_test(self) -> None:
        recorder = RecordContexts("a")
        toys.trainer(recorder, test_loader=toys.pairs(1)).test()

        assert recorder.calls == ["enter a", "before_test", "after_test", "leave a, gradients False"]


class TestValidationInProgress:
    def test_run_is_validating_during_a_validation(self, bus: Any) -> None:
        seen = []
        with bus.run(validate=lambda run: seen.append((run.validating, run.sanity_checking))) as run:
            run.validate()
            run.validate(sanity=True)
            assert (run.validating, run.sanity_checking) == (False, False)

        assert seen == [(True, False), (True, True)]

    @pytest.mark.parametrize("point", ["before_val", "after_val_epoch", "after_val"])
    def test_nested_validation_raises_an_error(self, bus: Any, point: str) -> None:
        bus.on(point)(lambda run: run.validate())
        with bus.run(validate=lambda: {"loss": 1.0}) as run:
            with pytest.raises(RequestError) as raised:
                run.validate()
            assert not run.validating

        assert str(raised.value) == "A validation or test is already in progress. Start another one after its end."


class TestFailedValidation:
    def test_run_is_not_validating_after_a_failed_validation(self, bus: Any) -> None:
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

    def test_validation_is_repeated_on_request_after_a_failure(self, bus: Any) -> None:
        calls: list[int] = []

        def validate(run: Run) -> dict[str, float]:
            calls.append(run.iters_done)
            if len(calls) == 1:
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

        assert calls == [0, 1]

    def test_failed_sanity_check_keeps_the_previous_results(self, bus: Any) -> None:
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


class TestSanityCheck:
    def test_sanity_check_returns_its_results_and_keeps_none(self, bus: Any) -> None:
        results = iter([{"loss": 1.0}, {"loss": 9.0, "extra": 1.0}])
        with bus.run(validate=lambda: next(results)) as run:
            run.validate()
            step = run.validations.validated_at
            bus.emit("after_train_iter")
            assert dict(run.validate(sanity=True)) == {"val/loss": 9.0, "val/extra": 1.0}
            assert dict(run.metrics.results) == {"val/loss": 1.0}
            assert run.validations.validated_at == step == 0


class TestWithoutValidationFunction:
    def test_validation_without_a_function_raises_an_error(self, bus: Any) -> None:
        for method in ("validate", "request_validation"):
            with bus.run() as run, pytest.raises(RequestError) as raised:
                getattr(run, method)()
            assert str(raised.value) == (
                "The run has no validation function. Pass val_loader= to the Trainer, or validate= to bus.run."
            )
        assert "before_val" not in bus.emitted_points

    def test_testing_without_a_loader_raises_an_error(self) -> None:
        with pytest.raises(RequestError) as raised:
            toys.trainer().test()

        assert str(raised.value) == (
            "The run has no test function. Pass test_loader= to the Trainer, or validate= to bus.run(mode='test')."
        )

    @pytest.mark.parametrize(("kind", "expected"), [("val", True), ("test", False)])
    def test_run_reports_which_functions_are_available(self, bus: Any, kind: Any, expected: bool) -> None:
        with bus.run(validate=lambda: {"loss": 1.0}) as run:
            assert run.validations.is_available(kind) is expected


class OwnValidation(Hook):
    """Hook with its own validation function."""

    @property
    def validation_fn(self) -> Any:
        return self.emit_loader

    def emit_loader(self, run: Run) -> None:
        run.bus.fire("before_val_epoch", dataloader_name="mine")
        run.bus.fire("after_val_epoch", metrics={"loss": 2.0}, dataloader_name="mine")


class TestValidationFunctionOfHook:
    def test_validation_function_of_a_hook_replaces_that_of_the_run(self, bus: Any) -> None:
        bus.register(OwnValidation())
        with bus.run(validate=lambda: {"loss": 9.0}) as run:
            assert dict(run.validate()) == {"val/mine/loss": 2.0}
        names = [arguments["dataloader_name"] for arguments in bus.get_arguments("before_val_epoch")]
        assert names == ["mine"]

    def test_hook_makes_validation_available_but_not_testing(self, bus: Any) -> None:
        bus.register(OwnValidation())
        with bus.run() as run:
            assert run.validations.is_available("val")
            assert not run.validations.is_available("test")

    def test_two_hooks_with_a_validation_function_raise_an_error_at_the_start(self, bus: Any) -> None:
        class Schedules(OwnValidation):
            schedules_validation = True

        bus.register(Schedules(), "b")
        bus.register(OwnValidation(), "a")
        with pytest.raises(ConfigError, match="a and b each provide a validation function"), bus.run():
            pass


class TestCachedLoader:
    @pytest.mark.parametrize(("persistent", "count"), [(True, 1), (False, 2)])
    def test_derived_loader_is_cached_in_the_run_if_workers_persist(
        self, persistent: bool, count: int, bus: Any
    ) -> None:
        loader = DataLoader([1, 2], num_workers=1, persistent_workers=persistent)
        with bus.run() as run:
            loaders = [run.validations.cached_loader(loader, object) for _ in range(2)]

        assert len(set(loaders)) == count
        assert run.validations.cached_loader(loader, object) not in loaders
