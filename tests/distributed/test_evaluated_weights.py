"""Weights that a hook exchanges for validations, with several ranks: best files contain them, and runs resume."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hookbus.checkpoint.state import read_checkpoint
from hookbus.testing import fingerprint
from tests.torch_versions import requires_torch

if TYPE_CHECKING:
    from tests.distributed.conftest import Launch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # each launch has its own time limit

TRAINING = """
    import contextlib, json, os, toys, torch
    from hookbus import Hook
    from hookbus.distributed.sharding import to_full_tensors
    from hookbus_checkpoint import CheckpointHook
    from torch.utils.data import DataLoader

    class Halve(Hook):
        def before_train(self, run):
            run.around_validation(self.applied)

        @contextlib.contextmanager
        def applied(self):
            parameters = list(self.run.model.parameters())
            raw = [parameter.detach().clone() for parameter in parameters]
            with torch.no_grad():
                for parameter in parameters:
                    parameter.mul_(0.5)
            yield
            with torch.no_grad():
                for parameter, value in zip(parameters, raw):
                    parameter.copy_(value)

    settings = json.loads(os.environ["SETTINGS"])
    hooks = [Halve(), CheckpointHook(best_metric="loss", max_keep_ckpts=9)]
    trainer = toys.trainer(hooks=hooks, val_loader=DataLoader(toys.data(40), 8), **settings)
    run = trainer.fit()
    weights = to_full_tensors(dict(trainer.model.state_dict())).values()
    best = run.best["val/loss"]
    report({
        "weights": torch.cat([tensor.detach().flatten() for tensor in weights]).tolist(),
        "best": [best.value, best.weights, str(best.path)],
    })
"""

FSDP2 = {"distributed": "fsdp2", "fsdp2": {"wrap": ["Linear"]}}


@pytest.mark.parametrize(
    "setup", [pytest.param(FSDP2, id="fsdp2", marks=requires_torch("distributed: fsdp2")), pytest.param({}, id="ddp")]
)
def test_best_file_contains_the_weights_of_the_score(setup: dict[str, Any], launch: Launch, tmp_path: Path) -> None:
    def train(**settings: Any) -> dict[str, Any]:
        environment = {"SETTINGS": json.dumps({**settings, **setup})}
        reports: dict[int, dict[str, Any]] = launch(TRAINING, ranks=2, environment=environment).reports
        assert reports[0] == reports[1]
        return reports[0]

    complete = train(epochs=2, work_dir=str(tmp_path / "complete"))
    first = train(epochs=1, work_dir=str(tmp_path / "run"))
    assert first["best"][1] == "evaluated"
    saved = read_checkpoint(first["best"][2])
    halves = {name: value / 2 for name, value in saved["training_weights"].items()}
    assert fingerprint(halves) == fingerprint(saved["state_dict"])
    resumed = train(epochs=2, work_dir=str(tmp_path / "run"), resume="auto")
    assert resumed["weights"] == complete["weights"]
    assert resumed["best"][:2] == complete["best"][:2]
