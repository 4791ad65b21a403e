"""Ends within an epoch, positions after a resume, and iteration-based loops."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

pytest.importorskip("mmengine", reason="MMEngine is not installed: run `make bridges HOST=mmengine`")

from mmengine.dataset import InfiniteSampler
from mmengine.runner import Runner

from hookbus import Hook, HookBus, Run
from hookbus.testing import HostTask, RecordingBus
from hookbus_ema import EMAHook

from .adapter import RequestAt, build_runner


def train(bus: HookBus, runner: Runner, seed: int = 0) -> Tensor:
    """Train, and return the weights and their averages."""
    torch.manual_seed(seed)
    bus.attach(runner)
    runner.train()
    averaged = bus.hooks["ema"].average.averaged() if "ema" in bus.hooks else {}
    return torch.cat([weight.detach().flatten() for weight in [*runner.model.parameters(), *averaged.values()]])


def build_shuffled(task: HostTask, directory: Path, **arguments: Any) -> Runner:
    """Return a Runner whose order of samples is drawn from the global RNG."""
    loader = DataLoader(task.train_data(), task.batch_size, shuffle=True)
    return build_runner(task, directory, train_dataloader=loader, **arguments)


def by_iteration(iterations: int, interval: int = 4) -> dict[str, Any]:
    """Return the arguments of a Runner that trains, validates and saves by iterations."""
    return {
        "train_cfg": {"by_epoch": False, "max_iters": iterations, "val_interval": interval},
        "default_hooks": {"checkpoint": {"type": "CheckpointHook", "by_epoch": False, "interval": interval}},
    }


class TestStop:
    def test_training_ends_after_the_iteration_without_a_validation(self, tmp_path: Path) -> None:
        bus = RecordingBus([RequestAt(3, "stop")])
        runner = build_runner(HostTask(), tmp_path)
        train(bus, runner)
        run = bus.current
        assert (run.outcome, run.iters_done, run.epochs_done, runner.iter) == ("stopped", 3, 0, 3)
        assert "before_val" not in bus.emitted_points
        assert bus.emitted_points[-5:] == ["after_train_epoch", "after_epoch", "after_train", "after_run", "cleanup"]

    def test_hooks_of_mmengine_receive_the_end_of_the_training(self, tmp_path: Path) -> None:
        ended = []
        runner = build_runner(HostTask(), tmp_path)
        runner.hooks[-1].after_train = lambda runner: ended.append("train")
        runner.hooks[-1].after_run = lambda runner: ended.append("run")
        train(HookBus([RequestAt(3, "stop")]), runner)
        assert ended == ["train", "run"]

    def test_stop_in_the_last_iteration_of_an_epoch_completes_the_epoch(self, tmp_path: Path) -> None:
        bus = RecordingBus([RequestAt(6, "stop")])
        train(bus, build_runner(HostTask(), tmp_path))
        assert (bus.current.outcome, bus.current.epochs_done) == ("stopped", 1)
        assert bus.emitted_points.count("after_val") == 1
        assert (tmp_path / "host/epoch_1.pth").exists()

    def test_stop_in_a_validation_ends_the_training(self, tmp_path: Path) -> None:
        bus = RecordingBus()
        bus.on("after_val")(lambda run: run.request_stop("converged"))
        train(bus, build_runner(HostTask(), tmp_path))
        assert (bus.current.outcome, bus.current.iters_done) == ("stopped", 6)

    @pytest.mark.parametrize("build", [build_runner, build_shuffled])
    @pytest.mark.parametrize("stop", [2, 9])
    def test_stopped_training_resumes_at_the_next_batch(self, build: Any, stop: int, tmp_path: Path) -> None:
        expected = train(HookBus([EMAHook(momentum=0.9)]), build(HostTask(), tmp_path / "whole"))
        stopping = HookBus([EMAHook(momentum=0.9), RequestAt(stop, "stop")])
        train(stopping, build(HostTask(), tmp_path / "parts"))
        bus, task = RecordingBus([EMAHook(momentum=0.9)]), HostTask()
        weights = train(bus, build(task, tmp_path / "parts", resume=True), seed=5)
        assert torch.equal(weights, expected)
        assert (len(task.inputs), bus.current.iters_done, bus.current.epochs_done) == (12 - stop, 12, 2)

    def test_accumulation_in_progress_is_continued(self, tmp_path: Path) -> None:
        wrapper = {"optimizer": {"type": "SGD", "lr": 0.1}, "accumulative_counts": 4}
        expected = train(HookBus(), build_runner(HostTask(), tmp_path / "whole", optim_wrapper=wrapper))
        train(HookBus([RequestAt(6, "stop")]), build_runner(HostTask(), tmp_path / "parts", optim_wrapper=wrapper))
        resumed = build_runner(HostTask(), tmp_path / "parts", optim_wrapper=wrapper, resume=True)
        assert torch.equal(train(HookBus(), resumed), expected)

    def test_aborted_training_saves_nothing(self, tmp_path: Path) -> None:
        bus = HookBus([RequestAt(3, "abort")])
        train(bus, build_runner(HostTask(), tmp_path))
        assert (bus.current.outcome, list((tmp_path / "host").glob("*.pth"))) == ("aborted", [])

    @pytest.mark.parametrize("error", [None, ValueError])
    @pytest.mark.parametrize(
        ("options", "kept"),
        [
            ({"interval": 1, "max_keep_ckpts": 1}, "epoch_1.pth"),
            ({"interval": -1, "save_last": False, "save_best": "loss", "rule": "less"}, "best_loss_epoch_1.pth"),
        ],
        ids=["last", "best"],
    )
    def test_refused_checkpoint_replaces_no_other(
        self, options: dict[str, Any], kept: str, error: type[Exception] | None, tmp_path: Path
    ) -> None:
        class Refuse(Hook):
            def before_save_checkpoint(self, run: Run) -> None:
                if run.iters_done > 6 and error is not None:
                    raise error
                if run.iters_done > 6:
                    run.request_abort()

        runner = build_runner(HostTask(), tmp_path, default_hooks={"checkpoint": {"type": "CheckpointHook", **options}})
        bus = HookBus([Refuse()])
        with nullcontext() if error is None else pytest.raises(error):
            train(bus, runner)
        assert bus.current.outcome == ("aborted" if error is None else "failed")
        assert [path.name for path in (tmp_path / "host").glob("*.pth")] == [kept]
        last = tmp_path / "host/last_checkpoint"
        assert not last.exists() or last.read_text() == str(tmp_path / "host" / kept)

    def test_earlier_checkpoints_are_removed_after_the_next_one(self, tmp_path: Path) -> None:
        options = {"type": "CheckpointHook", "interval": 1, "max_keep_ckpts": 1, "save_best": "loss", "rule": "less"}
        runner = build_runner(HostTask(epochs=3), tmp_path, default_hooks={"checkpoint": options})
        train(HookBus(), runner)
        best = runner.message_hub.get_info("best_ckpt")
        assert {path.name for path in (tmp_path / "host").glob("*.pth")} == {"epoch_3.pth", Path(best).name}

    def test_end_of_the_epoch_is_a_complete_epoch_for_mmengine(self, tmp_path: Path) -> None:
        bus = RecordingBus([RequestAt(3, "stop_epoch")])
        runner = build_runner(HostTask(), tmp_path)
        train(bus, runner)
        run = bus.current
        assert (run.outcome, run.iters_done, run.epochs_done) == ("finished", 9, 2)
        assert (runner.epoch, runner.iter, bus.emitted_points.count("after_val")) == (2, 9, 2)


class TestRequests:
    def test_validation_is_made_at_once(self, tmp_path: Path) -> None:
        bus = RecordingBus([RequestAt(3, "validation")])
        train(bus, build_runner(HostTask(epochs=1), tmp_path))
        third = [i for i, point in enumerate(bus.emitted_points) if point == "after_train_iter"][2]
        assert bus.emitted_points[third + 1 : third + 3] == ["before_val", "before_val_epoch"]
        assert bus.emitted_points.count("after_epoch") == 1

    def test_model_is_in_training_mode_after_a_validation(self, tmp_path: Path) -> None:
        modes: list[bool] = []
        bus = HookBus([RequestAt(3, "validation")])
        bus.on("after_forward")(lambda run: modes.append(run.model.training))
        train(bus, build_runner(HostTask(epochs=1), tmp_path))
        assert modes == [True] * 6

    def test_checkpoint_is_saved_at_once(self, tmp_path: Path) -> None:
        bus = RecordingBus([RequestAt(3, "save")])
        train(bus, build_runner(HostTask(epochs=1), tmp_path))
        saved = torch.load(tmp_path / "host/iter_3.pth")
        assert (saved["meta"]["epoch"], saved["meta"]["iter"]) == (0, 3)
        assert saved["hookbus"]["run"]["loop"]["clock"]["iters_done"] == 3
        assert bus.get_arguments("after_save_checkpoint")[0]["path"] == tmp_path / "host/iter_3.pth"

    @pytest.mark.parametrize("point", ["before_train_iter", "after_forward"])
    def test_iteration_is_skipped(self, point: str, tmp_path: Path) -> None:
        task, bus = HostTask(epochs=1), RecordingBus()

        @bus.on(point)
        def skip(run: Any) -> None:
            if run.iter == 1:
                run.request_skip_iter()

        train(bus, build_runner(task, tmp_path))
        assert bus.current.steps_done == 5
        assert len(task.inputs) == (5 if point == "before_train_iter" else 6)
        assert bus.emitted_points.count("after_train_iter") == 6

    def test_hook_replaces_batch_and_loss(self, tmp_path: Path) -> None:
        task, bus = HostTask(epochs=1), RecordingBus()
        bus.on("before_train_iter", name="batch")(lambda run, batch: run.replace_batch([batch[0] + 1, batch[1]]))
        bus.on("after_forward", name="loss")(lambda run, loss: run.replace_loss(loss * 0))
        runner = build_runner(task, tmp_path)
        before = train(HookBus(), build_runner(HostTask(epochs=0), tmp_path / "untrained"))
        after = train(bus, runner)
        assert torch.equal(before, after)
        assert torch.equal(task.inputs[0], bus.get_arguments("before_train_iter")[0]["batch"][0] + 1)


class TestIterations:
    def test_training_is_one_epoch_with_validations_in_between(self, tmp_path: Path) -> None:
        bus = RecordingBus()
        train(bus, build_runner(HostTask(), tmp_path, **by_iteration(6)))
        outer = [point for point in bus.emitted_points if "iter" not in point and "optimizer" not in point]
        inner = ["after_forward", "after_backward"]
        validation = ["before_val", "before_val_epoch", "after_val_epoch", "after_val"]
        saving = ["before_save_checkpoint", "after_save_checkpoint"]
        assert [point for point in outer if point not in inner] == [
            *("before_run", "before_train", "before_epoch", "before_train_epoch"),
            *(saving + validation) * 2,
            *("after_train_epoch", "after_epoch", "after_train", "after_run", "cleanup"),
        ]
        assert (bus.current.iters_done, bus.current.epochs_done, bus.current.outcome) == (6, 1, "finished")

    def test_training_stops_after_the_iteration(self, tmp_path: Path) -> None:
        bus = HookBus([RequestAt(3, "stop")])
        train(bus, build_runner(HostTask(), tmp_path, **by_iteration(6)))
        assert (bus.current.outcome, bus.current.iters_done) == ("stopped", 3)

    @pytest.mark.parametrize("infinite", [False, True])
    def test_resumed_training_equals_the_uninterrupted_one(self, infinite: bool, tmp_path: Path) -> None:
        def build(name: str, iterations: int, **arguments: Any) -> Runner:
            task, data = HostTask(), HostTask().train_data()
            order: dict[str, Any] = {"sampler": InfiniteSampler(data, seed=1)} if infinite else {"shuffle": True}
            arguments |= by_iteration(iterations, interval=3)
            loader = DataLoader(data, task.batch_size, **order)
            return build_runner(task, tmp_path / name, train_dataloader=loader, **arguments)

        whole, resumed = HookBus([EMAHook(momentum=0.9)]), HookBus([EMAHook(momentum=0.9)])
        expected = train(whole, build("whole", 5))
        train(HookBus([EMAHook(momentum=0.9)]), build("parts", 3))
        assert torch.equal(train(resumed, build("parts", 5, resume=True)), expected)
        assert resumed.current.metrics.results == whole.current.metrics.results
        assert resumed.current.iters_done == 5
