"""Validations and tests in the Trainer of Lightning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lightning", reason="Lightning is not installed: run `make bridges HOST=lightning`")

from hookbus import Hook, HookBus, Run
from hookbus.errors import ConfigError
from hookbus.testing import RecordingBus
from hookbus_ema import EMAHook

from .toys import Validated, attach, make_loader

VALIDATION = ["before_val", "before_val_epoch", "before_val_iter", "after_val_iter", "after_val_epoch", "after_val"]


def fit(
    bus: HookBus, directory: Path, *, val: Any = None, train: Any = None, module: Any = None, **options: Any
) -> Any:
    bridge = attach(bus, directory, **options)
    bridge.host.fit(module or Validated(), train or make_loader(1.0), val or make_loader(10.0))
    return bridge


class TestTraining:
    def test_validation_at_the_end_of_an_epoch_follows_after_train_epoch(self, tmp_path: Path) -> None:
        bus = RecordingBus()
        fit(bus, tmp_path)
        points = bus.emitted_points
        assert points[points.index("after_train_epoch") :][: 2 + len(VALIDATION)] == [
            "after_train_epoch",
            *VALIDATION,
            "after_epoch",
        ]

    def test_validation_within_an_epoch_does_not_end_it(self, tmp_path: Path) -> None:
        bus = RecordingBus()
        run = fit(bus, tmp_path, train=make_loader(1.0, 1.0), val_check_interval=1).run
        kinds = [p for p in bus.emitted_points if p in ("before_val", "after_train_epoch", "after_epoch")]
        assert kinds == ["before_val", "after_train_epoch", "before_val", "after_epoch"]
        assert (run.epochs_done, run.iters_done) == (1, 2)

    @pytest.mark.parametrize(("limit", "expected"), [(1.0, True), (0, False)])
    def test_run_can_validate_if_the_trainer_does(self, tmp_path: Path, limit: float, expected: bool) -> None:
        bus, answers = HookBus(), list[bool]()
        bus.on("after_train_epoch")(lambda run: answers.append(run.can_validate))
        fit(bus, tmp_path, limit_val_batches=limit)
        assert answers == [expected]

    def test_values_that_the_module_logs_are_results(self, tmp_path: Path) -> None:
        bus = RecordingBus()
        run = fit(bus, tmp_path, val=make_loader(10.0, 20.0)).run
        mean = (10 + 20) / 2 * 0.9  # the weight is 1 - 0.1 * 1
        assert bus.get_arguments("after_val_epoch")[0]["metrics"] == pytest.approx({"val/loss": mean})
        assert dict(run.metrics.results) == pytest.approx({"val/loss": mean})

    def test_returned_loss_is_a_result_as_well(self, tmp_path: Path) -> None:
        class Module(Validated):
            def validation_step(self, batch: Any, batch_idx: int) -> Any:
                return self.compute_loss(batch)

        run = fit(HookBus(), tmp_path, val=make_loader(10.0, 20.0), module=Module()).run
        assert dict(run.metrics.results) == pytest.approx({"val/loss": 13.5})

    def test_prefix_of_results_can_be_chosen(self, tmp_path: Path) -> None:
        class Module(Validated):
            def validation_step(self, batch: Any, batch_idx: int) -> Any:
                self.log("eval-loss", self.compute_loss(batch))

        run = fit(HookBus(), tmp_path, module=Module(), options={"metric_prefix": "eval-"}).run
        assert dict(run.metrics.results) == pytest.approx({"val/loss": 9.0})

    @pytest.mark.parametrize("names", [None, ("near", "far")])
    def test_results_of_several_loaders_have_their_names(self, tmp_path: Path, names: Any) -> None:
        bus, loaders = RecordingBus(), [make_loader(10.0), make_loader(20.0)]
        run = fit(bus, tmp_path, val=dict(zip(names, loaders, strict=True)) if names else loaders).run
        first, second = names or ("0", "1")
        assert dict(run.metrics.results) == pytest.approx({f"val/{first}/loss": 9.0, f"val/{second}/loss": 18.0})
        ends = [(a["dataloader_name"], dict(a["metrics"])) for a in bus.get_arguments("after_val_epoch")]
        assert ends == [
            (first, {f"val/{first}/loss": pytest.approx(9.0)}),
            (second, {f"val/{second}/loss": pytest.approx(18.0)}),
        ]
        assert [a["dataloader_name"] for a in bus.get_arguments("before_val_iter")] == [first, second]
        assert list(run.val_loader) == [first, second]

    def test_sanity_check_discards_its_results(self, tmp_path: Path) -> None:
        seen = []

        class Watch(Hook):
            def after_val(self, run: Any) -> None:
                seen.append((run.sanity_checking, run.iters_done))

        bus = RecordingBus([Watch()])
        fit(bus, tmp_path, num_sanity_val_steps=1)
        assert seen == [(True, 0), (False, 1)]
        assert bus.emitted_points[:2] == ["before_run", "before_train"]
        assert len([event for event in bus.events if event.point == "log_scalars"]) == 1

    def test_averaged_weights_are_validated(self, tmp_path: Path) -> None:
        module = Validated()
        run = fit(HookBus([EMAHook(momentum=0.5, warm_up=0)]), tmp_path, train=make_loader(4.0), module=module).run
        assert run.metrics["val/loss"] == pytest.approx(10 * (0.5 * 1 + 0.5 * 0.6))
        assert module.weight.item() == pytest.approx(0.6)


class TestRequests:
    @pytest.mark.parametrize("point", ["after_train_iter", "after_train_epoch", "after_epoch"])
    def test_requested_validation_is_made_at_once(self, tmp_path: Path, point: str) -> None:
        bus = RecordingBus()

        @bus.on(point)
        def request(run: Any) -> None:
            run.request_validation()

        fit(bus, tmp_path, train=make_loader(1.0), check_val_every_n_epoch=5)
        points = [p for p in bus.emitted_points if p in (point, "before_val", "after_val")]
        assert points == [point, "before_val", "after_val"]

    def test_requested_validation_leaves_the_means_of_lightning_unchanged(self, tmp_path: Path) -> None:
        class Module(Validated):
            def training_step(self, batch: Any, batch_idx: int) -> Any:
                self.log("mean", batch[0].mean(), on_step=False, on_epoch=True)
                return self.compute_loss(batch)

        bus = HookBus()

        @bus.on("after_train_iter")
        def request(run: Any) -> None:
            run.request_validation()

        bridge = fit(bus, tmp_path, train=make_loader(1.0, 2.0, 6.0), module=Module())
        assert bridge.host.callback_metrics["mean"].item() == 3.0

    def test_request_at_the_end_of_an_epoch_is_one_validation(self, tmp_path: Path) -> None:
        bus = RecordingBus()

        @bus.on("after_train_epoch")
        def request(run: Any) -> None:
            run.request_validation()

        fit(bus, tmp_path)
        assert bus.emitted_points.count("before_val") == 1

    def test_hooks_that_need_validations_are_refused_without_data(self, tmp_path: Path) -> None:
        class Schedule(Hook):
            schedules_validation = True

        class Read(Hook):
            required_metrics = ("val/loss",)

        bridge = attach(HookBus([Schedule(), Read()]), tmp_path, limit_val_batches=0)
        with pytest.raises(ConfigError) as caught:
            bridge.host.fit(Validated(), make_loader(1.0), make_loader(1.0))
        assert bridge.run is None
        reason = "validations, but the trainer does not validate, got limit_val_batches=0"
        assert [problem.partition(". ")[0] for problem in caught.value.problems] == [
            f"hook 'schedule': schedules {reason}",
            f"hook 'read': requires {reason}",
        ]

    def test_hook_may_validate_itself_without_data(self, tmp_path: Path) -> None:
        class Validate(Hook):
            schedules_validation = True
            required_metrics = ("val/score",)

            @property
            def validation_fn(self) -> Any:
                return lambda run: {"score": 3.0}

            def after_train_epoch(self, run: Run) -> None:
                run.request_validation()

        run = fit(HookBus([Validate()]), tmp_path, limit_val_batches=0).run
        assert dict(run.metrics.results) == {"val/score": 3.0}


class TestOutsideOfTraining:
    @pytest.mark.parametrize(("method", "kind"), [("validate", "val"), ("test", "test")])
    def test_validate_and_test_are_runs_of_their_own(self, tmp_path: Path, method: str, kind: str) -> None:
        bus = RecordingBus()
        bridge = attach(bus, tmp_path)
        getattr(bridge.host, method)(Validated(), make_loader(10.0), verbose=False)
        assert bus.emitted_points == [
            "before_run",
            *[point.replace("val", kind) for point in VALIDATION],
            "after_run",
            "cleanup",
        ]
        assert (bridge.run.mode, bridge.run.outcome) == (kind, "finished")
        assert dict(bridge.run.metrics.results) == {f"{kind}/loss": 10.0}

    def test_test_after_training_uses_the_average_of_the_training(self, tmp_path: Path) -> None:
        module = Validated()
        bridge = fit(HookBus([EMAHook(momentum=0.5, warm_up=0)]), tmp_path, train=make_loader(4.0), module=module)
        bridge.host.test(module, make_loader(10.0), verbose=False)
        assert bridge.run.metrics["test/loss"] == pytest.approx(10 * 0.8)

    def test_test_of_a_checkpoint_uses_the_average_in_it(self, tmp_path: Path) -> None:
        from lightning.pytorch.callbacks import ModelCheckpoint

        saving = ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1)
        bridge = fit(
            HookBus([EMAHook(momentum=0.5, warm_up=0)]),
            tmp_path,
            train=make_loader(4.0),
            max_epochs=2,
            callbacks=[saving],
            enable_checkpointing=True,
        )
        assert bridge.run.metrics["val/loss"] == pytest.approx(10 * 0.5)  # 0.5 * 0.8 + 0.5 * 0.2
        bridge.host.test(Validated(), make_loader(10.0), ckpt_path=str(tmp_path / "epoch=0.ckpt"), verbose=False)
        assert bridge.run.metrics["test/loss"] == pytest.approx(10 * 0.8)
        assert bridge.run.epochs_done == 1
