"""Early stopping of runs: stops, monitored metric, best weights, and resume."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hookbus import Hook, HookBus, Run, Trainer
from hookbus._run.run import BestResult
from hookbus.checkpoint.state import read_checkpoint, write_checkpoint
from hookbus.errors import ConfigError, MetricError
from hookbus.testing import check_hook, fake_training, fingerprint
from hookbus_checkpoint import CheckpointHook
from hookbus_early_stopping import EarlyStoppingHook
from hookbus_ema import EMAHook


@pytest.mark.parametrize(("strict", "metrics"), [(True, ["val/loss"]), (False, [])])
def test_strict_hook_requires_its_metric(strict: bool, metrics: list[str]) -> None:
    hook = EarlyStoppingHook(monitor="val/loss", strict=strict)
    assert (hook.required_metrics, hook.requires_validation) == (metrics, True)


class Weight(nn.Module):
    """Model with one weight, which the training loop sets to the number of the epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    @property
    def value(self) -> float:
        return float(self.weight.detach())


def train(
    hooks: Sequence[object] | HookBus,
    scores: Sequence[Mapping[str, float] | float],
    *,
    model: Weight | None = None,
    epochs: int | None = None,
    on_iteration: Callable[[Run], object] = lambda run: None,
    **options: Any,
) -> tuple[Run, Weight]:
    """Train for one iteration per epoch and validate each epoch with one score: a loss, or a mapping of metrics."""
    bus = hooks if isinstance(hooks, HookBus) else HookBus(hooks)
    model = model or Weight()

    def results(run: Run) -> Mapping[str, float]:
        score = scores[run.epochs_done - 1]
        return score if isinstance(score, Mapping) else {"loss": score}

    with bus.run(model=model, epochs=epochs or len(scores), validate=results, **options) as run:
        for epoch in run.epochs():
            bus.emit("before_train_epoch")
            for i, batch in run.batches([torch.zeros(1)]):
                bus.emit("before_train_iter", batch_idx=i, batch=batch)
                with torch.no_grad():
                    model.weight.fill_(epoch + 1)
                on_iteration(run)
                bus.emit("after_train_iter", batch_idx=i, batch=batch)
            run.request_validation()
            bus.emit("after_train_epoch")
    return run, model


@pytest.mark.slow
def test_hook_passes_the_conformance_check() -> None:
    check_hook(EarlyStoppingHook)
    check_hook(EarlyStoppingHook, restore_best_weights=False, monitor="accuracy", patience=0)


class TestStopping:
    def test_hook_stops_the_run_with_a_reason(self) -> None:
        hook = EarlyStoppingHook(patience=2)
        run, _ = train([hook], [0.5, 0.4, 0.4, 0.6, 0.1])

        assert run.outcome == "stopped"
        assert run.stop_reasons == ["early_stopping: val_loss has not improved on 0.4 (epoch 2) in 2 validations"]
        assert (hook.best_score, hook.best_epoch, hook.wait_count, hook.stopped_epoch) == (0.4, 2, 2, 4)
        assert run.epochs_done == 4

    def test_hook_does_not_stop_a_run_that_improves(self) -> None:
        hook = EarlyStoppingHook(patience=1)
        run, _ = train([hook], [0.5, 0.4, 0.3])

        assert run.outcome == "finished"
        assert (hook.best_epoch, hook.wait_count, hook.stopped_epoch) == (3, 0, None)

    def test_nonfinite_score_stops_the_run_immediately(self) -> None:
        run, _ = train([EarlyStoppingHook()], [0.5, math.nan, 0.1])

        assert run.stop_reasons == ["early_stopping: val_loss is not finite, got nan"]
        assert run.epochs_done == 2

    def test_validation_within_an_epoch_may_stop_the_run_there(self) -> None:
        hook = EarlyStoppingHook(patience=1, restore_best_weights=False)

        def request_validation(run: Run) -> None:
            run.request_validation()

        loop = HookBus([hook, _listener("after_train_iter", request_validation)])
        losses = iter([0.5, 0.6])
        with loop.run(epochs=1, validate=lambda: {"loss": next(losses)}) as run:
            for _ in run.epochs():
                for i, batch in run.batches([0, 1, 2, 3]):
                    loop.emit("before_train_iter", batch_idx=i, batch=batch)
                    loop.emit("after_train_iter", batch_idx=i, batch=batch)

        assert (run.iters_done, run.epochs_done, run.outcome) == (2, 0, "stopped")
        assert (hook.best_epoch, hook.stopped_epoch) == (1, 1)

    def test_hook_does_not_stop_after_min_epochs_if_the_score_has_recovered(self) -> None:
        hook = EarlyStoppingHook(patience=2, min_epochs=6)
        run, _ = train([hook], [5, 4, 4, 4, 3, 2, 1, 0.5])

        assert run.outcome == "finished"
        assert run.epochs_done == 8

    def test_hook_stops_after_min_epochs_if_the_score_has_not_recovered(self) -> None:
        run, _ = train([EarlyStoppingHook(patience=2, min_epochs=6)], [5, 4, 4, 4, 4, 4, 1, 0.5])

        assert run.epochs_done == 6

    @pytest.mark.parametrize(
        ("settings", "epochs"),
        [
            # Three steps per epoch: due since epoch 2 (6 steps); 9 < 10 <= 12.
            ({}, 2),
            ({"min_steps": 6}, 2),
            ({"min_steps": 7}, 3),
            ({"min_steps": 10}, 4),
            ({"min_steps": 10, "min_epochs": 3}, 4),
            ({"min_steps": 10, "min_epochs": 5}, 5),
        ],
    )
    def test_hook_stops_after_min_steps_and_min_epochs(self, settings: dict[str, int], epochs: int) -> None:
        hook = EarlyStoppingHook(patience=1, **settings)
        losses = lambda epoch: {"loss": 2.0 + epoch}  # noqa: E731
        run = fake_training([hook], epochs=9, batches=3, scores=losses).run
        assert (run.epochs_done, run.steps_done) == (epochs, 3 * epochs)
        assert (hook.best_epoch, hook.wait_count) == (1, epochs - 1)

    def test_hook_does_not_stop_after_min_steps_if_the_score_has_recovered(self) -> None:
        run, _ = train([EarlyStoppingHook(patience=2, min_steps=6)], [5, 4, 4, 4, 3, 2, 1, 0.5])
        assert run.outcome == "finished"

    @pytest.mark.parametrize(
        ("start", "losses", "stop", "best"),
        [
            (0, [1, 2, 2, 2, 2, 2, 2], 3, (1, 1)),
            (1, [1, 2, 2, 2, 2, 2, 2], 4, (2, 2)),
            (3, [1, 2, 2, 2, 2, 2, 2], 6, (2, 4)),
            (1, [0.1, 5, 4, 3, 3.5, 3.2, 1], 6, (3, 4)),
            (2, [math.nan, math.inf, 2, 1, 3], 5, (1, 4)),
            (9, [1, 2, 2, 2, 2, 2, 2], 7, (None, None)),
        ],
        ids=["default", "one epoch", "three epochs", "best score ignored", "not finite", "beyond the run"],
    )
    def test_epochs_before_start_from_epoch_are_ignored(
        self, start: int, losses: list[float], stop: int, best: tuple[float | None, int | None]
    ) -> None:
        hook = EarlyStoppingHook(patience=2, start_from_epoch=start, restore_best_weights=False)
        run, _ = train([hook], losses)
        assert run.epochs_done == stop
        assert (hook.best_score, hook.best_epoch) == best

    def test_missing_metric_is_an_error_in_an_ignored_epoch(self) -> None:
        with pytest.raises(MetricError, match=r"'loss'.* val/mIoU"):
            train([EarlyStoppingHook(monitor="loss", start_from_epoch=5)], [{"mIoU": 0.5}])

    def test_each_of_two_hooks_has_its_own_start_and_delta(self) -> None:
        def build(name: str, **settings: Any) -> EarlyStoppingHook:
            return EarlyStoppingHook(name=name, monitor="loss", patience=3, restore_best_weights=False, **settings)

        first = build("first", min_delta=0.5, min_delta_mode="rel")
        second = build("second", start_from_epoch=2)
        run, _ = train([first, second], [8, 5, 7, 6, 5.5, 3.5, 3.75, 3.8])
        # An improvement on 8 is below 4: three validations without one after epoch 1.
        assert (run.epochs_done, [reason.split(":")[0] for reason in run.stop_reasons]) == (4, ["first"])
        assert (first.best_score, first.best_epoch, first.wait_count) == (8, 1, 3)
        assert (second.best_score, second.best_epoch, second.wait_count) == (6, 4, 0)

    def test_best_weights_are_those_of_a_gain_below_the_delta_if_it_does_not_accumulate(self) -> None:
        losses = [3.0, 2.9, 2.8, 2.7]
        _, cumulative = train([EarlyStoppingHook(patience=3, min_delta=0.5)], losses)
        _, single = train([EarlyStoppingHook(patience=3, min_delta=0.5, cumulative_delta=False)], losses)
        assert (cumulative.value, single.value) == (1, 4)

    def test_hook_ignores_the_validation_before_training(self) -> None:
        losses = iter([9.0, 0.5, 0.4])
        hook = EarlyStoppingHook(patience=1, divergence_threshold=5.0)
        requester = _listener("before_train", lambda run: run.request_validation())
        bus = HookBus([hook, requester])
        with bus.run(epochs=2, validate=lambda: {"loss": next(losses)}) as run:
            for _ in run.epochs():
                bus.emit("before_train_epoch")
                bus.emit("after_train_iter")
                run.request_validation()
                bus.emit("after_train_epoch")

        assert run.outcome == "finished"
        assert (hook.best_score, hook.best_epoch, hook.wait_count) == (0.4, 2, 0)

    def test_hook_is_inactive_in_runs_without_training(self) -> None:
        model = nn.Linear(2, 2)
        batches = [(torch.zeros(1, 2), torch.zeros(1, dtype=torch.long))]
        hook = EarlyStoppingHook(monitor="accuracy")
        trainer = Trainer(
            model,
            loss_fn=nn.functional.cross_entropy,
            val_loader=batches,
            test_loader=batches,
            work_dir=None,
            default_hooks=False,
            hooks=[hook],
        )
        assert set(trainer.validate()) == {"val/loss"}
        assert set(trainer.test()) == {"test/loss"}
        assert hook.best_score is None


class TestMonitor:
    def test_strict_hook_raises_if_the_metric_is_missing_and_lists_the_metrics(self) -> None:
        with pytest.raises(MetricError, match=r"'loss'.* val/aAcc, val/mIoU"):
            train([EarlyStoppingHook(monitor="loss")], [{"mIoU": 0.5, "aAcc": 0.5}])

    def test_hook_warns_once_and_at_the_end_if_the_metric_is_missing(self, caplog: pytest.LogCaptureFixture) -> None:
        hook = EarlyStoppingHook(monitor="loss", strict=False)
        run, _ = train([hook], [{"mIoU": 0.5}] * 3)

        start = "early_stopping: the monitored metric is missing. Unknown metric 'loss'. Available: val/mIoU."
        assert len([message for message in caplog.messages if message.startswith(start)]) == 1
        assert run.outcome == "finished"
        assert "early_stopping: no validation provided the metric 'loss'; the hook had no effect." in caplog.messages

    def test_run_without_validations_is_one_warning(self, caplog: pytest.LogCaptureFixture) -> None:
        bus = HookBus([EarlyStoppingHook(monitor="loss")])
        with bus.run(epochs=1) as run:
            for _ in run.epochs():
                bus.emit("after_train_iter")

        assert caplog.messages == ["early_stopping: no validation provided the metric 'loss'; the hook had no effect."]

    @pytest.mark.parametrize(
        ("settings", "scores", "is_reported"),
        [
            ({"patience": 3}, [3, 2, 1], True),  # three scores after the first one are required
            ({"patience": 3}, [4, 3, 2, 1], False),
            ({"patience": 3, "baseline": 9}, [3, 2, 1], False),
            ({"patience": 3, "stopping_threshold": 0}, [3, 2, 1], False),
            ({"patience": 10}, [3, 2, 1], False),  # the default, which was not chosen for this run
        ],
    )
    def test_patience_beyond_the_number_of_validations_is_one_warning(
        self, settings: dict[str, Any], scores: list[float], is_reported: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        train([EarlyStoppingHook(monitor="loss", **settings)], scores)
        expected = "early_stopping: `patience=3` could not stop the run, which had 3 validations. Set a smaller number."
        assert [message for message in caplog.messages if "restored" not in message] == [expected] * is_reported

    @pytest.mark.parametrize(
        ("scores", "expected"),
        [
            # One score without improvement before the resume: two more are required.
            ([3, 4, 5], ["which had 1 validations after its resume and 2 without improvement"]),
            ([3, 4, 2], ["which had 1 validations after its resume and 0 without improvement"]),
            ([3, 4, 2, 1], []),
        ],
    )
    def test_patience_beyond_the_end_of_a_resumed_run_is_one_warning(
        self, scores: list[float], expected: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        def hooks() -> list[Hook]:
            return [
                EarlyStoppingHook(monitor="loss", patience=3, restore_best_weights=False),
                CheckpointHook(save_best=False),
            ]

        train(hooks(), scores[:2], work_dir=tmp_path)
        caplog.clear()
        train(hooks(), scores, work_dir=tmp_path, resume="auto")
        prefix = "early_stopping: `patience=3` could not stop the run, "
        assert [text for text in caplog.messages if "could not stop" in text] == [
            f"{prefix}{end}. Set a smaller number." for end in expected
        ]

    def test_resumed_run_that_has_met_the_rule_is_one_warning(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        def hooks(patience: int) -> list[Hook]:
            hook = EarlyStoppingHook(monitor="loss", patience=patience, restore_best_weights=False)
            return [hook, CheckpointHook(save_best=False)]

        train(hooks(5), [3, 4, 5], work_dir=tmp_path)
        caplog.clear()
        run, _ = train(hooks(2), [3, 4, 5, 6], work_dir=tmp_path, resume="auto")
        assert (run.outcome, run.epochs_done) == ("stopped", 3)
        assert [text for text in caplog.messages if "complete" in text] == [
            "early_stopping: the training is already complete: 'loss' has not improved on 3 (epoch 1) in 2 "
            "validations. Set a larger `patience`, or start from scratch."
        ]

    def test_min_epochs_beyond_the_run_is_one_warning(self, caplog: pytest.LogCaptureFixture) -> None:
        train([EarlyStoppingHook(monitor="loss", patience=1, min_epochs=3)], [3, 2])
        expected = "hook 'early_stopping' requires 3 epochs for 'min_epochs', and the run has 2 epochs. Set a number"
        assert len([message for message in caplog.messages if message.startswith(expected)]) == 1

    def test_hook_monitors_a_metric_from_its_first_validation_on(self, caplog: pytest.LogCaptureFixture) -> None:
        hook = EarlyStoppingHook(monitor="loss", strict=False, patience=1)
        run, _ = train([hook], [{"mIoU": 0.5}, {"loss": 0.5}, {"loss": 0.6}, {"loss": 0.1}])

        assert run.epochs_done == 3
        assert not [message for message in caplog.messages if "no validation provided" in message]

    @pytest.mark.parametrize("monitor", ["val/loss", "val_loss", "loss"])
    def test_metric_may_be_named_in_three_ways(self, monitor: str) -> None:
        hook = EarlyStoppingHook(monitor=monitor)
        train([hook], [{"loss": 0.5, "accuracy": 0.1}])
        assert hook.best_score == 0.5


class TestBestWeights:
    def test_best_weights_are_restored_after_a_complete_run(self) -> None:
        hook = EarlyStoppingHook(monitor="accuracy")
        _, model = train([hook], [{"accuracy": score} for score in (0.5, 0.9, 0.6, 0.6, 0.6)])
        assert model.value == 2

    def test_best_weights_are_restored_after_a_stop_by_any_hook(self) -> None:
        _, stopped = train([EarlyStoppingHook(patience=2)], [0.5, 0.4, 0.6, 0.6, 0.6])
        other = _listener("after_epoch", lambda run: run.epochs_done == 3 and run.request_stop())
        _, ended = train([EarlyStoppingHook(), other], [0.5, 0.4, 0.6, 0.6, 0.6])
        assert (stopped.value, ended.value) == (2, 2)

    def test_final_weights_are_kept_without_restore_or_improvement(self) -> None:
        _, disabled = train([EarlyStoppingHook(restore_best_weights=False)], [0.5, 0.4, 0.6])
        _, unimproved = train([EarlyStoppingHook(baseline=0.1)], [0.5, 0.4, 0.6])
        assert (disabled.value, unimproved.value) == (3, 3)

    def test_final_weights_are_kept_after_a_failure(self) -> None:
        model = Weight()
        with pytest.raises(RuntimeError, match="broken"):
            train([EarlyStoppingHook()], [0.5, 0.6, 0.7], model=model, on_iteration=_raise_in_epoch(3))
        assert model.value == 3

    def test_training_does_not_modify_the_best_weights(self) -> None:
        hook = EarlyStoppingHook()
        train([hook], [0.5, 0.6, 0.7])
        assert hook.state_dict()["best_weights"]["raw"]["weight"].tolist() == [1.0]

    @pytest.mark.parametrize("source", ["memory", "file"])
    @pytest.mark.parametrize("priority", [0, 100])
    def test_best_weights_are_restored_after_the_last_save(self, tmp_path: Path, source: str, priority: int) -> None:
        values = []
        requester = _listener("after_train", lambda run: (values.append(run.model.value), run.request_save("asked")))  # type: ignore[union-attr]
        reader = _listener("after_run", lambda run: values.append(run.model.value))  # type: ignore[union-attr]
        hook = EarlyStoppingHook(restore_best_weights=source, priority=priority)
        files = CheckpointHook(interval=None, save_best=False if source == "memory" else "loss")
        _, model = train([files, hook, requester, reader], [0.5, 0.4, 0.6], work_dir=tmp_path)

        assert read_checkpoint(tmp_path / "checkpoints/last.pth")["state_dict"]["weight"].tolist() == [3.0]
        assert values == [3, 2]
        assert model.value == 2

    def test_save_requested_after_the_restore_is_skipped(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Such a checkpoint would combine the best weights with the optimizer state of the last step."""
        requester = _listener("after_run", lambda run: run.request_save("too late"))
        _, model = train(
            [EarlyStoppingHook(), CheckpointHook(save_best=False), requester], [0.5, 0.6], work_dir=tmp_path
        )

        assert model.value == 1
        assert float(read_checkpoint(tmp_path / "checkpoints/last.pth")["state_dict"]["weight"]) == 2
        assert any(text.endswith("save, requested by at_after_run: too late") for text in caplog.messages)

    def test_averaged_weights_of_the_best_score_are_restored(self) -> None:
        model = Weight()
        average = AveragingHook(model)
        run, _ = train([EarlyStoppingHook(), average], [0.5, 0.4, 0.6], model=model)

        assert model.value == 2
        assert average.mean.tolist() == [20.0]
        assert run.weights.averaged() == {"weight": average.mean}

    def test_best_weights_are_restored_by_at_most_one_hook(self) -> None:
        two = [EarlyStoppingHook(name="a"), EarlyStoppingHook(name="b")]
        with pytest.raises(ConfigError, match="restore_best_weights: hook 'b' also restores weights"):
            train(two, [0.5])
        one = [EarlyStoppingHook(name="a"), EarlyStoppingHook(name="b", restore_best_weights=False)]
        assert train(one, [0.5])[0].outcome == "finished"

    @pytest.mark.parametrize("order", [1, -1])
    def test_two_hooks_stop_at_the_earlier_condition_also_after_a_resume(self, order: int, tmp_path: Path) -> None:
        def hooks() -> list[Hook]:
            slow = EarlyStoppingHook(name="slow", monitor="loss", patience=4)
            fast = EarlyStoppingHook(name="fast", monitor="accuracy", patience=2, restore_best_weights=False)
            return [*[slow, fast][::order], CheckpointHook(interval=1, save_best=False)]

        scores = [{"loss": 1.0, "accuracy": 0.1}, {"loss": 0.5, "accuracy": 0.3}] + [
            {"loss": 0.7, "accuracy": 0.2} for _ in range(5)
        ]
        uninterrupted, expected = train(hooks(), scores, work_dir=tmp_path / "whole")
        train(hooks(), scores, epochs=3, work_dir=tmp_path / "cut")
        resumed, model = train(hooks(), scores, work_dir=tmp_path / "cut", resume="auto")

        assert (uninterrupted.epochs_done, resumed.epochs_done) == (4, 4)
        assert [reason.split(":")[0] for reason in resumed.stop_reasons] == ["fast"]
        assert (expected.value, model.value) == (2, 2)  # the best weights by loss

    def test_best_weights_of_a_failed_run_are_not_restored_in_the_next_run(self) -> None:
        bus = HookBus([EarlyStoppingHook()])
        with pytest.raises(RuntimeError, match="broken"):
            train(bus, [0.5, 0.6], on_iteration=_raise_in_epoch(2))
        bus.unregister(bus.hooks["early_stopping"])
        _, model = train(bus, [0.5, 0.6, 0.7], epochs=3)
        assert model.value == 3

    def test_validation_after_training_evaluates_the_restored_weights(self) -> None:
        bus, validated = HookBus([EarlyStoppingHook()]), []
        model, losses = Weight(), iter([0.5, 0.6, 0.5])
        bus.register(_listener("after_run", lambda run: run.request_validation()))

        def validate() -> dict[str, float]:
            validated.append(model.value)
            return {"loss": next(losses)}

        with bus.run(model=model, epochs=2, validate=validate) as run:
            for epoch in run.epochs():
                bus.emit("before_train_epoch")
                with torch.no_grad():
                    model.weight.fill_(epoch + 1)
                bus.emit("after_train_iter")
                run.request_validation()
                bus.emit("after_train_epoch")
        assert validated == [1, 2, 1]


@pytest.mark.parametrize(
    ("source", "files"),
    [("memory", {}), ("file", {}), ("file", {"async_save": True})],
    ids=["memory", "file", "file on another thread"],
)
def test_restored_weights_reproduce_the_best_score_with_averages_and_batch_norm(
    tmp_path: Path, source: str, files: Mapping[str, Any]
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    data = [(torch.randn(4, 3), torch.randint(0, 2, (4,))) for _ in range(4)]
    stopping = EarlyStoppingHook(patience=3, restore_best_weights=source)
    trainer = Trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=0.5),
        nn.functional.cross_entropy,
        data[:3],
        data[3:],
        epochs=30,
        work_dir=tmp_path,
        default_hooks=False,
        hooks=[EMAHook(momentum=0.9, warm_up=0), CheckpointHook(best_metric="loss", **files), stopping],
    )
    run = trainer.fit()
    last = read_checkpoint(tmp_path / "checkpoints/last.pth")

    assert run.outcome == "stopped"
    assert stopping.best_epoch != run.epochs_done
    assert trainer.validate()["loss"] == stopping.best_score
    assert fingerprint(last["state_dict"]) != fingerprint(model.state_dict())


class TestBestWeightsOfAFile:
    def test_best_weights_of_a_file_require_the_checkpoint_hook(self) -> None:
        with pytest.raises(ConfigError, match=r"restore_best_weights: file requires the checkpoint hook"):
            train([EarlyStoppingHook(restore_best_weights="file")], [0.5])

    def test_best_weights_of_a_file_require_the_checkpoint_hook_in_check(self) -> None:
        model = nn.Linear(1, 1)
        hook, optimizer = EarlyStoppingHook(restore_best_weights="file"), torch.optim.SGD(model.parameters(), lr=0.1)
        data: dict[str, Any] = {"train_loader": [torch.ones(1, 1)], "val_loader": [torch.ones(1, 1)]}
        options: dict[str, Any] = {"hooks": [hook], "default_hooks": False, "work_dir": None, "epochs": 1}
        message = r"^hook 'early_stopping' .*: file requires the checkpoint hook\. Install"
        with pytest.raises(ConfigError, match=message):
            Trainer(model, optimizer, **data, **options).check()

    def test_checkpoint_hook_keeps_the_best_file_of_the_metric(self, tmp_path: Path) -> None:
        hook = EarlyStoppingHook(monitor="my_score", mode="max", restore_best_weights="file")
        scores = [{"my_score": score, "accuracy": 0.5} for score in (0.5, 0.9, 0.6)]
        run, model = train([CheckpointHook(), hook], scores, work_dir=tmp_path)

        assert run.best["val/my_score"].path == tmp_path / "checkpoints/best_my_score.pth"
        assert model.value == 2
        assert hook.state_dict()["best_weights"] is None

    def test_hook_waits_for_a_best_file_in_progress(self, tmp_path: Path) -> None:
        _, model = train(
            [DelayedSaver(tmp_path / "best.pth"), EarlyStoppingHook(restore_best_weights="file")], [0.5, 0.6]
        )
        assert model.value == 1

    def test_best_weights_of_a_file_are_rejected_with_save_best_false(self, tmp_path: Path) -> None:
        hook = EarlyStoppingHook(restore_best_weights="file")
        with pytest.raises(ConfigError, match="checkpoint hook has `save_best: false`"):
            train([CheckpointHook(save_best=False), hook], [0.5, 0.6], work_dir=tmp_path / "run")
        assert list(tmp_path.iterdir()) == [], "refused before the run begins"


class TestResume:
    LOSSES = (0.5, 0.4, 0.6, 0.5, 0.7, 0.3)

    @pytest.mark.parametrize("epochs", [1, 2, 3, 4, 5])
    @pytest.mark.parametrize("source", ["memory", "file"])
    def test_resumed_run_stops_like_an_uninterrupted_one(self, tmp_path: Path, epochs: int, source: str) -> None:
        def hooks() -> list[Hook]:
            files = CheckpointHook(save_best=False if source == "memory" else "loss")
            return [EarlyStoppingHook(patience=3, restore_best_weights=source), files]

        uninterrupted, model = train(hooks(), self.LOSSES, work_dir=tmp_path / "a")
        train(hooks(), self.LOSSES, epochs=epochs, work_dir=tmp_path / "b")
        resumed, same = train(hooks(), self.LOSSES, work_dir=tmp_path / "b", resume="auto")

        assert uninterrupted.epochs_done == resumed.epochs_done == 5
        assert resumed.stop_reasons == uninterrupted.stop_reasons
        assert model.value == same.value == 2
        states = [read_checkpoint(tmp_path / name / "checkpoints/last.pth")["hooks"] for name in "ab"]
        assert states[0]["early_stopping"]["state"] == states[1]["early_stopping"]["state"]

    @pytest.mark.slow
    @pytest.mark.parametrize("at", [1, 5, 8, 12])
    @pytest.mark.parametrize("outcome", ["preempted", "interrupted"])
    def test_resumed_run_stops_likewise_after_an_interruption_within_an_epoch(
        self, tmp_path: Path, at: int, outcome: Any
    ) -> None:
        """The loop requests a validation after the batches of an epoch, also if the epoch was truncated."""

        class Interrupter(Hook):
            def after_train_iter(self, run: Run) -> None:
                if run.iters_done == at:
                    run.request_save()
                    run.request_stop(outcome=outcome)

        def state_after(name: str, *more: Hook, **options: Any) -> dict[str, Any]:
            hooks = [EarlyStoppingHook(patience=3), CheckpointHook(best_metric="loss"), *more]
            scores = lambda epoch: {"loss": self.LOSSES[epoch - 1]}  # noqa: E731
            with suppress(KeyboardInterrupt):
                fake_training(hooks, epochs=9, scores=scores, work_dir=tmp_path / name, **options)
            state = read_checkpoint(tmp_path / name / "checkpoints/last.pth")["hooks"]["early_stopping"]["state"]
            weights = state.pop("best_weights") or {"raw": {}}
            return {**state, "weights": fingerprint(weights["raw"])}

        uninterrupted = state_after("a")
        state_after("b", Interrupter())
        assert state_after("b", resume="auto") == uninterrupted
        assert uninterrupted["stopped_epoch"] == 5

    @pytest.mark.slow
    @pytest.mark.parametrize("epochs", [1, 2, 3, 5, 6])
    @pytest.mark.parametrize(
        ("settings", "stop"),
        [
            ({"start_from_epoch": 2}, 7),
            ({"min_delta": 0.1, "min_delta_mode": "rel", "min_steps": 8}, 8),
            ({"min_delta": 0.25, "cumulative_delta": False}, 5),
        ],
        ids=["start", "relative", "not cumulative"],
    )
    def test_resumed_run_stops_likewise_with_each_setting(
        self, tmp_path: Path, settings: dict[str, Any], stop: int, epochs: int
    ) -> None:
        losses = [1.0, 0.5, 0.4, 0.3, 0.75, 0.3, 0.3, 0.3]

        def hooks() -> list[Hook]:
            return [EarlyStoppingHook(patience=3, **settings), CheckpointHook(save_best=False)]

        uninterrupted, model = train(hooks(), losses, work_dir=tmp_path / "a")
        train(hooks(), losses, epochs=epochs, work_dir=tmp_path / "b")
        resumed, same = train(hooks(), losses, work_dir=tmp_path / "b", resume="auto")
        assert (uninterrupted.epochs_done, resumed.epochs_done) == (stop, stop)
        assert model.value == same.value
        states = [read_checkpoint(tmp_path / name / "checkpoints/last.pth")["hooks"] for name in "ab"]
        assert states[0]["early_stopping"]["state"] == states[1]["early_stopping"]["state"]

    def test_resumed_run_uses_the_remaining_patience(self, tmp_path: Path) -> None:
        scores = [{"accuracy": score} for score in (0.5, 0.4, 0.3, 0.2, 0.1)]
        settings: dict[str, Any] = {"monitor": "accuracy", "patience": 3}
        train([EarlyStoppingHook(settings), CheckpointHook()], scores, epochs=3, work_dir=tmp_path)
        run, _ = train([EarlyStoppingHook(settings), CheckpointHook()], scores, work_dir=tmp_path, resume="auto")
        assert run.epochs_done == 4

    def test_resumed_run_stops_immediately_unless_the_patience_was_raised(self, tmp_path: Path) -> None:
        losses = [0.5, 0.6, 0.6, 0.6, 0.6]
        train([EarlyStoppingHook(patience=1), CheckpointHook(best_metric="loss")], losses, work_dir=tmp_path)
        again = EarlyStoppingHook(patience=1)
        run, _ = train([again, CheckpointHook(best_metric="loss")], losses, work_dir=tmp_path, resume="auto")
        assert (run.epochs_done, run.outcome, again.stopped_epoch) == (2, "stopped", 2)

        raised = EarlyStoppingHook(patience=3)
        run, _ = train([raised, CheckpointHook(best_metric="loss")], losses, work_dir=tmp_path, resume="auto")
        assert (run.epochs_done, raised.stopped_epoch) == (4, 4)

    @pytest.mark.parametrize(("metric", "mode"), [("accuracy", "max"), ("loss", "max")])
    def test_resume_with_another_metric_or_direction_resets_with_a_warning(
        self, tmp_path: Path, metric: str, mode: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        scores = [{"loss": 0.5, "accuracy": 0.1}, {"loss": 0.3, "accuracy": 0.2}, {"loss": 0.2, "accuracy": 0.1}]
        train([EarlyStoppingHook(), CheckpointHook()], scores, epochs=1, work_dir=tmp_path)
        other = EarlyStoppingHook(monitor=metric, mode=mode)
        train([other, CheckpointHook()], scores, work_dir=tmp_path, resume="auto")
        start = f"early_stopping: the checkpoint monitors 'val/loss' (min), this run {metric!r} (max). The best score"
        assert len([message for message in caplog.messages if message.startswith(start)]) == 1
        assert (other.best_score, other.best_epoch, other.wait_count) == (scores[1][metric], 2, 1)

    @pytest.mark.parametrize(("save_best", "weight"), [("loss", 1), (False, 3)])
    def test_resume_without_best_weights_in_memory_loads_the_file_or_warns(
        self, tmp_path: Path, save_best: Any, weight: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        losses = [0.5, 0.6, 0.7]
        files = {"save_best": save_best}
        train([EarlyStoppingHook(restore_best_weights=False), CheckpointHook(files)], losses[:2], work_dir=tmp_path)
        _, model = train([EarlyStoppingHook(), CheckpointHook(files)], losses, work_dir=tmp_path, resume="auto")
        assert model.value == weight
        assert ("the model keeps its final weights" in caplog.text) == (weight == 3)

    def test_resume_with_best_weights_of_a_file_ignores_weights_in_the_state(self, tmp_path: Path) -> None:
        losses = [0.5, 0.4, 0.6]
        train([EarlyStoppingHook(), CheckpointHook(save_best="loss")], losses[:1], work_dir=tmp_path)
        from_file = EarlyStoppingHook(restore_best_weights="file")
        _, model = train([from_file, CheckpointHook(save_best="loss")], losses, work_dir=tmp_path, resume="auto")
        assert model.value == 2

    @pytest.mark.parametrize("source", ["memory", "file"])
    @pytest.mark.parametrize("averaged_first", [False, True])
    def test_resume_with_or_without_averaging_restores_the_evaluated_weights(
        self, tmp_path: Path, source: str, averaged_first: bool
    ) -> None:
        """In the epoch of the best score the weight is 1 and its average 0.5 * 0 + 0.5 * 1."""

        def hooks(averages: bool) -> list[Hook]:
            ema = [EMAHook(momentum=0.5, warm_up=0)] if averages else []
            return [EarlyStoppingHook(restore_best_weights=source), CheckpointHook(save_best="loss"), *ema]

        train(hooks(averaged_first), [0.5], work_dir=tmp_path)
        run, model = train(hooks(not averaged_first), [0.5, 0.6], work_dir=tmp_path, resume="auto")
        evaluated = run.weights.averaged() or run.weights.raw()
        assert float(evaluated["weight"]) == (0.5 if averaged_first else 1.0)
        assert model.value == (0.5 if averaged_first else 1.0)

    def test_resume_of_a_finished_run_restores_the_best_weights_again(self, tmp_path: Path) -> None:
        losses = [0.5, 0.6, 0.7]
        for resume in ("never", "auto", "auto"):
            hooks = [EarlyStoppingHook(), CheckpointHook(save_best=False)]
            run, model = train(hooks, losses, work_dir=tmp_path, resume=resume)
            assert (run.outcome, run.epochs_done, model.value) == ("finished", 3, 1)
        assert float(read_checkpoint(tmp_path / "checkpoints/last.pth")["state_dict"]["weight"]) == 3

    def test_second_loop_keeps_the_best_score_and_a_fresh_one_resets_it(self) -> None:
        hook = EarlyStoppingHook(monitor="accuracy")
        bus, scores = HookBus([hook]), [{"accuracy": score} for score in (0.9, 0.5, 0.6)]
        train(bus, scores, epochs=1)
        train(bus, scores, epochs=3)
        assert (hook.best_score, hook.best_epoch) == (0.9, 1)
        train(bus, [{"accuracy": 0.2}], fresh=True)
        assert (hook.best_score, hook.best_epoch) == (0.2, 1)


class DelayedSaver(Hook):
    """Saver that requests a save of the best in the first epoch and writes it in `wait_for_pending`."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path, self.checkpoint = path, dict[str, Any]()

    def before_run(self, run: Run) -> None:
        run.provide("checkpoint_saver", self)

    def after_val(self, run: Run) -> None:
        if run.epochs_done == 1:
            run.best["val/loss"] = BestResult(0.5, 1, 1, path=self.path)
            run.request_save()

    def plan(self, run: Run, requests: Any) -> Path:
        return self.path

    def write(self, run: Run, checkpoint: dict[str, Any]) -> None:
        self.checkpoint = {"state_dict": {"weight": run.weights.raw()["weight"].clone()}}

    def wait_for_pending(self, run: Run) -> None:
        write_checkpoint(self.path, self.checkpoint, 1)


class AveragingHook(Hook):
    """Averaging hook: the average is ten times the weight, and is in the model during validations."""

    def __init__(self, model: Weight) -> None:
        super().__init__()
        self.model, self.mean = model, torch.zeros(1)
        self.stored: dict[str, Tensor] | None = None

    def before_run(self, run: Run) -> None:
        run.weights.provide(self)
        run.around_validation(self.applied)

    def after_train_iter(self, run: Run) -> None:
        self.mean.copy_(10 * self.model.weight.detach())

    def raw(self) -> dict[str, Tensor] | None:
        return self.stored

    def averaged(self) -> dict[str, Tensor]:
        return {"weight": self.mean}

    def applied(self) -> AbstractContextManager[Any]:
        return self._applied() if self.stored is None else nullcontext()

    @contextmanager
    def _applied(self) -> Any:
        self.stored = {"weight": self.model.weight.detach().clone()}
        self.model.weight.data.copy_(self.mean)
        yield
        self.model.weight.data.copy_(self.stored["weight"])
        self.stored = None

    def wait(self) -> None:
        pass


def _listener(point: str, do: Callable[[Run], object]) -> Hook:
    def listener(self: Hook, run: Run) -> None:
        do(run)

    return type("Listener", (Hook,), {point: listener})(name=f"at_{point}")


def _raise_in_epoch(number: int) -> Callable[[Run], None]:
    def iteration(run: Run) -> None:
        if run.epoch + 1 == number:
            raise RuntimeError("broken")

    return iteration


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="hookbus")
