"""Training with weights that are spread over real processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from hookbus.checkpoints.generations import generations_in, read_manifest
from hookbus.commands.consolidate import consolidate
from hookbus.state import read_checkpoint

if TYPE_CHECKING:
    from tests.distributed.conftest import Launch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # each launch has a limit of its own

TRAINING = """
    import json, os, toys, torch
    from hookbus.model.layouts import is_spread, whole
    from hookbus_checkpoint import CheckpointHook
    from hookbus_ema import EMAHook
    from torch.utils.data import DataLoader

    def numbers(tensors):
        return torch.cat([each.detach().flatten() for each in whole(dict(tensors)).values()]).tolist()

    settings = json.loads(os.environ["SETTINGS"])
    epochs = settings.pop("stop_at", None)
    hooks = [EMAHook(momentum=0.9), CheckpointHook(best_metric="loss", max_keep_ckpts=2)]
    trainer = toys.trainer(hooks=hooks, val_loader=DataLoader(toys.data(40), 8), metrics=["accuracy"], **settings)
    run = trainer.fit() if epochs is None else trainer.fit(epochs=epochs)
    answer(
        {
            "weights": numbers(trainer.model.state_dict()),
            "averaged": numbers(run.weights.averaged()),
            "spread": [is_spread(each) for each in trainer.model.parameters()],
            "val": dict(run.metrics.results),
            "best": {name: [best.value, best.epoch, str(best.path)] for name, best in run.best.items()},
            "files": hooks[1].state_dict()["periodic"],
            "steps": run.steps_done,
        }
    )
"""


def trained(launch: Launch, ranks: int, **settings: Any) -> dict[int, Any]:
    return launch(TRAINING, ranks=ranks, environment={"SETTINGS": json.dumps(settings)}).answers


FSDP2 = {"distributed": "fsdp2", "fsdp2": {"wrap": ["Linear"]}}


def test_weights_averages_and_results_are_those_of_one_process(launch: Launch, tmp_path: Path) -> None:
    one = trained(launch, 1, batch_size=16, epochs=5, work_dir=str(tmp_path / "one"))[0]
    spread = trained(launch, 2, batch_size=8, epochs=5, work_dir=str(tmp_path / "two"), clip_grad_norm=None, **FSDP2)

    assert spread[0] == spread[1]
    assert all(spread[0]["spread"])
    assert not any(one["spread"])
    assert spread[0]["steps"] == one["steps"] == 20
    assert spread[0]["weights"] == pytest.approx(one["weights"], rel=0, abs=1e-12)
    assert spread[0]["averaged"] == pytest.approx(one["averaged"], rel=0, abs=1e-12)
    assert spread[0]["val"] == pytest.approx(one["val"], rel=0, abs=1e-12)
    assert spread[0]["files"] == ["epoch_4.pth", "epoch_5.pth"]
    named = {read_manifest(directory)["generation"] for _, directory in generations_in(tmp_path / "two/checkpoints")}
    assert 2 <= len(named) <= 3, "the last two, and the best one"
    path = consolidate(tmp_path / "two/checkpoints/last.pth", tmp_path / "whole.pth")
    numbers = torch.cat([each.flatten() for each in read_checkpoint(path)["state_dict"].values()])
    assert numbers.tolist() == spread[0]["weights"]


def test_a_training_goes_on_with_as_many_processes_bit_for_bit(launch: Launch, tmp_path: Path) -> None:
    straight = trained(launch, 2, epochs=4, work_dir=str(tmp_path / "a"), **FSDP2)
    settings = {"epochs": 4, "work_dir": str(tmp_path / "b"), "resume": "auto", **FSDP2}
    trained(launch, 2, stop_at=2, **settings)
    resumed = trained(launch, 2, **settings)

    del straight[0]["best"], resumed[0]["best"]
    assert resumed[0] == straight[0]


def test_a_training_goes_on_with_one_process_and_with_four(launch: Launch, tmp_path: Path) -> None:
    settings = {"epochs": 6, "work_dir": str(tmp_path), "resume": "auto"}
    two = trained(launch, 2, stop_at=2, batch_size=8, **settings, **FSDP2)
    one = trained(launch, 1, stop_at=4, batch_size=16, **settings)
    four = trained(launch, 4, batch_size=4, **settings, distributed="fsdp2", fsdp2={"mesh": [2, 2]})
    straight = trained(launch, 1, batch_size=16, epochs=6, work_dir=str(tmp_path / "other"))

    assert [each[0]["steps"] for each in (two, one, four)] == [8, 16, 24]
    assert four[0]["weights"] == pytest.approx(straight[0]["weights"], rel=0, abs=1e-12)
    assert four[0]["averaged"] == pytest.approx(straight[0]["averaged"], rel=0, abs=1e-12)


BEGINNING = """
    import sys
    import toys, torch
    from hookbus import Hook
    from hookbus.model.layouts import whole
    from hookbus_checkpoint import CheckpointHook

    def numbers(tensors):
        return torch.cat([each.detach().flatten() for each in whole(dict(tensors)).values()]).tolist()

    class Beginning(Hook):
        def before_train(self, model):
            self.weights = numbers(model.state_dict())

    spread = {"distributed": "fsdp2", "epochs": 1}
    trainer = toys.trainer(hooks=[CheckpointHook()], work_dir=sys.argv[1], **spread)
    trainer.fit()
    found = {"trained": numbers(trainer.model.state_dict())}
    if RANK == 0:
        from pathlib import Path
        from hookbus.commands.consolidate import consolidate

        consolidate(Path(sys.argv[1], "checkpoints/last.pth"), Path(sys.argv[1], "whole.pth"))
    trainer.ranks.barrier("one file is there")
    for name in ("whole.pth", "checkpoints/last.pth", "checkpoints/generation_1"):
        hook = Beginning()
        begun = toys.trainer(hooks=[hook], load_from=f"{sys.argv[1]}/{name}", **spread)
        lines = begun.check()
        begun.fit()
        found[name] = hook.weights
        found[f"{name} was checked"] = any(line.startswith("load_from: ") for line in lines)
    answer(found)
"""


def test_a_run_begins_from_the_weights_of_one_file_and_of_a_generation(launch: Launch, tmp_path: Path) -> None:
    done = launch(BEGINNING, str(tmp_path / "run"))
    found = done.answers[1]

    assert done.answers[0] == found
    for name in ("whole.pth", "checkpoints/last.pth", "checkpoints/generation_1"):
        assert found[name] == found["trained"], name
        assert found[f"{name} was checked"]


NORMS = """
    import sys
    import toys, torch
    from torch import nn
    from torch.utils.data import DataLoader
    from hookbus.model.layouts import whole
    from hookbus_checkpoint import CheckpointHook

    class Centred(nn.Module):
        # uses the buffer that it changes
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(8))

        def forward(self, x):
            if self.training:
                self.mean.lerp_(x.detach().mean(0), 0.1)
            return x - self.mean

    def train(distributed, work_dir, **settings):
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(4, 8), Centred(), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2)).double()
        options = {"val_loader": DataLoader(toys.data(24), 8), "epochs": 4, **settings}
        trainer = toys.trainer(
            model, distributed=distributed, work_dir=f"{sys.argv[1]}/{work_dir}", hooks=[CheckpointHook()], **options
        )
        run = trainer.fit()
        state, weights = whole(dict(trainer.model.state_dict())), whole(dict(trainer.model.named_parameters()))
        return {
            "numbers": torch.cat([each.double().flatten() for each in state.values()]).tolist(),
            "weights": torch.cat([each.detach().flatten() for each in weights.values()]).tolist(),
            "val": dict(run.metrics.results),
        }

    found = {kind: train(kind, kind) for kind in ("ddp", "fsdp2")}
    train("fsdp2", "again", epochs=2)
    found["again"] = train("fsdp2", "again", resume="auto")
    answer(found)
"""


def test_buffers_are_those_of_the_main_process_as_with_whole_models(launch: Launch, tmp_path: Path) -> None:
    found = launch(NORMS, str(tmp_path)).answers

    assert found[0]["fsdp2"]["numbers"] == pytest.approx(found[0]["ddp"]["numbers"], rel=0, abs=1e-12)
    assert found[0]["again"] == found[0]["fsdp2"]
    assert found[1]["fsdp2"]["weights"] == found[1]["again"]["weights"] == found[0]["fsdp2"]["weights"]


RUN_FILE = """
work_dir: runs/spread
seed: 0
model: {type: mlp}
dataset: {type: digits, batch_size: 128}
training: {epochs: 1, distributed: fsdp2, fsdp2: {wrap: [Linear]}}
metrics: [accuracy]
default_hooks: false
hooks:
  - {type: checkpoint}
  - {type: ema, momentum: 0.9}
"""


def test_a_run_file_says_how(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(RUN_FILE)
    launch("-m", "hookbus", "train", "run.yaml")
    folder = tmp_path / "runs/spread/checkpoints"

    assert read_manifest(folder / "generation_1")["processes"] == 2
    assert read_checkpoint(folder / "best_accuracy.pth").keys() >= {"state_dict", "ema_state_dict", "optimizer"}
    refused = launch("-m", "hookbus", "train", "run.yaml", "training.fsdp2.wrap=[Conv]", succeeds=False)
    assert refused.returncode != 0
    assert "fsdp2.wrap: the model has no module 'Conv'." in refused.output(0)
