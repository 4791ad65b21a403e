"""A third party can write what the packages of the project do, with the names on the API page alone."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hookbus import Hook, HookBus, Run
from hookbus.checkpoint import CheckpointStore, read_checkpoint
from hookbus.errors import ConfigError
from hookbus.testing import WriterTestCase, check_hook, check_writer
from hookbus.testing.imports import find_problems

from . import third_party
from .third_party import KeepHook, LinesHook, MeanHook, OutputImageHook


def train(hooks: list[Hook], work_dir: Path | None = None, *, epochs: int = 3, **options: Any) -> Run:
    """Train w, initially 0, by SGD with the gradient 1 and a learning rate of 1: it is -1, -2, -3, ..."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    bus = HookBus(hooks)
    with bus.run(model=model, optimizer=optimizer, epochs=epochs, work_dir=work_dir, **options) as run:
        for _ in run.epochs():
            bus.emit("before_epoch")
            bus.emit("before_train_epoch")
            for batch_idx, batch in run.batches([torch.ones(1, 1)] * 2):
                bus.emit("before_train_iter", batch_idx=batch_idx, batch=batch)
                optimizer.zero_grad()
                model(batch).sum().backward()
                optimizer.step()
                bus.emit("after_train_iter", batch_idx=batch_idx, batch=batch)
            bus.emit("after_train_epoch")
            bus.emit("after_epoch")
    return run


def test_hooks_use_public_names_only() -> None:
    assert list(find_problems(ast.parse(Path(third_party.__file__).read_text()))) == []


@pytest.mark.slow
@pytest.mark.parametrize("cls", [KeepHook, MeanHook, OutputImageHook, LinesHook])
def test_hooks_pass_the_conformance_checks(cls: type[Hook]) -> None:
    check_hook(cls)


def test_checkpoint_hook_keeps_the_newest_files_and_a_link(tmp_path: Path) -> None:
    train([KeepHook()], tmp_path / "run")

    store = CheckpointStore(tmp_path / "run" / "checkpoints")
    assert sorted(path.name for path in store.newest()) == ["epoch_2.pth", "epoch_3.pth", "last.pth"]
    for path in store.newest():
        store.verify(path)
    assert read_checkpoint(store.directory / "last.pth")["state_dict"]["weight"].item() == -6


def test_checkpoint_hook_resumes(tmp_path: Path) -> None:
    train([KeepHook(), MeanHook()], tmp_path / "run", epochs=2)
    run = train([KeepHook(), mean := MeanHook()], tmp_path / "run", epochs=3, resume="auto")

    assert run.resumed
    assert run.model is not None
    assert next(run.model.parameters()).item() == -6
    assert mean.count == 6
    assert mean.mean["weight"].item() == -3.5  # of -1, ..., -6
    store = CheckpointStore(tmp_path / "run" / "checkpoints", run.id)
    assert sorted(path.name for path in store.newest()) == ["epoch_2.pth", "epoch_3.pth", "last.pth"]
    assert all(store.written_by(path) for path in store.newest())


def test_average_is_validated_and_saved(tmp_path: Path) -> None:
    seen: list[float] = []

    def validate(run: Run) -> None:
        assert run.model is not None
        seen.append(next(run.model.parameters()).item())

    class Validating(Hook):
        def after_train_epoch(self, run: Run) -> None:
            run.request_validation()

    run = train([KeepHook(), MeanHook(), Validating()], tmp_path / "run", epochs=2, validate=validate)

    assert seen == [-1.5, -2.5]
    assert run.model is not None
    assert next(run.model.parameters()).item() == -4
    checkpoint = read_checkpoint(tmp_path / "run" / "checkpoints" / "last.pth")
    assert checkpoint["ema_state_dict"]["weight"].item() == -2.5


def test_drawing_hook_emits_images_and_leaves_the_training_unchanged() -> None:
    images: list[tuple[int, tuple[int, ...]]] = []

    class Receiver(Hook):
        def log_images(self, tag: str, images: Any, step: int) -> None:
            received(step, tuple(images.shape))

    def received(step: int, shape: tuple[int, ...]) -> None:
        images.append((step, shape))

    torch.manual_seed(0)
    plain, generator = train([], epochs=2), torch.get_rng_state()
    torch.manual_seed(0)
    drawn = train([OutputImageHook(), Receiver()], epochs=2)

    assert images == [(2, (4, 1, 1)), (4, (4, 1, 1))]
    assert torch.equal(torch.get_rng_state(), generator)
    assert plain.model is not None
    assert drawn.model is not None
    assert drawn.model.state_dict() == plain.model.state_dict()
    assert drawn.model.training


def read_lines(work_dir: Path) -> list[tuple[str, int, float]]:
    path = work_dir / "logs" / "lines" / "numbers.txt"
    return [tuple(json.loads(line)) for line in path.read_text().splitlines()]


@pytest.mark.slow
def test_writer_passes_the_conformance_checks() -> None:
    check_writer(WriterTestCase(LinesHook, read_lines))


def test_checkpoint_hook_refuses_a_run_without_a_directory() -> None:
    with pytest.raises(ConfigError, match="work_dir"):
        train([KeepHook()])
