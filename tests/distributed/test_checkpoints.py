"""Checkpoints of real processes: who writes, who knows, and what happens when one of them cannot."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file

from hookbus.checkpoints.files import newest_first
from hookbus.checkpoints.generations import generations_in, verify_generation
from hookbus.state import read_checkpoint

if TYPE_CHECKING:
    from tests.distributed.conftest import Launch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # each launch has a limit of its own

COMMON = """
    import os, sys, warnings
    from pathlib import Path
    import toys, torch
    from torch.utils.data import DataLoader
    from hookbus import Hook
    from hookbus.checkpoints import files
    from hookbus.checkpoints import shards
    from hookbus.model.layouts import whole
    from hookbus_checkpoint import CheckpointHook
    from hookbus_ema import EMAHook

    HERE = Path(sys.argv[1])

    class Saves(Hook):
        # what happens around saves, on this rank
        def __init__(self):
            super().__init__()
            self.seen = []
        def before_save_checkpoint(self, checkpoint):
            self.seen.append(["before", sorted(checkpoint)])
        def after_save_checkpoint(self, run, path, is_best):
            self.seen.append(["after", path.name, is_best, path.exists(), run.epochs_done])

    def numbers(tensors):
        return torch.cat([each.detach().flatten() for each in whole(dict(tensors)).values()]).tolist()

    def train(name, *hooks, **settings):
        saves = Saves()
        options = {"val_loader": DataLoader(toys.data(40), 8), "metrics": ["accuracy"], "epochs": 3, **settings}
        trainer = toys.trainer(hooks=[saves, *hooks], work_dir=HERE / name, **options)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                run = trainer.fit()
            except Exception as error:
                return {"error": type(error).__name__, "text": str(error), "saves": saves.seen}
        writer = next(hook for hook in hooks if isinstance(hook, CheckpointHook))
        averaged = run.weights.averaged()
        return {
            "saves": saves.seen,
            "weights": numbers(trainer.model.state_dict()),
            "averaged": averaged and numbers(averaged),
            "best": {metric: [best.value, best.epoch, str(best.path)] for metric, best in run.best.items()},
            "writer": writer.state_dict(),
            "warned": [str(each.message) for each in caught if str(each.message).endswith("Training continues.")],
        }

    class Failing:
        # lets a function of a module fail at one call
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

ONE = """
    answer(train("one", EMAHook(momentum=0.9), CheckpointHook(best_metric="loss"), batch_size=16))
"""

DDP = """
    from hookbus_checkpoint import saving

    found = {}
    found["plain"] = train("plain", EMAHook(momentum=0.9), CheckpointHook(best_metric="loss", max_keep_ckpts=2))
    found["async"] = train("async", CheckpointHook(best_metric="loss", max_keep_ckpts=2, async_save=True))
    found["overlap"] = train("overlap", CheckpointHook(async_save="overlap"))
    for policy in ("warn", "raise"):
        with Failing(saving, "write_checkpoint", 2):
            found[policy] = train(policy, CheckpointHook(best_metric="loss", on_save_error=policy))
    answer(found)
"""

FSDP2 = """
    from hookbus.checkpoints import shards

    spread = {"distributed": "fsdp2", "fsdp2": {"wrap": ["Linear"]}}
    found = {}
    found["publish"] = train("publish", EMAHook(), CheckpointHook(save_best=False, publish=True), **spread)
    for name, background in (("at once", False), ("in background", True)):
        saving = CheckpointHook(best_metric="loss", max_keep_ckpts=2, async_save=background)
        found[name] = train(name, EMAHook(momentum=0.9), saving, **spread)
    found["overlap"] = train("overlap", CheckpointHook(async_save="overlap"), **spread)
    with Failing(shards, "flush", 2 if RANK == 1 else 0):
        in_background = CheckpointHook(best_metric="loss", on_save_error="warn", async_save=True)
        found["async warn"] = train("async warn", in_background, **spread)
    with Failing(shards, "flush", 2 if RANK == 1 else 0):
        found["warn"] = train("spread", CheckpointHook(best_metric="loss", on_save_error="warn"), **spread)
    answer(found)
"""


Answers = dict[int, dict[str, Any]]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the work directories are."""
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def ddp(launch_once: Launch, place: Path) -> Answers:
    """What two processes have seen, each with the whole model."""
    return launch_once(COMMON + DDP, str(place)).answers


@pytest.fixture(scope="module")
def fsdp2(launch_once: Launch, place: Path) -> Answers:
    """What two processes have seen, each with a part of every weight."""
    return launch_once(COMMON + FSDP2, str(place)).answers


def after(saves: list[Any]) -> list[Any]:
    """What `after_save_checkpoint` was told."""
    return [rest for kind, *rest in saves if kind == "after"]


def numbers(tensors: dict[str, torch.Tensor]) -> list[float]:
    return torch.cat([each.flatten() for each in tensors.values()]).tolist()


class TestWholeModels:
    def test_one_file_is_written_and_every_process_knows_the_same(self, ddp: Answers, place: Path) -> None:
        folder, found = place / "plain/checkpoints", ddp[0]["plain"]

        assert ddp[1]["plain"] == found
        assert found["best"]["val/loss"][1:] == [3, str(folder / "best_loss.pth")]
        assert after(found["saves"]) == [[f"epoch_{n}.pth", True, True, n] for n in (1, 2, 3)]
        names = ["best_loss.pth", "epoch_3.pth", "last.pth", "epoch_2.pth"]
        assert [path.name for path in newest_first(folder)] == names
        assert list(generations_in(folder)) == []

    def test_the_checkpoint_can_be_changed_on_every_process(self, ddp: Answers) -> None:
        saves = ddp[1]["plain"]["saves"]

        assert [kind for kind, *_ in saves] == ["before", "after"] * 3
        assert {"state_dict", "ema_state_dict", "optimizer", "ranks"} <= set(saves[0][1])

    def test_the_file_is_that_of_a_bare_model(self, ddp: Answers, place: Path) -> None:
        found = read_checkpoint(place / "plain/checkpoints/last.pth")

        assert list(found["state_dict"]) == ["0.weight", "0.bias", "2.weight", "2.bias"]
        assert numbers(found["state_dict"]) == ddp[0]["plain"]["weights"]
        assert numbers(found["ema_state_dict"]) == ddp[0]["plain"]["averaged"]

    def test_weights_and_averages_are_those_of_one_process(self, launch: Launch, ddp: Answers, tmp_path: Path) -> None:
        one = launch(COMMON + ONE, str(tmp_path), ranks=1).answers[0]

        assert ddp[0]["plain"]["weights"] == pytest.approx(one["weights"], rel=0, abs=1e-12)
        assert ddp[0]["plain"]["averaged"] == pytest.approx(one["averaged"], rel=0, abs=1e-12)

    def test_a_save_on_another_thread_is_told_to_all_at_the_same_moment(self, ddp: Answers) -> None:
        found = ddp[0]["async"]

        assert ddp[1]["async"] == found
        assert after(found["saves"]) == [
            ["epoch_1.pth", True, True, 2],
            ["epoch_2.pth", True, True, 3],
            ["epoch_3.pth", True, True, 3],
        ]

    def test_copying_while_training_goes_on_is_refused(self, ddp: Answers) -> None:
        assert all("overlap is not supported with multiple processes" in ddp[rank]["overlap"]["text"] for rank in ddp)


class TestASaveThatTheMainProcessCannotWrite:
    def test_is_one_that_failed_for_all_and_the_run_goes_on_if_it_may(self, ddp: Answers, place: Path) -> None:
        first, second = ddp[0]["warn"], ddp[1]["warn"]

        assert [name for name, *_ in after(first["saves"])] == ["epoch_1.pth", "epoch_3.pth"]
        assert first.pop("warned")[0].startswith(
            f"{place}/warn/checkpoints/epoch_2.pth could not be written: [Errno 28]"
        )
        assert second.pop("warned")[0].startswith("rank 0 failed in 'the checkpoint ")
        assert first == second
        assert first["writer"]["periodic"] == ["epoch_1.pth", "epoch_3.pth"]

    def test_ends_all_of_them_if_it_may_not(self, ddp: Answers) -> None:
        assert [ddp[rank]["raise"]["error"] for rank in (0, 1)] == ["CheckpointError", "CheckpointError"]
        assert ddp[1]["raise"]["text"].startswith("rank 0 failed in 'the checkpoint ")
        assert "No space left on device" in ddp[1]["raise"]["text"]


class TestSpreadWeights:
    def test_a_process_that_cannot_write_its_part_fails_the_save_for_all(self, fsdp2: Answers, place: Path) -> None:
        folder, first, second = place / "spread/checkpoints", fsdp2[0]["warn"], fsdp2[1]["warn"]

        assert [name for name, *_ in after(first["saves"])] == ["epoch_1.pth", "epoch_3.pth"]
        assert first.pop("warned")[0].startswith("rank 1 failed in 'the tensors of a generation': ")
        assert "No space left" in second.pop("warned")[0]
        assert first == second
        assert sorted(number for number, _ in generations_in(folder)) == [1, 3]
        assert list(folder.glob(".tmp*")) == []
        for _, directory in generations_in(folder):
            verify_generation(directory)

    def test_come_together_in_the_file_that_is_published(self, fsdp2: Answers, place: Path) -> None:
        published = load_file(place / "publish/checkpoints/model.safetensors")

        assert sorted(published) == ["0.bias", "0.weight", "2.bias", "2.weight"]
        names = ["0.weight", "0.bias", "2.weight", "2.bias"]
        assert numbers({name: published[name] for name in names}) == fsdp2[0]["publish"]["averaged"]

    def test_are_written_on_another_thread_to_the_same_bits(self, fsdp2: Answers, place: Path) -> None:
        folders = [place / name / "checkpoints" for name in ("at once", "in background")]

        assert fsdp2[0]["in background"] == fsdp2[1]["in background"]
        assert "error" not in fsdp2[0]["in background"], fsdp2[0]["in background"]
        assert fsdp2[0]["in background"]["writer"] == fsdp2[0]["at once"]["writer"]
        assert after(fsdp2[0]["in background"]["saves"])[-1] == ["epoch_3.pth", True, True, 3]
        for name in ("epoch_2.pth", "epoch_3.pth", "best_loss.pth", "last.pth"):
            at_once, found = (read_checkpoint(folder / name) for folder in folders)
            for key in ("state_dict", "ema_state_dict"):
                assert numbers(found[key]) == numbers(at_once[key])
            momenta, expected = (
                {key: each["momentum_buffer"] for key, each in checkpoint["optimizer"]["state"].items()}
                for checkpoint in (found, at_once)
            )
            assert numbers(momenta) == numbers(expected)
        assert sorted(number for number, _ in generations_in(folders[1])) == [2, 3]
        assert list(folders[1].glob(".tmp*")) == []

    def test_that_one_process_cannot_write_on_another_thread_fail_the_save_for_all(
        self, fsdp2: Answers, place: Path
    ) -> None:
        folder, found = place / "async warn/checkpoints", [fsdp2[rank]["async warn"] for rank in (0, 1)]

        assert [[name for name, *_ in after(each["saves"])] for each in found] == [["epoch_1.pth", "epoch_3.pth"]] * 2
        assert found[0].pop("warned")[0].startswith("rank 1 failed in 'the tensors of a generation': ")
        assert "No space left" in found[1].pop("warned")[0]
        assert found[0] == found[1]
        assert sorted(number for number, _ in generations_in(folder)) == [1, 3]

    def test_are_not_copied_while_training_goes_on(self, fsdp2: Answers) -> None:
        assert all("overlap is not supported with multiple processes" in fsdp2[r]["overlap"]["text"] for r in fsdp2)
