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
from hookbus.bus import HookBus
from hookbus.checkpoints.files import commit, verify
from hookbus.errors import CheckpointDamaged, CheckpointError, HookWarning
from hookbus.hook import Hook
from hookbus.run import Best, Run
from hookbus.state import (
    collect,
    config_hash,
    find_newest,
    load_weights,
    read_checkpoint,
    restore,
    write_checkpoint,
)
from hookbus.testing import fingerprint
from tests.dying import deaths, in_child
from tests.toys import Saver, idle_run, net, trainer


@pytest.fixture(autouse=True)
def _the_disk_is_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here depends on what a loss of power would leave."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def warned(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.WARNING, logger="hookbus")
    return lambda: [record.getMessage() for record in caplog.records]


class TestCollect:
    def test_a_run_with_everything_has_these_keys(self) -> None:
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
        run.best |= {"val/accuracy": Best(0.5, 1, 3, "averaged"), "val/loss": Best(2.0, 0, 0)}
        checkpoint = collect(run)

        assert list(checkpoint) == ["meta", "state_dict", "optimizer", "scheduler", "scaler", "hooks", "rng", "loop"]
        meta = checkpoint["meta"]
        assert (meta["schema"], meta["hookbus"], meta["seed"]) == (1, hookbus.__version__, 7)
        assert [meta[key] for key in ("epoch", "iter", "step", "samples", "metrics")] == [0, 0, 0, 0, {}]
        assert meta["config_hash"] == config_hash({"lr": 0.1})
        assert meta["best_weights"] == {"val/accuracy": "averaged", "val/loss": "raw"}

    def test_a_run_with_nothing_has_the_rest(self) -> None:
        assert list(collect(idle_run())) == ["meta", "state_dict", "hooks", "rng", "loop"]

    @pytest.mark.parametrize("wrap", [lambda m: m, nn.DataParallel, lambda m: Compiled(nn.DataParallel(m))])
    def test_the_keys_are_those_of_the_model_inside_wrappers(self, wrap: Callable[[nn.Module], nn.Module]) -> None:
        checkpoint = collect(idle_run(wrap(nn.Linear(2, 1))))

        assert list(checkpoint["state_dict"]) == ["weight", "bias"]
        for other in (nn.Linear(2, 1), nn.DataParallel(nn.Linear(2, 1))):
            run = idle_run(other)
            restore(run, checkpoint)
            assert fingerprint(collect(run)["state_dict"]) == fingerprint(checkpoint["state_dict"])

    def test_the_raw_weights_are_kept_even_while_averaged_ones_are_in_the_model(self) -> None:
        model = nn.Linear(2, 1)
        run = idle_run(model)
        raw, averaged = {"weight": torch.ones(1, 2)}, {"weight": torch.zeros(1, 2)}
        run.weights.provide(Averages(raw, averaged))
        checkpoint = collect(run)

        assert (checkpoint["state_dict"], checkpoint["ema_state_dict"]) == (raw, averaged)

    def test_the_end_of_updates_on_another_thread_is_waited_for(self) -> None:
        run = idle_run(nn.Linear(2, 1))
        averages = Averages(None, None)
        run.weights.provide(averages)

        assert "ema_state_dict" not in collect(run)
        assert averages.waited

    @pytest.mark.parametrize("part", ["state_dict", "ema_state_dict", "optimizer", "scheduler"])
    def test_what_is_not_plain_is_an_error_with_its_place(self, part: str) -> None:
        model = Strange() if part == "state_dict" else nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scheduler = lr_scheduler.StepLR(optimizer, 1)
        run = idle_run(model, optimizer=optimizer, scheduler=scheduler)
        match part:
            case "ema_state_dict":
                run.weights.provide(Averages(None, {"odd": np.ones(2)}))  # type: ignore[dict-item]
            case "optimizer":
                optimizer.param_groups[0]["odd"] = object()
            case "scheduler":
                scheduler.odd = object()

        with pytest.raises(CheckpointError, match=rf"^checkpoint\['{part}'\].*\['odd'\] is a \w+\. A checkpoint holds"):
            collect(run)


class Strange(nn.Linear):
    """A module that keeps something of its own beside its weights."""

    def __init__(self) -> None:
        super().__init__(2, 1)

    def get_extra_state(self) -> dict[str, object]:
        return {"odd": object()}


class Compiled(nn.Module):
    """Wraps a module in the manner of torch.compile."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._orig_mod = module


class Averages:
    """A provider of averaged weights."""

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
    def with_grads(tmp_path: Path, *hooks: object, **options: Any) -> list[bool]:
        """Whether the checkpoint of each iteration holds gradients."""
        saver = Saver()
        trainer(saver, *hooks, work_dir=tmp_path, **{"iterations": 5, **options}).fit()
        return ["grads" in read_checkpoint(path) for path in saver.files]

    def test_are_kept_in_the_middle_of_an_accumulation_only(self, tmp_path: Path) -> None:
        assert self.with_grads(tmp_path / "a") == [False] * 5
        assert self.with_grads(tmp_path / "b", accumulate=2) == [True, False, True, False, True]
        assert self.with_grads(tmp_path / "c", accumulate=3) == [True, True, False, True, True]

    def test_are_not_kept_because_an_iteration_was_left_out(self, tmp_path: Path) -> None:
        class Skips(Hook):
            def before_train_iter(self, run: Run) -> None:
                if run.iter == 2:
                    run.request_skip_iter()

        assert self.with_grads(tmp_path / "a", Skips()) == [False] * 5
        assert self.with_grads(tmp_path / "b", Skips(), accumulate=2) == [True, False, False, True, False]

    def test_are_not_kept_because_an_update_was_left_out_by_the_scaler(self, tmp_path: Path) -> None:
        class Spoils(Hook):
            def after_backward(self, run: Run) -> None:
                if run.iter == 1:
                    next(iter(run.model.parameters())).grad.fill_(float("inf"))  # type: ignore[union-attr]

        assert self.with_grads(tmp_path, Spoils(), precision="fp16") == [False] * 5

    def test_in_a_loop_of_ones_own_the_updates_tell(self, tmp_path: Path) -> None:
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
        found = [read_checkpoint(path).get("grads") for path in saver.files]
        assert found[1] is found[3] is None
        assert found[0] == found[2] == {"weight": torch.ones(1, 1), "bias": torch.ones(1)}

    def test_come_back_under_their_names_and_others_go(self) -> None:
        checkpoint = collect(idle_run(nn.Linear(1, 1)))
        model = nn.Linear(1, 1)
        model.bias.grad = torch.ones(1)
        restore(idle_run(model), {**checkpoint, "grads": {"weight": torch.full((1, 1), 3.0)}})

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


class TestParts:
    @pytest.mark.parametrize("kind", SCHEDULERS)
    @pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
    def test_every_scheduler_can_be_read_back_and_goes_on(self, tmp_path: Path, kind: str, optimizer: Any) -> None:
        def parts() -> tuple[nn.Module, Any, Any]:
            model = nn.Linear(2, 1)
            made = optimizer(model.parameters(), lr=0.05)
            return model, made, SCHEDULERS[kind](made)

        def step(model: nn.Module, optimizer: Any, scheduler: Any, number: int) -> float:
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            scheduler.step(*([np.float64(1.0)] if kind == "ReduceLROnPlateau" else []))
            return float(optimizer.param_groups[0]["lr"])

        model, made, scheduler = parts()
        [step(model, made, scheduler, i) for i in range(3)]
        write_checkpoint(tmp_path / "a.pth", collect(idle_run(model, optimizer=made, scheduler=scheduler)), 1)
        expected = [step(model, made, scheduler, i) for i in range(3)]
        fresh_model, fresh, fresh_scheduler = parts()
        restore(idle_run(fresh_model, optimizer=fresh, scheduler=fresh_scheduler), read_checkpoint(tmp_path / "a.pth"))
        fresh_model.zero_grad(), model.zero_grad()

        assert [step(fresh_model, fresh, fresh_scheduler, i) for i in range(3)] == expected

    def test_a_learning_rate_of_numpy_does_not_make_the_file_unreadable(self, tmp_path: Path) -> None:
        saver = Saver()
        trainer(saver, lr=np.float64(0.05), iterations=1, work_dir=tmp_path).fit()
        rate = read_checkpoint(saver.files[0])["optimizer"]["param_groups"][0]["lr"]

        assert (type(rate), rate) == (float, 0.05)

    @pytest.mark.parametrize("name", ["optimizer", "scheduler", "scaler"])
    def test_a_part_that_only_one_side_has_is_reported(self, name: str, warned: Callable[[], list[str]]) -> None:
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        made = {
            "optimizer": optimizer,
            "scheduler": lr_scheduler.StepLR(optimizer, 1),
            "scaler": torch.amp.GradScaler("cpu"),
        }
        restore(idle_run(model), collect(idle_run(model, **{name: made[name]})))
        restore(idle_run(model, **{name: made[name]}), collect(idle_run(model)))

        assert warned() == [
            f"The checkpoint holds a {name}, and this run has none: it is left out.",
            f"The checkpoint holds no {name}: it starts afresh.",
        ]

    def test_an_optimizer_of_another_shape_is_an_error(self) -> None:
        model = nn.Linear(2, 1)
        checkpoint = collect(idle_run(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1)))
        other = torch.optim.SGD([model.weight], lr=0.1)

        with pytest.raises(
            CheckpointError, match="The optimizer of the checkpoint does not fit this run's: loaded state"
        ):
            restore(idle_run(model, optimizer=other), checkpoint)

    def test_a_model_of_another_shape_is_an_error(self) -> None:
        checkpoint = collect(idle_run(nn.Linear(2, 1)))

        with pytest.raises(CheckpointError, match=r"The weights do not fit the model: .*size mismatch for weight"):
            restore(idle_run(nn.Linear(3, 1)), checkpoint)
        with pytest.raises(CheckpointError, match=r"The weights do not fit the model: .*Unexpected key.* \"bias\""):
            restore(idle_run(nn.Linear(2, 1, bias=False)), checkpoint)

    def test_what_is_no_checkpoint_to_resume_from_says_what_it_lacks(self) -> None:
        with pytest.raises(CheckpointError) as caught:
            restore(idle_run(nn.Linear(2, 1)), {"state_dict": {}, "meta": {}})

        assert str(caught.value) == (
            "This is not a checkpoint to resume from: it has no hooks, rng, loop. To start from its weights alone, say "
            "load_from instead of resume."
        )

    def test_another_layout_says_which_version_reads_it(self) -> None:
        checkpoint = collect(idle_run())
        checkpoint["meta"] |= {"schema": 99, "hookbus": "9.9"}

        with pytest.raises(CheckpointError) as caught:
            restore(idle_run(), checkpoint)
        assert str(caught.value) == (
            f"The checkpoint has layout 99, and this hookbus {hookbus.__version__} reads layout 1. It was written by "
            "hookbus 9.9: use that version."
        )


def put(path: Path, generation: int = 1) -> dict[str, Any]:
    checkpoint = {"meta": {"generation": generation}, "state_dict": {"weight": torch.full((50,), float(generation))}}
    write_checkpoint(path, checkpoint, generation)
    return checkpoint


class TestWriteAndRead:
    def test_what_was_written_is_read(self, tmp_path: Path) -> None:
        checkpoint = put(tmp_path / "a.pth")

        assert fingerprint(read_checkpoint(tmp_path / "a.pth")) == fingerprint(checkpoint)
        assert fingerprint(read_checkpoint(str(tmp_path / "a.pth"))) == fingerprint(checkpoint)

    @pytest.mark.parametrize("crc32", [True, False])
    def test_torchs_own_settings_stay_as_they_are(self, tmp_path: Path, crc32: bool) -> None:
        earlier = torch.serialization.get_crc32_options()
        try:
            torch.serialization.set_crc32_options(crc32)
            put(tmp_path / "a.pth")
            assert torch.serialization.get_crc32_options() is crc32
        finally:
            torch.serialization.set_crc32_options(earlier)

    def test_a_damaged_file_is_refused_wherever_the_damage_is(self, tmp_path: Path) -> None:
        path = tmp_path / "a.pth"
        put(path)
        content = path.read_bytes()
        for at in range(0, len(content), 37):
            path.write_bytes(content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :])
            with pytest.raises(CheckpointDamaged, match="a.pth: damaged"):
                read_checkpoint(path)

    def test_a_file_without_sidecar_is_read_with_a_warning(self, tmp_path: Path) -> None:
        torch.save({"weight": torch.ones(1)}, tmp_path / "other.pth")

        with pytest.warns(
            HookWarning, match="other.pth: it has no sidecar other.pth.json, so damage would not be noticed"
        ):
            assert read_checkpoint(tmp_path / "other.pth") == {"weight": torch.ones(1)}

    def test_reading_runs_no_code(self, tmp_path: Path) -> None:
        class Malicious:
            def __reduce__(self) -> Any:
                return os.mkdir, (str(tmp_path / "pwned"),)

        for save in (torch.save, lambda value, file: pickle.dump(value, file, protocol=2)):
            commit(tmp_path / "a.pth", lambda file, save=save: save({"state_dict": Malicious()}, file), 1)
            with pytest.raises(CheckpointDamaged, match="a.pth: it cannot be read as data: it holds .*mkdir, "):
                read_checkpoint(tmp_path / "a.pth")
        assert not (tmp_path / "pwned").exists()

    def test_what_is_no_checkpoint_is_an_error(self, tmp_path: Path) -> None:
        commit(tmp_path / "a.pth", lambda file: torch.save([1], file), 1)
        commit(tmp_path / "b.pth", lambda file: file.write(b"no checkpoint at all"), 1)

        with pytest.raises(CheckpointError, match="a.pth: it holds a list, not a checkpoint."):
            read_checkpoint(tmp_path / "a.pth")
        with pytest.raises(CheckpointDamaged, match="b.pth: it cannot be read as data: "):
            read_checkpoint(tmp_path / "b.pth")

    def test_a_file_that_is_not_there_is_an_error_that_lists_its_neighbours(self, tmp_path: Path) -> None:
        put(tmp_path / "b.pth"), put(tmp_path / "a.pth")

        with pytest.raises(CheckpointError) as caught:
            read_checkpoint(tmp_path / "c.pth")
        assert str(caught.value) == f"{tmp_path}/c.pth: there is no such file. {tmp_path} has a.pth, b.pth."
        with pytest.raises(CheckpointError, match=r"x/c.pth: there is no such file\.$"):
            read_checkpoint(tmp_path / "x" / "c.pth")

    @pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
    def test_no_space_left_is_an_oserror_and_the_older_file_stays(self, tmp_path: Path, share: float) -> None:
        put(tmp_path / "a.pth")
        limit = int((tmp_path / "a.pth").stat().st_size * share)

        def write_too_much() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            with pytest.raises(OSError, match="File too large"):
                put(tmp_path / "a.pth", 2)

        assert in_child(write_too_much) == 0
        assert read_checkpoint(tmp_path / "a.pth")["meta"] == {"generation": 1}
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a.pth", "a.pth.json"]

    def test_a_process_that_dies_while_it_writes_leaves_what_can_be_resumed(self, tmp_path: Path) -> None:
        put(tmp_path / "epoch_1.pth")
        cut_off = (
            f"{tmp_path / 'epoch_2.pth'}: only its sidecar epoch_2.pth.json is there: the file was deleted, or the "
            "save was cut off."
        )

        def look() -> None:
            cut = [*tmp_path.glob("epoch_2.pth.json")]
            found = find_newest(tmp_path)
            assert found is not None
            path, checkpoint, troubles = found
            number = checkpoint["meta"]["generation"]
            assert path.name == f"epoch_{number}.pth"
            assert troubles == ([cut_off] if cut and number == 1 else [])
            for each in tmp_path.glob("*.pth"):
                assert verify(each)
            for each in [*tmp_path.glob("epoch_2*"), *tmp_path.glob(".tmp*")]:
                each.unlink()

        assert deaths(lambda: put(tmp_path / "epoch_2.pth", 2), look) >= 12


class TestFindNewest:
    def test_takes_the_newest_generation(self, tmp_path: Path) -> None:
        put(tmp_path / "z.pth", 1), put(tmp_path / "a.pth", 10), put(tmp_path / "m.pth", 9)
        found = find_newest(tmp_path)

        assert found is not None
        assert (found[0].name, found[1]["meta"], found[2]) == ("a.pth", {"generation": 10}, [])

    def test_where_there_is_nothing_it_finds_nothing(self, tmp_path: Path) -> None:
        (tmp_path / ".tmp-1.pth").write_bytes(b"half")

        assert find_newest(tmp_path) is None
        assert find_newest(tmp_path / "not there") is None

    def test_falls_back_to_the_newest_good_one_and_says_what_was_wrong(self, tmp_path: Path) -> None:
        for generation in (1, 2, 3, 4):
            put(tmp_path / f"epoch_{generation}.pth", generation)
        (tmp_path / "epoch_4.pth").write_bytes(b"cut")
        commit(tmp_path / "epoch_3.pth", lambda file: torch.save([3], file), 3)
        found = find_newest(tmp_path)

        assert found is not None
        assert found[1]["meta"] == {"generation": 2}
        size = found[0].stat().st_size
        assert found[2] == [
            f"{tmp_path}/epoch_4.pth: damaged: 3 bytes, not {size}.",
            f"{tmp_path}/epoch_3.pth: it holds a list, not a checkpoint.",
        ]

    @pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: path.write_text("{")])
    def test_says_so_where_a_sidecar_is_missing_or_damaged(self, tmp_path: Path, damage: Callable[[Path], Any]) -> None:
        put(tmp_path / "epoch_1.pth", 1), put(tmp_path / "epoch_2.pth", 2)
        damage(tmp_path / "epoch_2.pth.json")
        found = find_newest(tmp_path)

        assert found is not None
        assert (found[0].name, found[2]) == (
            "epoch_1.pth",
            [
                f"{tmp_path}/epoch_2.pth: its sidecar epoch_2.pth.json is missing or damaged. Such a file is used only "
                "where it is named."
            ],
        )

    def test_where_none_can_be_used_it_lists_why(self, tmp_path: Path) -> None:
        put(tmp_path / "epoch_1.pth", 1)
        (tmp_path / "epoch_1.pth").write_bytes(b"")
        torch.save({}, tmp_path / "other.pth")

        with pytest.raises(CheckpointError) as caught:
            find_newest(tmp_path)
        lines = str(caught.value).split("\n")
        assert lines[0] == "No checkpoint can be used:"
        assert [line.partition(": ")[0] for line in lines[1:]] == [f"{tmp_path}/other.pth", f"{tmp_path}/epoch_1.pth"]


class TestLoadWeights:
    RAW = {"weight": torch.full((1, 2), 1.0), "bias": torch.zeros(1)}  # noqa: RUF012

    def loaded(self, checkpoint: Any, wrapped: bool = False, **options: Any) -> dict[str, Any]:
        model = nn.Linear(2, 1)
        load_weights(idle_run(nn.DataParallel(model) if wrapped else model), checkpoint, **options)
        return {name: weight.flatten().tolist() for name, weight in model.state_dict().items()}

    def test_takes_a_checkpoint_and_a_bare_state_dict(self) -> None:
        expected = {"weight": [1.0, 1.0], "bias": [0.0]}

        assert self.loaded({"state_dict": self.RAW, "meta": {}}) == expected
        assert self.loaded(self.RAW) == self.loaded(self.RAW, wrapped=True) == expected

    def test_takes_averaged_weights_where_told_to(self) -> None:
        averaged = {"weight": torch.full((1, 2), 5.0)}
        checkpoint = {"state_dict": self.RAW, "ema_state_dict": averaged}

        assert self.loaded(checkpoint, averaged=True) == {"weight": [5.0, 5.0], "bias": [0.0]}
        assert self.loaded(checkpoint) == {"weight": [1.0, 1.0], "bias": [0.0]}
        with pytest.raises(
            CheckpointError, match="weights: averaged was asked for, but the file has no averaged weights"
        ):
            self.loaded({"state_dict": self.RAW}, averaged=True)

    def test_what_does_not_fit_is_an_error_unless_leniency_was_asked_for(self, warned: Callable[[], list[str]]) -> None:
        other = {"weight": torch.ones(3, 2), "bias": torch.full((1,), 4.0), "extra": torch.ones(1)}

        with pytest.raises(CheckpointError, match="The weights do not fit the model"):
            self.loaded(other)
        torch.manual_seed(3)
        fresh = nn.Linear(2, 1).weight.flatten().tolist()
        torch.manual_seed(3)
        assert self.loaded(other, strict=False) == {"weight": fresh, "bias": [4.0]}
        assert warned() == ["load_from: left out of the file: ['extra', 'weight']; kept as they were: ['weight']"]

    def test_a_file_of_which_nothing_fits_is_an_error_for_the_lenient_too(self) -> None:
        with pytest.raises(CheckpointError) as caught:
            self.loaded({"module.weight": torch.ones(1, 2), "module.bias": torch.ones(1)}, strict=False)
        assert str(caught.value) == (
            "None of the weights fits: the file has module.weight, module.bias ..., the model weight, bias ..."
        )


class TestConfigHash:
    def test_is_the_same_for_the_same_settings_in_any_order(self) -> None:
        assert config_hash({"a": 1, "b": 2}) == config_hash({"b": 2, "a": 1}) != config_hash({"a": 1, "b": 3})

    def test_is_empty_where_there_is_no_configuration(self) -> None:
        assert config_hash({}) == ""
