"""Checkpoints in distributed training: writes, results on all ranks, and failures of one rank."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file

from hookbus.checkpoint.generations import iter_generations, verify_generation
from hookbus.checkpoint.sidecars import list_newest_first
from hookbus.checkpoint.state import read_checkpoint
from tests.torch_versions import requires_torch

if TYPE_CHECKING:
    from tests.distributed.conftest import Launch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # each launch has its own time limit

COMMON = """
    import os, sys, warnings
    from pathlib import Path
    import toys, torch
    from torch.utils.data import DataLoader
    from hookbus import Hook
    from hookbus.distributed.sharding import to_full_tensors
    from hookbus_checkpoint import CheckpointHook
    from hookbus_ema import EMAHook

    HERE = Path(sys.argv[1])

    class RecordSaves(Hook):
        # records the calls of the save points on this rank
        def __init__(self):
            super().__init__()
            self.calls = []
        def before_save_checkpoint(self, checkpoint):
            self.calls.append(["before", sorted(checkpoint)])
        def after_save_checkpoint(self, run, path, is_best):
            self.calls.append(["after", path.name, is_best, path.exists(), run.epochs_done])

    def numbers(tensors):
        return torch.cat([tensor.detach().flatten() for tensor in to_full_tensors(dict(tensors)).values()]).tolist()

    def train(name, *hooks, **settings):
        recorder = RecordSaves()
        options = {"val_loader": DataLoader(toys.data(40), 8), "metrics": ["accuracy"], "epochs": 3, **settings}
        trainer = toys.trainer(hooks=[recorder, *hooks], work_dir=HERE / name, **options)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                run = trainer.fit()
            except Exception as error:
                return {"error": type(error).__name__, "text": str(error), "saves": recorder.calls}
        writer = next(hook for hook in hooks if isinstance(hook, CheckpointHook))
        averaged = run.weights.averaged()
        return {
            "saves": recorder.calls,
            "weights": numbers(trainer.model.state_dict()),
            "averaged": averaged and numbers(averaged),
            "best": {metric: [best.value, best.epoch, str(best.path)] for metric, best in run.best.items()},
            "writer": writer.state_dict(),
            "warnings": [str(w.message) for w in caught if str(w.message).endswith("Training continues.")],
        }

    class Failing:
        # replaces a function of a module by one that fails at one call
        def __init__(self, module, name, at):
            self.module, self.name, self.calls, self.at = module, name, 0, at
            self.real = getattr(module, name)

        def __call__(self, *args, **kwargs):
            self.calls += 1
            if self.calls == self.at:
                raise OSError(28, "No space left on device")
            return self.real(*args, **kwargs)

        def __enter__(self):
            setattr(self.module, self.name, self)

        def __exit__(self, *_):
            setattr(self.module, self.name, self.real)
"""

SINGLE = """
    report(train("one", EMAHook(momentum=0.9), CheckpointHook(best_metric="loss"), batch_size=16))
"""

DDP = """
    from hookbus_checkpoint import saving

    results = {}
    results["plain"] = train("plain", EMAHook(momentum=0.9), CheckpointHook(best_metric="loss", max_keep_ckpts=2))
    results["async"] = train("async", CheckpointHook(best_metric="loss", max_keep_ckpts=2, async_save=True))
    results["overlap"] = train("overlap", CheckpointHook(async_save="overlap"))
    for policy in ("warn", "raise"):
        with Failing(saving, "write_checkpoint", 2):
            results[policy] = train(policy, CheckpointHook(best_metric="loss", on_save_error=policy))
    report(results)
"""

FSDP2 = """
    from hookbus.checkpoint import sharded

    fsdp2 = {"distributed": "fsdp2", "fsdp2": {"wrap": ["Linear"]}}
    results = {}
    results["publish"] = train("publish", EMAHook(), CheckpointHook(save_best=False, publish=True), **fsdp2)
    for name, background in (("synchronous", False), ("asynchronous", True)):
        saving = CheckpointHook(best_metric="loss", max_keep_ckpts=2, async_save=background)
        results[name] = train(name, EMAHook(momentum=0.9), saving, **fsdp2)
    ranking = {"best_metric": "train/loss", "rule": "greater", "save_top_k": 2}
    hook = CheckpointHook(ranking, filename_tmpl="{epoch}-{train_loss:.3f}", max_keep_ckpts=1, async_save=True)
    results["ranked"] = train("ranked", hook, **{**fsdp2, "epochs": 4})
    results["overlap"] = train("overlap", CheckpointHook(async_save="overlap"), **fsdp2)
    # call number 0 never occurs: only rank 1 fails
    with Failing(sharded, "fsync", 2 if RANK == 1 else 0):
        in_background = CheckpointHook(best_metric="loss", on_save_error="warn", async_save=True)
        results["async warn"] = train("async warn", in_background, **fsdp2)
    with Failing(sharded, "fsync", 2 if RANK == 1 else 0):
        results["warn"] = train("sharded", CheckpointHook(best_metric="loss", on_save_error="warn"), **fsdp2)
    report(results)
"""


Reports = dict[int, dict[str, Any]]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Parent directory of the work directories."""
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def ddp(module_launch: Launch, root: Path) -> Reports:
    """Results of two processes with replicated parameters (DDP)."""
    return module_launch(COMMON + DDP, str(root)).reports


@pytest.fixture(scope="module")
def fsdp2(module_launch: Launch, root: Path) -> Reports:
    """Results of two processes with sharded parameters (FSDP2)."""
    return module_launch(COMMON + FSDP2, str(root)).reports


def filter_after_save(saves: list[Any]) -> list[Any]:
    """Return the arguments of the calls of `after_save_checkpoint`."""
    return [arguments for point, *arguments in saves if point == "after"]


def flatten(tensors: dict[str, torch.Tensor]) -> list[float]:
    """Return the elements of all tensors as one list."""
    return torch.cat([tensor.flatten() for tensor in tensors.values()]).tolist()


class TestReplicatedModel:
    def test_rank_0_writes_one_file_and_all_ranks_report_the_same_state(self, ddp: Reports, root: Path) -> None:
        folder, result = root / "plain/checkpoints", ddp[0]["plain"]

        assert ddp[1]["plain"] == result
        assert result["best"]["val/loss"][1:] == [3, str(folder / "best_loss.pth")]
        assert filter_after_save(result["saves"]) == [[f"epoch_{n}.pth", True, True, n] for n in (1, 2, 3)]
        names = ["best_loss.pth", "epoch_3.pth", "last.pth", "epoch_2.pth"]
        assert [path.name for path in list_newest_first(folder)] == names
        assert list(iter_generations(folder)) == []

    def test_before_save_checkpoint_receives_the_checkpoint_on_every_rank(self, ddp: Reports) -> None:
        saves = ddp[1]["plain"]["saves"]

        assert [point for point, *_ in saves] == ["before", "after"] * 3
        assert {"state_dict", "ema_state_dict", "optimizer", "ranks"} <= set(saves[0][1])

    def test_checkpoint_contains_the_keys_of_the_unwrapped_model(self, ddp: Reports, root: Path) -> None:
        checkpoint = read_checkpoint(root / "plain/checkpoints/last.pth")

        assert list(checkpoint["state_dict"]) == ["0.weight", "0.bias", "2.weight", "2.bias"]
        assert flatten(checkpoint["state_dict"]) == ddp[0]["plain"]["weights"]
        assert flatten(checkpoint["ema_state_dict"]) == ddp[0]["plain"]["averaged"]

    def test_weights_and_averages_match_a_single_process_run(
        self, launch: Launch, ddp: Reports, tmp_path: Path
    ) -> None:
        single = launch(COMMON + SINGLE, str(tmp_path), ranks=1).reports[0]

        assert ddp[0]["plain"]["weights"] == pytest.approx(single["weights"], rel=0, abs=1e-12)
        assert ddp[0]["plain"]["averaged"] == pytest.approx(single["averaged"], rel=0, abs=1e-12)

    def test_asynchronous_save_is_reported_on_all_ranks_at_the_same_epoch(self, ddp: Reports) -> None:
        result = ddp[0]["async"]

        assert ddp[1]["async"] == result
        assert filter_after_save(result["saves"]) == [
            ["epoch_1.pth", True, True, 2],
            ["epoch_2.pth", True, True, 3],
            ["epoch_3.pth", True, True, 3],
        ]

    def test_overlapped_save_is_rejected_with_multiple_ranks(self, ddp: Reports) -> None:
        assert all("overlap is not supported with multiple processes" in ddp[rank]["overlap"]["text"] for rank in ddp)


class TestWriteFailureOnRank0:
    def test_failed_save_is_skipped_on_all_ranks_if_the_policy_is_warn(self, ddp: Reports, root: Path) -> None:
        first, second = ddp[0]["warn"], ddp[1]["warn"]

        assert [name for name, *_ in filter_after_save(first["saves"])] == ["epoch_1.pth", "epoch_3.pth"]
        assert first.pop("warnings")[0].startswith(
            f"{root}/warn/checkpoints/epoch_2.pth could not be written: [Errno 28]"
        )
        assert second.pop("warnings")[0].startswith("rank 0 failed in 'the checkpoint ")
        assert first == second
        assert first["writer"]["periodic"] == ["epoch_1.pth", "epoch_3.pth"]

    def test_failed_save_ends_all_ranks_if_the_policy_is_raise(self, ddp: Reports) -> None:
        assert [ddp[rank]["raise"]["error"] for rank in (0, 1)] == ["CheckpointError", "CheckpointError"]
        assert ddp[1]["raise"]["text"].startswith("rank 0 failed in 'the checkpoint ")
        assert "No space left on device" in ddp[1]["raise"]["text"]


@requires_torch("distributed: fsdp2")
class TestShardedWeights:
    def test_write_failure_of_one_shard_fails_the_save_on_all_ranks(self, fsdp2: Reports, root: Path) -> None:
        folder, first, second = root / "sharded/checkpoints", fsdp2[0]["warn"], fsdp2[1]["warn"]

        assert [name for name, *_ in filter_after_save(first["saves"])] == ["epoch_1.pth", "epoch_3.pth"]
        assert first.pop("warnings")[0].startswith("rank 1 failed in 'tensors of a generation': ")
        assert "No space left" in second.pop("warnings")[0]
        assert first == second
        assert sorted(number for number, _ in iter_generations(folder)) == [1, 3]
        assert list(folder.glob(".tmp*")) == []
        for _, directory in iter_generations(folder):
            verify_generation(directory)

    def test_best_files_of_the_mean_of_all_ranks_and_the_last_ones_keep_their_generations(
        self, fsdp2: Reports, root: Path
    ) -> None:
        """The loss falls, and the greatest ones are kept."""
        folder, first = root / "ranked/checkpoints", fsdp2[0]["ranked"]

        assert first == fsdp2[1]["ranked"]
        assert first["best"]["train/loss"][1] == 1
        names = [file["name"] for file in first["writer"]["ranked"]["train/loss"]]
        assert [read_checkpoint(folder / name)["meta"]["epoch"] for name in names] == [1, 2]
        assert [name.split("_")[-1][:2] for name in names] == ["1-", "2-"]
        assert sorted(number for number, _ in iter_generations(folder)) == [1, 2, 4]

    def test_published_file_contains_full_tensors(self, fsdp2: Reports, root: Path) -> None:
        published = load_file(root / "publish/checkpoints/model.safetensors")

        assert sorted(published) == ["0.bias", "0.weight", "2.bias", "2.weight"]
        names = ["0.weight", "0.bias", "2.weight", "2.bias"]
        assert flatten({name: published[name] for name in names}) == fsdp2[0]["publish"]["averaged"]

    def test_asynchronous_save_of_shards_is_bitwise_identical(self, fsdp2: Reports, root: Path) -> None:
        folders = [root / name / "checkpoints" for name in ("synchronous", "asynchronous")]

        assert fsdp2[0]["asynchronous"] == fsdp2[1]["asynchronous"]
        assert "error" not in fsdp2[0]["asynchronous"], fsdp2[0]["asynchronous"]
        assert fsdp2[0]["asynchronous"]["writer"] == fsdp2[0]["synchronous"]["writer"]
        assert filter_after_save(fsdp2[0]["asynchronous"]["saves"])[-1] == ["epoch_3.pth", True, True, 3]
        for name in ("epoch_2.pth", "epoch_3.pth", "best_loss.pth", "last.pth"):
            synchronous, asynchronous = (read_checkpoint(folder / name) for folder in folders)
            for key in ("state_dict", "ema_state_dict"):
                assert flatten(asynchronous[key]) == flatten(synchronous[key])
            momenta, expected = (
                {key: state["momentum_buffer"] for key, state in checkpoint["optimizer"]["state"].items()}
                for checkpoint in (asynchronous, synchronous)
            )
            assert flatten(momenta) == flatten(expected)
        assert sorted(number for number, _ in iter_generations(folders[1])) == [2, 3]
        assert list(folders[1].glob(".tmp*")) == []

    def test_asynchronous_write_failure_of_one_shard_fails_the_save_on_all_ranks(
        self, fsdp2: Reports, root: Path
    ) -> None:
        folder = root / "async warn/checkpoints"
        first, second = (fsdp2[rank]["async warn"] for rank in (0, 1))

        for result in (first, second):
            assert [name for name, *_ in filter_after_save(result["saves"])] == ["epoch_1.pth", "epoch_3.pth"]
        assert first.pop("warnings")[0].startswith("rank 1 failed in 'tensors of a generation': ")
        assert "No space left" in second.pop("warnings")[0]
        assert first == second
        assert sorted(number for number, _ in iter_generations(folder)) == [1, 3]

    def test_overlapped_save_is_rejected_for_sharded_weights(self, fsdp2: Reports) -> None:
        assert all("overlap is not supported with multiple processes" in fsdp2[n]["overlap"]["text"] for n in fsdp2)
