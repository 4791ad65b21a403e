"""Tests of checkpoint contents: collecting, writing, loading and restoring."""

from __future__ import annotations

import logging
import os
import pickle
import resource
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import hookbus
from hookbus._run.run import BestResult, Run
from hookbus.bus import HookBus
from hookbus.checkpoint.atomic_files import atomic_write
from hookbus.checkpoint.sidecars import get_sidecar_path, verify
from hookbus.checkpoint.state import (
    build_checkpoint,
    hash_config,
    load_weights,
    read_checkpoint,
    restore_checkpoint,
    write_checkpoint,
)
from hookbus.errors import CheckpointCorruptedError, CheckpointError, HookWarning
from hookbus.hook import Hook
from hookbus.testing import fingerprint
from tests.checkpoints import find_latest_checkpoint
from tests.crashes import kill_at_each_operation, run_in_fork
from tests.toys import Saver, idle_run, net, trainer


@pytest.fixture(autouse=True)
def _disable_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable fsync: it only matters after a power failure, and takes most of the time of these tests."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def get_warnings(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.WARNING, logger="hookbus")
    return lambda: [record.getMessage() for record in caplog.records]


class TestBuildCheckpoint:
    def test_checkpoint_of_a_complete_run_has_all_keys(self) -> None:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        run = idle_run(
            model,
            optimizer=optimizer,
            scheduler=lr_scheduler.StepLR(optimizer, 1),
            scaler=torch.amp.GradScaler("cpu"),
            config={"lr": 0.1},
            seed=7,
        )
        run.best |= {"val/accuracy": BestResult(0.5, 1, 3, "averaged"), "val/loss": BestResult(2.0, 0, 0)}
        checkpoint = build_checkpoint(run)

        assert list(checkpoint) == ["meta", "state_dict", "optimizer", "scheduler", "scaler", "hooks", "rng", "loop"]
        meta = checkpoint["meta"]
        assert (meta["schema"], meta["hookbus"], meta["seed"]) == (1, hookbus.__version__, 7)
        assert [meta[key] for key in ("epoch", "iter", "step", "samples", "metrics")] == [0, 0, 0, 0, {}]
        assert meta["config_hash"] == hash_config({"lr": 0.1})
        assert meta["best_weights"] == {"val/accuracy": "averaged", "val/loss": "raw"}

    def test_checkpoint_of_a_run_without_optimizer_has_the_other_keys(self) -> None:
        assert list(build_checkpoint(idle_run())) == ["meta", "state_dict", "hooks", "rng", "loop"]

    @pytest.mark.parametrize("wrap", [lambda m: m, nn.DataParallel, lambda m: CompiledWrapper(nn.DataParallel(m))])
    def test_state_dict_keys_are_those_of_the_unwrapped_model(self, wrap: Callable[[nn.Module], nn.Module]) -> None:
        checkpoint = build_checkpoint(idle_run(wrap(nn.Linear(2, 1))))

        assert list(checkpoint["state_dict"]) == ["weight", "bias"]
        for other in (nn.Linear(2, 1), nn.DataParallel(nn.Linear(2, 1))):
            run = idle_run(other)
            restore_checkpoint(run, checkpoint)
            assert fingerprint(build_checkpoint(run)["state_dict"]) == fingerprint(checkpoint["state_dict"])

    def test_raw_weights_are_stored_while_averaged_weights_are_applied(self) -> None:
        model = nn.Linear(2, 1)
        run = idle_run(model)
        raw, averaged = {"weight": torch.ones(1, 2)}, {"weight": torch.zeros(1, 2)}
        run.weights.provide(AveragesProvider(raw, averaged))
        checkpoint = build_checkpoint(run)

        assert (checkpoint["state_dict"], checkpoint["ema_state_dict"]) == (raw, averaged)

    def test_build_checkpoint_waits_for_updates_on_another_thread(self) -> None:
        run = idle_run(nn.Linear(2, 1))
        averages = AveragesProvider(None, None)
        run.weights.provide(averages)

        assert "ema_state_dict" not in build_checkpoint(run)
        assert averages.waited

    @pytest.mark.parametrize("part", ["state_dict", "ema_state_dict", "optimizer", "scheduler"])
    def test_object_of_another_type_is_an_error_with_its_path(self, part: str) -> None:
        model = ExtraStateLinear() if part == "state_dict" else nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scheduler = lr_scheduler.StepLR(optimizer, 1)
        run = idle_run(model, optimizer=optimizer, scheduler=scheduler)
        match part:
            case "ema_state_dict":
                run.weights.provide(AveragesProvider(None, {"weight": np.ones((1, 2))}))  # type: ignore[dict-item]
            case "optimizer":
                optimizer.param_groups[0]["extra"] = object()
            case "scheduler":
                scheduler.extra = object()

        message = rf"^checkpoint\['{part}'\].*\['(extra|weight)'\]: invalid type \w+\. A checkpoint contains"
        with pytest.raises(CheckpointError, match=message):
            build_checkpoint(run)


class ExtraStateLinear(nn.Linear):
    """Module with extra state."""

    def __init__(self) -> None:
        super().__init__(2, 1)

    def get_extra_state(self) -> dict[str, object]:
        return {"extra": object()}


class CompiledWrapper(nn.Module):
    """Wraps a module like torch.compile."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._orig_mod = module


class AveragesProvider:
    """Provider of averaged weights."""

    def __init__(self, raw: Any, averaged: Any) -> None:
        self._raw, self._averaged, self.waited = raw, averaged, False

    def raw(self) -> Any:
        return self._raw

    def averaged(self) -> Any:
        return self._averaged

    def applied(self) -> Any:
        return nullcontext()

    def wait(self) -> None:
        self.waited = True


class TestGradients:
    @staticmethod
    def train_and_check_grads(tmp_path: Path, *hooks: object, **options: Any) -> list[bool]:
        """Train, and return for each iteration whether its checkpoint contains gradients."""
        saver = Saver()
        trainer(saver, *hooks, work_dir=tmp_path, **{"iterations": 5, **options}).fit()
        return ["grads" in read_checkpoint(path) for path in saver.files]

    def test_gradients_are_stored_only_during_accumulation(self, tmp_path: Path) -> None:
        assert self.train_and_check_grads(tmp_path / "a") == [False] * 5
        assert self.train_and_check_grads(tmp_path / "b", accumulate=2) == [True, False, True, False, True]
        assert self.train_and_check_grads(tmp_path / "c", accumulate=3) == [True, True, False, True, True]

    def test_gradients_are_not_stored_after_a_skipped_iteration(self, tmp_path: Path) -> None:
        class SkipsIteration(Hook):
            def before_train_iter(self, run: Run) -> None:
                if run.iter == 2:
                    run.request_skip_iter()

        assert self.train_and_check_grads(tmp_path / "a", SkipsIteration()) == [False] * 5
        assert self.train_and_check_grads(tmp_path / "b", SkipsIteration(), accumulate=2) == [
            True,
            False,
            False,
            True,
            False,
        ]

    def test_gradients_are_not_stored_after_a_step_skipped_by_the_scaler(self, tmp_path: Path) -> None:
        class SetsInfiniteGradient(Hook):
            def after_backward(self, run: Run) -> None:
                if run.iter == 1:
                    next(iter(run.model.parameters())).grad.fill_(float("inf"))  # type: ignore[union-attr]

        assert self.train_and_check_grads(tmp_path, SetsInfiniteGradient(), precision="fp16") == [False] * 5

    def test_custom_loop_stores_gradients_between_optimizer_steps(self, tmp_path: Path) -> None:
        model, saver = nn.Linear(1, 1), Saver()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        bus = HookBus([saver])
        with bus.run(model=model, optimizer=optimizer, iterations=4, work_dir=tmp_path) as run:
            bus.emit("before_train_epoch")
            for i in range(4):
                bus.emit("before_train_iter", batch_idx=i)
                model(torch.ones(1, 1)).sum().backward()
                if i % 2:
                    optimizer.step()
                    optimizer.zero_grad()
                bus.emit("after_train_iter", batch_idx=i)

        assert run.steps_done == 2
        grads = [read_checkpoint(path).get("grads") for path in saver.files]
        assert grads[1] is grads[3] is None
        assert grads[0] == grads[2] == {"weight": torch.ones(1, 1), "bias": torch.ones(1)}

    def test_gradients_are_restored_by_name_and_others_are_cleared(self) -> None:
        checkpoint = build_checkpoint(idle_run(nn.Linear(1, 1)))
        model = nn.Linear(1, 1)
        model.bias.grad = torch.ones(1)
        restore_checkpoint(idle_run(model), {**checkpoint, "grads": {"weight": torch.full((1, 1), 3.0)}})

        assert model.weight.grad == torch.full((1, 1), 3.0)
        assert model.bias.grad is None


SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [2, 4]),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 0.5**epoch),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 10),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=10),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, cycle_momentum=False),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o), lr_scheduler.ExponentialLR(o, 0.9)], milestones=[2]
    ),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o), lr_scheduler.StepLR(o, 2)]
    ),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o),
}


class TestComponents:
    @pytest.mark.parametrize("scheduler_name", SCHEDULERS)
    @pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
    def test_every_scheduler_is_restored(self, tmp_path: Path, scheduler_name: str, optimizer: Any) -> None:
        def make_components() -> tuple[nn.Module, Any, Any]:
            model = nn.Linear(2, 1)
            built = optimizer(model.parameters(), lr=0.05)
            return model, built, SCHEDULERS[scheduler_name](built)

        def step(model: nn.Module, optimizer: Any, scheduler: Any, number: int) -> float:
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            scheduler.step(*([np.float64(1.0)] if scheduler_name == "ReduceLROnPlateau" else []))
            return float(optimizer.param_groups[0]["lr"])

        model, built, scheduler = make_components()
        [step(model, built, scheduler, i) for i in range(3)]
        write_checkpoint(tmp_path / "a.pth", build_checkpoint(idle_run(model, optimizer=built, scheduler=scheduler)), 1)
        expected = [step(model, built, scheduler, i) for i in range(3)]
        fresh_model, fresh, fresh_scheduler = make_components()
        restore_checkpoint(
            idle_run(fresh_model, optimizer=fresh, scheduler=fresh_scheduler), read_checkpoint(tmp_path / "a.pth")
        )
        fresh_model.zero_grad(), model.zero_grad()

        assert [step(fresh_model, fresh, fresh_scheduler, i) for i in range(3)] == expected

    def test_numpy_learning_rate_is_stored_as_a_float(self, tmp_path: Path) -> None:
        saver = Saver()
        trainer(saver, lr=np.float64(0.05), iterations=1, work_dir=tmp_path).fit()
        rate = read_checkpoint(saver.files[0])["optimizer"]["param_groups"][0]["lr"]

        assert (type(rate), rate) == (float, 0.05)

    @pytest.mark.parametrize("name", ["optimizer", "scheduler", "scaler"])
    def test_component_missing_in_run_or_checkpoint_is_logged(
        self, name: str, get_warnings: Callable[[], list[str]]
    ) -> None:
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        built = {
            "optimizer": optimizer,
            "scheduler": lr_scheduler.StepLR(optimizer, 1),
            "scaler": torch.amp.GradScaler("cpu"),
        }
        restore_checkpoint(idle_run(model), build_checkpoint(idle_run(model, **{name: built[name]})))
        restore_checkpoint(idle_run(model, **{name: built[name]}), build_checkpoint(idle_run(model)))

        assert get_warnings() == [
            f"The checkpoint contains a {name} state, but the run has no {name}; it is ignored.",
            f"No {name} state in the checkpoint; it is re-initialized.",
        ]

    def test_optimizer_with_other_parameter_groups_is_an_error(self) -> None:
        model = nn.Linear(2, 1)
        checkpoint = build_checkpoint(idle_run(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1)))
        other = torch.optim.SGD([model.weight], lr=0.1)

        with pytest.raises(
            CheckpointError,
            match="The optimizer state in the checkpoint does not match the run: its parameter groups contain",
        ):
            restore_checkpoint(idle_run(model, optimizer=other), checkpoint)

    def test_model_with_other_shapes_is_an_error(self) -> None:
        checkpoint = build_checkpoint(idle_run(nn.Linear(2, 1)))

        with pytest.raises(CheckpointError, match=r"The weights do not match the model: .*size mismatch for weight"):
            restore_checkpoint(idle_run(nn.Linear(3, 1)), checkpoint)
        with pytest.raises(CheckpointError, match=r"The weights do not match the model: .*Unexpected key.* \"bias\""):
            restore_checkpoint(idle_run(nn.Linear(2, 1, bias=False)), checkpoint)

    def test_file_that_is_not_resumable_is_reported_with_missing_keys(self) -> None:
        with pytest.raises(CheckpointError) as caught:
            restore_checkpoint(idle_run(nn.Linear(2, 1)), {"state_dict": {}, "meta": {}})

        assert str(caught.value) == (
            "Not a checkpoint to resume from: it has no hooks, rng, loop. Set `load_from` instead of `resume` to start "
            "from its weights alone."
        )

    def test_another_format_version_is_reported_with_the_version_to_install(self) -> None:
        checkpoint = build_checkpoint(idle_run())
        checkpoint["meta"] |= {"schema": 99, "hookbus": "9.9"}

        with pytest.raises(CheckpointError) as caught:
            restore_checkpoint(idle_run(), checkpoint)
        assert str(caught.value) == (
            f"The checkpoint has format version 99, but hookbus {hookbus.__version__} loads format version 1. Install "
            "hookbus 9.9, which wrote the checkpoint."
        )


def write_small_checkpoint(path: Path, generation: int = 1) -> dict[str, Any]:
    checkpoint = {"meta": {"generation": generation}, "state_dict": {"weight": torch.full((50,), float(generation))}}
    write_checkpoint(path, checkpoint, generation)
    return checkpoint


class TestWriteAndRead:
    def test_written_checkpoint_is_loaded(self, tmp_path: Path) -> None:
        checkpoint = write_small_checkpoint(tmp_path / "a.pth")

        assert fingerprint(read_checkpoint(tmp_path / "a.pth")) == fingerprint(checkpoint)
        assert fingerprint(read_checkpoint(str(tmp_path / "a.pth"))) == fingerprint(checkpoint)

    @pytest.mark.parametrize("crc32", [True, False])
    def test_crc32_setting_of_torch_is_restored(self, tmp_path: Path, crc32: bool) -> None:
        earlier = torch.serialization.get_crc32_options()
        try:
            torch.serialization.set_crc32_options(crc32)
            write_small_checkpoint(tmp_path / "a.pth")
            assert torch.serialization.get_crc32_options() is crc32
        finally:
            torch.serialization.set_crc32_options(earlier)

    def test_corruption_at_any_position_is_detected(self, tmp_path: Path) -> None:
        path = tmp_path / "a.pth"
        write_small_checkpoint(path)
        content = path.read_bytes()
        for i in range(0, len(content), 37):
            path.write_bytes(content[:i] + bytes([content[i] ^ 4]) + content[i + 1 :])
            with pytest.raises(CheckpointCorruptedError, match="a.pth: corrupted"):
                read_checkpoint(path)

    def test_checkpoint_without_its_sidecar_is_loaded_with_a_warning(self, tmp_path: Path) -> None:
        path = tmp_path / "own.pth"
        write_small_checkpoint(path)
        expected = read_checkpoint(path)
        get_sidecar_path(path).unlink()

        with pytest.warns(HookWarning, match="own.pth: no valid sidecar own.pth.json, so corruption cannot be detecte"):
            assert read_checkpoint(path).keys() == expected.keys()

    def test_file_of_another_program_is_loaded_without_a_warning(self, tmp_path: Path) -> None:
        torch.save({"weight": torch.ones(1)}, tmp_path / "other.pth")
        assert read_checkpoint(tmp_path / "other.pth") == {"weight": torch.ones(1)}

    def test_loading_executes_no_code(self, tmp_path: Path) -> None:
        class Malicious:
            def __reduce__(self) -> Any:
                return os.mkdir, (str(tmp_path / "pwned"),)

        for save in (torch.save, lambda value, file: pickle.dump(value, file, protocol=2)):
            atomic_write(tmp_path / "a.pth", lambda file, save=save: save({"state_dict": Malicious()}, file), 1)
            with pytest.raises(
                CheckpointCorruptedError, match="a.pth: file cannot be loaded as data: it contains .*mkdir, "
            ):
                read_checkpoint(tmp_path / "a.pth")
        assert not (tmp_path / "pwned").exists()

    def test_file_that_is_not_a_checkpoint_is_an_error(self, tmp_path: Path) -> None:
        atomic_write(tmp_path / "a.pth", lambda file: torch.save([1], file), 1)
        atomic_write(tmp_path / "b.pth", lambda file: file.write(b"no checkpoint at all"), 1)

        with pytest.raises(CheckpointError, match="a.pth: not a checkpoint: expected a dict, got list."):
            read_checkpoint(tmp_path / "a.pth")
        with pytest.raises(CheckpointCorruptedError, match="b.pth: file cannot be loaded as data: "):
            read_checkpoint(tmp_path / "b.pth")

    def test_error_for_a_missing_file_lists_the_available_files(self, tmp_path: Path) -> None:
        write_small_checkpoint(tmp_path / "b.pth"), write_small_checkpoint(tmp_path / "a.pth")

        with pytest.raises(CheckpointError) as caught:
            read_checkpoint(tmp_path / "c.pth")
        assert str(caught.value) == f"{tmp_path}/c.pth: file does not exist. Available in {tmp_path}: a.pth, b.pth."
        with pytest.raises(CheckpointError, match=r"x/c.pth: file does not exist\.$"):
            read_checkpoint(tmp_path / "x" / "c.pth")

    @pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
    def test_full_disk_raises_oserror_and_keeps_the_existing_file(self, tmp_path: Path, share: float) -> None:
        write_small_checkpoint(tmp_path / "a.pth")
        limit = int((tmp_path / "a.pth").stat().st_size * share)

        def write_too_much() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            with pytest.raises(OSError, match="File too large"):
                write_small_checkpoint(tmp_path / "a.pth", 2)

        assert run_in_fork(write_too_much) == 0
        assert read_checkpoint(tmp_path / "a.pth")["meta"] == {"generation": 1}
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a.pth", "a.pth.json"]

    @pytest.mark.slow
    def test_kill_during_a_write_leaves_a_resumable_checkpoint(self, tmp_path: Path) -> None:
        write_small_checkpoint(tmp_path / "epoch_1.pth")
        expected = (
            f"{tmp_path / 'epoch_2.pth'}: only the sidecar epoch_2.pth.json exists: the file was deleted, or the save "
            "was interrupted."
        )

        def check() -> None:
            sidecars = [*tmp_path.glob("epoch_2.pth.json")]
            newest = find_latest_checkpoint(tmp_path)
            assert newest is not None
            path, checkpoint, messages = newest
            generation = checkpoint["meta"]["generation"]
            assert path.name == f"epoch_{generation}.pth"
            assert messages == ([expected] if sidecars and generation == 1 else [])
            for file in tmp_path.glob("*.pth"):
                assert verify(file)
            for file in [*tmp_path.glob("epoch_2*"), *tmp_path.glob(".tmp*")]:
                file.unlink()

        assert kill_at_each_operation(lambda: write_small_checkpoint(tmp_path / "epoch_2.pth", 2), check) >= 12


class TestFindLatestCheckpoint:
    def test_newest_generation_is_found(self, tmp_path: Path) -> None:
        for name, generation in (("z", 1), ("a", 10), ("m", 9)):
            write_small_checkpoint(tmp_path / f"{name}.pth", generation)
        newest = find_latest_checkpoint(tmp_path)

        assert newest is not None
        assert (newest[0].name, newest[1]["meta"], newest[2]) == ("a.pth", {"generation": 10}, [])

    def test_empty_directory_has_no_newest_checkpoint(self, tmp_path: Path) -> None:
        (tmp_path / ".tmp-1.pth").write_bytes(b"half")

        assert find_latest_checkpoint(tmp_path) is None
        assert find_latest_checkpoint(tmp_path / "missing") is None

    def test_invalid_checkpoints_are_skipped_with_a_message(self, tmp_path: Path) -> None:
        for generation in (1, 2, 3, 4):
            write_small_checkpoint(tmp_path / f"epoch_{generation}.pth", generation)
        (tmp_path / "epoch_4.pth").write_bytes(b"cut")
        atomic_write(tmp_path / "epoch_3.pth", lambda file: torch.save([3], file), 3)
        newest = find_latest_checkpoint(tmp_path)

        assert newest is not None
        assert newest[1]["meta"] == {"generation": 2}
        size = newest[0].stat().st_size
        assert newest[2] == [
            f"{tmp_path}/epoch_4.pth: corrupted: expected {size} bytes, got 3.",
            f"{tmp_path}/epoch_3.pth: not a checkpoint: expected a dict, got list.",
        ]

    @pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: path.write_text("{")])
    def test_missing_or_corrupted_sidecar_is_reported(self, tmp_path: Path, damage: Callable[[Path], Any]) -> None:
        write_small_checkpoint(tmp_path / "epoch_1.pth", 1), write_small_checkpoint(tmp_path / "epoch_2.pth", 2)
        damage(tmp_path / "epoch_2.pth.json")
        newest = find_latest_checkpoint(tmp_path)

        assert newest is not None
        assert (newest[0].name, newest[2]) == (
            "epoch_1.pth",
            [
                f"{tmp_path}/epoch_2.pth: epoch_2.pth.json is missing or corrupted. A file without a valid sidecar is "
                "used only if its path is passed."
            ],
        )

    def test_error_without_a_valid_checkpoint_lists_the_reasons(self, tmp_path: Path) -> None:
        write_small_checkpoint(tmp_path / "epoch_1.pth", 1)
        (tmp_path / "epoch_1.pth").write_bytes(b"")
        torch.save({}, tmp_path / "other.pth")

        with pytest.raises(CheckpointError) as caught:
            find_latest_checkpoint(tmp_path)
        lines = str(caught.value).split("\n")
        assert lines[0] == "No checkpoint can be used:"
        assert [line.partition(": ")[0] for line in lines[1:]] == [f"{tmp_path}/other.pth", f"{tmp_path}/epoch_1.pth"]


class TestLoadWeights:
    RAW = {"weight": torch.full((1, 2), 1.0), "bias": torch.zeros(1)}  # noqa: RUF012

    def load(self, checkpoint: Any, wrapped: bool = False, **options: Any) -> dict[str, Any]:
        model = nn.Linear(2, 1)
        load_weights(idle_run(nn.DataParallel(model) if wrapped else model), checkpoint, **options)
        return {name: weight.flatten().tolist() for name, weight in model.state_dict().items()}

    def test_checkpoint_and_state_dict_are_accepted(self) -> None:
        expected = {"weight": [1.0, 1.0], "bias": [0.0]}

        assert self.load({"state_dict": self.RAW, "meta": {}}) == expected
        assert self.load(self.RAW) == self.load(self.RAW, wrapped=True) == expected

    def test_averaged_weights_are_loaded_on_request(self) -> None:
        averaged = {"weight": torch.full((1, 2), 5.0)}
        checkpoint = {"state_dict": self.RAW, "ema_state_dict": averaged}

        assert self.load(checkpoint, averaged=True) == {"weight": [5.0, 5.0], "bias": [0.0]}
        assert self.load(checkpoint) == {"weight": [1.0, 1.0], "bias": [0.0]}
        with pytest.raises(
            CheckpointError, match="weights: averaged is set, but the checkpoint contains no averaged weights"
        ):
            self.load({"state_dict": self.RAW}, averaged=True)

    def test_mismatch_is_an_error_only_if_strict(self, get_warnings: Callable[[], list[str]]) -> None:
        other = {"weight": torch.ones(3, 2), "bias": torch.full((1,), 4.0), "extra": torch.ones(1)}

        with pytest.raises(CheckpointError, match="The weights do not match the model"):
            self.load(other)
        torch.manual_seed(3)
        fresh = nn.Linear(2, 1).weight.flatten().tolist()
        torch.manual_seed(3)
        assert self.load(other, strict=False) == {"weight": fresh, "bias": [4.0]}
        assert get_warnings() == [
            "load_from: ignored keys of the file: ['extra', 'weight']; unchanged keys of the model: ['weight']"
        ]

    def test_file_without_any_match_is_an_error_even_if_not_strict(self) -> None:
        with pytest.raises(CheckpointError) as caught:
            self.load({"fc.weight": torch.ones(1, 2), "fc.bias": torch.ones(1)}, strict=False)
        assert str(caught.value) == (
            "No weight matches the model: the file contains fc.weight, fc.bias ..., the model contains weight, bias ..."
        )


class TestConfigHash:
    def test_hash_does_not_depend_on_the_order_of_settings(self) -> None:
        assert hash_config({"a": 1, "b": 2}) == hash_config({"b": 2, "a": 1}) != hash_config({"a": 1, "b": 3})

    def test_hash_without_a_configuration_is_empty(self) -> None:
        assert hash_config({}) == ""


class TestWrappedBlocks:
    """Inner layers of one of two runs are wrapped, which adds prefixes to the names in its state dict."""

    def build(self, wrapped: bool) -> nn.Module:
        model = net()
        if wrapped:
            model[0], model[3] = (nn.DataParallel(layer) for layer in (model[0], model[3]))
        return model

    @pytest.mark.parametrize(("first", "second"), [(True, False), (False, True), (True, True)])
    def test_run_resumes_exactly_with_and_without_wrapped_blocks(
        self, first: bool, second: bool, tmp_path: Path
    ) -> None:
        def train(saver: Saver, wrapped: bool, **options: Any) -> Run:
            torch.manual_seed(0)
            return trainer(saver, model=self.build(wrapped), epochs=2, accumulate=2, seed=1, **options).fit()

        saver = Saver(iteration=3)  # in the middle of an accumulation
        complete = train(saver, first, work_dir=tmp_path / "a")
        checkpoint = read_checkpoint(saver.files[0])
        assert list(checkpoint["state_dict"]) == list(checkpoint["grads"]) == list(net().state_dict())
        net().load_state_dict(checkpoint["state_dict"])

        resumed = train(Saver(iteration=-1), second, resume=saver.files[0])

        assert fingerprint(dict(resumed.weights.raw())) == fingerprint(dict(complete.weights.raw()))
        assert fingerprint(resumed.optimizer.state_dict()) == fingerprint(complete.optimizer.state_dict())


class VersionedLayer(nn.Linear):
    """Layer that doubles the weights of files that were written before its version 2."""

    _version = 2

    def _load_from_state_dict(self, state: Any, prefix: str, metadata: Any, *others: Any) -> None:
        if metadata.get("version", 1) < 2:
            state[f"{prefix}weight"] = state[f"{prefix}weight"] * 2
        super()._load_from_state_dict(state, prefix, metadata, *others)


class TestVersionsOfModules:
    @pytest.mark.parametrize("wrap", [nn.Sequential, lambda layer: nn.Sequential(nn.DataParallel(layer))])
    def test_state_of_the_current_version_is_not_converted(self, wrap: Any, tmp_path: Path) -> None:
        model = wrap(VersionedLayer(2, 1))
        expected = next(model.parameters()).tolist()
        path = tmp_path / "a.pth"
        write_checkpoint(path, build_checkpoint(idle_run(model)), 1)

        restored, loaded, plain = (nn.Sequential(VersionedLayer(2, 1)) for _ in range(3))
        restore_checkpoint(idle_run(restored), read_checkpoint(path))
        load_weights(idle_run(loaded), read_checkpoint(path))
        plain.load_state_dict(read_checkpoint(path)["state_dict"])
        for layer in (restored[0], loaded[0], plain[0]):
            assert layer.weight.tolist() == expected

    def test_state_dict_of_an_old_version_is_converted_once(self, tmp_path: Path) -> None:
        old, new = nn.Sequential(nn.Linear(2, 1)), nn.Sequential(VersionedLayer(2, 1))
        torch.save(old.state_dict(), tmp_path / "old.pth")
        load_weights(idle_run(new), read_checkpoint(tmp_path / "old.pth"))
        assert torch.equal(new[0].weight, 2 * old[0].weight)
