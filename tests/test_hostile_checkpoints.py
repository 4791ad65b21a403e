"""Checkpoints with hostile values and damaged files: each is refused with a message, or restores the same state."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hookbus import HookBus, Run, Trainer
from hookbus.checkpoint.state import (
    build_checkpoint,
    read_checkpoint,
    restore_checkpoint,
    write_checkpoint,
)
from hookbus.errors import CheckpointError
from hookbus_checkpoint import CheckpointHook
from hookbus_early_stopping import EarlyStoppingHook
from hookbus_ema import EMAHook
from hookbus_logger import JsonlHook, LoggerHook
from hookbus_timer import IterTimerHook, TimeTrackingHook
from tests.checkpoints import find_latest_checkpoint
from tests.sharded_models import single_process_group, write_sharded_checkpoint

HOSTILE: list[Any] = [
    None,
    "x" * 5000,
    -1,
    10**30,
    float("nan"),
    True,
    1.5,
    b"bytes",
    [],
    [None],
    {},
    {"a": {"b": 1}},
    {1: 2},
    torch.ones(7, dtype=torch.int64),
    torch.ones(1).expand(10**15),
]

NULLABLE = {
    "best_score",
    "best_epoch",
    "best_weights",
    "last",
    "full_name",
    "epoch_length",
    "begin",
    "saved_at",
    "path",
}
"""Keys of values that may be None."""

EMPTY = {
    *("state", "hooks", "averaged", "cells", "columns", "windows", "begins", "results", "loaders", "rates", "steps"),
    *("names", "rules", "best"),
}
"""Keys of mappings and lists that may be empty or lack entries, and of states that may contain further ones."""


def is_valid(path: tuple[Any, ...], value: Any) -> bool:
    """Return whether a value may be another valid value: a number, none, or a container with other entries."""
    if path[0] == "loop" and "lengths" in path:
        return value in (None, [], [None])
    if path[-1] == "first_line":
        return isinstance(value, str)
    is_other = isinstance(value, (int, float)) or (value is None and path[-1] in {*NULLABLE, "averaged"})
    return is_other or (isinstance(value, (dict, list)) and not EMPTY.isdisjoint(path[-2:]))


def train_epoch(run: Run, loader: Any) -> None:
    for batch_idx, (inputs,) in run.batches(loader):
        run.bus.emit("before_train_iter", batch_idx=batch_idx, batch=inputs)
        run.optimizer.zero_grad()
        loss = run.model(inputs).square().mean()
        loss.backward()
        run.optimizer.step()
        run.bus.emit("after_train_iter", batch_idx=batch_idx, batch=inputs, outputs={"loss": loss})


@contextmanager
def open_run(work_dir: Path, epochs: int) -> Iterator[Run]:
    """Context manager for a run with the hooks that have a state, after a number of epochs."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    hooks = [
        EMAHook(momentum=0.5),
        CheckpointHook(interval=9, best_metric="loss"),
        EarlyStoppingHook(monitor="loss", mode="min", patience=5),
        JsonlHook(interval=1),
        LoggerHook(interval=1),
        IterTimerHook(),
        TimeTrackingHook(),
    ]
    loader = DataLoader(TensorDataset(torch.randn(8, 2)), 4, shuffle=True)
    arguments = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "work_dir": work_dir}
    with HookBus(hooks=hooks).run(**arguments, epochs=9, validate=lambda run: {"loss": 1.0}) as run:
        for _ in zip(range(epochs), run.epochs(), strict=False):
            run.bus.emit("before_train_epoch")
            train_epoch(run, loader)
            run.bus.emit("after_train_epoch")
            run.request_validation()
        yield run


def iter_paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each value; of lists, those of the first two entries."""
    entries = list(value.items()) if isinstance(value, dict) else []
    entries += list(enumerate(value))[:2] if isinstance(value, (list, tuple)) else []
    for key, item in entries:
        yield (*path, key)
        yield from iter_paths(item, (*path, key))


def replace(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """Return a copy of nested containers with another value."""
    if not path:
        return new
    copy = type(value)(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replace(copy[path[0]], path[1:], new)
    return copy if isinstance(value, dict) else type(value)(copy)


def read_state(run: Run) -> dict[str, Any]:
    """Return the state of a run, without the times that pass between two calls."""
    checkpoint = build_checkpoint(run)
    parts = {key: part for key, part in checkpoint.items() if key not in ("meta", "hooks")}
    hooks = {name: record["state"] for name, record in checkpoint["hooks"].items() if name in run.bus.hooks}
    return {**parts, "hooks": hooks, "loop": {**checkpoint["loop"], "clock": run.clock.iters_done, "id": ""}}


def are_equal(first: Any, second: Any) -> bool:
    if type(first) is not type(second):
        return False
    if isinstance(first, torch.Tensor):
        return torch.equal(first, second)
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(are_equal(first[key], second[key]) for key in first)
    if isinstance(first, (list, tuple)):
        return len(first) == len(second) and all(map(are_equal, first, second))
    return bool(first == second or first != first)


def copy_tensors(value: Any) -> Any:
    if isinstance(value, dict):
        return type(value)({key: copy_tensors(item) for key, item in value.items()})
    if isinstance(value, (list, tuple)):
        return type(value)(map(copy_tensors, value))
    return value.clone() if isinstance(value, torch.Tensor) else value


def find_violations(tmp_path: Path, select: Callable[[list[Any]], list[Any]]) -> Iterator[str]:
    """Yield a description of each hostile value that modifies the run although it is refused, or is not refused."""
    with open_run(tmp_path / "good", 2) as run:
        good = copy_tensors(build_checkpoint(run))
    with open_run(tmp_path / "other", 1) as run:
        other = copy_tensors(build_checkpoint(run))
        restore_checkpoint(run, good)
        expected = copy_tensors(read_state(run))
        restore_checkpoint(run, other)
        before = copy_tensors(read_state(run))
        for path, value in select([(path, value) for path in iter_paths(good) for value in HOSTILE]):
            try:
                restore_checkpoint(run, replace(good, path, value))
            except CheckpointError:
                if not are_equal(before, read_state(run)):
                    yield f"{path} = {value!r:.60}: refused, but the run was modified"
                    restore_checkpoint(run, other)
                continue
            except Exception as error:
                yield f"{path} = {value!r:.60}: {type(error).__name__}: {error}"
            else:
                if not is_valid(path, value) and not are_equal(expected, read_state(run)):
                    yield f"{path} = {value!r:.60}: accepted"
            restore_checkpoint(run, other)


@pytest.mark.slow
def test_sample_of_hostile_values_is_refused_or_ignored(tmp_path: Path) -> None:
    assert list(find_violations(tmp_path, lambda cases: random.Random(0).sample(cases, 150))) == []


@pytest.mark.slow
def test_every_hostile_value_is_refused_or_ignored(tmp_path: Path) -> None:
    assert list(find_violations(tmp_path, lambda cases: cases)) == []


def damage(content: bytes, rng: random.Random) -> bytes:
    """Return a content with a changed byte, a deleted part, or random bytes at the end."""
    at = rng.randrange(len(content))
    changed = content[:at] + bytes([content[at] ^ (1 << rng.randrange(8))]) + content[at + 1 :]
    return rng.choice([changed, content[:at], content[:at] + content[at + 1 :], content + rng.randbytes(9)])


def find_undetected_damage(tmp_path: Path, number: int) -> Iterator[str]:
    """Yield the name of each damaged file with which a checkpoint is loaded with other values."""
    rng = random.Random(0)
    reference = write_sharded_checkpoint(tmp_path)
    write_checkpoint(tmp_path / "single.pth", {"state_dict": {"w": torch.ones(3)}}, 2)
    expected = {path: read_checkpoint(path) for path in (reference, tmp_path / "single.pth")}
    files = {path: path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file()}
    for _ in range(number):
        for damaged, content in files.items():
            damaged.write_bytes(damage(content, rng))
            for path, value in expected.items():
                try:
                    if not are_equal(value, read_checkpoint(path)):
                        yield f"{damaged.name} of {path.name}"
                except CheckpointError:
                    pass
            damaged.write_bytes(content)


@pytest.mark.filterwarnings("ignore:.*no valid sidecar")
@pytest.mark.parametrize("number", [3, pytest.param(100, marks=pytest.mark.slow)])
def test_damaged_bytes_of_any_file_are_detected(tmp_path: Path, number: int) -> None:
    (tmp_path / "group").mkdir()
    (tmp_path / "checkpoints").mkdir()
    with single_process_group(tmp_path / "group"):
        assert list(find_undetected_damage(tmp_path / "checkpoints", number)) == []


@pytest.mark.parametrize("name", ["a.pth", "a.pth.json", "last.pth", "last.pth.json"])
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)])
def test_older_checkpoint_is_found_beside_special_files(
    tmp_path: Path, name: str, make: Callable[[Path], object]
) -> None:
    checkpoint = {"state_dict": {"w": torch.ones(3)}}
    write_checkpoint(tmp_path / "old.pth", checkpoint, 1)
    write_checkpoint(tmp_path / "a.pth", checkpoint, 2)
    (tmp_path / name).unlink(missing_ok=True)
    make(tmp_path / name)
    newest = find_latest_checkpoint(tmp_path)
    assert newest is not None
    assert newest[0].name == ("old.pth" if name.startswith("a.pth") else "a.pth")


def build_trainer(work_dir: Path, **options: Any) -> Trainer:
    model = nn.Linear(2, 2)
    loader = DataLoader(TensorDataset(torch.ones(4, 2), torch.zeros(4, dtype=torch.int64)), 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    hooks = [CheckpointHook(interval=1)]
    arguments = {"epochs": 2, "work_dir": work_dir, "hooks": hooks, "default_hooks": False, **options}
    return Trainer(model, optimizer, nn.functional.cross_entropy, loader, **arguments)


def test_automatic_resume_uses_an_older_checkpoint_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    build_trainer(tmp_path).fit()
    newest = tmp_path / "checkpoints/last.pth"
    checkpoint = read_checkpoint(newest)
    for name in ("epoch_2.pth", "last.pth"):
        write_checkpoint(newest.with_name(name), {**checkpoint, "state_dict": None}, 2)
    trainer = build_trainer(tmp_path, resume="auto", epochs=3)
    trainer.fit()
    warnings = [message for message in caplog.messages if "The checkpoint is invalid" in message]
    assert read_checkpoint(newest)["meta"]["epoch"] == 3
    assert [message.count("state_dict: expected a mapping, got None") for message in warnings] == [1, 1]
    assert any(f"{newest}: The checkpoint is invalid" in message for message in warnings)


def test_invalid_checkpoint_of_a_resume_is_reported_with_file_and_key(tmp_path: Path) -> None:
    build_trainer(tmp_path).fit()
    checkpoint = read_checkpoint(tmp_path / "checkpoints/last.pth")
    checkpoint["loop"]["clock"]["iters_done"] = -1
    write_checkpoint(tmp_path / "x.pth", checkpoint, 1)
    trainer = build_trainer(tmp_path / "other", resume=tmp_path / "x.pth")
    before = trainer.model.weight.detach().clone()
    with pytest.raises(CheckpointError, match=r"x\.pth: The checkpoint is invalid: loop.clock.iters_done: expected an"):
        trainer.fit()
    assert torch.equal(trainer.model.weight, before)


@pytest.mark.filterwarnings("ignore:.*no valid sidecar")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("weights", "strict"),
    [
        ("raw", True),
        ("averaged", False),
        pytest.param("raw", False, marks=pytest.mark.exhaustive),
        pytest.param("averaged", True, marks=pytest.mark.exhaustive),
    ],
)
def test_load_from_refuses_or_ignores_hostile_values(tmp_path: Path, weights: str, strict: bool) -> None:
    valid = {"weight": torch.zeros(2, 2), "bias": torch.zeros(2)}
    for key in ("state_dict", "ema_state_dict", "hooks", "meta", "generation"):
        for value in [*HOSTILE, torch.zeros(2, 2).to_sparse(), torch.empty(2, 2, device="meta")]:
            for hostile in (value, {"weight": value, "bias": torch.zeros(2)}):
                torch.save({"state_dict": valid, key: hostile}, tmp_path / "x.pth")
                options = {"load_from": tmp_path / "x.pth", "load_weights": weights, "load_strict": strict}
                trainer = build_trainer(tmp_path / "run", hooks=[], **options)
                before = trainer.model.weight.detach().clone()
                with suppress(CheckpointError):
                    trainer.fit()
                    continue
                assert torch.equal(trainer.model.weight, before), (key, value)
