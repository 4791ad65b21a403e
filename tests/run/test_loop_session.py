"""Runs that `bus.open` begins and `run.close` ends."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from hookbus import Hook, HookBus, Trainer, last
from hookbus._run.status import read_status
from hookbus.errors import ArgumentError, ConfigError, LoopError, RequestError
from hookbus.testing import RecordingBus
from tests import toys

EPOCH = ["before_epoch", "before_train_epoch", "after_train_iter", "after_train_epoch", "after_epoch"]


class Failing(Hook):
    """Hook that fails at the end of the run."""

    def after_run(self) -> None:
        raise ValueError("disk full")


class TestOpen:
    def test_run_is_active_from_open_to_close(self) -> None:
        bus = RecordingBus()
        run = bus.open()
        assert (bus.current, run.is_running, bus.emitted_points) == (run, True, ["before_run"])
        run.close()
        assert (run.is_running, run.outcome) == (False, "finished")
        assert bus.emitted_points == ["before_run", "after_run", "cleanup"]

    def test_events_and_files_are_those_of_the_context_manager(self, tmp_path: Path) -> None:
        opened, entered = RecordingBus(), RecordingBus()
        run = opened.open(epochs=1, work_dir=tmp_path / "opened")
        opened.emit("before_train_epoch")
        opened.emit("after_train_iter")
        run.close()
        with entered.run(epochs=1, work_dir=tmp_path / "entered"):
            entered.emit("before_train_epoch")
            entered.emit("after_train_iter")

        assert opened.emitted_points == entered.emitted_points
        assert opened.emitted_points == ["before_run", "before_train", *EPOCH, "after_train", "after_run", "cleanup"]
        first, second = (read_status(tmp_path / name) for name in ("opened", "entered"))
        of_the_run = {"run", "directory", "seconds", "started", "updated"}
        assert {name for name in first if first[name] != second.get(name)} <= of_the_run

    def test_length_of_an_epoch_is_known_without_a_loader(self) -> None:
        bus = HookBus()
        due = []
        bus.on("after_train_iter", when=last)(lambda run: due.append(run.iters_done))
        run = bus.open(epochs=2, epoch_length=3)
        assert run.epoch_length == 3
        for _ in range(2):
            bus.emit("before_train_epoch")
            for _ in range(3):
                bus.emit("after_train_iter")
            bus.emit("after_train_epoch")
        run.close()
        assert due == [6]

    def test_length_of_an_epoch_is_a_positive_integer(self) -> None:
        with pytest.raises(ConfigError, match="epoch_length.*got 0"):
            HookBus().open(epoch_length=0)

    def test_run_continues_the_previous_one_and_counts_on(self) -> None:
        bus = HookBus()
        for _ in range(2):
            run = bus.open()
            bus.emit("after_train_iter")
            run.close()
        assert run.iters_done == 2

    def test_loop_with_iterators_of_the_run_ends_at_the_limit(self) -> None:
        bus = HookBus()
        run = bus.open(epochs=2)
        for _ in run.epochs():
            for _, batch in run.batches([1, 2, 3]):
                bus.emit("after_train_iter", batch=batch)
        run.close()
        assert (run.epochs_done, run.iters_done, run.outcome) == (2, 6, "finished")

    def test_unknown_argument_names_the_method(self) -> None:
        expected = r"bus\.open: unexpected keyword argument 'epoch'\. Did you mean 'epochs'\?"
        with pytest.raises(ArgumentError, match=expected):
            HookBus().open(epoch=1)  # type: ignore[call-arg]

    def test_failed_precondition_leaves_the_bus_free(self) -> None:
        class ScheduleValidation(Hook):
            schedules_validation = True

        bus = HookBus([ScheduleValidation()])
        with pytest.raises(ConfigError, match="validate="):
            bus.open()
        bus.open(validate=lambda: {"loss": 1.0}).close()

    def test_second_run_waits_for_the_end_of_the_first(self) -> None:
        bus = HookBus()
        run = bus.open()
        with pytest.raises(RequestError, match="is active on this bus"):
            bus.open()
        run.close()
        bus.open().close()

    def test_handler_of_ctrl_c_is_unchanged(self) -> None:
        before = signal.getsignal(signal.SIGINT)
        run = HookBus().open()
        assert signal.getsignal(signal.SIGINT) is before
        run.close()

    def test_interrupted_run_does_not_leave_the_loop_by_an_exception(self) -> None:
        bus = HookBus()
        run = bus.open()
        bus.emit("after_train_iter")
        run.request_stop(outcome="interrupted")
        for _ in range(2):
            bus.emit("before_train_iter")
            bus.emit("after_train_iter")
        assert run.should_stop
        run.close()
        assert run.outcome == "interrupted"


class TestClose:
    def test_second_call_has_no_effect(self) -> None:
        bus = RecordingBus()
        run = bus.open()
        run.close()
        run.close(ValueError("late"))
        assert (run.outcome, bus.emitted_points.count("cleanup")) == ("finished", 1)

    def test_error_reaches_the_hooks_and_is_not_raised(self, tmp_path: Path) -> None:
        bus, error = RecordingBus(), ValueError("out of memory")
        run = bus.open(work_dir=tmp_path)
        bus.emit("after_train_iter")
        traceback = error.__traceback__
        run.close(error)

        assert bus.emitted_points[-3:] == ["on_exception", "after_run", "cleanup"]
        assert bus.get_arguments("on_exception")[0]["exception"] is error
        assert (run.outcome, run.exception, error.__traceback__) == ("failed", error, traceback)
        assert read_status(tmp_path)["error"] == "ValueError: out of memory"

    def test_keyboard_interrupt_is_the_outcome_interrupted(self) -> None:
        run = HookBus().open()
        run.close(KeyboardInterrupt())
        assert run.outcome == "interrupted"

    def test_error_of_a_hook_is_raised_after_the_loop_has_succeeded(self) -> None:
        bus = RecordingBus([Failing()])
        run = bus.open()
        with pytest.raises(ValueError, match="disk full"):
            run.close()
        assert (run.outcome, run.is_running, bus.emitted_points[-1]) == ("failed", False, "cleanup")

    def test_error_of_a_hook_is_a_note_of_the_error_of_the_loop(self) -> None:
        error = RuntimeError("the loop")
        HookBus([Failing()]).open().close(error)
        assert any("disk full" in note for note in error.__notes__)

    def test_error_of_a_listener_of_the_last_events_is_raised_and_ends_the_run(self) -> None:
        bus = RecordingBus()

        @bus.on("after_train")
        def fail() -> None:
            raise ValueError("broken")

        run = bus.open()
        bus.emit("after_train_iter")
        with pytest.raises(ValueError, match="broken"):
            run.close()
        assert (run.outcome, bus.emitted_points[-3:]) == ("failed", ["on_exception", "after_run", "cleanup"])

    def test_requests_after_the_last_boundary_are_processed(self) -> None:
        bus = HookBus()
        run = bus.open(epochs=3)
        bus.emit("before_train_epoch")
        bus.emit("after_train_iter")
        run.request_stop("enough")
        run.close()
        assert (run.outcome, run.stop_reasons) == ("stopped", ["loop: enough"])

    @pytest.mark.parametrize("point", ["after_train_iter", "after_run"])
    def test_close_within_an_event_raises(self, point: Any) -> None:
        bus = HookBus()
        messages = []

        @bus.on(point)
        def close(run: Any) -> None:
            with pytest.raises(LoopError) as caught:
                run.close()
            messages.append(str(caught.value))

        run = bus.open()
        bus.emit("after_train_iter")
        run.close()
        assert messages == [
            f"run.close: called within {point}. Call it in the loop, or call run.request_stop() in a hook."
        ]

    def test_run_of_a_with_block_or_trainer_cannot_be_closed(self) -> None:
        expected = r"run\.close: the run was not begun by bus\.open\. It ends with its `with` block or Trainer\."
        with HookBus().run() as run, pytest.raises(LoopError, match=expected):
            run.close()

        class Close(Hook):
            def before_epoch(self, run: Any) -> None:
                with pytest.raises(LoopError, match=expected):
                    run.close()

        trainer: Trainer = toys.trainer(Close(), epochs=1)
        trainer.fit()

    def test_resumed_run_equals_the_uninterrupted_one(self, tmp_path: Path) -> None:
        from hookbus_checkpoint import CheckpointHook

        def train(work_dir: Path, stop_after: int, resume: Any = "never") -> torch.Tensor:
            torch.manual_seed(0)
            model = torch.nn.Linear(4, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            bus = HookBus([CheckpointHook(interval=1)])
            run = bus.open(model=model, optimizer=optimizer, epochs=4, work_dir=work_dir, seed=0, resume=resume)
            for _ in run.epochs():
                bus.emit("before_train_epoch")
                for _, (batch, _) in run.batches(toys.pairs()):
                    bus.emit("before_train_iter", batch=batch)
                    optimizer.zero_grad()
                    model(batch).square().mean().backward()
                    optimizer.step()
                    bus.emit("after_train_iter", batch=batch)
                    if run.iters_done == stop_after:
                        run.request_stop()
                bus.emit("after_train_epoch")
            run.close()
            return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])

        uninterrupted = train(tmp_path / "a", stop_after=-1)
        train(tmp_path / "b", stop_after=5)
        assert torch.equal(train(tmp_path / "b", stop_after=-1, resume="auto"), uninterrupted)


@pytest.mark.slow
def test_unclosed_run_is_reported_at_the_end_of_the_process() -> None:
    program = (
        "import logging; logging.basicConfig(); from hookbus import HookBus; HookBus().open(); HookBus().open().close()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr.count("the run that bus.open began was not closed") == 1


class TestLoopValidation:
    """`begin_validation` and `end_validation`."""

    def test_points_are_those_of_a_validation(self) -> None:
        bus = RecordingBus()
        run = bus.open()
        run.begin_validation()
        assert (run.validating, run.sanity_checking) == (True, False)
        run.end_validation({"loss": 0.5})
        assert (run.validating, bus.emitted_points) == (
            False,
            ["before_run", "before_val", "before_val_epoch", "after_val_epoch", "after_val"],
        )
        assert dict(run.metrics.results) == {"val/loss": 0.5}
        run.close()

    def test_events_that_the_loop_emits_are_not_repeated(self) -> None:
        bus = RecordingBus()
        run = bus.open()
        run.begin_validation()
        for point in ("before_val", "before_val_epoch", "before_val_iter"):
            bus.emit(point)
        bus.emit("after_val_iter", outputs={"loss": torch.tensor(2.0)})
        bus.emit("after_val_epoch")
        bus.emit("after_val", metrics={"accuracy": 1.0})
        run.end_validation()
        assert bus.emitted_points[1:] == [
            "before_val",
            "before_val_epoch",
            "before_val_iter",
            "after_val_iter",
            "after_val_epoch",
            "after_val",
        ]
        assert dict(run.metrics.results) == {"val/loss": 2.0, "val/accuracy": 1.0}
        run.close()

    def test_averaged_weights_are_applied_in_between(self) -> None:
        from hookbus_ema import EMAHook

        model = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.ones_(model.weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        bus = HookBus([EMAHook(momentum=0.5, warm_up=0)])
        run = bus.open(model=model, optimizer=optimizer)
        bus.emit("before_train_iter")
        model(torch.ones(1, 1)).backward()
        optimizer.step()  # 1 - 1 = 0
        bus.emit("after_train_iter")
        run.begin_validation()
        assert model.weight.item() == 0.5  # 0.5 * 1 + 0.5 * 0
        run.end_validation()
        assert model.weight.item() == 0.0
        run.close()

    def test_validation_of_the_same_weights_is_not_repeated(self) -> None:
        calls = []
        bus = HookBus()
        run = bus.open(validate=lambda: calls.append(1))
        bus.emit("after_train_iter")
        run.begin_validation()
        run.end_validation({"loss": 1.0})
        run.request_validation()
        run.settle()
        assert calls == []
        bus.emit("after_train_iter")
        run.request_validation()
        run.settle()
        assert calls == [1]
        run.close()

    def test_sanity_check_discards_its_results(self, caplog: pytest.LogCaptureFixture) -> None:
        calls = []
        bus = RecordingBus()
        run = bus.open(validate=lambda: calls.append(1))
        run.begin_validation()
        run.end_validation({"loss": 1.0})
        bus.emit("after_train_iter")
        run.begin_validation(sanity=True)
        assert run.sanity_checking
        run.end_validation({"loss": 9.0})
        assert (run.sanity_checking, dict(run.metrics.results)) == (False, {"val/loss": 1.0})
        run.request_validation()
        run.settle()
        assert calls == [1]
        run.close()

    def test_stop_requested_at_after_val_is_known_after_the_end(self) -> None:
        bus = HookBus()

        @bus.on("after_val")
        def stop(run: Any) -> None:
            run.request_stop("converged")

        run = bus.open()
        bus.emit("before_train_epoch")
        bus.emit("after_train_iter")
        run.begin_validation()
        run.end_validation({"loss": 0.0})
        assert run.should_stop
        run.close()
        assert run.outcome == "stopped"

    def test_run_of_mode_test_begins_a_test(self) -> None:
        bus = RecordingBus()
        run = bus.open(mode="test")
        run.begin_validation()
        run.end_validation({"loss": 0.5})
        assert (bus.emitted_points, dict(run.metrics.results)) == (
            ["before_run", "before_test", "before_test_epoch", "after_test_epoch", "after_test"],
            {"test/loss": 0.5},
        )
        run.close()

    def test_invalid_calls_raise(self) -> None:
        bus = HookBus()
        run = bus.open()
        with pytest.raises(LoopError, match=r"end_validation: no validation was begun"):
            run.end_validation()
        run.begin_validation()
        with pytest.raises(LoopError, match=r"begin_validation: a validation or test is in progress"):
            run.begin_validation()
        bus.emit("after_val")
        with pytest.raises(LoopError, match=r"end_validation: got 'loss' after after_val was emitted"):
            run.end_validation({"loss": 1.0})
        run.close()

    def test_failure_within_a_validation_restores_weights_and_results(self) -> None:
        bus = HookBus()
        run = bus.open()
        run.begin_validation()
        run.end_validation({"loss": 1.0})
        run.begin_validation(sanity=True)
        run.close(RuntimeError("broken"))
        assert (run.validating, run.sanity_checking, dict(run.metrics.results)) == (False, False, {"val/loss": 1.0})

    def test_validation_that_the_loop_abandons_ends_at_the_next_iteration(self) -> None:
        bus = HookBus()
        run = bus.open()
        run.begin_validation(sanity=True)
        bus.emit("before_train_iter")
        assert (run.validating, run.sanity_checking) == (False, False)
        bus.emit("after_train_iter")
        run.begin_validation()
        run.end_validation({"loss": 1.0})
        run.close()
        assert dict(run.metrics.results) == {"val/loss": 1.0}

    def test_results_do_not_depend_on_who_performs_the_validation(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO)

        def train(host: bool) -> list[tuple[str, Any]]:
            bus = RecordingBus()
            run = bus.open(validate=None if host else lambda: {"loss": 0.25})
            bus.emit("before_train_epoch")
            bus.emit("after_train_iter", outputs={"loss": torch.tensor(1.0)})
            bus.emit("after_train_epoch")
            if host:
                run.begin_validation()
                run.end_validation({"loss": 0.25})
            else:
                run.request_validation()
                run.settle()
            run.close()
            return [(event.point, dict(event.arguments).get("metrics")) for event in bus.events]

        points = {"before_val", "after_val", "log_scalars"}
        own, foreign = ([entry for entry in train(host) if entry[0] in points] for host in (False, True))
        assert own == foreign
