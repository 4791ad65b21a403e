"""Tests of the schema of checkpoints, with the checkpoint of an earlier version."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR

from hookbus import Hook, HookBus
from hookbus.checkpoint.contents import check_contents
from hookbus.checkpoint.state import (
    build_checkpoint,
    extract_weights,
    restore_checkpoint,
    write_checkpoint,
)
from hookbus.errors import CheckpointError
from tests.checkpoints import find_latest_checkpoint

GOLDEN = Path(__file__).parents[1] / "golden/run-0.1.0/checkpoints/iter_9.pth"


def load(**options: Any) -> dict[str, Any]:
    checkpoint: dict[str, Any] = torch.load(GOLDEN, weights_only=True, **options)
    return checkpoint


def set_value(content: Any, key: str, value: Any) -> None:
    """Set a value of nested mappings and lists by its path; the parts are separated by `/`."""
    *parents, last = [int(part) if part.isdigit() else part.replace("|", "/") for part in key.split("/")]
    for part in parents:
        if isinstance(content[part], tuple):
            content[part] = list(content[part])
        content = content[part]
    content[last] = value


def test_checkpoint_of_an_earlier_version_is_valid() -> None:
    check_contents(load())
    check_contents(load(map_location="meta"))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("state_dict", None, "state_dict: expected a mapping, got None"),
        ("state_dict", [], "state_dict: expected a mapping, got a list"),
        ("state_dict", {1: torch.ones(1)}, "state_dict: key: expected a string"),
        ("ema_state_dict", None, "ema_state_dict: expected a mapping"),
        ("optimizer", None, "optimizer: expected a mapping"),
        ("scheduler", [], "scheduler: expected a mapping"),
        ("grads", {"weight": None}, "grads.weight: expected a tensor"),
        ("meta", None, "meta: expected a mapping"),
        ("meta/processes", 0, "meta.processes: expected an integer from 1"),
        ("meta/initial_structure", {"a": [-1]}, r"meta.initial_structure.a\[0\]: expected an integer"),
        ("loop", None, "loop: expected a mapping"),
        ("loop/clock/iters_done", -1, "loop.clock.iters_done: expected an integer from 0 to 9007199254740992, got -1"),
        ("loop/clock/iters_done", 10**30, "loop.clock.iters_done: expected an integer"),
        ("loop/clock/iters_done", True, "loop.clock.iters_done: expected an integer"),
        ("loop/clock/iters_done", 9.0, "loop.clock.iters_done: expected an integer"),
        ("loop/clock/iters_done", "9", "loop.clock.iters_done: expected an integer"),
        ("loop/clock/iters_done", 10, "loop.clock.iters_done: expected 9 as in meta.iter, got 10"),
        ("loop/clock/epoch_first_iter", 10, "loop.clock.epoch_first_iter: expected at most iters_done=9, got 10"),
        ("loop/clock/epoch_open", 1, "loop.clock.epoch_open: expected true or false"),
        ("loop/clock/seconds", float("nan"), "loop.clock.seconds: expected a finite number >= 0, got nan"),
        ("loop/accumulated", -1, "loop.accumulated: expected an integer"),
        ("loop/seed", None, "loop.seed: expected an integer"),
        ("loop/id", "../x", "loop.id: expected a string of the form"),
        ("loop/best/val|accuracy/value", "high", "loop.best.val/accuracy.value: expected a number"),
        ("loop/best/val|accuracy/path", "../../x.pth", "loop.best.val/accuracy.path: expected a string of the form"),
        ("loop/best/val|accuracy/path", "a\0", "loop.best.val/accuracy.path: expected a string of the form"),
        ("loop/best/val|accuracy/weights", "other", r"weights: expected a string of the form raw\|evaluated\|averaged"),
        ("loop/metrics/columns/train|loss/count", 8, "values: expected 8 values of 8, got 9 values"),
        ("loop/metrics/columns/train|loss/values", torch.ones(65), "a tensor of 1 dimensions and at most 64 elements"),
        ("loop/metrics/windows/epoch/begins", [], "windows.epoch.begins: expected a mapping"),
        ("loop/metrics/windows/epoch/sums", {"a": [0.0, -1]}, "windows.epoch.sums.a: expected a list of 3 to 3"),
        ("loop/data", None, "loop.data: expected a mapping"),
        (
            "loop/data",
            {"epoch": {"loaders": [], "passes": [{}]}, "run": {}, "lengths": {}},
            r"passes\[0\].ordinal: expected a value",
        ),
        ("hooks", [], "hooks: expected a mapping"),
        ("hooks/ema", None, "hooks.ema: expected a mapping"),
        ("hooks/ema/state", 3, "hooks.ema.state: expected a mapping"),
        ("hooks/ema/version", None, "hooks.ema.version: expected an integer"),
        ("rng", None, "rng: expected a mapping"),
        ("rng/torch", torch.zeros(16), "rng.torch: expected a tensor of dtype torch.uint8"),
        ("rng/torch", torch.zeros(16, dtype=torch.uint8), "rng.torch: expected a state of torch's RNG"),
        ("rng/torch", torch.zeros(5056, dtype=torch.uint8), "rng.torch: expected a state of torch's RNG"),
        ("rng/python", [3, [1, 2], None], r"rng.python\[1\]: expected a list of 625 to 625 entries"),
        ("rng/python/0", 9, "rng.python: expected a state of Python's RNG"),
        ("rng/python/2", float("nan"), r"rng.python\[2\]: expected a finite number"),
        ("rng/numpy/0", "PCG64", "rng.numpy: expected a state of NumPy's RNG"),
        ("rng/numpy/2", 10**6, r"rng.numpy\[2\]: expected an integer from 0 to 624"),
        ("rng/cuda", [None], r"rng.cuda\[0\]: expected a tensor"),
        ("ranks", None, "ranks: expected a list"),
        ("ranks", [{}], r"ranks\[0\].rng: expected a value"),
    ],
)
def test_invalid_value_is_reported_with_its_key(key: str, value: Any, message: str) -> None:
    checkpoint = load()
    set_value(checkpoint, key, value)
    with pytest.raises(CheckpointError, match=f"The checkpoint is invalid: .*{message}"):
        check_contents(checkpoint)


def test_number_of_rank_states_must_be_the_world_size() -> None:
    checkpoint = load()
    own = {"rng": checkpoint["rng"], **{key: checkpoint["loop"][key] for key in ("metrics", "data")}}
    check_contents({**checkpoint, "ranks": [own]})
    with pytest.raises(CheckpointError, match="ranks: expected 1 entries, got 2"):
        check_contents({**checkpoint, "ranks": [own, own]})


class Refusing(Hook):
    def state_dict(self) -> dict[str, Any]:
        return {"count": 1}

    def check_state(self, state: dict[str, Any]) -> None:
        assert state["count"] >= 0, "negative count"


def make_parts() -> dict[str, Any]:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    optimizer = AdamW(model.parameters(), lr=0.5)
    return {"model": model, "optimizer": optimizer, "scheduler": StepLR(optimizer, 2)}


def save_step() -> dict[str, Any]:
    """Return the checkpoint of a run after one step."""
    parts = make_parts()
    with HookBus(hooks=[Refusing(name="probe")]).run(**parts, work_dir=None) as run:
        parts["model"](torch.ones(4, 2)).sum().backward()
        parts["optimizer"].step()
        parts["scheduler"].step()
        return build_checkpoint(run)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("state_dict/0.weight", None, "invalid value for 0.weight: expected a tensor, got None"),
        ("state_dict/0.weight", torch.ones(3, 2).to_sparse(), "type mismatch for 0.weight"),
        ("state_dict/0.weight", torch.ones(3, 2, dtype=torch.complex64), "type mismatch for 0.weight"),
        ("state_dict/0.weight", torch.ones(1).expand(10**15), r"size mismatch for 0.weight: the file contains \[1000"),
        ("state_dict/1.num_batches_tracked", torch.tensor(0.5), "type mismatch for 1.num_batches_tracked"),
        ("optimizer/state/0", None, "optimizer.state.0: expected a mapping"),
        ("optimizer/state/0", {}, "optimizer.state.1: expected the keys none, got exp_avg"),
        ("optimizer/state/0/exp_avg", None, "optimizer.state.0.exp_avg: expected a tensor"),
        ("optimizer/state/0/exp_avg", torch.ones(3), r"exp_avg: expected a tensor of shape \(3, 2\)"),
        ("optimizer/state/0/step", -1, "optimizer.state.0.step: expected a number from 0"),
        ("optimizer/state/0/step", torch.tensor(float("nan")), "optimizer.state.0.step: expected a number from 0"),
        ("optimizer/state", {9: {}}, "optimizer.state: expected indices of parameters, got 9"),
        ("optimizer/param_groups", 3, "optimizer.param_groups: expected a list"),
        ("optimizer/param_groups/0/params", None, r"optimizer.param_groups\[0\].params: expected a list"),
        ("optimizer/param_groups/0/params", [0], r"its parameter groups contain \[1\] parameters, and those .* \[4\]"),
        ("optimizer/param_groups/0/lr", -1.0, r"optimizer.param_groups\[0\].lr: expected a number >= 0, got -1.0"),
        ("optimizer/param_groups/0/lr", float("nan"), r"optimizer.param_groups\[0\].lr: expected a number >= 0"),
        ("optimizer/param_groups/0/betas", [0.9], r"optimizer.param_groups\[0\].betas: expected a list of 2 to 2"),
        ("optimizer/param_groups/0/amsgrad", "no", r"optimizer.param_groups\[0\].amsgrad: expected true or false"),
        ("scheduler", {}, "scheduler.last_epoch: expected a value, got no such key"),
        ("scheduler/last_epoch", -1, "scheduler.last_epoch: expected a number >= 0, got -1"),
        ("scheduler/last_epoch", 10**30, "scheduler.last_epoch: expected a number"),
        ("scheduler/base_lrs", ["x"], r"scheduler.base_lrs\[0\]: expected a number"),
        ("grads", {"0.weight": torch.ones(3)}, r"grads.0.weight: expected a tensor of shape \(3, 2\)"),
        ("hooks/probe/state", {"count": -1}, "hook 'probe' .* AssertionError: negative count"),
        ("hooks/probe/version", 2, "hook 'probe': the checkpoint contains state version 2"),
    ],
)
def test_refused_checkpoint_modifies_nothing(key: str, value: Any, message: str) -> None:
    checkpoint = save_step()
    set_value(checkpoint, key, value)
    parts = make_parts()
    before = {name: tensor.clone() for name, tensor in parts["model"].state_dict().items()}
    rng = torch.get_rng_state()
    with HookBus(hooks=[Refusing(name="probe")]).run(**parts, work_dir=None) as run:
        with pytest.raises(CheckpointError, match=message):
            restore_checkpoint(run, checkpoint)
        assert run.iters_done == run.steps_done == 0
    assert all(torch.equal(before[name], tensor) for name, tensor in parts["model"].state_dict().items())
    assert parts["optimizer"].state_dict()["state"] == {}
    assert parts["scheduler"].last_epoch == 0
    assert torch.equal(torch.get_rng_state(), rng)


def test_states_of_a_scheduler_by_metric_and_of_momentum_are_restored() -> None:
    model = nn.Linear(2, 1)
    optimizer = SGD(model.parameters(), 1, momentum=0.9)  # an integer, whose saved value is a float after a step
    scheduler = ReduceLROnPlateau(optimizer, patience=0)
    with HookBus().run(model=model, optimizer=optimizer, scheduler=scheduler, work_dir=None) as run:
        checkpoint = build_checkpoint(run)
        checkpoint["scheduler"] |= {"best": -2.5, "num_bad_epochs": 1}
        checkpoint["optimizer"]["param_groups"][0]["lr"] = 0.25
        restore_checkpoint(run, checkpoint)
    assert (scheduler.best, scheduler.num_bad_epochs, optimizer.param_groups[0]["lr"]) == (-2.5, 1, 0.25)


@pytest.mark.parametrize(
    "edit",
    [
        lambda checkpoint: checkpoint.update(state_dict=None),
        lambda checkpoint: checkpoint["loop"]["clock"].update(iters_done=10**30),
        lambda checkpoint: checkpoint["rng"].update(torch=None),
    ],
)
def test_older_checkpoint_is_used_with_one_message(tmp_path: Path, edit: Callable[[Any], object]) -> None:
    checkpoint = save_step()
    write_checkpoint(tmp_path / "old.pth", checkpoint, 1)
    edit(checkpoint)
    write_checkpoint(tmp_path / "new.pth", checkpoint, 2)
    newest = find_latest_checkpoint(tmp_path, map_location="meta")
    assert newest is not None
    assert newest[0].name == "old.pth"
    assert [message.partition(":")[0] for message in newest[2]] == [str(tmp_path / "new.pth")]


@pytest.mark.parametrize("weights", [None, [], {}, {1: 2}, "x"])
def test_weights_that_are_not_a_mapping_are_refused(weights: Any) -> None:
    with pytest.raises(CheckpointError, match="The checkpoint is invalid: state_dict"):
        extract_weights({"state_dict": weights})
    with pytest.raises(CheckpointError, match="The checkpoint is invalid: ema_state_dict"):
        extract_weights({"state_dict": {"w": 1}, "ema_state_dict": weights}, averaged=True)
