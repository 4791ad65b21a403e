"""Runs whose loop is an engine of Ignite."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("ignite", reason="ignite is not installed: run `make bridges HOST=ignite`")

from ignite.engine import DeterministicEngine, Engine, Events
from ignite.handlers import Checkpoint, DiskSaver

from hookbus import Hook, HookBus, Needs, Run
from hookbus.errors import ConfigError
from hookbus.testing import RecordingBus
from hookbus_checkpoint import CheckpointHook
from hookbus_ema import EMAHook

from .toys import Toy, attach, pairs

ITERATION = ["before_train_iter", "before_optimizer_step", "after_optimizer_step", "after_train_iter"]
EPOCH = ["before_epoch", "before_train_epoch", *ITERATION, *ITERATION, "after_train_epoch"]
VALIDATION = ["before_val", "before_val_epoch", "before_val_iter", "after_val_iter", "after_val_epoch", "after_val"]
END = ["after_train", "after_run", "cleanup"]


class RequestAt(Hook):
    """Call a function of the run at a point of an iteration."""

    def __init__(self, iteration: int, request: Any, point: str = "after_train_iter") -> None:
        super().__init__()
        self.iteration, self.request, self.point = iteration, request, point

    def before_train_epoch(self, run: Run) -> None:
        self._call("before_train_epoch", run, run.iters_done)

    def after_train_iter(self, run: Run) -> None:
        self._call("after_train_iter", run, run.iter)

    def after_epoch(self, run: Run) -> None:
        self._call("after_epoch", run, run.iter)

    def _call(self, point: str, run: Run, iteration: int) -> None:
        if (point, iteration) == (self.point, self.iteration):
            self.request(run)


class NeedsLoss(Hook):
    """Hook that needs the loss."""

    needs = Needs(loss=True)

    def after_train_iter(self, loss: Any) -> None:
        """Read the loss."""


class TestPoints:
    def test_points_of_a_training_with_validations(self) -> None:
        toy, bus = Toy(), RecordingBus()
        bridge = toy.attach(bus, evaluators={"val": toy.evaluator})

        @toy.trainer.on(Events.EPOCH_COMPLETED)
        def evaluate(engine: Engine) -> None:
            toy.evaluator.run(pairs([4.0]))

        toy.trainer.run(toy.data, max_epochs=2)
        epoch = [*EPOCH, *VALIDATION, "after_epoch"]
        assert bus.emitted_points == ["before_run", "before_train", *epoch, *epoch, *END]
        run = bridge.active_run
        assert (run.outcome, run.epochs_done, run.steps_done, run.host) == ("finished", 2, 4, bridge)
        errors = [arguments["metrics"]["val/error"] for arguments in bus.get_arguments("after_val")]
        assert errors == [12.0, 24.0]  # |4 * -3| and |4 * -6|

    def test_accumulation_counts_the_steps_of_the_optimizer(self) -> None:
        toy, bus = Toy([1.0, 2.0, 4.0, 8.0], gradient_accumulation_steps=2), RecordingBus()
        run = toy.attach(bus)
        toy.trainer.run(toy.data)
        assert (run.active_run.steps_done, run.active_run.iters_done, toy.weight) == (2, 4, -7.5)
        losses = [arguments["loss"] for arguments in bus.get_arguments("after_train_iter")]
        assert losses == [0.0, 0.0, -6.0, -12.0]  # the weight is -1.5 after the first step

    def test_batch_that_a_hook_replaces_is_trained(self) -> None:
        class Replace(Hook):
            def before_train_iter(self, run: Run, batch: Any) -> None:
                run.replace_batch((2 * batch[0], batch[1]))

        toy = Toy()
        toy.attach(HookBus([Replace()]))
        toy.trainer.run(toy.data)
        assert toy.weight == -6.0

    def test_update_function_emits_its_points_and_skips(self) -> None:
        class SkipFirst(Hook):
            skips_iterations = True

            def after_forward(self, run: Run) -> None:
                if run.iter == 0:
                    run.request_skip_iter()

        toy, bus = Toy(), RecordingBus([SkipFirst()])

        def update(engine: Engine, batch: Any) -> torch.Tensor:
            loss = toy.model(batch[0]).sum()
            bridge.emit("after_forward", batch=batch, outputs={"loss": loss})
            if not bridge.active_run.should_skip_iter:
                loss.backward()
                bridge.emit("after_backward", batch=batch, outputs={"loss": loss})
                toy.optimizer.step()
            return loss.detach()

        trainer = Engine(update)
        bridge = attach(bus, trainer, model=toy.model, optimizer=toy.optimizer, update_emits=True)
        trainer.run(toy.data)
        assert (toy.weight, bridge.active_run.steps_done) == (-2.0, 1)
        assert [bus.emitted_points.count(point) for point in ("after_forward", "after_backward")] == [2, 1]

    def test_emit_without_a_run_has_no_effect(self) -> None:
        bus = RecordingBus()
        Toy().attach(bus).emit("after_forward")
        assert bus.emitted_points == []

    def test_epoch_length_of_the_engine_is_that_of_the_run(self) -> None:
        toy = Toy([1.0, 2.0, 3.0])
        bridge = toy.attach(HookBus())
        toy.trainer.run(toy.data, max_epochs=3, epoch_length=2)
        run = bridge.active_run
        assert (run.epochs_done, run.iters_done, run.epoch_length) == (3, 6, 2)
        assert run.train_loader is toy.data

    def test_data_without_length(self) -> None:
        toy = Toy()
        bridge = toy.attach(HookBus())
        toy.trainer.run(iter(pairs([1.0] * 9)), max_epochs=2)
        run = bridge.active_run
        assert (run.iters_done, run.epochs_done, run.outcome) == (9, 2, "finished")

    @pytest.mark.skipif("max_iters" not in signature(Engine.run).parameters, reason="this version has no max_iters")
    def test_number_of_iterations_limits_the_run(self) -> None:
        toy = Toy()
        bridge = toy.attach(HookBus())
        toy.trainer.run(toy.data, max_iters=3)
        run = bridge.active_run
        assert (run.iters_done, run.max_iters, run.outcome) == (3, 3, "finished")

    def test_second_run_of_a_trainer_starts_from_scratch(self) -> None:
        toy, bus = Toy(), RecordingBus()
        bridge = toy.attach(bus)
        for _ in range(2):
            toy.trainer.run(toy.data, max_epochs=2)
            assert (bridge.active_run.epochs_done, bridge.active_run.iters_done) == (2, 4)
        assert bus.emitted_points.count("before_run") == 2
        assert bus.emitted_points.count("after_epoch") == 4

    def test_run_with_more_epochs_continues(self) -> None:
        toy = Toy()
        bridge = toy.attach(HookBus([RequestAt(1, lambda run: run.request_stop(), "after_epoch")]))
        toy.trainer.run(toy.data, max_epochs=3)
        assert (bridge.active_run.epochs_done, bridge.active_run.outcome) == (1, "stopped")
        toy.trainer.run(toy.data, max_epochs=3)
        assert (bridge.active_run.epochs_done, bridge.active_run.iters_done) == (3, 6)

    def test_interrupted_engine_continues_the_same_run(self) -> None:
        toy, bus = Toy(), RecordingBus()
        bridge = toy.attach(bus)
        toy.trainer.add_event_handler(Events.ITERATION_COMPLETED(once=1), lambda engine: engine.interrupt())
        toy.trainer.run(toy.data)
        assert (bridge.is_open, bridge.active_run.iters_done) == (True, 1)
        toy.trainer.run(toy.data)
        assert (bridge.is_open, bridge.active_run.iters_done, bus.emitted_points.count("before_run")) == (False, 2, 1)

    @pytest.mark.parametrize(
        ("iteration", "outcome", "epochs"), [(3, "stopped", 1), (4, "stopped", 2), (6, "finished", 3)]
    )
    def test_handler_that_terminates_the_trainer_stops_the_run(self, iteration: int, outcome: str, epochs: int) -> None:
        toy, bus = Toy(), RecordingBus()
        toy.attach(bus)
        toy.trainer.add_event_handler(Events.ITERATION_COMPLETED(once=iteration), lambda engine: engine.terminate())
        toy.trainer.run(toy.data, max_epochs=3)
        run = bus.current
        assert (run.outcome, run.epochs_done, run.iters_done) == (outcome, epochs, iteration)

    def test_detached_trainer_emits_nothing(self) -> None:
        toy, bus = Toy(), RecordingBus()
        toy.attach(bus, evaluators={"val": toy.evaluator}).detach()
        toy.trainer.run(toy.data)
        toy.evaluator.run(toy.data)
        assert (bus.emitted_points, "run" in vars(toy.trainer)) == ([], False)


class TestFailures:
    def test_error_reaches_the_hooks_and_is_raised(self) -> None:
        toy, bus = Toy(), RecordingBus()
        toy.attach(bus)
        error = RuntimeError("out of memory")

        @toy.trainer.on(Events.ITERATION_COMPLETED)
        def fail(engine: Engine) -> None:
            raise error

        with pytest.raises(RuntimeError, match="out of memory") as caught:
            toy.trainer.run(toy.data)
        assert caught.value is error
        assert bus.emitted_points[-3:] == ["on_exception", "after_run", "cleanup"]
        assert bus.current.exception is error

    def test_error_that_a_handler_suppresses_is_the_outcome(self) -> None:
        toy, bus = Toy(), RecordingBus()
        toy.attach(bus)
        toy.trainer.add_event_handler(Events.EXCEPTION_RAISED, lambda engine, error: None)

        @toy.trainer.on(Events.EPOCH_COMPLETED)
        def interrupt(engine: Engine) -> None:
            raise KeyboardInterrupt

        toy.trainer.run(toy.data)
        assert (bus.current.outcome, bus.emitted_points[-1]) == ("interrupted", "cleanup")

    def test_training_that_continues_after_an_error_counts_on(self) -> None:
        toy, bus = Toy([1.0, 2.0]), RecordingBus()

        def update(engine: Engine, batch: Any) -> float:
            if engine.state.iteration == 1:
                raise ValueError("broken batch")
            return 0.0

        trainer = Engine(update)
        attach(bus, trainer, model=toy.model)
        trainer.add_event_handler(Events.EXCEPTION_RAISED, lambda engine, error: None)
        trainer.run(toy.data, max_epochs=2)
        assert (bus.current.epochs_done, bus.current.iters_done, bus.current.outcome) == (2, 3, "finished")

    def test_error_of_an_evaluator_ends_the_validation(self) -> None:
        toy, bus = Toy(), RecordingBus()
        toy.attach(bus, evaluators={"val": toy.evaluator})
        toy.evaluator.add_event_handler(Events.ITERATION_COMPLETED, lambda engine: 1 / 0)
        toy.trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda engine: toy.evaluator.run(toy.data))
        with pytest.raises(ZeroDivisionError):
            toy.trainer.run(toy.data)
        assert (bus.current.validating, bus.current.outcome) == (False, "failed")

    def test_training_continues_with_its_weights_after_a_handled_error_of_an_evaluator(self) -> None:
        toy, bus = Toy([1.0]), RecordingBus([EMAHook(momentum=0.5, warm_up=0)])
        toy.attach(bus, evaluators={"val": toy.evaluator})
        toy.evaluator.add_event_handler(Events.ITERATION_COMPLETED(once=1), lambda engine: 1 / 0)

        @toy.trainer.on(Events.EPOCH_COMPLETED)
        def evaluate(engine: Engine) -> None:
            with suppress(ZeroDivisionError):
                toy.evaluator.run(toy.data)

        toy.trainer.run(toy.data, max_epochs=2)
        assert (toy.weight, bus.current.outcome, bus.current.validating) == (-2.0, "finished", False)


class TestRequests:
    def test_stop_ends_the_training_after_the_iteration(self) -> None:
        toy = Toy()
        bridge = toy.attach(HookBus([RequestAt(2, lambda run: run.request_stop("enough"))]))
        toy.trainer.run(toy.data, max_epochs=5)
        run = bridge.active_run
        assert (run.iters_done, toy.trainer.state.iteration, run.stop_reasons) == (3, 3, ["request_at: enough"])

    def test_stop_at_the_end_of_an_epoch_leaves_the_engine_there(self) -> None:
        toy = Toy()
        bridge = toy.attach(HookBus([RequestAt(1, lambda run: run.request_stop(), "after_epoch")]))
        toy.trainer.run(toy.data, max_epochs=5)
        assert (toy.trainer.state.epoch, bridge.active_run.epochs_done) == (1, 1)

    @pytest.mark.parametrize(("point", "iterations"), [("after_train_iter", 3), ("before_train_epoch", 3)])
    def test_stop_of_the_epoch_begins_the_next_one(self, point: str, iterations: int) -> None:
        toy = Toy()
        bridge = toy.attach(HookBus([RequestAt(0, lambda run: run.request_stop_epoch(), point)]))
        toy.trainer.run(toy.data, max_epochs=2)
        assert (bridge.active_run.epochs_done, bridge.active_run.iters_done) == (2, iterations)

    def test_validation_calls_the_function_at_once(self) -> None:
        toy, bus = Toy(), RecordingBus([RequestAt(0, lambda run: run.request_validation())])
        options: dict[str, Any] = {"validate": lambda engine: toy.evaluator.run(pairs([4.0]))}
        toy.attach(bus, evaluators={"val": toy.evaluator}, **options)
        toy.trainer.run(toy.data)
        assert [dict(arguments["metrics"]) for arguments in bus.get_arguments("after_val")] == [{"val/error": 4.0}]

    @pytest.mark.parametrize("error", [None, ValueError])
    def test_refused_checkpoint_replaces_no_other(self, tmp_path: Path, error: type[Exception] | None) -> None:
        class Refuse(Hook):
            def before_save_checkpoint(self, run: Run) -> None:
                if run.iters_done > 2 and error is not None:
                    raise error
                if run.iters_done > 2:
                    run.request_abort()

        toy = Toy()
        to_save: dict[str, Any] = {"model": toy.model}
        toy.trainer.add_event_handler(Events.EPOCH_COMPLETED, Checkpoint(to_save, DiskSaver(tmp_path), n_saved=1))
        to_save["hookbus"] = bridge = toy.attach(HookBus([Refuse()]))
        with nullcontext() if error is None else pytest.raises(error):
            toy.trainer.run(toy.data, max_epochs=3)
        assert (bridge.run.outcome, bridge.run.iters_done) == ("aborted" if error is None else "failed", 4)
        assert [path.name for path in tmp_path.iterdir()] == ["checkpoint_2.pt"]

    def test_save_calls_the_handler_and_reports_its_path(self, tmp_path: Path) -> None:
        toy, bus = Toy(), RecordingBus([RequestAt(1, lambda run: run.request_save())])
        to_save: dict[str, Any] = {"model": toy.model}
        checkpoint = Checkpoint(to_save, DiskSaver(tmp_path))
        to_save["hookbus"] = toy.attach(bus, save=checkpoint)
        toy.trainer.run(toy.data)
        assert [arguments["path"] for arguments in bus.get_arguments("after_save_checkpoint")] == [
            tmp_path / "checkpoint_2.pt"
        ]
        state = torch.load(tmp_path / "checkpoint_2.pt", weights_only=True)
        assert state["hookbus"]["loop"]["clock"]["iters_done"] == 2

    def test_request_without_its_argument_is_refused(self) -> None:
        class Schedules(Hook):
            schedules_validation = True

        toy = Toy()
        with pytest.raises(ConfigError, match="schedules validations, but Ignite validates on its own schedule only"):
            toy.attach(HookBus([Schedules()]))
        toy.attach(HookBus([Schedules()]), validate=lambda engine: None)


class TestEvaluators:
    def test_evaluators_are_the_loaders_of_one_validation(self) -> None:
        toy, other, bus = Toy(), Toy(), RecordingBus()
        other.evaluator = Toy().evaluator
        toy.attach(bus, evaluators={"a": toy.evaluator, "b": other.evaluator})

        @toy.trainer.on(Events.EPOCH_COMPLETED)
        def evaluate(engine: Engine) -> None:
            toy.evaluator.run(pairs([4.0]))
            other.evaluator.run(pairs([4.0]))

        toy.trainer.run(toy.data)
        (arguments,) = bus.get_arguments("after_val")
        assert dict(arguments["metrics"]) == {"val/a/error": 12.0, "val/b/error": 0.0}
        names = [arguments["dataloader_name"] for arguments in bus.get_arguments("before_val_iter")]
        assert names == ["a", "b"]

    def test_validation_of_one_of_two_evaluators_ends_with_the_epoch(self) -> None:
        toy, bus = Toy(), RecordingBus()
        toy.attach(bus, evaluators={"a": toy.evaluator, "b": Toy().evaluator})
        toy.trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda engine: toy.evaluator.run(pairs([4.0])))
        toy.trainer.run(toy.data, max_epochs=2)
        assert bus.emitted_points.count("after_val") == 2
        assert bus.emitted_points[-len(END) - 3 : -len(END)] == ["after_val_epoch", "after_val", "after_epoch"]

    def test_averaged_weights_are_evaluated_and_raw_weights_are_saved(self, tmp_path: Path) -> None:
        toy = Toy()
        to_save: dict[str, Any] = {"model": toy.model}
        # Added before the bridge, so that it saves within the validation.
        toy.evaluator.add_event_handler(Events.EPOCH_COMPLETED, Checkpoint(to_save, DiskSaver(tmp_path)))
        bus = RecordingBus([EMAHook(momentum=0.5, warm_up=0)])
        to_save["hookbus"] = toy.attach(bus, evaluators={"val": toy.evaluator})
        seen = []
        toy.evaluator.add_event_handler(Events.ITERATION_COMPLETED, lambda engine: seen.append(toy.weight))
        toy.trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda engine: toy.evaluator.run(pairs([4.0])))
        toy.trainer.run(toy.data)
        (path,) = tmp_path.glob("*.pt")
        state = torch.load(path, weights_only=True)
        assert (seen, float(state["model"]["weight"])) == ([-1.75], -3.0)  # 0.5 * (0.5 * 0 - 0.5 * 1) - 0.5 * 3
        assert float(state["hookbus"]["ema_state_dict"]["weight"]) == -1.75

    def test_metrics_that_are_no_numbers_are_reported_once(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("INFO")
        toy, bus = Toy(), RecordingBus()
        toy.attach(bus, evaluators={"val": toy.evaluator})

        @toy.evaluator.on(Events.EPOCH_COMPLETED)
        def add(engine: Engine) -> None:
            engine.state.metrics["confusion"] = torch.eye(2)

        toy.trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda engine: toy.evaluator.run(pairs([4.0])))
        toy.trainer.run(toy.data, max_epochs=2)
        assert (
            caplog.text.count("evaluators['val']: hooks do not receive the metrics that are no numbers: confusion.")
            == 1
        )

    def test_evaluator_outside_of_a_training_emits_nothing(self) -> None:
        toy, bus = Toy(), RecordingBus()
        toy.attach(bus, evaluators={"val": toy.evaluator})
        toy.evaluator.run(pairs([4.0]))
        assert bus.emitted_points == []


class TestCheckpoints:
    def test_resumed_training_continues_hooks_and_counts(self, tmp_path: Path) -> None:
        def train(epochs: int, resume: bool = False) -> tuple[float, Run]:
            toy = Toy()
            to_save: dict[str, Any] = {"trainer": toy.trainer, "model": toy.model, "optimizer": toy.optimizer}
            bridge = toy.attach(HookBus([EMAHook(momentum=0.5, warm_up=0)]))
            to_save["hookbus"] = bridge
            if resume:
                Checkpoint.load_objects(to_save, torch.load(tmp_path / "checkpoint_4.pt", weights_only=True))
            elif epochs == 2:
                toy.trainer.add_event_handler(Events.EPOCH_COMPLETED, Checkpoint(to_save, DiskSaver(tmp_path)))
            toy.trainer.run(toy.data, max_epochs=epochs)
            with bridge.active_run.weights.applied():
                return toy.weight, bridge.active_run

        train(2)
        expected, _ = train(4)
        average, run = train(4, resume=True)
        assert (average, run.epochs_done, run.iters_done, run.steps_done) == (expected, 4, 8, 8)

    def test_missing_state_of_the_hooks_is_reported(self, caplog: pytest.LogCaptureFixture) -> None:
        toy = Toy()
        toy.attach(HookBus())
        toy.trainer.load_state_dict({"iteration": 2, "max_epochs": 2, "epoch_length": 2})
        toy.trainer.run(toy.data)
        assert "The trainer starts at iteration 2 and the hooks at iteration 0" in caplog.text

    def test_checkpoint_hook_resumes_the_engine(self, tmp_path: Path) -> None:
        def train(epochs: int, resume: str) -> tuple[float, Engine]:
            toy = Toy()
            bus = HookBus([CheckpointHook(save_best=False)])
            toy.attach(bus, checkpoints="hookbus", work_dir=tmp_path, resume=resume)
            toy.trainer.run(toy.data, max_epochs=epochs)
            return toy.weight, toy.trainer

        train(2, "never")
        weight, trainer = train(3, "auto")
        assert (weight, trainer.state.epoch, trainer.state.iteration) == (-9.0, 3, 6)

    @pytest.mark.parametrize("deterministic", [False, True])
    def test_resume_within_an_epoch(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, deterministic: bool
    ) -> None:
        def train(hook: Hook, resume: str) -> Engine:
            toy = Toy([1.0, 2.0, 4.0], deterministic=deterministic)
            bus = HookBus([CheckpointHook(save_best=False), hook])
            toy.attach(bus, checkpoints="hookbus", work_dir=tmp_path, resume=resume)
            toy.trainer.run(toy.data, max_epochs=2)
            return toy.trainer

        train(RequestAt(0, lambda run: run.request_stop()), "never")
        trainer = train(Hook(), "auto")
        assert (trainer.state.epoch, trainer.state.iteration) == (2, 6)
        assert ("within epoch 0, whose data Ignite reads from the start" in caplog.text) != deterministic


class TestRefusals:
    def test_hook_that_needs_a_point_of_the_update_function_is_refused(self) -> None:
        class NeedsBackward(Hook):
            needs = Needs(points=("after_backward",))

        toy = Toy()
        with pytest.raises(ConfigError, match=r"requires after_backward.*update_emits=True"):
            toy.attach(HookBus([NeedsBackward()]))
        toy.attach(HookBus([NeedsBackward()]), update_emits=True)

    def test_missing_model_and_evaluators_without_names_are_refused(self) -> None:
        toy = Toy()
        with pytest.raises(ConfigError, match="model: should be the model that the engine trains, got None"):
            toy.attach(HookBus(), model=None)
        for evaluators, kind in ((toy.evaluator, "Engine"), ([toy.evaluator], "list")):
            with pytest.raises(ConfigError, match=f"evaluators: should map names to engines, got {kind}"):
                toy.attach(HookBus(), evaluators=evaluators)

    def test_output_without_the_loss_that_a_hook_needs_is_an_error(self) -> None:
        toy = Toy(output_transform=lambda x, y, y_pred, loss: (y_pred, loss))
        toy.attach(HookBus([NeedsLoss()]))
        with pytest.raises(ConfigError, match="a dict with 'loss', which hook 'needs_loss' requires, got 'output'"):
            toy.trainer.run(toy.data)

    def test_output_without_the_outputs_that_a_hook_needs_is_an_error(self) -> None:
        class NeedsOutputs(Hook):
            needs = Needs(outputs=True)

        toy = Toy()
        toy.attach(HookBus([NeedsOutputs()]))
        with pytest.raises(ConfigError, match="the outputs of the model, which hook 'needs_outputs' requires, got 'lo"):
            toy.trainer.run(toy.data)

    def test_output_transform_names_the_loss(self) -> None:
        toy, bus = Toy(output_transform=lambda x, y, y_pred, loss: (y_pred, loss)), RecordingBus([NeedsLoss()])
        toy.attach(bus, output_transform=lambda output: {"loss": output[1].detach()})
        toy.trainer.run(toy.data)
        assert [arguments["loss"].item() for arguments in bus.get_arguments("after_train_iter")] == [0.0, -2.0]


def test_deterministic_engine_is_an_engine() -> None:
    toy, bus = Toy(deterministic=True), RecordingBus()
    toy.attach(bus)
    toy.trainer.run(toy.data, max_epochs=2)
    assert isinstance(toy.trainer, DeterministicEngine)
    assert bus.current.epochs_done == 2
