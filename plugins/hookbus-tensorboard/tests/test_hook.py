from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from hookbus import Hook, HookBus
from hookbus.checkpoint.state import write_checkpoint
from hookbus.errors import ConfigError, HookWarning
from hookbus.testing import check_hook, fake_training
from hookbus_tensorboard import TensorBoardHook
from tests.torch_versions import requires_torch


def load_events(directory: Path) -> Any:
    return EventAccumulator(str(directory), size_guidance={"tensors": 0, "images": 0, "histograms": 0}).Reload()


def get_texts(events: Any, name: str) -> list[str]:
    return [event.tensor_proto.string_val[0].decode() for event in events.Tensors(f"{name}/text_summary")]


def train_with(hook: TensorBoardHook, batch: Any, work_dir: Path) -> None:
    """Run two iterations of a custom loop."""
    bus, model = HookBus([hook]), nn.Linear(3, 2)
    with bus.run(model=model, iterations=2, work_dir=work_dir):
        for i in range(2):
            bus.emit("before_train_iter", batch_idx=i, batch=batch)
            bus.emit("after_train_iter", batch_idx=i, batch=batch, outputs={"loss": 1.0})


@pytest.mark.slow
def test_hook_passes_the_conformance_checks():
    check_hook(TensorBoardHook, interval=1, log_weights=True, log_gradients=True, histogram_interval=2)


def test_events_are_written_to_log_dir(tmp_path):
    fake_training([TensorBoardHook(log_dir=tmp_path / "own", interval=3)], losses=float, work_dir=tmp_path / "run")
    scalars = load_events(tmp_path / "own").Scalars("train/loss")
    assert [(scalar.step, scalar.value) for scalar in scalars] == [(3, 2.0), (6, 5.0)]  # means of 1, 2, 3 and 4, 5, 6


def test_training_without_a_work_dir_is_refused():
    with pytest.raises(ConfigError, match="requires a work directory, got none. Set `work_dir`, or set `log_dir` to"):
        fake_training([TensorBoardHook()])


def test_configuration_and_model_are_logged_as_text_and_hparams(tmp_path):
    config = {"lr": 0.5, "model": {"type": "mlp"}, "token": "x"}
    fake_training([TensorBoardHook()], work_dir=tmp_path, config=config, scores=lambda epoch: {"accuracy": 0.5})
    events = load_events(tmp_path / "logs" / "tensorboard")
    assert '"type": "mlp"' in get_texts(events, "config")[0]
    assert "|  | Sequential | 26 | 26 |" in get_texts(events, "model")[0]  # 3 * 4 + 4 and 4 * 2 + 2
    start = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    assert all(key in start for key in (b"lr", b"model.type", b"mlp", b"token", b"***"))
    assert "val/accuracy" in events.Tags()["scalars"]


def test_graph_is_traced_with_the_first_batch(tmp_path):
    fake_training([TensorBoardHook(log_graph=True)], work_dir=tmp_path)
    assert "Linear" in str(load_events(tmp_path / "logs" / "tensorboard").Graph())


def test_failed_trace_warns_once(tmp_path):
    with pytest.warns(HookWarning, match="log_graph: the model cannot be traced with the first batch") as caught:
        train_with(TensorBoardHook(log_graph=True), ["a", "b"], tmp_path)
    assert len(caught) == 1


@pytest.mark.parametrize(
    ("batch", "pixel"),
    [
        (torch.full((2, 3, 4, 4), 200, dtype=torch.uint8), 200),
        (torch.full((2, 3, 4, 4), 0.5), 128),
        ((torch.full((2, 4, 4, 1), 0.25), torch.zeros(2)), 64),
    ],
)
def test_input_images_are_logged_with_their_pixel_values(tmp_path, batch, pixel):
    from io import BytesIO

    from PIL import Image

    train_with(TensorBoardHook(log_images=True, image_interval=2, max_images=1), batch, tmp_path)
    events = load_events(tmp_path / "logs" / "tensorboard")
    assert events.Tags()["images"] == ["input/0"]
    (image,) = events.Images("input/0")
    assert set(Image.open(BytesIO(image.encoded_image_string)).convert("RGB").tobytes()) == {pixel}


def test_batch_without_images_warns_once(tmp_path):
    with pytest.warns(HookWarning, match="log_images: the batch contains no images") as caught:
        train_with(TensorBoardHook(log_images=True, image_interval=1), torch.zeros(2, 3), tmp_path)
    assert len(caught) == 1


def test_histograms_are_those_of_weights_and_gradients_at_a_step(tmp_path):
    hook = TensorBoardHook(log_weights=True, log_gradients=True, histogram_interval=2)
    fake_training([hook], epochs=1, batches=4, work_dir=tmp_path)
    events = load_events(tmp_path / "logs" / "tensorboard")
    names = [
        f"{group}/{layer}.{name}" for group in ("weights", "gradients") for layer in "02" for name in ("weight", "bias")
    ]
    assert sorted(events.Tags()["histograms"]) == sorted(names)
    assert [event.step for event in events.Histograms("weights/0.weight")] == [1, 3]  # before the steps 2 and 4


def test_tags_of_weights_contain_no_prefixes_of_wrappers(tmp_path):
    bus = HookBus([TensorBoardHook(log_weights=True, histogram_interval=1)])
    model = nn.Sequential(nn.DataParallel(nn.Linear(1, 1)))
    optimizer = torch.optim.SGD(model.parameters())
    with bus.run(model=nn.DataParallel(model), optimizer=optimizer, iterations=1, work_dir=tmp_path):
        bus.emit("before_train_iter", batch_idx=0)
        model(torch.ones(1, 1)).sum().backward()
        optimizer.step()
        bus.emit("after_train_iter", batch_idx=0)
    tags = load_events(tmp_path / "logs" / "tensorboard").Tags()["histograms"]
    assert sorted(tags) == ["weights/0.bias", "weights/0.weight"]


def train_sharded(hook, work_dir):
    """Run two steps of a model whose parameters are sharded (FSDP2, one rank)."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model, bus = nn.Linear(3, 2), HookBus([hook])
        fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
        optimizer = torch.optim.SGD(model.parameters())
        with bus.run(model=model, optimizer=optimizer, iterations=2, work_dir=work_dir) as run:
            for i, batch in run.batches([torch.ones(1, 3)] * 2):
                bus.emit("before_train_iter", batch_idx=i, batch=batch)
                model(batch).sum().backward()
                optimizer.step()
                bus.emit("after_train_iter", batch_idx=i, batch=batch)
    finally:
        dist.destroy_process_group()


@requires_torch("distributed: fsdp2")
def test_sharded_parameters_are_skipped_with_one_warning(tmp_path):
    hook = TensorBoardHook(log_graph=True, log_weights=True, histogram_interval=1)
    with pytest.warns(
        HookWarning, match="log_graph: not supported for parameters that are sharded across ranks"
    ) as caught:
        train_sharded(hook, tmp_path)

    assert len(caught) == 1
    assert load_events(tmp_path / "logs" / "tensorboard").Tags()["histograms"] == []


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
def test_two_hooks_with_one_log_dir_are_rejected_at_the_start(tmp_path, names):
    hooks = [TensorBoardHook(name=name, log_dir=tmp_path / "events") for name in names]
    with pytest.raises(ConfigError, match="log_dir: hook .* also writes to .*events. Set another `log_dir`"):
        fake_training(hooks, work_dir=tmp_path)


class TestRunsWithOneLogDir:
    def load_steps(self, directory: Path) -> list[int]:
        return [event.step for event in load_events(directory).Scalars("train/loss")]

    def test_second_run_writes_to_a_subdirectory_with_a_warning(self, tmp_path, caplog):
        events = tmp_path / "events"
        for name in "ab":
            fake_training([TensorBoardHook(log_dir=events, interval=3)], work_dir=tmp_path / name)

        assert self.load_steps(events) == self.load_steps(events / "run-2") == [3, 6]
        assert [record.getMessage() for record in caplog.records] == [
            f"tensorboard: log_dir: {events} contains the events of another run, so the events are written to "
            f"{events / 'run-2'}. Set another `log_dir` for each run."
        ]

    def test_resumed_run_continues_its_directory(self, tmp_path, caplog):
        events, hook = tmp_path / "events", TensorBoardHook
        fake_training([hook(log_dir=events, interval=3)], work_dir=tmp_path / "a")
        for epochs in (1, 2):
            hooks = [hook(log_dir=events, interval=1), SaveAtEpoch()]
            fake_training(hooks, epochs=epochs, work_dir=tmp_path / "b", resume="auto")

        assert self.load_steps(events) == [3, 6]
        assert self.load_steps(events / "run-2") == [1, 2, 3, 4, 5, 6]
        assert not (events / "run-3").exists()

    def test_later_runs_of_one_bus_write_to_the_same_directory(self, tmp_path, caplog):
        bus = HookBus([TensorBoardHook(log_dir=tmp_path / "events", interval=3)])
        fake_training(bus=bus, epochs=1)
        fake_training(bus=bus, epochs=2)

        assert self.load_steps(tmp_path / "events") == [3, 6]
        assert caplog.records == []

    @pytest.mark.parametrize("is_default", [True, False])
    def test_events_before_a_restart_are_kept(self, tmp_path, is_default):
        log_dir = None if is_default else tmp_path / "events"
        for _ in range(2):
            hooks = [TensorBoardHook(log_dir=log_dir, interval=1), FailAtIteration()]
            with pytest.raises(RuntimeError):
                fake_training(hooks, work_dir=tmp_path / "run", resume="auto")
        fake_training([TensorBoardHook(log_dir=log_dir, interval=3)], work_dir=tmp_path / "run", resume="auto")

        directory = log_dir or tmp_path / "run" / "logs" / "tensorboard"
        assert self.load_steps(directory) == [3, 6]
        for name in ("tensorboard-old", "tensorboard-old-2") if is_default else ("old", "old-2"):
            assert self.load_steps((directory.parent if is_default else directory) / name) == [1]


@pytest.mark.parametrize(("rate", "expected"), [(0.1, [0]), (0.2, [0, 3])])
def test_resume_logs_the_configuration_only_if_it_has_changed(tmp_path, rate, expected):
    for epochs, config in ((1, {"lr": 0.1}), (2, {"lr": rate, "resume": "auto"})):
        hooks = [TensorBoardHook(interval=3), SaveAtEpoch(), LogEnvironment()]
        fake_training(hooks, epochs=epochs, work_dir=tmp_path, resume="auto", config=config)

    events = load_events(tmp_path / "logs" / "tensorboard")
    steps = {name: [event.step for event in events.Tensors(f"{name}/text_summary")] for name in ("config", "model")}
    assert steps == {"config": expected, "model": [0]}
    assert [event.step for event in events.Tensors("environment/text_summary")] == [0]
    assert [event.step for event in events.Scalars("size")] == [0]
    assert [event.step for event in events.Scalars("train/loss")] == [3, 6]


def test_configuration_that_is_logged_during_the_training_is_written(tmp_path):
    class LogConfig(Hook):
        def after_train_epoch(self, run):
            run.writer.write_config({"lr": 0.5 / run.epochs_done, "token": "x"})

    fake_training([TensorBoardHook(), LogConfig()], epochs=2, work_dir=tmp_path, config={"lr": 0.5})

    events = load_events(tmp_path / "logs" / "tensorboard")
    assert [event.step for event in events.Tensors("config/text_summary")] == [0, 3, 6]
    assert ['"lr": 0.25' in text for text in get_texts(events, "config")] == [False, False, True]


def test_second_run_of_a_hook_logs_its_configuration(tmp_path):
    hook = TensorBoardHook()
    for name in ("first", "second"):
        fake_training([hook], work_dir=tmp_path / name, config={"lr": 0.5})
        assert len(get_texts(load_events(tmp_path / name / "logs" / "tensorboard"), "config")) == 1


class LogEnvironment(Hook):
    """Log records at the start of each process."""

    priority = 10

    def before_train(self, run):
        run.bus.emit("log_text", tag="environment", text=f"epochs {run.max_epochs}")
        run.bus.emit("log_scalars", values={"size": 1.0})


class SaveAtEpoch(Hook):
    """Write a checkpoint after each epoch."""

    def after_epoch(self, run):
        run.request_save(saver=self)

    def plan(self, run, requests):
        return Path(run.require("checkpoints_dir")) / f"{run.epochs_done}.pth"

    def write(self, run, checkpoint):
        write_checkpoint(self.plan(run, []), checkpoint, run.epochs_done)
        return False


class FailAtIteration(Hook):
    """Raise an error after the second iteration."""

    def after_train_iter(self, run):
        if run.iters_done == 2:
            raise RuntimeError("simulated crash")
