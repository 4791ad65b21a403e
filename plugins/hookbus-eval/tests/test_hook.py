"""Evaluation hooks in a training run: schedule, best checkpoint, model state, and data."""

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from hookbus import Hook, HookBus, Run, Trainer
from hookbus.errors import ConfigError, MetricError
from hookbus.testing import RecordingBus, check_hook, fake_training, fingerprint
from hookbus_checkpoint import CheckpointHook
from hookbus_early_stopping import EarlyStoppingHook
from hookbus_eval import DistEvalHook, EvalHook

KINDS = [EvalHook, DistEvalHook]


class Validations(Hook):
    """Record each validation as (epochs done, iterations done)."""

    def __init__(self) -> None:
        super().__init__()
        self.positions: list[tuple[int, int]] = []

    def after_val(self, run: Run) -> None:
        self.positions.append((run.epochs_done, run.iters_done))


def build_trainer(*hooks: object, batches: int = 2, **options: Any) -> Trainer:
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


def get_validations(*hooks: object, **options: Any) -> list[tuple[int, int]]:
    validations = Validations()
    build_trainer(*hooks, validations, **options).fit()
    return validations.positions


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_hook_passes_the_conformance_check(kind: type[Hook]) -> None:
    check_hook(kind)
    check_hook(kind, by_epoch=False, interval=2, before_train=True, metric="loss")


@pytest.mark.parametrize("entry", ["check", "fit"])
@pytest.mark.parametrize("settings", [{"metrics": ["accuracy"]}, {"dataloader": {"a": "test_loader", "b": [0]}}])
def test_loader_that_the_trainer_lacks_is_refused_before_training(settings: dict[str, Any], entry: str) -> None:
    trainer = build_trainer(EvalHook(**settings), validations := Validations(), epochs=1, val_loader=None)
    message = r"^hook 'eval' .*: dataloader: the Trainer has no (val|test)_loader, got .*Pass (val|test)_loader= to"
    with pytest.raises(ConfigError, match=message):
        getattr(trainer, entry)()
    assert validations.positions == []


@pytest.mark.parametrize(("kind", "name"), [(EvalHook, "eval"), (DistEvalHook, "dist_eval")])
def test_hook_is_registered_under_its_name(kind: type[Hook], name: str) -> None:
    hook = kind()
    assert HookBus([hook]).hooks == {name: hook}
    assert hook.priority == 70


@pytest.mark.parametrize("kind", KINDS)
class TestSchedule:
    def test_hook_validates_once_per_epoch_in_place_of_the_trainer(self, kind: type[Hook]) -> None:
        assert get_validations(kind(), epochs=3) == [(1, 2), (2, 4), (3, 6)]

    def test_hook_validates_from_the_start_epoch_on(self, kind: type[Hook]) -> None:
        assert [epoch for epoch, _ in get_validations(kind(interval=2, start=3), epochs=7)] == [3, 5, 7]

    def test_hook_counts_iterations_across_epochs(self, kind: type[Hook]) -> None:
        positions = get_validations(kind(interval=10, by_epoch=False), batches=8, epochs=5)
        assert [iteration for _, iteration in positions] == [10, 20, 30, 40]

    def test_hook_validates_epochs_of_one_batch(self, kind: type[Hook]) -> None:
        assert get_validations(kind(), batches=1, epochs=3) == [(1, 1), (2, 2), (3, 3)]

    def test_interval_changes_at_its_milestone(self, kind: type[Hook]) -> None:
        positions = get_validations(kind(interval=10, dynamic_intervals=[(4, 1)]), epochs=6)
        assert [epoch for epoch, _ in positions] == [4, 5, 6]

    def test_hook_does_not_validate_a_truncated_epoch(self, kind: type[Hook]) -> None:
        class Stopper(Hook):
            def after_train_iter(self, run: Run) -> None:
                if run.iters_done == 3:
                    run.request_stop("enough")

        assert get_validations(kind(), Stopper(), epochs=3) == [(1, 2)]

    def test_schedule_of_a_run_file_replaces_the_interval(self, kind: type[Hook]) -> None:
        by_epoch = get_validations(kind(when="every(2) | last"), epochs=5)
        by_iteration = get_validations(kind(when="once(3)", by_epoch=False), epochs=5)
        assert ([epoch for epoch, _ in by_epoch], by_iteration) == ([2, 4, 5], [(1, 3)])

    def test_common_frequency_thins_out_the_schedule(self, kind: type[Hook]) -> None:
        assert [epoch for epoch, _ in get_validations(kind(frequency=2), epochs=5)] == [2, 4]
        by_iteration = get_validations(kind(interval=3, by_epoch=False, frequency=2), batches=6, epochs=3)
        assert [iteration for _, iteration in by_iteration] == [6, 12, 18]

    def test_resumed_run_validates_at_the_same_epochs(self, kind: type[Hook], tmp_path: Path) -> None:
        def run(epochs: int, **options: Any) -> list[int]:
            checkpoint = CheckpointHook(best_metric="accuracy")
            positions = get_validations(
                kind(interval=2, start=1), checkpoint, epochs=epochs, work_dir=tmp_path, **options
            )
            return [epoch for epoch, _ in positions]

        assert run(2) == [1, 2]
        assert run(5, resume="auto") == [3, 5]


class TestBeforeTraining:
    def test_validation_before_training_affects_neither_best_nor_patience(self, tmp_path: Path) -> None:
        scores = {0: 0.99, 1: 0.5, 2: 0.6}
        stopping = EarlyStoppingHook(monitor="accuracy", patience=1)
        hooks = [EvalHook(before_train=True), CheckpointHook(), stopping]
        run = fake_training(hooks, scores=lambda epoch: {"accuracy": scores[epoch]}, work_dir=tmp_path).run

        assert run.outcome == "finished"
        assert (run.best["val/accuracy"].value, run.best["val/accuracy"].epoch) == (0.6, 2)
        assert (stopping.best_score, stopping.best_epoch) == (0.6, 2)

    def test_resumed_run_does_not_validate_before_training(self, tmp_path: Path) -> None:
        def validate(epochs: int, **options: Any) -> list[tuple[int, int]]:
            return get_validations(
                EvalHook(before_train=True), CheckpointHook(), epochs=epochs, work_dir=tmp_path, **options
            )

        assert validate(1) == [(0, 0), (1, 2)]
        assert validate(2, resume="auto") == [(2, 4)]


class TestBest:
    def test_checkpoint_hook_keeps_the_best_of_the_configured_metric(self, tmp_path: Path) -> None:
        scores = [{"accuracy": 0.5, "recall": 0.2}, {"accuracy": 0.6, "recall": 0.1}]
        hooks = [CheckpointHook(), EvalHook(metric="recall", rule="greater")]
        run = fake_training(hooks, scores=lambda epoch: scores[epoch - 1], work_dir=tmp_path).run

        assert {path.name for path in (tmp_path / "checkpoints").glob("best_*.pth")} == {
            "best_accuracy.pth",
            "best_recall.pth",
        }
        assert {name: best.epoch for name, best in run.best.items()} == {"val/accuracy": 2, "val/recall": 1}

    def test_missing_configured_metric_is_an_error(self, tmp_path: Path) -> None:
        hooks = [CheckpointHook(), EvalHook(metric="recall", rule="greater")]
        with pytest.raises(MetricError, match=r"'recall'.* val/accuracy"):
            fake_training(hooks, scores=lambda epoch: {"accuracy": 0.5}, work_dir=tmp_path)

    @pytest.mark.parametrize("settings", [{}, {"save_best": True, "metric": "accuracy"}])
    def test_defaults_and_the_same_values_written_out_keep_the_same_files(
        self, settings: dict[str, Any], tmp_path: Path
    ) -> None:
        hooks = [CheckpointHook(best_metric="loss"), EvalHook(settings)]
        fake_training(hooks, scores=lambda epoch: {"loss": 0.5, "accuracy": 0.5}, work_dir=tmp_path)

        files = {path.name for path in (tmp_path / "checkpoints").glob("best_*.pth")}
        assert files == {"best_loss.pth", "best_accuracy.pth"}

    @pytest.mark.parametrize("settings", [{}, {"save_best": True, "metric": "accuracy"}])
    def test_missing_default_metric_is_one_warning(
        self, settings: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        hooks = [CheckpointHook(best_metric="loss"), EvalHook(settings)]
        fake_training(hooks, scores=lambda epoch: {"loss": 0.5}, work_dir=tmp_path)

        assert [message for message in caplog.messages if "accuracy" in message] == [
            "checkpoint: Unknown metric 'accuracy'. Available: val/loss. No best checkpoint is kept for it. Set the "
            "metric of the hook that requests it, or its `save_best: false`."
        ]
        assert {path.name for path in (tmp_path / "checkpoints").glob("best_*.pth")} == {"best_loss.pth"}

    def test_direction_follows_the_checkpoint_hook_unless_set(self, tmp_path: Path) -> None:
        hooks = [EvalHook(), CheckpointHook(rule="less")]
        run = fake_training(hooks, epochs=2, scores=lambda epoch: {"accuracy": epoch}, work_dir=tmp_path).run
        assert run.best["val/accuracy"].epoch == 1

    @pytest.mark.parametrize(
        ("hooks", "cause"),
        [
            ([], "no hook writes checkpoints"),
            ([{"save_best": False}], "the checkpoint hook keeps none"),
            ([{"save_top_k": 0}], "the checkpoint hook keeps none"),
        ],
    )
    def test_hook_warns_if_no_hook_keeps_the_requested_best(
        self, hooks: list[dict[str, Any]], cause: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        for settings in ({"metric": "accuracy"}, {}):
            caplog.clear()
            savers = [CheckpointHook(saver) for saver in hooks]
            fake_training(
                [EvalHook(settings), *savers], scores=lambda epoch: {"accuracy": 0.5}, work_dir=tmp_path, overwrite=True
            )
            expected = [f"eval: the best checkpoint by 'accuracy' is not kept because {cause}."]
            assert [message for message in caplog.messages if "best" in message] == expected


class TestEnd:
    """Validations in the last iteration or epoch, for any interval."""

    @pytest.mark.parametrize(
        ("settings", "options", "expected"),
        [
            ({"interval": 2}, {"iterations": 3}, [2, 3]),
            ({"interval": 2}, {"iterations": 4}, [2, 4]),  # once, although it is due for two reasons
            ({"interval": 2, "at_end": False}, {"iterations": 3}, [2]),
            ({"interval": 3}, {"epochs": 2}, [3, 4]),
            ({"interval": 3, "start": 5}, {"epochs": 2}, []),
        ],
    )
    def test_interval_in_iterations_includes_the_last_iteration(
        self, settings: dict[str, Any], options: dict[str, int], expected: list[int]
    ) -> None:
        positions = get_validations(EvalHook(by_epoch=False, **settings), **options)
        assert [iteration for _, iteration in positions] == expected

    @pytest.mark.parametrize(
        ("settings", "options", "expected"),
        [
            ({"interval": 2}, {"epochs": 3}, [2, 3]),
            ({"interval": 2, "at_end": False}, {"epochs": 3}, [2]),
            ({"interval": 2}, {"iterations": 6}, [2, 3]),  # the limit is the end of an epoch
            ({"interval": 2}, {"iterations": 7}, [2]),  # the last epoch is truncated
            ({"when": "every(2)"}, {"epochs": 3}, [2]),
        ],
    )
    def test_interval_in_epochs_includes_the_last_complete_epoch(
        self, settings: dict[str, Any], options: dict[str, int], expected: list[int]
    ) -> None:
        assert [epoch for epoch, _ in get_validations(EvalHook(settings), **options)] == expected

    @pytest.mark.parametrize(
        ("settings", "count"),
        [({"by_epoch": False, "interval": 2}, 0), ({"by_epoch": False, "interval": 2, "start": 4}, 1)],
    )
    def test_only_a_start_beyond_the_run_is_reported(
        self, settings: dict[str, Any], count: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        build_trainer(EvalHook(**settings), batches=9, iterations=3).fit()
        assert len([message for message in caplog.messages if "never due" in message]) == count

    def test_epochs_of_unknown_length_end_with_a_validation(self) -> None:
        class Stream:
            def __iter__(self) -> Iterator[Any]:
                return iter([(torch.randn(4, 3), torch.tensor([0, 1, 1, 0]))] * 2)

        positions = get_validations(EvalHook(by_epoch=False, interval=3), train_loader=Stream(), epochs=2)
        assert positions == [(1, 3), (2, 4)]

    def test_stopped_run_is_not_validated_at_its_end(self) -> None:
        class Stopper(Hook):
            def after_train_iter(self, run: Run) -> None:
                if run.iters_done == 3:
                    run.request_stop("enough")

        assert get_validations(EvalHook(by_epoch=False, interval=2), Stopper(), iterations=9) == [(0, 2)]

    def test_last_checkpoint_contains_the_results_of_the_last_validation(self, tmp_path: Path) -> None:
        hooks = [CheckpointHook(by_epoch=False, interval=2), EvalHook(by_epoch=False, interval=2)]
        build_trainer(*hooks, iterations=3, work_dir=tmp_path).fit()

        meta = torch.load(tmp_path / "checkpoints/last.pth", weights_only=True)["meta"]
        assert (meta["iter"], "val/accuracy" in meta["metrics"]) == (3, True)

    def test_custom_loop_with_a_limit_is_validated_at_its_end(self) -> None:
        validations = Validations()
        bus = HookBus([EvalHook(by_epoch=False, interval=2), validations])
        with bus.run(iterations=3, validate=lambda: {"accuracy": 0.5}) as run:
            while not run.should_stop:
                bus.emit("after_train_iter")
        assert [iteration for _, iteration in validations.positions] == [2, 3]


class TestModel:
    def test_validation_within_an_epoch_restores_training_mode_and_gradients(self) -> None:
        modes = []

        class ModeRecorder(Hook):
            def before_train_iter(self, run: Run) -> None:
                assert run.model is not None
                modes.append(([module.training for module in run.model.modules()], torch.is_grad_enabled()))

        build_trainer(EvalHook(by_epoch=False), ModeRecorder(), epochs=2).fit()
        assert modes == [([True] * 5, True)] * 4

    @pytest.mark.parametrize("settings", [{}, {"metrics": ["accuracy"]}, {"test_fn": lambda model, loader: {"a": 1.0}}])
    def test_training_is_bitwise_identical_with_and_without_validations(self, settings: dict[str, Any]) -> None:
        with_hook = build_trainer(EvalHook(by_epoch=False, **settings), epochs=2, seed=1)
        with_hook.fit()
        without_hook = build_trainer(epochs=2, val_loader=None, seed=1)
        without_hook.fit()
        assert fingerprint(with_hook.model.state_dict()) == fingerprint(without_hook.model.state_dict())


class TestData:
    def test_hook_runs_the_validation_of_the_run_by_default(self) -> None:
        trainer = build_trainer(EvalHook(), epochs=1)
        assert set(trainer.fit().metrics.results) == {"val/loss", "val/accuracy"}

    def test_hook_validates_on_the_configured_loader(self) -> None:
        ones = [(torch.zeros(4, 3), torch.ones(4, dtype=torch.long))]
        zeros = [(torch.zeros(4, 3), torch.zeros(4, dtype=torch.long))]
        first = build_trainer(EvalHook(dataloader=ones), epochs=1).fit().metrics.results["accuracy"]
        other = build_trainer(EvalHook(dataloader=zeros), epochs=1).fit().metrics.results["accuracy"]
        assert {first, other} == {0.0, 1.0}

    @pytest.mark.parametrize("service", ["val_loader", "custom_loader"])
    def test_hook_validates_on_multiple_loaders_and_services(self, service: str) -> None:
        batches = [(torch.zeros(2, 3), torch.zeros(2, dtype=torch.long))]
        trainer = build_trainer(EvalHook(dataloader={"a": service, "b": batches}), epochs=1)
        trainer.register_service("custom_loader", batches)
        assert set(trainer.fit().metrics.results) == {
            "val/a/loss",
            "val/a/accuracy",
            "val/b/loss",
            "val/b/accuracy",
        }

    def test_hook_with_data_validates_a_run_without_validation_data(self) -> None:
        batches = [(torch.zeros(2, 3), torch.zeros(2, dtype=torch.long))]
        with pytest.raises(ConfigError, match="the run has no validation function"):
            build_trainer(EvalHook(), epochs=1, val_loader=None).fit()
        assert (
            "val/loss" in build_trainer(EvalHook(dataloader=batches), epochs=1, val_loader=None).fit().metrics.results
        )

    def test_validation_provides_the_metric_of_a_plateau_scheduler(self) -> None:
        values = []

        class Plateau(torch.optim.lr_scheduler.ReduceLROnPlateau):
            def step(self, metrics: Any, epoch: int | None = None) -> None:
                values.append(float(metrics))
                super().step(metrics)

        def batches(target: int) -> Iterable[Any]:
            return [(torch.zeros(2, 3), torch.full((2,), target))]

        for settings in ({}, {"dataloader": batches(1), "before_train": True}):
            weight = nn.Parameter(torch.zeros(3, 2))
            optimizer = torch.optim.SGD([weight], lr=0.1)
            build_trainer(
                EvalHook(settings),
                epochs=2,
                optimizer=optimizer,
                scheduler=Plateau(optimizer),
                scheduler_monitor="val/loss",
            ).fit()
        assert len(values) == 4
        assert all(map(math.isfinite, values))


def test_two_hooks_cannot_both_replace_the_validation_of_the_run() -> None:
    two = [EvalHook(name="a", metrics=["accuracy"]), EvalHook(name="b", dataloader="test_loader")]
    with pytest.raises(ConfigError, match=r"a and b .* mapping of name to loader"):
        build_trainer(*two, epochs=1).fit()


def test_distributed_hook_emits_the_same_events_in_a_single_process() -> None:
    def events(kind: type[Hook]) -> list[str]:
        bus = RecordingBus([kind(interval=2, by_epoch=False, before_train=True)])
        fake_training(bus=bus, scores=lambda epoch: {"accuracy": 0.5})
        return bus.emitted_points

    assert events(EvalHook) == events(DistEvalHook)


class RecordEpochs(Hook):
    """Record the number of completed epochs at each validation."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs: list[int] = []

    def after_val(self, run: Run) -> None:
        self.epochs.append(run.epochs_done)


@pytest.mark.parametrize("order", [1, -1])
def test_two_schedules_request_each_validation_once(order: int) -> None:
    record, hooks = RecordEpochs(), [EvalHook(name="two", interval=2), EvalHook(name="three", interval=3)]
    build_trainer(*hooks[::order], record, epochs=6).fit()
    assert record.epochs == [2, 3, 4, 6]
