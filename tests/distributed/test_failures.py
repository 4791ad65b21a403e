from __future__ import annotations

from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest

from hookbus.state import find_newest

if TYPE_CHECKING:
    from tests.distributed.conftest import Launch, Launched

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

PARTS = """
    import os, signal, time

    import torch
    import toys
    from hookbus import Hook, HookConfig
    from hookbus import Splits

    RANK = int(os.environ["RANK"])


    def points():
        return Splits(toys.data(), toys.data())


    class TroubleConfig(HookConfig):
        kind: str = ""


    class TroubleHook(Hook):
        Config = TroubleConfig

        @property
        def kind(self):
            return self.config.kind

        def before_train(self, run):
            if RANK == 1 and self.kind == "in backward":
                list(run.model.parameters())[0].register_hook(self.fail)  # reached when most gradients are on their way

        def before_train_iter(self, run):
            if RANK == 1 and run.iter == 2 and self.kind == "in a hook":
                raise ValueError("no such colour")
            if RANK == 1 and run.iter == 2 and self.kind == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if RANK == 1 and run.iter == 2 and self.kind == "interrupted":
                raise KeyboardInterrupt

        def cleanup(self, run):
            print("cleanup of rank", RANK)

        def fail(self, grad):
            raise ValueError("no such colour")
"""

RUN = """
    work_dir: runs
    model: {type: "toys:net"}
    dataset: {type: "parts:points", batch_size: 8}
    optimizer: {type: SGD, lr: 0.1}
    training: {epochs: 2}
    device: cpu
    default_hooks: false
    hooks:
      - {type: "parts:TroubleHook", kind: KIND}
"""


def trained(launch: Launch, directory: Path, kind: str) -> Launched:
    """A training by the command line, in which rank 1 gets into trouble."""
    (directory / "parts.py").write_text(dedent(PARTS))
    (directory / "run.yaml").write_text(dedent(RUN).replace("KIND", kind))
    patient = ["--monitor-interval", "5"]  # torchrun ends the other ranks when it sees that one has failed
    return launch("-m", "hookbus", "train", "run.yaml", options=patient, succeeds=False)


@pytest.mark.parametrize("where", ["in a hook", "in backward"])
def test_an_error_of_one_rank_ends_all_and_is_shown_once(where: str, launch: Launch, tmp_path: Path) -> None:
    done = trained(launch, tmp_path, where)

    assert done.returncode == 1, done.story
    assert done.output(1).count("Traceback") == 1, done.story
    assert done.output(1).count("ValueError: no such colour") == 1, done.story
    assert "Traceback" not in done.output(0), done.story
    told = "error: rank 0 ends because of another rank: rank 1 failed: ValueError: no such colour"
    assert done.output(0).count(told) == 1, done.story
    assert [done.output(rank).count(f"cleanup of rank {rank}") for rank in (0, 1)] == [1, 1], done.story


def test_a_rank_that_is_killed_ends_all(launch: Launch, tmp_path: Path) -> None:
    done = trained(launch, tmp_path, "killed")

    assert done.returncode == 1, done.story
    reason = "another rank exited without reporting an error"
    assert f"rank 0 ends because of another rank: {reason}" in done.output(0), done.story
    assert "Traceback" not in done.output(0), done.story


def test_control_c_at_once_on_one_rank_ends_all(launch: Launch, tmp_path: Path) -> None:
    done = trained(launch, tmp_path, "interrupted")

    assert done.returncode == 1, done.story
    assert "interrupted" in done.output(1), done.story
    assert "rank 1 failed: KeyboardInterrupt" in done.output(0), done.story


AT_ODDS = '''
    import toys
    from torch.utils.data import DataLoader
    from hookbus import Hook
    from hookbus.errors import HookbusError
    from hookbus_runtime import OutOfMemoryHook

    class Calm(Hook):
        pass

    class Other(Hook):
        pass

    class Counted:
        """A loader of its own length on each rank, which divides the data by itself."""
        def __init__(self, count):
            self.count = count

        def __len__(self):
            return self.count

        def __iter__(self):
            return iter([toys.data()[:8]] * self.count)

    def told(**settings):
        try:
            toys.trainer(**settings).fit()
        except HookbusError as error:
            return [type(error).__name__, *str(error).splitlines()]

    found = {
        "other hook": told(hooks=[Calm(), [Calm, Other][RANK](name="second")]),
        "other order": told(hooks=[Calm(name="ab"[RANK]), Calm(name="ba"[RANK])]),
        "other settings": told(hooks=[Calm(priority=[10, 20][RANK])]),
        "a hook more": told(hooks=[Calm()] * RANK),
        "a step made again": told(hooks=[OutOfMemoryHook(retry=True)]),
        "lengths": told(train_loader=Counted(3 + RANK)),
        "afterwards": told(hooks=[Calm()]),
    }
    answer(found)
'''


def test_ranks_that_are_at_odds_say_so_instead_of_waiting(launch: Launch) -> None:
    answers = launch(AT_ODDS).answers
    difference = "The hooks of the ranks differ at position {}. Register the same hooks in one order on every rank:"

    assert answers[0] == answers[1]
    assert answers[0] == {
        "other hook": [
            "RankError",
            difference.format(2),
            "  rank 0: second: Calm of your script, priority 50",
            "  rank 1: second: Other of your script, priority 50",
        ],
        "other order": [
            "RankError",
            difference.format(1),
            "  rank 0: a: Calm of your script, priority 50",
            "  rank 1: b: Calm of your script, priority 50",
        ],
        "other settings": [
            "RankError",
            difference.format(1),
            "  rank 0: calm: Calm of your script, priority 10",
            "  rank 1: calm: Calm of your script, priority 20",
        ],
        "a hook more": [
            "RankError",
            difference.format(1),
            "  rank 0: none",
            "  rank 1: calm: Calm of your script, priority 50",
        ],
        "a step made again": [
            "ConfigError",
            "hook 'out_of_memory': `retry` requires a single process, got 2 ranks: a rank that repeats its step would "
            "block the others. Set `retry: false`, and use smaller batches with accumulation.",
        ],
        "lengths": [
            "RankError",
            "The training loaders of the ranks must have the same number of batches, got 3, 4. Make the sampler drop "
            "or repeat samples, as DistributedSampler does.",
        ],
        "afterwards": None,
    }


MISTAKEN = """
    work_dir: runs
    model: {type: "toys:net"}
    dataset: {type: "parts:points", batch_size: 8}
    optimizer: {type: SGD, lr: 0.1}
    training: TRAINING
    device: cpu
    default_hooks: false
"""


@pytest.mark.parametrize(
    ("training", "said"),
    [
        pytest.param("{epochs: two}", "run.yaml:5:20: training.epochs: ", id="in the file"),
        pytest.param(
            "{epochs: 1, distributed: fsdp2, fsdp2: {mesh: [3]}}",
            "fsdp2.mesh: the product must be the number of processes (2), got [3].",
            id="found by all together",
        ),
    ],
)
def test_a_mistake_of_the_user_is_told_once(training: str, said: str, launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "parts.py").write_text(dedent(PARTS))
    (tmp_path / "run.yaml").write_text(dedent(MISTAKEN).replace("TRAINING", training).lstrip())

    patient = ["--monitor-interval", "5"]
    done = launch("-m", "hookbus", "train", "run.yaml", options=patient, succeeds=False)

    assert done.output(0).count(said) == 1, done.story
    assert done.output(1) == "", done.story
    assert done.agent.count("exitcode  : 2") == 2, done.story


def test_a_mistake_on_one_rank_alone_is_told_by_that_rank(launch: Launch, tmp_path: Path) -> None:
    of_each = """
        import sys
        from hookbus.cli import main

        sys.argv = ["hookbus", "train", f"run{RANK}.yaml"]
        main()
    """
    (tmp_path / "parts.py").write_text(dedent(PARTS))
    for rank, training in enumerate(["{epochs: 1}", "{epochs: two}"]):
        (tmp_path / f"run{rank}.yaml").write_text(dedent(MISTAKEN).replace("TRAINING", training).lstrip())

    done = launch(of_each, succeeds=False)

    assert done.returncode == 1, done.story
    assert done.output(1).count("rank 1: run1.yaml:5:20: training.epochs: ") == 1, done.story


WHILE_SAVING = """
    import sys

    import toys
    from hookbus import Hook
    from hookbus_checkpoint import CheckpointHook

    class Fails(Hook):
        def after_train_iter(self, run):
            if RANK == 1 and run.iters_done == 5:
                raise ValueError("no such colour")

    saving = CheckpointHook(interval=1, by_epoch=False, save_best=False, async_save=True)
    spread = {"distributed": "fsdp2", "fsdp2": {"wrap": ["Linear"]}}
    try:
        toys.trainer(hooks=[saving, Fails()], work_dir=sys.argv[1], **spread).fit()
    except BaseException as error:
        answer([type(error).__name__, str(error)])
"""


def test_an_error_while_spread_weights_are_written_on_another_thread_ends_all(launch: Launch, tmp_path: Path) -> None:
    found = launch(WHILE_SAVING, str(tmp_path / "run")).answers

    assert found[1] == ["ValueError", "no such colour"]
    assert found[0] == ["RankError", "rank 0 ends because of another rank: rank 1 failed: ValueError: no such colour"]
    newest = find_newest(tmp_path / "run/checkpoints")
    assert newest is not None
    assert newest[0].name in ("iter_3.pth", "iter_4.pth", "last.pth")
