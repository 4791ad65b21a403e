"""Training with sharded parameters (FSDP2)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from hookbus._cli.consolidate import consolidate
from hookbus.checkpoint.generations import iter_generations, read_manifest
from hookbus.checkpoint.state import read_checkpoint
from tests.torch_versions import requires_torch

if TYPE_CHECKING:
    from tests.distributed.conftest import Launch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # each launch has its own time limit

TRAINING = """
    import json, os, toys, torch
    from hookbus.distributed.sharding import is_sharded, to_full_tensors
    from hookbus_checkpoint import CheckpointHook
    from hookbus_ema import EMAHook
    from torch.utils.data import DataLoader

    def flatten(tensors):
        return torch.cat([tensor.detach().flatten() for tensor in to_full_tensors(dict(tensors)).values()]).tolist()

    settings = json.loads(os.environ["SETTINGS"])
    epochs = settings.pop("stop_at", None)
    hooks = [EMAHook(momentum=0.9), CheckpointHook(best_metric="loss", max_keep_ckpts=2)]
    trainer = toys.trainer(hooks=hooks, val_loader=DataLoader(toys.data(40), 8), metrics=["accuracy"], **settings)
    run = trainer.fit() if epochs is None else trainer.fit(epochs=epochs)
    report(
        {
            "weights": flatten(trainer.model.state_dict()),
            "averaged": flatten(run.weights.averaged()),
            "sharded": [is_sharded(parameter) for parameter in trainer.model.parameters()],
            "val": dict(run.metrics.results),
            "best": {name: [best.value, best.epoch, str(best.path)] for name, best in run.best.items()},
            "files": hooks[1].state_dict()["periodic"],
            "steps": run.steps_done,
        }
    )
"""


def train(launch: Launch, ranks: int, **settings: Any) -> dict[int, Any]:
    """Train the toy model and return the reports by rank."""
    return launch(TRAINING, ranks=ranks, environment={"SETTINGS": json.dumps(settings)}).reports


FSDP2 = {"distributed": "fsdp2", "fsdp2": {"wrap": ["Linear"]}}


@requires_torch("distributed: fsdp2")
def test_weights_averages_and_metrics_match_a_single_process_run(launch: Launch, tmp_path: Path) -> None:
    single = train(launch, 1, batch_size=16, epochs=5, work_dir=str(tmp_path / "one"))[0]
    sharded = train(launch, 2, batch_size=8, epochs=5, work_dir=str(tmp_path / "two"), clip_grad_norm=None, **FSDP2)

    assert sharded[0] == sharded[1]
    assert all(sharded[0]["sharded"])
    assert not any(single["sharded"])
    assert sharded[0]["steps"] == single["steps"] == 20
    assert sharded[0]["weights"] == pytest.approx(single["weights"], rel=0, abs=1e-12)
    assert sharded[0]["averaged"] == pytest.approx(single["averaged"], rel=0, abs=1e-12)
    assert sharded[0]["val"] == pytest.approx(single["val"], rel=0, abs=1e-12)
    assert sharded[0]["files"] == ["epoch_4.pth", "epoch_5.pth"]
    folder = tmp_path / "two/checkpoints"
    generations = {read_manifest(directory)["generation"] for _, directory in iter_generations(folder)}
    # the last two and the best one, which may be one of them
    assert 2 <= len(generations) <= 3
    path = consolidate(tmp_path / "two/checkpoints/last.pth", tmp_path / "whole.pth")
    weights = torch.cat([tensor.flatten() for tensor in read_checkpoint(path)["state_dict"].values()])
    assert weights.tolist() == sharded[0]["weights"]


@requires_torch("distributed: fsdp2")
def test_resume_with_the_same_number_of_ranks_is_bitwise_identical(launch: Launch, tmp_path: Path) -> None:
    uninterrupted = train(launch, 2, epochs=4, work_dir=str(tmp_path / "a"), **FSDP2)
    settings = {"epochs": 4, "work_dir": str(tmp_path / "b"), "resume": "auto", **FSDP2}
    train(launch, 2, stop_at=2, **settings)
    resumed = train(launch, 2, **settings)

    # the paths of the best checkpoints contain the work directory
    del uninterrupted[0]["best"], resumed[0]["best"]
    assert resumed[0] == uninterrupted[0]


@requires_torch("distributed: fsdp2")
def test_run_of_two_ranks_resumes_with_one_rank_and_with_four(launch: Launch, tmp_path: Path) -> None:
    settings = {"epochs": 6, "work_dir": str(tmp_path), "resume": "auto"}
    two = train(launch, 2, stop_at=2, batch_size=8, **settings, **FSDP2)
    one = train(launch, 1, stop_at=4, batch_size=16, **settings)
    four = train(launch, 4, batch_size=4, **settings, distributed="fsdp2", fsdp2={"mesh": [2, 2]})
    uninterrupted = train(launch, 1, batch_size=16, epochs=6, work_dir=str(tmp_path / "other"))

    assert [reports[0]["steps"] for reports in (two, one, four)] == [8, 16, 24]
    assert four[0]["weights"] == pytest.approx(uninterrupted[0]["weights"], rel=0, abs=1e-12)
    assert four[0]["averaged"] == pytest.approx(uninterrupted[0]["averaged"], rel=0, abs=1e-12)


SCHEDULE_FREE = """
    import json, os, toys, torch
    from hookbus import Trainer
    from hookbus.distributed.sharding import to_full_tensors
    from hookbus_checkpoint import CheckpointHook
    from schedulefree import SGDScheduleFree

    def flatten(tensors):
        return torch.cat([tensor.detach().flatten() for tensor in to_full_tensors(dict(tensors)).values()]).tolist()

    settings = json.loads(os.environ["SETTINGS"])
    stop_at = settings.pop("stop_at", None)
    hooks = [CheckpointHook(save_best=False)]
    toys.sgd = lambda model: lambda parameters: SGDScheduleFree(parameters, lr=0.5, foreach=False)
    trainer = toys.trainer(hooks=hooks, epochs=None, **settings)
    trainer.fit() if stop_at is None else trainer.fit(iterations=stop_at)
    trained = flatten(trainer.model.state_dict())
    trainer.optimizer.eval()
    report({"trained": trained, "evaluated": flatten(trainer.model.state_dict())})
"""


@pytest.mark.parametrize(
    "setup", [pytest.param(FSDP2, id="fsdp2", marks=requires_torch("distributed: fsdp2")), pytest.param({}, id="ddp")]
)
def test_schedule_free_training_saves_the_evaluated_weights_and_resumes(
    setup: dict[str, Any], launch: Launch, tmp_path: Path
) -> None:
    def train_schedule_free(**settings: Any) -> dict[str, Any]:
        environment = {"SETTINGS": json.dumps({**settings, **setup})}
        reports: dict[int, dict[str, Any]] = launch(SCHEDULE_FREE, ranks=2, environment=environment).reports
        assert reports[0] == reports[1]
        return reports[0]

    uninterrupted = train_schedule_free(iterations=11, work_dir=str(tmp_path / "uninterrupted"))
    settings = {"iterations": 11, "work_dir": str(tmp_path / "run"), "resume": "auto"}
    train_schedule_free(stop_at=6, **settings)
    resumed = train_schedule_free(**settings)

    assert resumed == uninterrupted
    saved = read_checkpoint(tmp_path / "run/checkpoints/last.pth")["state_dict"]
    assert torch.cat([tensor.flatten() for tensor in saved.values()]).tolist() == resumed["evaluated"]


INITIAL_WEIGHTS = """
    import sys
    import toys, torch
    from hookbus import Hook
    from hookbus.distributed.sharding import to_full_tensors
    from hookbus_checkpoint import CheckpointHook

    def flatten(tensors):
        return torch.cat([tensor.detach().flatten() for tensor in to_full_tensors(dict(tensors)).values()]).tolist()

    class RecordInitialWeights(Hook):
        def before_train(self, model):
            self.weights = flatten(model.state_dict())

    settings = {"distributed": "fsdp2", "epochs": 1}
    trainer = toys.trainer(hooks=[CheckpointHook()], work_dir=sys.argv[1], **settings)
    trainer.fit()
    results = {"train_with_settings": flatten(trainer.model.state_dict())}
    if RANK == 0:
        from pathlib import Path
        from hookbus._cli.consolidate import consolidate

        consolidate(Path(sys.argv[1], "checkpoints/last.pth"), Path(sys.argv[1], "whole.pth"))
    trainer.ranks.barrier("file is written")
    for name in ("whole.pth", "checkpoints/last.pth", "checkpoints/generation_1"):
        hook = RecordInitialWeights()
        loaded = toys.trainer(hooks=[hook], load_from=f"{sys.argv[1]}/{name}", **settings)
        lines = loaded.check()
        loaded.fit()
        results[name] = hook.weights
        # Rank 0 reads the files for all ranks.
        results[f"check of {name}"] = [line for line in lines if line.startswith("load_from: ")] != [] or RANK != 0
    report(results)
"""


@requires_torch("distributed: fsdp2")
def test_initial_weights_are_loaded_from_a_file_and_from_a_generation(launch: Launch, tmp_path: Path) -> None:
    completed = launch(INITIAL_WEIGHTS, str(tmp_path / "run"))
    results = completed.reports[1]

    assert completed.reports[0] == results
    for name in ("whole.pth", "checkpoints/last.pth", "checkpoints/generation_1"):
        assert results[name] == results["train_with_settings"], name
        assert completed.reports[0][f"check of {name}"]


NORMS = """
    import sys
    import toys, torch
    from torch import nn
    from torch.utils.data import DataLoader
    from hookbus.distributed.sharding import to_full_tensors
    from hookbus_checkpoint import CheckpointHook

    class Center(nn.Module):
        # the output depends on the buffer that the forward pass updates
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(8))

        def forward(self, x):
            if self.training:
                self.mean.lerp_(x.detach().mean(0), 0.1)
            return x - self.mean

    def train(distributed, work_dir, **settings):
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(4, 8), Center(), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2)).double()
        options = {"val_loader": DataLoader(toys.data(24), 8), "epochs": 4, **settings}
        trainer = toys.trainer(
            model, distributed=distributed, work_dir=f"{sys.argv[1]}/{work_dir}", hooks=[CheckpointHook()], **options
        )
        run = trainer.fit()
        state = to_full_tensors(dict(trainer.model.state_dict()))
        weights = to_full_tensors(dict(trainer.model.named_parameters()))
        return {
            "state": torch.cat([tensor.double().flatten() for tensor in state.values()]).tolist(),
            "weights": torch.cat([tensor.detach().flatten() for tensor in weights.values()]).tolist(),
            "val": dict(run.metrics.results),
        }

    results = {strategy: train(strategy, strategy) for strategy in ("ddp", "fsdp2")}
    train("fsdp2", "resumed", epochs=2)
    results["resumed"] = train("fsdp2", "resumed", resume="auto")
    report(results)
"""


@requires_torch("distributed: fsdp2")
def test_buffers_are_those_of_rank_0_as_with_ddp(launch: Launch, tmp_path: Path) -> None:
    reports = launch(NORMS, str(tmp_path)).reports

    assert reports[0]["fsdp2"]["state"] == pytest.approx(reports[0]["ddp"]["state"], rel=0, abs=1e-12)
    assert reports[0]["resumed"] == reports[0]["fsdp2"]
    assert reports[1]["fsdp2"]["weights"] == reports[1]["resumed"]["weights"] == reports[0]["fsdp2"]["weights"]


RUN_FILE = """
work_dir: runs/sharded
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


@requires_torch("distributed: fsdp2")
def test_run_file_configures_fsdp2(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(RUN_FILE)
    launch("-m", "hookbus", "train", "run.yaml")
    folder = tmp_path / "runs/sharded/checkpoints"

    assert read_manifest(folder / "generation_1")["processes"] == 2
    assert read_checkpoint(folder / "best_accuracy.pth").keys() >= {"state_dict", "ema_state_dict", "optimizer"}
    invalid = launch("-m", "hookbus", "train", "run.yaml", "training.fsdp2.wrap=[Conv]", succeeds=False)
    assert invalid.returncode != 0
    assert "fsdp2.wrap: the model has no module 'Conv'." in invalid.output(0)
