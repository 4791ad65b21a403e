"""Bit-exact resume of a run with two ranks, after a preemption and after a restart by torchrun."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest
import torch

if TYPE_CHECKING:
    from tests.distributed.conftest import Launch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

PREEMPT_AND_RESUME = '''
    import os, signal, toys, torch
    from torch import nn
    from hookbus import Hook
    from hookbus.data.rng import get_rng_state
    from hookbus_checkpoint import CheckpointHook, PreemptionHook

    class SendSignal(Hook):
        """Send SIGTERM to rank 1 in the middle of an accumulation."""
        def before_train_iter(self, run):
            if RANK == 1 and run.iters_done == 4 and not run.metadata:
                os.kill(os.getpid(), signal.SIGTERM)

    class RecordLosses(Hook):
        def __init__(self):
            super().__init__()
            self.values = []

        def after_train_iter(self, run, loss):
            self.values.append([run.iters_done, float(loss)])

    class RecordWindows(Hook):
        """Record the means of every 3 optimizer steps of this rank."""
        def __init__(self):
            super().__init__()
            self.means = []

        def after_optimizer_step(self, run, step):
            if step % 3 == 0:
                run.request_record(run.metrics.window("local"), self.record)

        def record(self, means, step):
            self.means.append([step, dict(means)])

    def fit(work_dir, resume="never", hooks=()):
        model = toys.net()
        model.insert(2, nn.Dropout(0.3))
        losses, windows = RecordLosses(), RecordWindows()
        trainer = toys.trainer(
            model, epochs=3, accumulate=2, work_dir=work_dir, resume=resume,
            train_loader=toys.loader(8, count=56),
            hooks=[losses, windows, CheckpointHook(by_epoch=False, interval=3), PreemptionHook(), *hooks],
        )
        run = trainer.fit()
        return {
            "outcome": run.outcome, "iters": run.iters_done, "losses": losses.values, "windows": windows.means,
            "weights": toys.flat_weights(trainer.model), "rng": get_rng_state()["torch"].tolist(), "id": run.id,
            "files": [os.path.relpath(path) for path in (run.work_dir.path, run.get("checkpoints_dir"))],
        }

    uninterrupted = fit("uninterrupted")
    preempted = fit("preempted", hooks=[SendSignal()])
    resumed = fit("preempted", resume="auto", hooks=[SendSignal()])
    report({"uninterrupted": uninterrupted, "preempted": preempted, "resumed": resumed})
'''


@pytest.fixture(scope="module")
def reports(module_launch: Launch) -> dict[int, Any]:
    """Reports of an uninterrupted, a preempted and the resumed run, by rank."""
    return module_launch(PREEMPT_AND_RESUME).reports


class TestPreemptionOfOneRank:
    def test_preemption_ends_all_ranks_after_the_same_iteration(self, reports: dict[int, Any]) -> None:
        preempted = [reports[rank]["preempted"] for rank in (0, 1)]

        assert [(report["outcome"], report["iters"]) for report in preempted] == [("preempted", 5)] * 2

    @pytest.mark.parametrize("rank", [0, 1])
    def test_resumed_run_is_bitwise_identical_on_each_rank(self, rank: int, reports: dict[int, Any]) -> None:
        names = ("uninterrupted", "preempted", "resumed")
        uninterrupted, preempted, resumed = (reports[rank][name] for name in names)

        assert resumed["outcome"] == uninterrupted["outcome"] == "finished"
        for key in ("iters", "weights", "rng"):
            assert resumed[key] == uninterrupted[key]
        assert preempted["losses"] + resumed["losses"] == uninterrupted["losses"]
        assert preempted["windows"] + resumed["windows"] == uninterrupted["windows"]

    def test_ranks_have_different_batches_and_rng_states(self, reports: dict[int, Any]) -> None:
        first, second = (reports[rank]["uninterrupted"] for rank in (0, 1))

        assert first["weights"] == second["weights"]
        assert first["losses"] != second["losses"]
        assert first["rng"] != second["rng"]

    def test_all_ranks_have_the_same_work_directory_and_run_id(self, reports: dict[int, Any]) -> None:
        first, second = (reports[rank]["preempted"] for rank in (0, 1))

        assert first["files"] == second["files"] == ["preempted", "preempted/checkpoints"]
        assert first["id"] == second["id"] == reports[0]["resumed"]["id"] == reports[1]["resumed"]["id"]


KILL_HOOK = """
    import os, signal

    import torch
    import toys
    from hookbus import Hook, HookConfig
    from hookbus import Splits


    def points():
        return Splits(toys.data(), toys.data())


    class KillConfig(HookConfig):
        at: int


    class KillHook(Hook):
        Config = KillConfig

        def after_train_iter(self, run):
            first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
            if first and os.environ["RANK"] == "1" and run.iters_done == self.config.at:
                os.kill(os.getpid(), signal.SIGKILL)
"""

RUN = """
    work_dir: NAME
    model: {type: "toys:net"}
    dataset: {type: "parts:points", batch_size: 8}
    optimizer: {type: SGD, lr: 0.1, momentum: 0.9}
    metrics: [accuracy]
    training: {epochs: 3}
    device: cpu
    resume: auto
    hooks:
      - {type: jsonl, interval: 2}
      - {type: checkpoint, by_epoch: false, interval: 2}
      - {type: "parts:KillHook", at: AT}
"""


def read_rows(directory: Path) -> list[dict[str, Any]]:
    """Return the training and validation rows of the log, without their times."""
    lines = [json.loads(line) for line in (directory / "logs" / "metrics.jsonl").read_text().splitlines()]
    return [{**line, "time": None} for line in lines if line["kind"] in ("train", "val")]


def test_run_that_torchrun_restarts_after_a_kill_matches_a_full_run(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "parts.py").write_text(dedent(KILL_HOOK))
    for name, at in (("full", "0"), ("killed", "7")):
        (tmp_path / f"{name}.yaml").write_text(dedent(RUN).replace("NAME", name).replace("AT", at))
    launch("-m", "hookbus", "train", "full.yaml")
    completed = launch("-m", "hookbus", "train", "killed.yaml", options=["--max-restarts", "2"], time_limit=110)

    assert "Resumed from killed/checkpoints/" in completed.output(0, attempt=1), completed.full_output
    assert "Resumed" not in completed.output(1, attempt=1), completed.full_output
    assert not completed.output(0, attempt=2)
    weights = [torch.load(tmp_path / name / "checkpoints" / "last.pth")["state_dict"] for name in ("full", "killed")]
    assert all(torch.equal(weight, weights[1][key]) for key, weight in weights[0].items())
    assert read_rows(tmp_path / "killed") == read_rows(tmp_path / "full")
    assert json.loads((tmp_path / "killed" / "status.json").read_text())["outcome"] == "finished"
