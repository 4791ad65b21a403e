"""Limited loaders, and the same first batches in every epoch: `limit_*_batches` and `overfit_batches`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LinearLR
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from hookbus import Hook, Run, Trainer, hookimpl, last
from hookbus.errors import ConfigError, RequestError
from hookbus.hook import HookConfig
from hookbus.testing import fingerprint
from tests import toys


def data(count: int = 20, **options: Any) -> DataLoader[Any]:
    """Return a loader of `count` samples whose first feature is their index, in batches of 2."""
    inputs = torch.arange(float(count))[:, None].repeat(1, 4) / count
    return DataLoader(TensorDataset(inputs, torch.arange(count) % 2), **{"batch_size": 2, **options})


class Recorder(Hook):
    """Record the indices of the samples of each iteration."""

    def __init__(self, stop_at: int | None = None) -> None:
        super().__init__()
        self.train: list[list[int]] = []
        self.val: list[list[int]] = []
        self.lengths: set[int | None] = set()
        self.stop_at = stop_at

    def before_train_iter(self, run: Run, batch: Any) -> None:
        self.train.append((batch[0][:, 0] * 20).round().int().tolist())
        self.lengths |= {run.epoch_length}

    def after_train_iter(self, run: Run) -> None:
        if run.iters_done == self.stop_at:
            run.request_stop("test")

    def before_val_iter(self, batch: Any) -> None:
        self.val.append((batch[0][:, 0] * 20).round().int().tolist())


def fit(*hooks: Hook, **options: Any) -> tuple[Recorder, Run]:
    recorder = Recorder()
    trainer = toys.trainer(recorder, *hooks, **{"train_loader": data(), "epochs": 2, "seed": 3, **options})
    return recorder, trainer.fit()


class TestLimits:
    def test_number_of_training_batches(self) -> None:
        recorder, run = fit(limit_train_batches=3)

        assert recorder.train == [[0, 1], [2, 3], [4, 5]] * 2
        assert (run.epochs_done, run.iters_done, run.limit("iter")) == (2, 6, 6)
        assert recorder.lengths == {3}

    def test_integer_1_is_one_batch_and_float_1_is_all(self) -> None:
        assert len(fit(limit_train_batches=1)[0].train) == 2
        assert len(fit(limit_train_batches=1.0)[0].train) == 20

    @pytest.mark.parametrize(("fraction", "batches"), [(0.1, 1), (0.25, 2), (0.99, 9), (1.0, 10)])
    def test_fraction_of_10_batches_is_rounded_down(self, fraction: float, batches: int) -> None:
        assert len(fit(limit_train_batches=fraction, epochs=1)[0].train) == batches

    def test_shuffled_epochs_differ_as_in_the_full_training(self) -> None:
        full, _ = fit(train_loader=data(shuffle=True))
        limited, _ = fit(train_loader=data(shuffle=True), limit_train_batches=3)
        assert limited.train == [*full.train[:3], *full.train[10:13]]

    def test_validation_loaders_are_limited_one_by_one(self) -> None:
        loaders = {"a": data(), "b": data(4)}
        recorder, run = fit(val_loader=loaders, limit_val_batches=3, epochs=1)

        assert len(recorder.val) == 3 + 2
        assert {"val/a/loss", "val/b/loss"} <= set(run.metrics)

    def test_test_loader(self) -> None:
        seen: list[int] = []
        trainer = toys.trainer(test_loader=data(), limit_test_batches=0.2)
        trainer.bus.on("after_test_iter")(lambda batch_idx: seen.append(batch_idx))
        trainer.test()
        assert seen == [0, 1]

    def test_zero_disables_validation_and_test(self) -> None:
        recorder, run = fit(val_loader=data(), limit_val_batches=0)
        assert recorder.val == []
        assert run.val_loader is None
        with pytest.raises(RequestError):
            toys.trainer(test_loader=data(), limit_test_batches=0.0).test()

    def test_zero_training_batches_still_allow_a_validation(self) -> None:
        trainer = toys.trainer(train_loader=data(), val_loader=data(), limit_train_batches=0, epochs=1)
        assert "val/loss" in trainer.validate()
        with pytest.raises(ConfigError, match="limit_train_batches: 0 disables the training loader"):
            trainer.fit()

    def test_disabled_validation_is_named_if_a_hook_requires_it(self) -> None:
        class Reader(Hook):
            required_metrics = ("val/loss",)

            def after_val(self) -> None: ...

        trainer = toys.trainer(Reader(), train_loader=data(), val_loader=data(), limit_val_batches=0, epochs=1)
        with pytest.raises(ConfigError, match=r"limit_val_batches: 0 disables the validations that reader requires\."):
            trainer.fit()

    def test_stream_without_length(self) -> None:
        class Stream(IterableDataset[Any]):
            def __iter__(self) -> Iterator[Any]:
                return iter([(torch.zeros(4), 0)] * 20)

        recorder, run = fit(train_loader=DataLoader(Stream(), batch_size=2), limit_train_batches=4)
        assert (len(recorder.train), run.limit("iter"), run.epochs_done) == (8, 8, 2)
        with pytest.raises(ConfigError, match="the train loader has no length, got the fraction 0.5"):
            fit(train_loader=DataLoader(Stream(), batch_size=2), limit_train_batches=0.5)

    def test_all_problems_are_reported_at_once(self) -> None:
        with pytest.raises(ConfigError) as caught:
            toys.trainer(limit_train_batches=True, limit_val_batches=5.0, overfit_batches=-1, fast_dev_run=1.0)
        names = [problem.partition(":")[0] for problem in caught.value.problems]
        assert names == ["limit_train_batches", "limit_val_batches", "overfit_batches", "fast_dev_run"]

    def test_fraction_of_less_than_one_batch_is_an_error(self) -> None:
        with pytest.raises(ConfigError) as caught:
            fit(limit_train_batches=0.05, val_loader={"a": data(4)}, limit_val_batches=0.4)
        assert caught.value.problems == [
            "limit_train_batches: less than one of the 10 batches of the train loader, got 0.05. Set a larger "
            "fraction, or a number of batches as an int.",
            "limit_val_batches: less than one of the 2 batches of the val 'a' loader, got 0.4. Set a larger fraction, "
            "or a number of batches as an int.",
        ]


class TestLengthOfTheRun:
    def test_last_iteration_is_that_of_the_limited_run(self) -> None:
        seen: list[int] = []

        class Last(Hook):
            @hookimpl(when=last)
            def after_train_iter(self, run: Run) -> None:
                seen.append(run.iters_done)

        fit(Last(), limit_train_batches=3)
        assert seen == [6]

    def test_schedule_over_the_limited_run(self) -> None:
        # From 0.1 x 0.5 to 0.1 in the 4 steps of two epochs of 2 batches.
        model = toys.net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        rates: list[float] = []
        trainer = toys.trainer(
            model=model,
            optimizer=optimizer,
            train_loader=data(),
            epochs=2,
            limit_train_batches=2,
            scheduler=LinearLR(optimizer, 0.5, total_iters=4),
            scheduler_interval="step",
        )
        trainer.bus.on("before_train_iter")(lambda: rates.append(optimizer.param_groups[0]["lr"]))
        trainer.fit()
        assert [*rates, optimizer.param_groups[0]["lr"]] == pytest.approx([0.05, 0.0625, 0.075, 0.0875, 0.1])

    def test_milestones_beyond_the_limited_run_are_reported(self, caplog: pytest.LogCaptureFixture) -> None:
        class Late(Hook):
            class Config(HookConfig):
                begin: int = 1

            def get_milestones(self, run: Run) -> Any:
                return {"begin": (self.config.begin, "iter")}

            def before_train(self) -> None: ...

        fit(Late(begin=7), limit_train_batches=3)
        assert "begin" in caplog.text
        caplog.clear()
        fit(Late(begin=7))
        assert "begin" not in caplog.text

    def test_accumulation_continues_over_short_epochs(self) -> None:
        _, run = fit(limit_train_batches=3, accumulate=2)
        assert (run.iters_done, run.steps_done, run.accumulated) == (6, 3, 0)
        _, run = fit(limit_train_batches=3, accumulate=4)
        assert (run.iters_done, run.steps_done, run.accumulated) == (6, 1, 2)


class TestOverfit:
    def test_every_epoch_has_the_first_batches_of_both_loaders(self) -> None:
        recorder, run = fit(train_loader=data(shuffle=True), val_loader=data(shuffle=True), overfit_batches=2)

        assert recorder.train == [[0, 1], [2, 3]] * 2
        assert recorder.val == [[0, 1], [2, 3]] * 2
        assert run.limit("iter") == 4

    def test_fraction(self) -> None:
        assert fit(train_loader=data(shuffle=True), overfit_batches=0.31)[0].train == [[0, 1], [2, 3], [4, 5]] * 2

    def test_all_batches_in_the_order_of_the_dataset(self) -> None:
        recorder, _ = fit(train_loader=data(8, shuffle=True), overfit_batches=1.0)
        assert len(recorder.train) == 8
        assert recorder.train[:4] == recorder.train[4:]

    def test_training_loss_decreases(self) -> None:
        torch.manual_seed(0)
        losses: list[float] = []
        trainer = toys.trainer(
            model=nn.Linear(4, 2), lr=0.5, train_loader=data(shuffle=True), epochs=20, overfit_batches=1
        )
        trainer.bus.on("after_train_iter")(lambda loss: losses.append(float(loss)))
        trainer.fit()
        assert losses[-1] < losses[0]

    def test_test_loader_is_complete(self) -> None:
        trainer = toys.trainer(train_loader=data(), test_loader=data(shuffle=True), overfit_batches=1)
        assert len(trainer.test_loader) == 10

    def test_validation_may_be_disabled(self) -> None:
        assert fit(val_loader=data(), overfit_batches=1, limit_val_batches=0)[0].val == []

    def test_loader_that_cannot_be_rebuilt_is_refused(self) -> None:
        with pytest.raises(ConfigError) as caught:
            fit(train_loader=(batch for batch in toys.pairs()), overfit_batches=1)
        assert str(caught.value) == (
            "overfit_batches: the train loader cannot be rebuilt without shuffling: it is no DataLoader but an object "
            "of the class generator, whose order is unknown. Pass a DataLoader of a map-style dataset, or set "
            "`limit_train_batches` instead of `overfit_batches`."
        )

    @pytest.mark.parametrize("name", ["limit_train_batches", "limit_val_batches"])
    def test_second_limit_is_refused(self, name: str) -> None:
        with pytest.raises(ConfigError, match=f"{name}: has no effect with `overfit_batches`, got 5. Remove one"):
            fit(overfit_batches=1, **{name: 5})


class TestResume:
    @pytest.mark.parametrize("options", [{"limit_train_batches": 3}, {"overfit_batches": 3}], ids=str)
    @pytest.mark.parametrize("iteration", [2, 3, 4])
    @pytest.mark.parametrize("accumulate", [1, 2])
    def test_resumed_run_is_the_uninterrupted_one(
        self, options: dict[str, Any], iteration: int, accumulate: int, tmp_path: Path
    ) -> None:
        def train(work_dir: Path, *hooks: Hook, **more: Any) -> tuple[Recorder, Trainer]:
            recorder, saver = Recorder(), toys.Saver(iteration=iteration)
            trainer = toys.trainer(
                recorder,
                saver,
                *hooks,
                train_loader=data(shuffle=True),
                epochs=3,
                seed=3,
                work_dir=work_dir,
                accumulate=accumulate,
                **options,
                **more,
            )
            trainer.fit()
            return recorder, trainer

        full, reference = train(tmp_path / "full")
        saved = next((tmp_path / "full" / "checkpoints").glob("*.pth"))
        rest, resumed = train(tmp_path / "rest", resume=str(saved))

        assert rest.train == full.train[iteration:]
        assert fingerprint(resumed.model.state_dict()) == fingerprint(reference.model.state_dict())


class TestAnnouncement:
    def test_limits_are_logged_once(self, caplog: pytest.LogCaptureFixture) -> None:
        trainer = toys.trainer(
            train_loader=data(),
            val_loader={"a": data(), "b": data(4)},
            test_loader=data(),
            epochs=1,
            limit_train_batches=0.25,
            limit_val_batches=2,
            limit_test_batches=0,
        )
        trainer.fit()
        trainer.fit(epochs=2)
        messages = [record.getMessage() for record in caplog.records if "short run" in record.getMessage()]
        assert messages == [
            "short run: train: 2 of 10 batches (limit_train_batches=0.25); val 'a': 2 of 10 batches "
            "(limit_val_batches=2); val 'b': all 2 batches (limit_val_batches=2); test: no batches "
            "(limit_test_batches=0)"
        ]

    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            ({"overfit_batches": 2}, "train: the same 2 of 10 batches (overfit_batches=2)"),
            ({"overfit_batches": 1.0}, "train: the same 10 batches (overfit_batches=1.0)"),
            ({"limit_train_batches": 1}, "train: 1 of 10 batches (limit_train_batches=1)"),
            (
                {"train_loader": (batch for batch in toys.pairs()), "limit_train_batches": 1},
                "train: at most 1 batch (limit_train_batches=1)",
            ),
        ],
    )
    def test_descriptions(self, options: dict[str, Any], expected: str) -> None:
        trainer = toys.trainer(**{"train_loader": data(), **options})
        assert trainer.short_run.describe() == f"short run: {expected}"

    def test_full_run_announces_nothing(self) -> None:
        assert toys.trainer(train_loader=data(), epochs=1).short_run.describe() == ""

    def test_check_reports_it(self) -> None:
        lines = toys.trainer(train_loader=data(), epochs=1, limit_train_batches=2).check()
        assert {"train: 2 batches", "short run: train: 2 of 10 batches (limit_train_batches=2)"} <= {*lines}
