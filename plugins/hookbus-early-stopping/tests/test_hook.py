"""What early stopping does to a training."""

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
from hookbus.errors import ConfigError, HookError, HookWarning, MetricError
from hookbus.run import Best
from hookbus.state import read_checkpoint, write_checkpoint
from hookbus.testing import check_hook, fake_training, fingerprint
from hookbus_checkpoint import CheckpointHook
from hookbus_early_stopping import EarlyStoppingHook
from hookbus_ema import EMAHook


@pytest.mark.parametrize(("strict", "metrics"), [(True, ["val/loss"]), (False, [])])
def test_it_needs_its_metric_where_it_is_strict(strict: bool, metrics: list[str]) -> None:
    assert EarlyStoppingHook(monitor="val/loss", strict=strict).needs_metrics == metrics


class Weight(nn.Module):
    """One weight, which the loop sets to the number of the epoch."""

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
    each_iteration: Callable[[Run], object] = lambda run: None,
    **options: Any,
) -> tuple[Run, Weight]:
    """A training of one iteration per epoch, with one score per epoch: a loss, or whole results."""
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
                each_iteration(run)
                bus.emit("after_train_iter", batch_idx=i, batch=batch)
            run.request_validation()
            bus.emit("after_train_epoch")
    return run, model


def test_it_keeps_what_every_hook_promises() -> None:
    check_hook(EarlyStoppingHook)
    check_hook(EarlyStoppingHook, restore_best_weights=False, monitor="accuracy", patience=0)


class TestStopping:
    def test_ends_the_run_with_a_reason_and_tells_how_it_stood(self) -> None:
        hook = EarlyStoppingHook(patience=2)
        run, _ = train([hook], [0.5, 0.4, 0.4, 0.6, 0.1])

        assert run.outcome == "stopped"
        assert run.stop_reasons == ["early_stopping: val_loss has not improved on 0.4 (epoch 2) in 2 validations"]
        assert (hook.best_score, hook.best_epoch, hook.wait_count, hook.stopped_epoch) == (0.4, 2, 2, 4)
        assert run.epochs_done == 4

    def test_leaves_a_run_alone_that_improves(self) -> None:
        hook = EarlyStoppingHook(patience=1)
        run, _ = train([hook], [0.5, 0.4, 0.3])

        assert run.outcome == "finished"
        assert (hook.best_epoch, hook.wait_count, hook.stopped_epoch) == (3, 0, None)

    def test_sees_a_stop_asked_for_at_once_by_a_score_that_is_not_finite(self) -> None:
        run, _ = train([EarlyStoppingHook()], [0.5, math.nan, 0.1])

        assert run.stop_reasons == ["early_stopping: val_loss is nan, which is not finite"]
        assert run.epochs_done == 2

    def test_in_the_middle_of_an_epoch_ends_it_there(self) -> None:
        hook = EarlyStoppingHook(patience=1, restore_best_weights=False)

        def validates(run: Run) -> None:
            run.request_validation()

        loop = HookBus([hook, _listening("after_train_iter", validates)])
        losses = iter([0.5, 0.6])
        with loop.run(epochs=1, validate=lambda: {"loss": next(losses)}) as run:
            for _ in run.epochs():
                for i, batch in run.batches([0, 1, 2, 3]):
                    loop.emit("before_train_iter", batch_idx=i, batch=batch)
                    loop.emit("after_train_iter", batch_idx=i, batch=batch)

        assert (run.iters_done, run.epochs_done, run.outcome) == (2, 0, "stopped")
        assert (hook.best_epoch, hook.stopped_epoch) == (1, 1)

    def test_waits_for_min_epochs_and_forgets_the_wish_when_the_score_recovers(self) -> None:
        hook = EarlyStoppingHook(patience=2, min_epochs=6)
        run, _ = train([hook], [5, 4, 4, 4, 3, 2, 1, 0.5])

        assert run.outcome == "finished"
        assert run.epochs_done == 8

    def test_comes_with_the_end_of_min_epochs_where_the_score_does_not_recover(self) -> None:
        run, _ = train([EarlyStoppingHook(patience=2, min_epochs=6)], [5, 4, 4, 4, 4, 4, 1, 0.5])

        assert run.epochs_done == 6

    def test_does_not_count_the_validation_before_training(self) -> None:
        losses = iter([9.0, 0.5, 0.4])
        hook = EarlyStoppingHook(patience=1, divergence_threshold=5.0)
        asks = _listening("before_train", lambda run: run.request_validation())
        bus = HookBus([hook, asks])
        with bus.run(epochs=2, validate=lambda: {"loss": next(losses)}) as run:
            for _ in run.epochs():
                bus.emit("before_train_epoch")
                bus.emit("after_train_iter")
                run.request_validation()
                bus.emit("after_train_epoch")

        assert run.outcome == "finished"
        assert (hook.best_score, hook.best_epoch, hook.wait_count) == (0.4, 2, 0)

    def test_rests_in_runs_that_only_validate_or_test(self) -> None:
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
    def test_that_is_missing_is_an_error_that_lists_what_there_is(self) -> None:
        with pytest.raises(MetricError, match=r"no metric 'loss'. Available: val/aAcc, val/mIoU"):
            train([EarlyStoppingHook(monitor="loss")], [{"mIoU": 0.5, "aAcc": 0.5}])

    def test_that_is_missing_is_one_warning_where_that_was_wanted_and_the_end_says_so(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        hook = EarlyStoppingHook(monitor="loss", strict=False)
        with pytest.warns(HookWarning, match="Early stopping waits .* no metric 'loss'. Available: val/mIoU") as warned:
            run, _ = train([hook], [{"mIoU": 0.5}] * 3)

        assert len(warned) == 1
        assert run.outcome == "finished"
        assert "early_stopping: the metric 'loss' was never seen, so it decided nothing." in caplog.messages

    def test_that_comes_late_is_watched_from_then_on(self, caplog: pytest.LogCaptureFixture) -> None:
        hook = EarlyStoppingHook(monitor="loss", strict=False, patience=1)
        with pytest.warns(HookWarning):
            run, _ = train([hook], [{"mIoU": 0.5}, {"loss": 0.5}, {"loss": 0.6}, {"loss": 0.1}])

        assert run.epochs_done == 3
        assert not [message for message in caplog.messages if "never seen" in message]

    @pytest.mark.parametrize("monitor", ["val/loss", "val_loss", "loss"])
    def test_may_be_spelled_in_three_ways(self, monitor: str) -> None:
        hook = EarlyStoppingHook(monitor=monitor)
        train([hook], [{"loss": 0.5, "accuracy": 0.1}])
        assert hook.best_score == 0.5


class TestBestWeights:
    def test_come_back_when_the_run_ends_by_itself(self) -> None:
        hook = EarlyStoppingHook(monitor="accuracy")
        _, model = train([hook], [{"accuracy": each} for each in (0.5, 0.9, 0.6, 0.6, 0.6)])
        assert model.value == 2

    def test_come_back_when_it_was_stopped_early_or_by_somebody_else(self) -> None:
        _, stopped = train([EarlyStoppingHook(patience=2)], [0.5, 0.4, 0.6, 0.6, 0.6])
        others = _listening("after_epoch", lambda run: run.epochs_done == 3 and run.request_stop())
        _, ended = train([EarlyStoppingHook(), others], [0.5, 0.4, 0.6, 0.6, 0.6])
        assert (stopped.value, ended.value) == (2, 2)

    def test_stay_where_that_was_not_wanted_or_nothing_beat_the_baseline(self) -> None:
        _, unwanted = train([EarlyStoppingHook(restore_best_weights=False)], [0.5, 0.4, 0.6])
        _, beaten = train([EarlyStoppingHook(baseline=0.1)], [0.5, 0.4, 0.6])
        assert (unwanted.value, beaten.value) == (3, 3)

    def test_stay_after_a_failure(self) -> None:
        model = Weight()
        with pytest.raises(RuntimeError, match="broken"):
            train([EarlyStoppingHook()], [0.5, 0.6, 0.7], model=model, each_iteration=_breaking_in_epoch(3))
        assert model.value == 3

    def test_are_a_copy_that_training_does_not_reach(self) -> None:
        hook = EarlyStoppingHook()
        train([hook], [0.5, 0.6, 0.7])
        assert hook.state_dict()["best_weights"]["raw"]["weight"].tolist() == [1.0]

    @pytest.mark.parametrize("where", ["memory", "file"])
    @pytest.mark.parametrize("priority", [0, 100])
    def test_come_back_after_the_last_file_was_written(self, tmp_path: Path, where: str, priority: int) -> None:
        seen = []
        asks = _listening("after_train", lambda run: (seen.append(run.model.value), run.request_save("asked")))  # type: ignore[union-attr]
        reads = _listening("after_run", lambda run: seen.append(run.model.value))  # type: ignore[union-attr]
        hook = EarlyStoppingHook(restore_best_weights=where, priority=priority)
        files = CheckpointHook(interval=None, save_best=False if where == "memory" else "loss")
        _, model = train([files, hook, asks, reads], [0.5, 0.4, 0.6], work_dir=tmp_path)

        assert read_checkpoint(tmp_path / "checkpoints/last.pth")["state_dict"]["weight"].tolist() == [3.0]
        assert seen == [3, 2]
        assert model.value == 2

    def test_are_in_no_file_that_is_asked_for_after_that(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Such a file would hold the best weights beside the optimizer of the last step."""
        asks = _listening("after_run", lambda run: run.request_save("too late"))
        _, model = train([EarlyStoppingHook(), CheckpointHook(save_best=False), asks], [0.5, 0.6], work_dir=tmp_path)

        assert model.value == 1
        assert float(read_checkpoint(tmp_path / "checkpoints/last.pth")["state_dict"]["weight"]) == 2
        assert any(text.endswith("save asked for by at_after_run: too late") for text in caplog.messages)

    def test_come_with_the_averages_of_the_same_moment(self) -> None:
        model = Weight()
        average = Averages(model)
        run, _ = train([EarlyStoppingHook(), average], [0.5, 0.4, 0.6], model=model)

        assert model.value == 2
        assert average.mean.tolist() == [20.0]
        assert run.weights.averaged() == {"weight": average.mean}

    def test_may_be_brought_back_by_one_hook_only(self) -> None:
        two = [EarlyStoppingHook(name="a"), EarlyStoppingHook(name="b")]
        with pytest.raises(HookError, match="restore_best_weights: false"):
            train(two, [0.5])
        one = [EarlyStoppingHook(name="a"), EarlyStoppingHook(name="b", restore_best_weights=False)]
        assert train(one, [0.5])[0].outcome == "finished"

    def test_of_a_run_that_failed_are_not_brought_back_in_the_next_one(self) -> None:
        bus = HookBus([EarlyStoppingHook()])
        with pytest.raises(RuntimeError, match="broken"):
            train(bus, [0.5, 0.6], each_iteration=_breaking_in_epoch(2))
        bus.unregister(bus.hooks["early_stopping"])
        _, model = train(bus, [0.5, 0.6, 0.7], epochs=3)
        assert model.value == 3

    def test_are_judged_anew_by_a_validation_after_training(self) -> None:
        bus, judged = HookBus([EarlyStoppingHook()]), []
        model, losses = Weight(), iter([0.5, 0.6, 0.5])
        bus.register(_listening("after_run", lambda run: run.request_validation()))

        def validate() -> dict[str, float]:
            judged.append(model.value)
            return {"loss": next(losses)}

        with bus.run(model=model, epochs=2, validate=validate) as run:
            for epoch in run.epochs():
                bus.emit("before_train_epoch")
                with torch.no_grad():
                    model.weight.fill_(epoch + 1)
                bus.emit("after_train_iter")
                run.request_validation()
                bus.emit("after_train_epoch")
        assert judged == [1, 2, 1]


@pytest.mark.parametrize(
    ("where", "files"),
    [("memory", {}), ("file", {}), ("file", {"async_save": True})],
    ids=["memory", "file", "file on another thread"],
)
def test_the_best_weights_earn_their_score_again_with_averages_and_batch_norm(
    tmp_path: Path, where: str, files: Mapping[str, Any]
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    data = [(torch.randn(4, 3), torch.randint(0, 2, (4,))) for _ in range(4)]
    stopping = EarlyStoppingHook(patience=3, restore_best_weights=where)
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
    def test_need_the_checkpoint_hook(self) -> None:
        with pytest.raises(ConfigError, match=r"restore_best_weights: file needs the checkpoint hook"):
            train([EarlyStoppingHook(restore_best_weights="file")], [0.5])

    def test_have_a_file_that_the_checkpoint_hook_keeps_for_them(self, tmp_path: Path) -> None:
        hook = EarlyStoppingHook(monitor="my_score", mode="max", restore_best_weights="file")
        scores = [{"my_score": each, "accuracy": 0.5} for each in (0.5, 0.9, 0.6)]
        run, model = train([CheckpointHook(), hook], scores, work_dir=tmp_path)

        assert run.best["val/my_score"].path == tmp_path / "checkpoints/best_my_score.pth"
        assert model.value == 2
        assert hook.state_dict()["best_weights"] is None

    def test_are_waited_for_where_the_file_is_still_being_written(self, tmp_path: Path) -> None:
        _, model = train([Later(tmp_path / "best.pth"), EarlyStoppingHook(restore_best_weights="file")], [0.5, 0.6])
        assert model.value == 1

    def test_are_refused_before_training_where_that_hook_was_told_to_keep_none(self, tmp_path: Path) -> None:
        hook = EarlyStoppingHook(restore_best_weights="file")
        with pytest.raises(ConfigError, match="checkpoint hook has save_best: false"):
            train([CheckpointHook(save_best=False), hook], [0.5, 0.6], work_dir=tmp_path)
        assert not list(tmp_path.glob("checkpoints/*.pth"))


class TestResume:
    LOSSES = (0.5, 0.4, 0.6, 0.5, 0.7, 0.3)

    @pytest.mark.parametrize("cut", [1, 2, 3, 4, 5])
    @pytest.mark.parametrize("where", ["memory", "file"])
    def test_decides_as_if_there_had_been_no_interruption(self, tmp_path: Path, cut: int, where: str) -> None:
        def hooks() -> list[Hook]:
            files = CheckpointHook(save_best=False if where == "memory" else "loss")
            return [EarlyStoppingHook(patience=3, restore_best_weights=where), files]

        straight, model = train(hooks(), self.LOSSES, work_dir=tmp_path / "a")
        train(hooks(), self.LOSSES, epochs=cut, work_dir=tmp_path / "b")
        resumed, same = train(hooks(), self.LOSSES, work_dir=tmp_path / "b", resume="auto")

        assert straight.epochs_done == resumed.epochs_done == 5
        assert resumed.stop_reasons == straight.stop_reasons
        assert model.value == same.value == 2
        states = [read_checkpoint(tmp_path / each / "checkpoints/last.pth")["hooks"] for each in "ab"]
        assert states[0]["early_stopping"]["state"] == states[1]["early_stopping"]["state"]

    @pytest.mark.parametrize("at", [1, 5, 8, 12])
    @pytest.mark.parametrize("outcome", ["preempted", "interrupted"])
    def test_decides_the_same_after_an_interruption_within_an_epoch(
        self, tmp_path: Path, at: int, outcome: Any
    ) -> None:
        """In a loop that asks for a validation after its batches, however these ended."""

        class Interrupts(Hook):
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

        straight = state_after("a")
        state_after("b", Interrupts())
        assert state_after("b", resume="auto") == straight
        assert straight["stopped_epoch"] == 5

    def test_uses_the_patience_that_was_left(self, tmp_path: Path) -> None:
        scores = [{"accuracy": each} for each in (0.5, 0.4, 0.3, 0.2, 0.1)]
        settings: dict[str, Any] = {"monitor": "accuracy", "patience": 3}
        train([EarlyStoppingHook(settings), CheckpointHook()], scores, epochs=3, work_dir=tmp_path)
        run, _ = train([EarlyStoppingHook(settings), CheckpointHook()], scores, work_dir=tmp_path, resume="auto")
        assert run.epochs_done == 4

    def test_of_a_stopped_run_stops_again_at_once_unless_the_patience_was_raised(self, tmp_path: Path) -> None:
        losses = [0.5, 0.6, 0.6, 0.6, 0.6]
        train([EarlyStoppingHook(patience=1), CheckpointHook(best_metric="loss")], losses, work_dir=tmp_path)
        again = EarlyStoppingHook(patience=1)
        run, _ = train([again, CheckpointHook(best_metric="loss")], losses, work_dir=tmp_path, resume="auto")
        assert (run.epochs_done, run.outcome, again.stopped_epoch) == (2, "stopped", 2)

        raised = EarlyStoppingHook(patience=3)
        run, _ = train([raised, CheckpointHook(best_metric="loss")], losses, work_dir=tmp_path, resume="auto")
        assert (run.epochs_done, raised.stopped_epoch) == (4, 4)

    @pytest.mark.parametrize(("metric", "mode"), [("accuracy", "max"), ("loss", "max")])
    def test_by_another_metric_or_direction_begins_afresh_and_says_so(
        self, tmp_path: Path, metric: str, mode: str
    ) -> None:
        scores = [{"loss": 0.5, "accuracy": 0.1}, {"loss": 0.3, "accuracy": 0.2}, {"loss": 0.2, "accuracy": 0.1}]
        train([EarlyStoppingHook(), CheckpointHook()], scores, epochs=1, work_dir=tmp_path)
        other = EarlyStoppingHook(monitor=metric, mode=mode)
        with pytest.warns(HookWarning, match=r"judged by 'val/loss' \(min\) so far, .* begins afresh"):
            train([other, CheckpointHook()], scores, work_dir=tmp_path, resume="auto")
        assert (other.best_score, other.best_epoch, other.wait_count) == (scores[1][metric], 2, 1)

    @pytest.mark.parametrize(("save_best", "weight"), [("loss", 1), (False, 3)])
    def test_with_best_weights_that_were_not_kept_takes_the_file_or_stays_and_says_so(
        self, tmp_path: Path, save_best: Any, weight: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        losses = [0.5, 0.6, 0.7]
        files = {"save_best": save_best}
        train([EarlyStoppingHook(restore_best_weights=False), CheckpointHook(files)], losses[:2], work_dir=tmp_path)
        _, model = train([EarlyStoppingHook(), CheckpointHook(files)], losses, work_dir=tmp_path, resume="auto")
        assert model.value == weight
        assert ("were not kept, so the model stays as it is" in caplog.text) == (weight == 3)

    def test_with_best_weights_of_a_file_does_not_bring_older_ones_from_memory_back(self, tmp_path: Path) -> None:
        losses = [0.5, 0.4, 0.6]
        train([EarlyStoppingHook(), CheckpointHook(save_best="loss")], losses[:1], work_dir=tmp_path)
        from_file = EarlyStoppingHook(restore_best_weights="file")
        _, model = train([from_file, CheckpointHook(save_best="loss")], losses, work_dir=tmp_path, resume="auto")
        assert model.value == 2

    @pytest.mark.parametrize("where", ["memory", "file"])
    @pytest.mark.parametrize("averaged_first", [False, True])
    def test_of_a_run_that_averages_now_and_did_not_or_the_reverse_judges_what_earned_the_best(
        self, tmp_path: Path, where: str, averaged_first: bool
    ) -> None:
        """The weight is 1 in the epoch of the best, and its average then 0.5 * 0 + 0.5 * 1."""

        def hooks(averages: bool) -> list[Hook]:
            ema = [EMAHook(momentum=0.5, warm_up=0)] if averages else []
            return [EarlyStoppingHook(restore_best_weights=where), CheckpointHook(save_best="loss"), *ema]

        train(hooks(averaged_first), [0.5], work_dir=tmp_path)
        run, model = train(hooks(not averaged_first), [0.5, 0.6], work_dir=tmp_path, resume="auto")
        judged = run.weights.averaged() or run.weights.raw()
        assert float(judged["weight"]) == (0.5 if averaged_first else 1.0)
        assert model.value == (0.5 if averaged_first else 1.0)

    def test_of_a_finished_run_brings_the_best_weights_back_again(self, tmp_path: Path) -> None:
        losses = [0.5, 0.6, 0.7]
        for resume in ("never", "auto", "auto"):
            hooks = [EarlyStoppingHook(), CheckpointHook(save_best=False)]
            run, model = train(hooks, losses, work_dir=tmp_path, resume=resume)
            assert (run.outcome, run.epochs_done, model.value) == ("finished", 3, 1)
        assert float(read_checkpoint(tmp_path / "checkpoints/last.pth")["state_dict"]["weight"]) == 3

    def test_a_second_loop_goes_on_with_its_best_and_a_fresh_one_does_not(self) -> None:
        hook = EarlyStoppingHook(monitor="accuracy")
        bus, scores = HookBus([hook]), [{"accuracy": each} for each in (0.9, 0.5, 0.6)]
        train(bus, scores, epochs=1)
        train(bus, scores, epochs=3)
        assert (hook.best_score, hook.best_epoch) == (0.9, 1)
        train(bus, [{"accuracy": 0.2}], fresh=True)
        assert (hook.best_score, hook.best_epoch) == (0.2, 1)


class Later(Hook):
    """Saves the best of the first epoch, and writes it when somebody waits for it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path, self.checkpoint = path, dict[str, Any]()

    def before_run(self, run: Run) -> None:
        run.provide("saver", self)

    def after_val(self, run: Run) -> None:
        if run.epochs_done == 1:
            run.best["val/loss"] = Best(0.5, 1, 1, path=self.path)
            run.request_save()

    def plan(self, run: Run, requests: Any) -> Path:
        return self.path

    def write(self, run: Run, checkpoint: dict[str, Any]) -> None:
        self.checkpoint = {"state_dict": {"weight": run.weights.raw()["weight"].clone()}}

    def catch_up(self, run: Run) -> None:
        write_checkpoint(self.path, self.checkpoint, 1)


class Averages(Hook):
    """Averages weights: its mean is ten times the weight, and in the model during validations."""

    def __init__(self, model: Weight) -> None:
        super().__init__()
        self.model, self.mean = model, torch.zeros(1)
        self.kept: dict[str, Tensor] | None = None

    def before_run(self, run: Run) -> None:
        run.weights.provide(self)
        run.around_validation(self.applied)

    def after_train_iter(self, run: Run) -> None:
        self.mean.copy_(10 * self.model.weight.detach())

    def raw(self) -> dict[str, Tensor] | None:
        return self.kept

    def averaged(self) -> dict[str, Tensor]:
        return {"weight": self.mean}

    def applied(self) -> AbstractContextManager[Any]:
        return self._applied() if self.kept is None else nullcontext()

    @contextmanager
    def _applied(self) -> Any:
        self.kept = {"weight": self.model.weight.detach().clone()}
        self.model.weight.data.copy_(self.mean)
        yield
        self.model.weight.data.copy_(self.kept["weight"])
        self.kept = None

    def wait(self) -> None:
        pass


def _listening(point: str, do: Callable[[Run], object]) -> Hook:
    def listener(self: Hook, run: Run) -> None:
        do(run)

    return type("Listening", (Hook,), {point: listener})(name=f"at_{point}")


def _breaking_in_epoch(number: int) -> Callable[[Run], None]:
    def iteration(run: Run) -> None:
        if run.epoch + 1 == number:
            raise RuntimeError("broken")

    return iteration


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="hookbus")
