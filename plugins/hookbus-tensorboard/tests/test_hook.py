from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from hookbus import HookBus
from hookbus.errors import HookWarning
from hookbus.testing import check_hook, fake_training
from hookbus_tensorboard import TensorBoardHook


def events(directory: Path) -> Any:
    return EventAccumulator(str(directory), size_guidance={"tensors": 0, "images": 0, "histograms": 0}).Reload()


def texts(found: Any, name: str) -> list[str]:
    return [each.tensor_proto.string_val[0].decode() for each in found.Tensors(f"{name}/text_summary")]


def trained_with(hook: TensorBoardHook, batch: Any, work_dir: Path) -> None:
    """Two iterations of a loop of one's own."""
    bus, model = HookBus([hook]), nn.Linear(3, 2)
    with bus.run(model=model, iterations=2, work_dir=work_dir):
        for i in range(2):
            bus.emit("before_train_iter", batch_idx=i, batch=batch)
            bus.emit("after_train_iter", batch_idx=i, batch=batch, outputs={"loss": 1.0})


def test_keeps_the_promises_that_users_rely_on():
    check_hook(TensorBoardHook, interval=1, log_weights=True, log_gradients=True, histogram_interval=2)


def test_a_directory_of_ones_own_is_where_it_writes(tmp_path):
    fake_training([TensorBoardHook(log_dir=tmp_path / "own", interval=3)], losses=float, work_dir=tmp_path / "run")
    found = events(tmp_path / "own").Scalars("train/loss")
    assert [(each.step, each.value) for each in found] == [(3, 2.0), (6, 5.0)]  # means of 1, 2, 3 and 4, 5, 6


def test_without_a_work_dir_it_says_what_to_do_and_the_run_goes_on():
    with pytest.warns(HookWarning, match="this run has none: give work_dir= to the run, or a directory to this hook"):
        fake_training([TensorBoardHook()])


def test_configuration_and_model_are_texts_and_hparams(tmp_path):
    config = {"lr": 0.5, "model": {"type": "mlp"}, "token": "x"}
    fake_training([TensorBoardHook()], work_dir=tmp_path, config=config, scores=lambda epoch: {"accuracy": 0.5})
    found = events(tmp_path / "logs" / "tensorboard")
    assert '"type": "mlp"' in texts(found, "config")[0]
    assert "|  | Sequential | 26 | 26 |" in texts(found, "model")[0]  # 3 * 4 + 4 and 4 * 2 + 2
    start = found.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    assert all(key in start for key in (b"lr", b"model.type", b"mlp", b"token", b"***"))
    assert b"val/accuracy" in found.SummaryMetadata("_hparams_/experiment").plugin_data.content


def test_the_graph_is_traced_with_the_first_batch(tmp_path):
    fake_training([TensorBoardHook(log_graph=True)], work_dir=tmp_path)
    assert "Linear" in str(events(tmp_path / "logs" / "tensorboard").Graph())


def test_a_model_that_cannot_be_traced_gives_one_warning(tmp_path):
    with pytest.warns(HookWarning, match="log_graph: the model cannot be traced with the first batch") as caught:
        trained_with(TensorBoardHook(log_graph=True), ["a", "b"], tmp_path)
    assert len(caught) == 1


@pytest.mark.parametrize(
    ("batch", "pixel"),
    [
        (torch.full((2, 3, 4, 4), 200, dtype=torch.uint8), 200),
        (torch.full((2, 3, 4, 4), 0.5), 128),
        ((torch.full((2, 4, 4, 1), 0.25), torch.zeros(2)), 64),
    ],
)
def test_pictures_that_go_into_the_model_are_shown_as_they_are(tmp_path, batch, pixel):
    from io import BytesIO

    from PIL import Image

    trained_with(TensorBoardHook(log_images=True, image_interval=2, max_images=1), batch, tmp_path)
    found = events(tmp_path / "logs" / "tensorboard")
    assert found.Tags()["images"] == ["input/0"]
    (shown,) = found.Images("input/0")
    assert set(Image.open(BytesIO(shown.encoded_image_string)).convert("RGB").get_flattened_data()) == {(pixel,) * 3}


def test_a_batch_without_pictures_gives_one_warning(tmp_path):
    with pytest.warns(HookWarning, match="log_images: the batch holds no pictures") as caught:
        trained_with(TensorBoardHook(log_images=True, image_interval=1), torch.zeros(2, 3), tmp_path)
    assert len(caught) == 1


def test_distributions_are_those_of_weights_and_gradients_at_an_update(tmp_path):
    hook = TensorBoardHook(log_weights=True, log_gradients=True, histogram_interval=2)
    fake_training([hook], epochs=1, batches=4, work_dir=tmp_path)
    found = events(tmp_path / "logs" / "tensorboard")
    names = [
        f"{kind}/{layer}.{part}" for kind in ("weights", "gradients") for layer in "02" for part in ("weight", "bias")
    ]
    assert sorted(found.Tags()["histograms"]) == sorted(names)
    assert [each.step for each in found.Histograms("weights/0.weight")] == [1, 3]  # before the updates 2 and 4


def train_spread(hook, work_dir):
    """Two updates of a model whose weights are spread over processes; here over one."""
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


def test_weights_that_are_spread_over_processes_are_not_looked_at(tmp_path):
    hook = TensorBoardHook(log_graph=True, log_weights=True, histogram_interval=1)
    with pytest.warns(HookWarning, match="log_graph: the weights are spread over several processes") as caught:
        train_spread(hook, tmp_path)

    assert len(caught) == 1
    assert events(tmp_path / "logs" / "tensorboard").Tags()["histograms"] == []
