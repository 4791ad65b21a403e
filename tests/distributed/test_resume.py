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

STOP_AND_GO_ON = '''
    import os, signal, toys, torch
    from torch import nn
    from hookbus import Hook
    from hookbus.training.rng import get_rng_state
    from hookbus_checkpoint import CheckpointHook, PreemptionHook

    class Signal(Hook):
        """Rank 1 is told to leave, in the middle of an accumulation."""
        def before_train_iter(self, run):
            if RANK == 1 and run.iters_done == 4 and not run.about:
                os.kill(os.getpid(), signal.SIGTERM)

    class Losses(Hook):
        def __init__(self):
            super().__init__()
            self.seen = []

        def after_train_iter(self, run, loss):
            self.seen.append([run.iters_done, float(loss)])

    class Windows(Hook):
        """The means of every 3 updates, on each rank its own."""
        def __init__(self):
            super().__init__()
            self.seen = []

        def after_optimizer_step(self, run, step):
            if step % 3 == 0:
                run.request_record(run.metrics.window("mine"), self.note)

        def note(self, means, step):
            self.seen.append([step, dict(means)])

    def fit(work_dir, resume="never", hooks=()):
        model = toys.net()
        model.insert(2, nn.Dropout(0.3))
        losses, windows = Losses(), Windows()
        trainer = toys.trainer(
            model, epochs=3, accumulate=2, work_dir=work_dir, resume=resume,
            train_loader=toys.loader(8, count=56),
            hooks=[losses, windows, CheckpointHook(by_epoch=False, interval=3), PreemptionHook(), *hooks],
        )
        run = trainer.fit()
        return {
            "outcome": run.outcome, "iters": run.iters_done, "losses": losses.seen, "windows": windows.seen,
            "weights": toys.numbers(trainer.model), "rng": get_rng_state()["torch"].tolist(), "id": run.id,
            "files": [str(run.work_dir.path), str(run.get("checkpoints_dir"))],
        }

    whole = fit("whole")
    stopped = fit("stopped", hooks=[Signal()])
    answer({"whole": whole, "stopped": stopped, "resumed": fit("stopped", resume="auto", hooks=[Signal()])})
'''


@pytest.fixture(scope="module")
def answers(launch_once: Launch) -> dict[int, Any]:
    """What a whole run, one that was stopped, and the one that went on from there have seen, by rank."""
    return launch_once(STOP_AND_GO_ON).answers


class TestARunThatOneRankWasToldToLeave:
    def test_ends_on_all_after_the_same_iteration(self, answers: dict[int, Any]) -> None:
        stopped = [answers[rank]["stopped"] for rank in (0, 1)]

        assert [(each["outcome"], each["iters"]) for each in stopped] == [("preempted", 5)] * 2

    @pytest.mark.parametrize("rank", [0, 1])
    def test_goes_on_to_the_same_bits_on_each_rank(self, rank: int, answers: dict[int, Any]) -> None:
        whole, stopped, resumed = (answers[rank][name] for name in ("whole", "stopped", "resumed"))

        assert resumed["outcome"] == whole["outcome"] == "finished"
        for exact in ("iters", "weights", "rng"):
            assert resumed[exact] == whole[exact]
        assert stopped["losses"] + resumed["losses"] == whole["losses"]
        assert stopped["windows"] + resumed["windows"] == whole["windows"]

    def test_its_ranks_have_seen_different_batches_and_streams(self, answers: dict[int, Any]) -> None:
        first, second = (answers[rank]["whole"] for rank in (0, 1))

        assert first["weights"] == second["weights"]
        assert first["losses"] != second["losses"]
        assert first["rng"] != second["rng"]

    def test_all_ranks_know_its_directory_and_id(self, answers: dict[int, Any]) -> None:
        first, second = (answers[rank]["stopped"] for rank in (0, 1))

        assert first["files"] == second["files"] == ["stopped", "stopped/checkpoints"]
        assert first["id"] == second["id"] == answers[0]["resumed"]["id"] == answers[1]["resumed"]["id"]


PARTS = """
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


def rows(directory: Path) -> list[dict[str, Any]]:
    """The rows of training and validation in the log, without the time."""
    lines = [json.loads(line) for line in (directory / "logs" / "metrics.jsonl").read_text().splitlines()]
    return [{**line, "time": None} for line in lines if line["kind"] in ("train", "val")]


def test_torchrun_starts_a_killed_run_again_and_it_goes_on(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "parts.py").write_text(dedent(PARTS))
    for name, at in (("whole", "0"), ("killed", "7")):
        (tmp_path / f"{name}.yaml").write_text(dedent(RUN).replace("NAME", name).replace("AT", at))
    launch("-m", "hookbus", "train", "whole.yaml")
    done = launch("-m", "hookbus", "train", "killed.yaml", options=["--max-restarts", "2"], limit=110)

    assert "Resumed from killed/checkpoints/" in done.output(0, attempt=1), done.story
    assert "Resumed" not in done.output(1, attempt=1), done.story
    assert not done.output(0, attempt=2)
    weights = [torch.load(tmp_path / name / "checkpoints" / "last.pth")["state_dict"] for name in ("whole", "killed")]
    assert all(torch.equal(whole, weights[1][key]) for key, whole in weights[0].items())
    assert rows(tmp_path / "killed") == rows(tmp_path / "whole")
    assert json.loads((tmp_path / "killed" / "status.json").read_text())["outcome"] == "finished"
