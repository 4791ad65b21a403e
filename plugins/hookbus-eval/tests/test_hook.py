"""When a training with this hook validates, and what becomes of it."""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from hookbus import Hook, HookBus, Run, Trainer
from hookbus.errors import MetricError, RequestError
from hookbus.testing import RecordingBus, check_hook, fake_training, fingerprint
from hookbus_checkpoint import CheckpointHook
from hookbus_early_stopping import EarlyStoppingHook
from hookbus_eval import DistEvalHook, EvalHook

KINDS = [EvalHook, DistEvalHook]


class Validations(Hook):
    """Notes when there is a validation, as (epochs done, iterations done)."""

    def __init__(self) -> None:
        super().__init__()
        self.at: list[tuple[int, int]] = []

    def after_val(self, run: Run) -> None:
        self.at.append((run.epochs_done, run.iters_done))


def trainer(*hooks: object, batches: int = 2, **options: Any) -> Trainer:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))
    data = [(torch.randn(4, 3), torch.tensor([0, 1, 1, 0])) for _ in range(batches)]
    settings: dict[str, Any] = {
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "loss_fn": functional.cross_entropy,
        "train_loader": data,
        "val_loader": data[:1],
        "metrics": ["accuracy"],
        "work_dir": None,
        "default_hooks": False,
    }
    return Trainer(model, hooks=hooks, **{**settings, **options})


def validated_at(*hooks: object, **options: Any) -> list[tuple[int, int]]:
    noted = Validations()
    trainer(*hooks, noted, **options).fit()
    return noted.at


@pytest.mark.parametrize("kind", KINDS)
def test_it_keeps_what_every_hook_promises(kind: type[Hook]) -> None:
    check_hook(kind)
    check_hook(kind, by_epoch=False, interval=2, before_train=True, metric="loss")


@pytest.mark.parametrize(("kind", "name"), [(EvalHook, "eval"), (DistEvalHook, "dist_eval")])
def test_it_is_found_under_its_short_name(kind: type[Hook], name: str) -> None:
    hook = kind()
    assert HookBus([hook]).hooks == {name: hook}
    assert hook.priority == 70


@pytest.mark.parametrize("kind", KINDS)
class TestWhen:
    def test_by_epoch_once_each_and_nobody_validates_besides(self, kind: type[Hook]) -> None:
        assert validated_at(kind(), epochs=3) == [(1, 2), (2, 4), (3, 6)]

    def test_by_epoch_from_a_start_on(self, kind: type[Hook]) -> None:
        assert [epoch for epoch, _ in validated_at(kind(interval=2, start=3), epochs=8)] == [3, 5, 7]

    def test_by_iteration_over_the_ends_of_epochs(self, kind: type[Hook]) -> None:
        at = validated_at(kind(interval=10, by_epoch=False), batches=8, epochs=5)
        assert [iteration for _, iteration in at] == [10, 20, 30, 40]

    def test_with_an_epoch_of_one_batch(self, kind: type[Hook]) -> None:
        assert validated_at(kind(), batches=1, epochs=3) == [(1, 1), (2, 2), (3, 3)]

    def test_with_an_interval_that_changes_at_its_milestone(self, kind: type[Hook]) -> None:
        at = validated_at(kind(interval=10, dynamic_intervals=[(4, 1)]), epochs=6)
        assert [epoch for epoch, _ in at] == [4, 5, 6]

    def test_not_after_an_epoch_that_was_cut(self, kind: type[Hook]) -> None:
        class Stops(Hook):
            def after_train_iter(self, run: Run) -> None:
                if run.iters_done == 3:
                    run.request_stop("enough")

        assert validated_at(kind(), Stops(), epochs=3) == [(1, 2)]

    def test_as_a_schedule_of_a_run_file_says(self, kind: type[Hook]) -> None:
        by_epoch = validated_at(kind(when="every(2) | last"), epochs=5)
        by_iteration = validated_at(kind(when="once(3)", by_epoch=False), epochs=5)
        assert ([epoch for epoch, _ in by_epoch], by_iteration) == ([2, 4, 5], [(1, 3)])

    def test_less_often_by_the_frequency_that_every_hook_has(self, kind: type[Hook]) -> None:
        assert [epoch for epoch, _ in validated_at(kind(frequency=2), epochs=5)] == [2, 4]
        by_iteration = validated_at(kind(interval=3, by_epoch=False, frequency=2), batches=6, epochs=3)
        assert [iteration for _, iteration in by_iteration] == [6, 12, 18]

    def test_after_a_resume_where_it_would_have_been(self, kind: type[Hook], tmp_path: Path) -> None:
        def run(epochs: int, **options: Any) -> list[int]:
            saves = CheckpointHook(best_metric="accuracy")
            at = validated_at(kind(interval=2, start=1), saves, epochs=epochs, work_dir=tmp_path, **options)
            return [epoch for epoch, _ in at]

        assert run(2) == [1]
        assert run(6, resume="auto") == [3, 5]


class TestBeforeTraining:
    def test_there_is_one_validation_that_counts_for_nothing(self, tmp_path: Path) -> None:
        scores = {0: 0.99, 1: 0.5, 2: 0.6}
        stopping = EarlyStoppingHook(monitor="accuracy", patience=1)
        hooks = [EvalHook(before_train=True), CheckpointHook(), stopping]
        run = fake_training(hooks, scores=lambda epoch: {"accuracy": scores[epoch]}, work_dir=tmp_path).run

        assert run.outcome == "finished"
        assert (run.best["val/accuracy"].value, run.best["val/accuracy"].epoch) == (0.6, 2)
        assert (stopping.best_score, stopping.best_epoch) == (0.6, 2)

    def test_there_is_none_where_training_goes_on(self, tmp_path: Path) -> None:
        def at(epochs: int, **options: Any) -> list[tuple[int, int]]:
            return validated_at(
                EvalHook(before_train=True), CheckpointHook(), epochs=epochs, work_dir=tmp_path, **options
            )

        assert at(1) == [(0, 0), (1, 2)]
        assert at(2, resume="auto") == [(2, 4)]


class TestBest:
    def test_of_its_metric_is_kept_by_the_checkpoint_hook(self, tmp_path: Path) -> None:
        scores = [{"accuracy": 0.5, "recall": 0.2}, {"accuracy": 0.6, "recall": 0.1}]
        hooks = [CheckpointHook(), EvalHook(metric="recall", rule="greater")]
        run = fake_training(hooks, scores=lambda epoch: scores[epoch - 1], work_dir=tmp_path).run

        assert {path.name for path in (tmp_path / "checkpoints").glob("best_*.pth")} == {
            "best_accuracy.pth",
            "best_recall.pth",
        }
        assert {name: best.epoch for name, best in run.best.items()} == {"val/accuracy": 2, "val/recall": 1}

    def test_of_a_metric_that_was_named_and_is_missing_is_an_error(self, tmp_path: Path) -> None:
        hooks = [CheckpointHook(), EvalHook(metric="recall", rule="greater")]
        with pytest.raises(MetricError, match=r"no metric 'recall'. Available: val/accuracy"):
            fake_training(hooks, scores=lambda epoch: {"accuracy": 0.5}, work_dir=tmp_path)

    def test_is_left_to_the_checkpoint_hook_where_nothing_was_said(self, tmp_path: Path) -> None:
        hooks = [CheckpointHook(best_metric="loss"), EvalHook()]
        fake_training(hooks, scores=lambda epoch: {"loss": 0.5}, work_dir=tmp_path)

        assert {path.name for path in (tmp_path / "checkpoints").glob("best_*.pth")} == {"best_loss.pth"}

    @pytest.mark.parametrize(
        ("hooks", "why"),
        [([], "no hook here writes checkpoints"), ([{"save_best": False}], "the checkpoint hook has save_best: false")],
    )
    def test_that_nobody_keeps_is_told_where_it_was_asked_for(
        self, hooks: list[dict[str, Any]], why: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        for settings in ({"metric": "accuracy"}, {}):
            caplog.clear()
            savers = [CheckpointHook(each) for each in hooks]
            fake_training(
                [EvalHook(settings), *savers], scores=lambda epoch: {"accuracy": 0.5}, work_dir=tmp_path, overwrite=True
            )
            told = [f"eval: {why}, so no file of the best 'accuracy' is kept."] if settings else []
            assert [message for message in caplog.messages if "best" in message] == told


class TestModel:
    def test_is_as_it_was_after_a_validation_in_the_middle_of_an_epoch(self) -> None:
        seen = []

        class Looks(Hook):
            def before_train_iter(self, run: Run) -> None:
                assert run.model is not None
                seen.append(([module.training for module in run.model.modules()], torch.is_grad_enabled()))

        trainer(EvalHook(by_epoch=False), Looks(), epochs=2).fit()
        assert seen == [([True] * 5, True)] * 4

    @pytest.mark.parametrize("settings", [{}, {"metrics": ["accuracy"]}, {"test_fn": lambda model, loader: {"a": 1.0}}])
    def test_and_its_training_are_bit_for_bit_those_without_any_validation(self, settings: dict[str, Any]) -> None:
        with_hook = trainer(EvalHook(by_epoch=False, **settings), epochs=2, seed=1)
        with_hook.fit()
        without = trainer(epochs=2, val_loader=None, seed=1)
        without.fit()
        assert fingerprint(with_hook.model.state_dict()) == fingerprint(without.model.state_dict())


class TestWhatIsJudged:
    def test_is_the_runs_own_where_nothing_was_said(self) -> None:
        made = trainer(EvalHook(), epochs=1)
        assert set(made.fit().metrics.results) == {"val/loss", "val/accuracy"}

    def test_is_another_loader(self) -> None:
        ones = [(torch.zeros(4, 3), torch.ones(4, dtype=torch.long))]
        zeros = [(torch.zeros(4, 3), torch.zeros(4, dtype=torch.long))]
        first = trainer(EvalHook(dataloader=ones), epochs=1).fit().metrics.results["accuracy"]
        other = trainer(EvalHook(dataloader=zeros), epochs=1).fit().metrics.results["accuracy"]
        assert {first, other} == {0.0, 1.0}

    @pytest.mark.parametrize("given", ["val_loader", "mine"])
    def test_is_several_loaders_and_services_by_name(self, given: str) -> None:
        batches = [(torch.zeros(2, 3), torch.zeros(2, dtype=torch.long))]
        made = trainer(EvalHook(dataloader={"a": given, "b": batches}), epochs=1)
        made.register_service("mine", batches)
        assert set(made.fit().metrics.results) == {
            "val/a/loss",
            "val/a/accuracy",
            "val/b/loss",
            "val/b/accuracy",
        }

    def test_makes_a_validation_possible_that_the_run_could_not_make(self) -> None:
        batches = [(torch.zeros(2, 3), torch.zeros(2, dtype=torch.long))]
        with pytest.raises(RequestError, match="no way to make one"):
            trainer(EvalHook(), epochs=1, val_loader=None).fit()
        assert "val/loss" in trainer(EvalHook(dataloader=batches), epochs=1, val_loader=None).fit().metrics.results

    def test_steps_a_scheduler_that_needs_a_metric(self) -> None:
        stepped = []

        class Plateau(torch.optim.lr_scheduler.ReduceLROnPlateau):
            def step(self, metrics: Any, epoch: int | None = None) -> None:
                stepped.append(float(metrics))
                super().step(metrics)

        def batches(target: int) -> Iterable[Any]:
            return [(torch.zeros(2, 3), torch.full((2,), target))]

        for settings in ({}, {"dataloader": batches(1), "before_train": True}):
            made = trainer(EvalHook(settings), epochs=2)
            made.scheduler.scheduler = Plateau(made.optimizer)  # type: ignore[arg-type]
            made.scheduler.monitor = "val/loss"
            made.fit()
        assert len(stepped) == 4
        assert all(map(math.isfinite, stepped))


def test_two_hooks_cannot_both_validate_in_the_place_of_the_run() -> None:
    two = [EvalHook(name="a", metrics=["accuracy"]), EvalHook(name="b", dataloader="test_loader")]
    with pytest.raises(RequestError, match=r"a and b would both validate .* a mapping of name to loader"):
        trainer(*two, epochs=1).fit()


def test_the_distributed_one_is_the_same_in_one_process() -> None:
    def events(kind: type[Hook]) -> list[str]:
        bus = RecordingBus([kind(interval=2, by_epoch=False, before_train=True)])
        fake_training(bus=bus, scores=lambda epoch: {"accuracy": 0.5})
        return bus.fired

    assert events(EvalHook) == events(DistEvalHook)
