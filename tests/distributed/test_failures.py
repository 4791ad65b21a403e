"""Errors of one rank: they end all ranks, and are reported once."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest

from tests.checkpoints import find_latest_checkpoint
from tests.torch_versions import requires_torch

if TYPE_CHECKING:
    from tests.distributed.conftest import Launch, LaunchResult

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

FAILING_HOOK = """
    import os, signal, time

    import torch
    import toys
    from hookbus import Hook, HookConfig
    from hookbus import Splits

    RANK = int(os.environ["RANK"])


    def points():
        return Splits(toys.data(), toys.data())


    class FailureConfig(HookConfig):
        mode: str = ""


    class FailureHook(Hook):
        Config = FailureConfig

        @property
        def mode(self):
            return self.config.mode

        def before_train(self, run):
            if RANK == 1 and self.mode == "in backward":
                # the first parameter is the last one of the backward pass: other gradients are being reduced
                list(run.model.parameters())[0].register_hook(self.fail)

        def before_train_iter(self, run):
            if RANK == 1 and run.iter == 2 and self.mode == "in a hook":
                raise ValueError("no such color")
            if RANK == 1 and run.iter == 2 and self.mode == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if RANK == 1 and run.iter == 2 and self.mode == "interrupted":
                raise KeyboardInterrupt

        def cleanup(self, run):
            print("cleanup of rank", RANK)

        def fail(self, grad):
            raise ValueError("no such color")
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
      - {type: "parts:FailureHook", mode: MODE}
"""


TRAIN_FROM_FILE = """
    import sys
    from hookbus._cli.app import main

    sys.argv = ["hookbus", "train", "run.yaml"]
    main()
"""
"""Script of a rank. Without torchrun, whose next poll may terminate a rank that has not reported its error."""


def train_with_failure(launch: Launch, directory: Path, mode: str) -> LaunchResult:
    """Run `hookbus train` with a failure on rank 1."""
    (directory / "parts.py").write_text(dedent(FAILING_HOOK))
    (directory / "run.yaml").write_text(dedent(RUN).replace("MODE", mode))
    return launch(TRAIN_FROM_FILE, succeeds=False)


@pytest.mark.parametrize("mode", ["in a hook", "in backward"])
def test_error_of_one_rank_ends_all_ranks_and_is_printed_once(mode: str, launch: Launch, tmp_path: Path) -> None:
    completed = train_with_failure(launch, tmp_path, mode)

    assert completed.returncode == 1, completed.full_output
    assert completed.output(1).count("Traceback") == 1, completed.full_output
    assert completed.output(1).count("ValueError: no such color") == 1, completed.full_output
    assert "Traceback" not in completed.output(0), completed.full_output
    message = "error: rank 0 ends because of another rank: rank 1 failed: ValueError: no such color"
    assert completed.output(0).count(message) == 1, completed.full_output
    assert [completed.output(rank).count(f"cleanup of rank {rank}") for rank in (0, 1)] == [1, 1], completed.full_output


def test_killed_rank_ends_all_ranks(launch: Launch, tmp_path: Path) -> None:
    completed = train_with_failure(launch, tmp_path, "killed")

    assert completed.returncode == 1, completed.full_output
    reason = "another rank exited without reporting an error"
    assert f"rank 0 ends because of another rank: {reason}" in completed.output(0), completed.full_output
    assert "Traceback" not in completed.output(0), completed.full_output


def test_immediate_interrupt_of_one_rank_ends_all_ranks(launch: Launch, tmp_path: Path) -> None:
    completed = train_with_failure(launch, tmp_path, "interrupted")

    assert completed.returncode == 1, completed.full_output
    assert "interrupted" in completed.output(1), completed.full_output
    assert "rank 1 failed: KeyboardInterrupt" in completed.output(0), completed.full_output


MISMATCHES = '''
    import toys
    from torch.utils.data import DataLoader
    from hookbus import Hook
    from hookbus.errors import HookbusError
    from hookbus_runtime import OutOfMemoryHook

    class First(Hook):
        def before_train(self):
            pass

    class Second(First):
        pass

    class UnevenLoader:
        """Already sharded loader whose length differs between the ranks."""
        def __init__(self, count):
            self.count = count

        def __len__(self):
            return self.count

        def __iter__(self):
            return iter([toys.data()[:8]] * self.count)

    def get_error(**settings):
        try:
            toys.trainer(**settings).fit()
        except HookbusError as error:
            return [type(error).__name__, *str(error).splitlines()]

    errors = {
        "different hook": get_error(hooks=[First(), [First, Second][RANK](name="second")]),
        "different order": get_error(hooks=[First(name="ab"[RANK]), First(name="ba"[RANK])]),
        "different settings": get_error(hooks=[First(priority=[10, 20][RANK])]),
        "additional hook": get_error(hooks=[First()] * RANK),
        "repeated step": get_error(hooks=[OutOfMemoryHook(retry=True)]),
        "loader lengths": get_error(train_loader=UnevenLoader(3 + RANK)),
        "subsequent run": get_error(hooks=[First()]),
    }
    report(errors)
'''


def test_mismatch_between_ranks_raises_an_error_instead_of_blocking(launch: Launch) -> None:
    reports = launch(MISMATCHES).reports
    mismatch = "The hooks of the ranks differ at position {}. Register the same hooks in the same order on every rank:"

    assert reports[0] == reports[1]
    assert reports[0] == {
        "different hook": [
            "RankError",
            mismatch.format(2),
            "  rank 0: second: First of your script, priority 50",
            "  rank 1: second: Second of your script, priority 50",
        ],
        "different order": [
            "RankError",
            mismatch.format(1),
            "  rank 0: a: First of your script, priority 50",
            "  rank 1: b: First of your script, priority 50",
        ],
        "different settings": [
            "RankError",
            mismatch.format(1),
            "  rank 0: first: First of your script, priority 10",
            "  rank 1: first: First of your script, priority 20",
        ],
        "additional hook": [
            "RankError",
            mismatch.format(1),
            "  rank 0: none",
            "  rank 1: first: First of your script, priority 50",
        ],
        "repeated step": [
            "ConfigError",
            "hook 'out_of_memory' (hookbus-runtime 0.1.0): `retry` requires a single process, got 2 ranks: a rank that "
            "repeats its step would block the others. Set `retry: false`, and use smaller batches with accumulation.",
        ],
        "loader lengths": [
            "RankError",
            "The training loaders of the ranks must have the same number of batches, got 3, 4. Make the sampler drop "
            "or repeat samples, as DistributedSampler does.",
        ],
        "subsequent run": None,
    }


RUN_WITH_TRAINING = """
    work_dir: runs
    model: {type: "toys:net"}
    dataset: {type: "parts:points", batch_size: 8}
    optimizer: {type: SGD, lr: 0.1}
    training: TRAINING
    device: cpu
    default_hooks: false
"""


@pytest.mark.parametrize(
    ("training", "message"),
    [
        pytest.param("{epochs: two}", "run.yaml:5:20: training.epochs: ", id="in the file"),
        pytest.param(
            "{epochs: 1, distributed: fsdp2, fsdp2: {mesh: [3]}}",
            "fsdp2.mesh: the product must be the number of processes (2), got [3].",
            id="detected on all ranks",
            marks=requires_torch("distributed: fsdp2"),
        ),
    ],
)
def test_configuration_error_is_printed_once(training: str, message: str, launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "parts.py").write_text(dedent(FAILING_HOOK))
    (tmp_path / "run.yaml").write_text(dedent(RUN_WITH_TRAINING).replace("TRAINING", training).lstrip())

    completed = launch(TRAIN_FROM_FILE, succeeds=False)

    assert completed.output(0).count(message) == 1, completed.full_output
    assert completed.output(1) == "", completed.full_output
    assert completed.exit_codes == [2, 2], completed.full_output


def test_configuration_error_of_one_rank_is_printed_by_that_rank(launch: Launch, tmp_path: Path) -> None:
    train_with_own_file = """
        import sys
        from hookbus._cli.app import main

        sys.argv = ["hookbus", "train", f"run{RANK}.yaml"]
        main()
    """
    (tmp_path / "parts.py").write_text(dedent(FAILING_HOOK))
    for rank, training in enumerate(["{epochs: 1}", "{epochs: two}"]):
        (tmp_path / f"run{rank}.yaml").write_text(dedent(RUN_WITH_TRAINING).replace("TRAINING", training).lstrip())

    completed = launch(train_with_own_file, succeeds=False, torchrun=True)

    assert completed.returncode == 1, completed.full_output
    assert completed.output(1).count("rank 1: run1.yaml:5:20: training.epochs: ") == 1, completed.full_output


ERROR_DURING_SAVE = """
    import sys

    import toys
    from hookbus import Hook
    from hookbus_checkpoint import CheckpointHook

    class FailOnRank1(Hook):
        def after_train_iter(self, run):
            if RANK == 1 and run.iters_done == 5:
                raise ValueError("no such color")

    saving = CheckpointHook(interval=1, by_epoch=False, save_best=False, async_save=True)
    fsdp2 = {"distributed": "fsdp2", "fsdp2": {"wrap": ["Linear"]}}
    try:
        toys.trainer(hooks=[saving, FailOnRank1()], work_dir=sys.argv[1], **fsdp2).fit()
    except BaseException as error:
        report([type(error).__name__, str(error)])
"""


@requires_torch("distributed: fsdp2")
def test_error_during_an_asynchronous_sharded_save_ends_all_ranks(launch: Launch, tmp_path: Path) -> None:
    reports = launch(ERROR_DURING_SAVE, str(tmp_path / "run")).reports

    assert reports[1] == ["ValueError", "no such color"]
    assert reports[0] == ["RankError", "rank 0 ends because of another rank: rank 1 failed: ValueError: no such color"]
    newest = find_latest_checkpoint(tmp_path / "run/checkpoints")
    assert newest is not None
    assert newest[0].name in ("iter_3.pth", "iter_4.pth", "last.pth")
