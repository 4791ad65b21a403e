"""Tests of the base class of bridges, with a bridge of a small trainer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from hookbus import Hook, HookBus, Needs, Run, every
from hookbus._run.host import Checkpoints
from hookbus.bridge import Capabilities
from hookbus.errors import CheckpointRefusedError, ConfigError, RequestError
from hookbus.testing import HostTask, RecordingBus, TaskError, fingerprint
from hookbus_checkpoint import CheckpointHook
from tests.foreign_trainer import ForeignAdapter, ForeignBridge, ForeignTrainer


def make_trainer(task: HostTask | None = None, **options: Any) -> ForeignTrainer:
    """Return a trainer of a task."""
    task = task or HostTask()
    model = task.model()
    return ForeignTrainer(model, task.optimizer(model), task.loss, **{"epochs": task.epochs, **options})


def make_bridge(bus: HookBus | None = None, trainer: ForeignTrainer | None = None, **options: Any) -> ForeignBridge:
    """Return the attached bridge of a trainer."""
    bridge = ForeignBridge(bus or HookBus(), trainer or make_trainer(), **options)
    bridge.attach()
    return bridge


def fit(bridge: ForeignBridge, *, validate: bool = True, checkpoint: Path | None = None) -> None:
    """Train with the trainer of a bridge."""
    task = HostTask()
    bridge.host.fit(task.train_loader(), task.val_loader() if validate else None, checkpoint)


class TestRun:
    """`open` and `close`."""

    def test_run_spans_the_training_of_the_trainer(self) -> None:
        bridge = make_bridge(bus := RecordingBus())
        assert (bridge.run, bridge.is_open) == (None, False)
        fit(bridge)
        run = bridge.active_run
        assert (run.outcome, run.epochs_done, run.iters_done, bridge.is_open) == ("finished", 2, 12, False)
        assert run.host is bridge
        assert bus.emitted_points[:2] == ["before_run", "before_train"]
        assert bus.emitted_points[-3:] == ["after_train", "after_run", "cleanup"]

    def test_error_of_the_trainer_reaches_the_hooks_and_is_raised_unchanged(self) -> None:
        bridge = make_bridge(bus := RecordingBus(), make_trainer(HostTask(fail_at=3)))
        with pytest.raises(TaskError, match="iteration 3") as caught:
            fit(bridge)
        assert bridge.active_run.exception is caught.value
        assert bus.emitted_points[-3:] == ["on_exception", "after_run", "cleanup"]

    def test_run_whose_start_fails_is_closed(self) -> None:
        bridge = make_bridge(bus := RecordingBus())

        @bus.on("before_train")
        def fail() -> None:
            raise ValueError("no data")

        with pytest.raises(ValueError, match="no data"):
            bridge.open()
        assert (bridge.is_open, bus.emitted_points[-1]) == (False, "cleanup")

    def test_close_without_a_run_has_no_effect(self) -> None:
        bridge = make_bridge(bus := RecordingBus())
        bridge.close()
        fit(bridge)
        bridge.close(ValueError("late"))
        assert (bridge.active_run.outcome, bus.emitted_points.count("cleanup")) == ("finished", 1)

    def test_second_training_of_the_trainer_continues_the_first(self) -> None:
        bridge = make_bridge()
        fit(bridge)
        bridge.host.epochs = 3
        fit(bridge)
        assert (bridge.active_run.epochs_done, bridge.active_run.iters_done) == (3, 18)

    def test_second_trainer_on_the_same_bus_starts_from_scratch(self) -> None:
        bus = HookBus()
        for _ in range(2):
            bridge = make_bridge(bus)
            fit(bridge)
        assert (bridge.active_run.epochs_done, bridge.active_run.iters_done) == (2, 12)

    def test_options_and_arguments_are_those_of_bus_open(self, tmp_path: Path) -> None:
        bridge = make_bridge(work_dir=tmp_path / "run", seed=7)
        run = bridge.open(epochs=3)
        assert (run.work_dir is not None and run.work_dir.path.name, run.seed, run.max_epochs) == ("run", 7, 3)
        bridge.close()

    def test_option_counts_the_tokens_of_the_batches(self) -> None:
        bus, due = HookBus(), []
        bus.on("after_train_iter", when=every(20, unit="token"))(lambda run: due.append(run.tokens_done))
        bridge = make_bridge(bus, batch_tokens=lambda batch: 2 * len(batch[0]))
        fit(bridge)
        # 2 tokens per sample, in batches of 4.
        assert (bridge.active_run.tokens_done, due[:3]) == (8 * bridge.active_run.iters_done, [24, 40, 64])

    def test_limit_in_tokens_is_refused_because_the_trainer_has_its_own(self) -> None:
        bridge = make_bridge(tokens=5, batch_tokens=lambda batch: 1)
        with pytest.raises(ConfigError, match="tokens: .* has a limit of its own"):
            bridge.open()

    def test_two_bridges_of_one_trainer_emit_to_their_own_bus(self) -> None:
        buses, trainer = [RecordingBus(), RecordingBus()], make_trainer()
        bridges = [make_bridge(bus, trainer) for bus in buses]
        fit(bridges[0])
        assert buses[0].emitted_points == buses[1].emitted_points
        assert bridges[0].run is not bridges[1].run

    def test_bus_drives_one_run_at_a_time(self) -> None:
        bus = HookBus()
        first, second = make_bridge(bus), make_bridge(bus)
        first.open()
        with pytest.raises(RequestError, match="is active on this bus"):
            second.open()
        first.close()


class TestAttachment:
    """`attach`, `detach` and `replace`."""

    def test_attached_bridge_is_found_by_the_type_of_the_trainer(self, published: Path) -> None:
        trainer = make_trainer()
        bridge = HookBus().attach(trainer)
        assert isinstance(bridge, ForeignBridge)
        assert trainer.callbacks == [bridge]

    def test_detached_bridge_leaves_the_trainer_alone(self) -> None:
        bridge = make_bridge(bus := RecordingBus())
        bridge.detach()
        bridge.detach()
        fit(bridge)
        assert (bridge.host.callbacks, bus.events) == ([], [])

    def test_replaced_method_is_that_of_the_object_only(self) -> None:
        trainer, other = make_trainer(), make_trainer()
        bridge = make_bridge(trainer=trainer)
        calls: list[str] = []
        bridge.replace(trainer, "save", lambda save: lambda: calls.append(save.__name__))
        trainer.save()
        assert (calls, "save" in vars(trainer), "save" in vars(other)) == (["save"], True, False)
        bridge.detach()
        assert "save" not in vars(trainer)

    def test_replaced_attributes_are_restored_in_reverse_order(self) -> None:
        trainer = make_trainer(epochs=1)
        bridge = make_bridge(trainer=trainer)
        bridge.replace(trainer, "epochs", lambda epochs: epochs + 1)
        bridge.replace(trainer, "epochs", lambda epochs: epochs * 10)
        assert trainer.epochs == 20
        bridge.detach()
        assert trainer.epochs == 1


class TestCheckpoints:
    """Owner of the checkpoints, and the state in those of the trainer."""

    def test_unsupported_owner_is_refused(self) -> None:
        class HostOnly(ForeignBridge):
            capabilities = Capabilities(host="some trainer", bridge="a:b")

        with pytest.raises(ConfigError, match=r"checkpoints: should be 'host' in some trainer, got 'hookbus'\."):
            HostOnly(HookBus(), make_trainer(), checkpoints="hookbus")

    def test_resume_is_refused_if_the_trainer_owns_the_checkpoints(self) -> None:
        with pytest.raises(ConfigError, match=r"resume: the hooks resume from the checkpoint of foreign .*'auto'"):
            ForeignBridge(HookBus(), make_trainer(), resume="auto")

    def test_refused_resume_suggests_supported_owners_only(self) -> None:
        class HostOnly(ForeignBridge):
            capabilities = Capabilities(host="some trainer", bridge="a:b")

        with pytest.raises(ConfigError, match=r"got 'auto'\. Resume some trainer itself\.$"):
            HostOnly(HookBus(), make_trainer(), resume="auto")

    def test_checkpoint_hook_is_refused_if_the_trainer_owns_the_checkpoints(self) -> None:
        with pytest.raises(ConfigError, match="writes checkpoints, but foreign trainer saves the state of the hooks"):
            ForeignBridge(HookBus([CheckpointHook()]), make_trainer())

    @pytest.mark.parametrize("checkpoints", ["host", "hookbus"])
    def test_state_is_that_of_a_run_of_mode_host_only(self, checkpoints: Checkpoints) -> None:
        bridge = make_bridge(checkpoints=checkpoints)
        assert bridge.get_state() == {}
        bridge.open()
        assert bool(bridge.get_state()) == (checkpoints == "host")
        bridge.close()
        assert bridge.get_state() == {}

    def test_listener_may_modify_the_state_with_plain_data_only(self) -> None:
        bridge = make_bridge(bus := HookBus())

        @bus.on("before_save_checkpoint")
        def add(checkpoint: dict[str, Any]) -> None:
            checkpoint["extra"] = added.pop()

        added: list[Any] = [object(), 1]
        bridge.open()
        assert bridge.get_state()["extra"] == 1
        with pytest.raises(Exception, match="extra"):
            bridge.get_state()
        bridge.close()

    def test_refused_state_names_the_hook_and_ends_the_outermost_save(self, caplog: pytest.LogCaptureFixture) -> None:
        class Refuse(Hook):
            def before_save_checkpoint(self, run: Run) -> None:
                run.request_abort("weights are NaN")

        bridge, reached = make_bridge(HookBus([Refuse()])), []
        run = bridge.open()
        with bridge.omit_refused_save():
            with bridge.omit_refused_save():
                bridge.get_state()
            reached.append("code after the save")
        assert (reached, run.should_stop, run.abort_reasons) == ([], True, ["refuse: weights are NaN"])
        assert caplog.messages == [
            "No checkpoint of foreign trainer is saved after iteration 0, because a hook has aborted the run. refuse: "
            "weights are NaN"
        ]
        with pytest.raises(CheckpointRefusedError):
            bridge.get_state()
        bridge.close()

    def test_state_that_is_set_before_the_run_is_restored_when_it_begins(self) -> None:
        state = self.make_state()
        bridge = make_bridge(bus := RecordingBus())
        bridge.set_state(state)
        assert bus.events == []
        run = bridge.open()
        assert (run.iters_done, bus.emitted_points) == (1, ["before_run", "after_load_checkpoint", "before_train"])
        bridge.close()

    def test_state_is_restored_by_one_run_only(self) -> None:
        bridge = make_bridge()
        bridge.set_state(self.make_state())
        bridge.open()
        bridge.close()
        assert bridge.open(fresh=True).iters_done == 0
        bridge.close()

    def test_state_is_discarded_with_the_run_that_cannot_begin(self) -> None:
        bridge = make_bridge()
        bridge.set_state(self.make_state())
        with pytest.raises(ConfigError, match="epochs"):
            bridge.open(epochs=-1)
        assert bridge.open().iters_done == 0
        bridge.close()

    def test_state_that_is_set_during_the_run_is_restored_at_once(self) -> None:
        bridge = make_bridge(bus := RecordingBus())
        run = bridge.open()
        bridge.set_state(self.make_state())
        assert (run.iters_done, bus.emitted_points[-1]) == (1, "after_load_checkpoint")
        bridge.close()

    @pytest.mark.parametrize("is_open", [False, True])
    def test_checkpoint_without_state_is_reported(self, is_open: bool, caplog: pytest.LogCaptureFixture) -> None:
        bridge = make_bridge()
        if is_open:
            bridge.open()
            bridge.set_state({})
        else:
            bridge.set_state({})
            bridge.open()
        bridge.close()
        message = (
            "The checkpoint of foreign trainer was saved without hookbus: the hooks start from their initial state."
        )
        assert caplog.messages == [message]

    def test_saved_checkpoint_is_reported_with_its_path_and_metrics(self) -> None:
        bridge = make_bridge(bus := RecordingBus())
        bridge.report_save("early.pt")
        bridge.open()
        bridge.report_save("some.pt")
        bridge.close()
        reported = bus.get_arguments("after_save_checkpoint")
        assert [(event["path"], event["is_best"], dict(event["metrics"])) for event in reported] == [
            ("some.pt", None, {})
        ]

    def test_resumed_training_equals_the_uninterrupted_one(self, tmp_path: Path) -> None:
        whole = ForeignAdapter().train(HookBus(), HostTask(epochs=4), tmp_path / "whole")
        ForeignAdapter().train(HookBus(), HostTask(epochs=2), tmp_path / "parts")
        torch.manual_seed(99)
        resumed = ForeignAdapter().train(HookBus(), HostTask(epochs=4), tmp_path / "parts", resume=True)
        assert fingerprint(resumed.model.state_dict()) == fingerprint(whole.model.state_dict())
        assert resumed.bridge.active_run.iters_done == 24

    @staticmethod
    def make_state() -> Mapping[str, Any]:
        """Return the state of a run after one iteration."""
        bridge = make_bridge()
        bridge.open()
        bridge.bus.emit("after_train_iter")
        state = bridge.get_state()
        bridge.close()
        return state


class TestResults:
    """`select_results`."""

    METRICS: ClassVar = {"val_loss": 1.0, "val/accuracy": 0.5, "eval_loss": 2.0, "train_loss": 3.0, "lr": 0.1}

    def test_results_are_the_metrics_with_the_prefixes_of_the_class(self) -> None:
        assert make_bridge().select_results(self.METRICS) == {"loss": 1.0, "accuracy": 0.5}

    def test_prefix_is_an_option(self) -> None:
        assert make_bridge(metric_prefix="eval_").select_results(self.METRICS) == {"loss": 2.0}


class TestNeeds:
    """Comparison with the needs of the hooks."""

    class Limited(ForeignBridge):
        capabilities = Capabilities(
            host="limited trainer",
            bridge="a:b",
            missing={"after_forward": "It has no such callback. Use after_train_iter."},
            approximate={"after_train_iter": "the gradients are zeroed"},
        )

    def test_tokens_cannot_be_counted_without_the_batch(self) -> None:
        class WithoutBatch(ForeignBridge):
            capabilities = Capabilities(host="blind trainer", bridge="a:b", batch=False)

        bridge = WithoutBatch(HookBus(), make_trainer(), batch_tokens="num_tokens")
        with pytest.raises(ConfigError, match="batch_tokens: blind trainer passes no batch"):
            bridge.open()

    def test_hook_that_needs_a_missing_point_is_refused(self) -> None:
        class NeedsForward(Hook):
            needs = Needs(points=("after_forward",))

        with pytest.raises(
            ConfigError, match=r"requires after_forward, which limited trainer does not emit: It has no"
        ):
            self.Limited(HookBus([NeedsForward()]), make_trainer())

    @pytest.mark.parametrize("request_name", ["stop", "stop_epoch", "save", "validation", "skip_iter"])
    def test_request_that_the_trainer_cannot_carry_out_is_refused(self, request_name: str) -> None:
        bridge = self.Limited(HookBus(), make_trainer())
        run = bridge.open()
        with pytest.raises(RequestError, match="which limited trainer does not carry out"):
            getattr(run, f"request_{request_name}")()
        bridge.close()


class TestOptions:
    """Options are checked before the training: unknown ones by `bus.attach`."""

    def test_arguments_of_the_trainer_are_refused(self) -> None:
        bridge = make_bridge(epochs=1, iterations=3, optimizer=None, seed=0)
        with pytest.raises(ConfigError) as caught:
            fit(bridge)
        assert caught.value.problems == [
            "bus.attach: got epochs=1, which the training in foreign trainer sets. Remove it.",
            "bus.attach: got iterations=3, which the training in foreign trainer sets. Remove it.",
            "bus.attach: got optimizer=None, which the training in foreign trainer sets. Remove it.",
        ]

    def test_recorded_configuration_of_the_user_takes_precedence(self) -> None:
        bridge = make_bridge(config={"width": 3})
        assert bridge.open(config={"width": 2}).config == {"width": 3}
        bridge.close()

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"work_dr": "x"}, r"bus.attach: unexpected keyword argument 'work_dr'\. Did you mean 'work_dir'\?"),
            ({"checkpoint": "hookbus"}, r"argument 'checkpoint'\. Did you mean 'checkpoints'\?"),
            ({"interval": 5}, r"bus.attach: unexpected keyword argument 'interval'\."),
            ({"resume": 3}, "resume: should be auto, never or the path of a checkpoint, got 3"),
            ({"hook_budget": 2.0}, "hook_budget: should be .* got 2.0"),
        ],
    )
    def test_invalid_option_is_an_error(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises((ConfigError, TypeError), match=message):
            make_bridge(**options)

    def test_option_of_a_subclass_is_suggested(self) -> None:
        class Timed(ForeignBridge):
            def __init__(self, bus: HookBus, host: Any, *, timeout: float = 1.0, **options: Any) -> None:
                super().__init__(bus, host, **options)

        with pytest.raises(TypeError, match=r"argument 'timeuot'\. Did you mean 'timeout'\?"):
            Timed(HookBus(), make_trainer(), timeuot=2.0)
