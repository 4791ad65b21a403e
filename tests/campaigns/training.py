"""Trainings that a campaign interrupts: the Trainer and several kinds of custom loops.

    python -m tests.campaigns.training CASE DIRECTORY

trains or resumes in a directory.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import typer
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import ExponentialLR
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader

from hookbus import Hook, HookBus, Run, Trainer
from hookbus._cli.console import handle_errors
from hookbus._run.finalize import EXIT_CODES
from hookbus.data.rng import seed_everything
from hookbus.testing import fingerprint
from hookbus_checkpoint import CheckpointHook, PreemptionHook
from hookbus_ema import EMAHook
from hookbus_logger import JsonlHook, read_jsonl
from tests.interruptions import hash_checkpoint
from tests.toys import Augmented, net, pairs

EPOCHS = 6
SAVING: tuple[bool | str, ...] = (False, True, "overlap")
BATCHES = 5


@dataclass(frozen=True)
class Case:
    """Settings of a training.

    Attributes:
        loop: Name of a loop, a key of `LOOPS`.
        saving: Value of `async_save`.
        workers: Number of loader workers.
        ranks: Number of processes.
        sharded: Whether the weights are sharded with FSDP2.
        elsewhere: Whether the checkpoints are outside of the work directory.
        epochs: Number of epochs.
        overwrite: Whether to train from scratch in a directory that contains a run.
        launched: Whether torchrun starts the processes.
    """

    loop: str = "Trainer"
    saving: bool | str = False
    workers: int = 0
    ranks: int = 1
    sharded: bool = False
    elsewhere: bool = False
    epochs: int = EPOCHS
    overwrite: bool = False
    launched: bool = False

    def __str__(self) -> str:
        saving = {False: "sync", True: "async", "overlap": "overlap"}[self.saving]
        parts = [self.loop, f"{saving} save", f"{self.workers} workers", f"{self.ranks} ranks"]
        parts += [name for name in ("sharded", "elsewhere", "overwrite", "launched") if getattr(self, name)]
        return ", ".join(parts)


class LossHook(Hook):
    """Hook that appends the loss of each iteration to a file, which contains the losses of all attempts."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def after_train_iter(self, run: Run, loss: torch.Tensor) -> None:
        with open(self.path, "a") as file:
            file.write(f"{os.getpid()} {run.iters_done} {float(loss.detach()).hex()}\n")


@dataclass
class Parts:
    """Objects of a training."""

    bus: HookBus
    model: nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: Any
    loader: DataLoader[Any]
    options: dict[str, Any]
    epochs: int = EPOCHS

    def step(self, index: int, batch: Any, train_more: Callable[..., object] = lambda *_: None) -> None:
        """Train one iteration, with an optimizer step in every second one.

        Args:
            index: Index of the batch.
            batch: Inputs and targets.
            train_more: Called with them within the iteration.
        """
        self.bus.emit("before_train_iter", batch_idx=index, batch=batch)
        done = self.bus.current.iters_done
        if done % 2 == 0:
            self.optimizer.zero_grad()
        inputs, targets = batch
        loss = nn.functional.cross_entropy(self.model(inputs), targets)
        (loss / 2).backward()
        if done % 2 == 1:
            self.optimizer.step()
        train_more(inputs, targets)
        self.bus.emit("after_train_iter", batch_idx=index, batch=batch, outputs={"loss": loss})


def run_epochs(parts: Parts) -> None:
    """Train with `run.epochs()` and `run.batches()`, with a step of the scheduler after the batches."""
    with parts.bus.run(**parts.options, epochs=parts.epochs) as run:
        for epoch in run.epochs():
            parts.bus.emit("before_train_epoch")
            for index, batch in run.batches(parts.loader):
                if (epoch + index) % 4 == 2:
                    continue
                parts.step(index, batch)
            parts.scheduler.step()
            parts.bus.emit("after_train_epoch")


def run_ranges(parts: Parts) -> None:
    """Train with plain ranges."""
    batches = pairs(BATCHES)
    with parts.bus.run(**parts.options, epochs=parts.epochs) as run:
        for epoch in range(run.epochs_done, parts.epochs):
            parts.bus.emit("before_train_epoch")
            for index in range(run.iters_done - epoch * BATCHES, BATCHES):
                if run.should_stop:
                    break
                parts.step(index, batches[index])
            parts.scheduler.step()
            parts.bus.emit("after_train_epoch")
            if run.should_stop:
                break


def run_iterations(parts: Parts) -> None:
    """Train without epochs."""
    batches = pairs(7)
    with parts.bus.run(**parts.options, iterations=parts.epochs * BATCHES) as run:
        while not run.should_stop:
            parts.step(run.iters_done, batches[run.iters_done % 7])


def run_zip(parts: Parts) -> None:
    """Train on pairs of batches from two loaders."""
    other = DataLoader(Augmented(30), batch_size=4, shuffle=True)
    with parts.bus.run(**parts.options, epochs=parts.epochs) as run:
        for _ in run.epochs():
            parts.bus.emit("before_train_epoch")
            for (index, first), (_, second) in zip(run.batches(parts.loader), run.batches(other), strict=False):
                parts.step(index, [torch.cat(tensors) for tensors in zip(first, second, strict=True)])
            parts.scheduler.step()
            parts.bus.emit("after_train_epoch")


def run_named(parts: Parts) -> None:
    """Train two models by name, each with an optimizer."""
    other = nn.Linear(4, 2)
    optimizer = torch.optim.Adam(other.parameters(), lr=0.01)

    def train_other(inputs: torch.Tensor, targets: torch.Tensor) -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(other(inputs), targets).backward()
        optimizer.step()

    named = {
        "model": {"first": parts.model, "second": other},
        "optimizer": {"first": parts.optimizer, "second": optimizer},
        "scheduler": {"first": parts.scheduler},
    }
    with parts.bus.run(**{**parts.options, **named}, epochs=parts.epochs) as run:
        for _ in run.epochs():
            parts.bus.emit("before_train_epoch")
            for index, batch in run.batches(parts.loader):
                parts.step(index, batch, train_other)
            parts.scheduler.step()
            parts.bus.emit("after_train_epoch")


LOOPS: dict[str, Callable[[Parts], None]] = {
    "epochs": run_epochs,
    "ranges": run_ranges,
    "iterations": run_iterations,
    "zip": run_zip,
    "named": run_named,
}
"""Custom loops by name."""


def build_hooks(case: Case, directory: Path) -> list[Hook]:
    """Return the hooks of a case."""
    return [
        CheckpointHook(
            interval=2,
            by_epoch=False,
            best_metric="val/loss",
            async_save=case.saving,
            max_keep_ckpts=3,
            out_dir=str(directory / "run-out") if case.elsewhere else None,
        ),
        PreemptionHook(),
        JsonlHook(interval=4),
        EMAHook(momentum=0.9, warm_up=0),
        LossHook(directory / f"losses-{os.environ.get('RANK', 0)}.txt"),
    ]


def train(case: Case, directory: Path) -> int:
    """Train or resume in a directory, write the results, and return the exit code."""
    seed_everything(0)
    model = nn.Sequential(*net(), nn.BatchNorm1d(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = ExponentialLR(optimizer, 0.9)
    loader = DataLoader(
        Augmented(BATCHES * 4 * case.ranks), batch_size=4, shuffle=True, num_workers=case.workers,
        persistent_workers=case.workers > 0,
    )  # fmt: skip
    options: dict[str, Any] = {
        "optimizer": optimizer, "scheduler": scheduler, "work_dir": directory / "run", "seed": 5, "device": "cpu",
        "overwrite": case.overwrite, "resume": "never" if case.overwrite else "auto",
    }  # fmt: skip
    hooks = build_hooks(case, directory)
    if case.loop == "Trainer":
        run = train_with_trainer(case, model, loader, hooks, options)
    else:
        run = train_with_custom_loop(case, model, loader, hooks, options)
    if run.outcome == "finished" and os.environ.get("RANK", "0") == "0":
        results = get_results(case, directory, run, optimizer)
        (directory / "results.json").write_text(json.dumps(results))
    return EXIT_CODES[run.outcome]


def train_with_trainer(case: Case, model: nn.Module, loader: Any, hooks: list[Hook], options: dict[str, Any]) -> Run:
    """Train with the Trainer."""
    trainer = Trainer(
        model, loss_fn=nn.functional.cross_entropy, train_loader=loader, val_loader=pairs(2), epochs=case.epochs,
        accumulate=2, hooks=hooks, default_hooks=False, distributed="fsdp2" if case.sharded else "ddp", **options,
    )  # fmt: skip
    return trainer.fit()


def train_with_custom_loop(
    case: Case, model: nn.Module, loader: Any, hooks: list[Hook], options: dict[str, Any]
) -> Run:
    """Train with a custom loop that validates after each epoch."""
    bus = HookBus(hooks)

    def validate() -> dict[str, Any]:
        return {"loss": sum(nn.functional.cross_entropy(model(x), y) for x, y in pairs(2)) / 2}

    bus.on("after_train_epoch")(lambda run: run.request_validation())
    if case.ranks > 1:
        torch.distributed.init_process_group("gloo")
        model = DistributedDataParallel(model)
    options |= {"model": model, "validate": validate}
    LOOPS[case.loop](Parts(bus, model, options["optimizer"], options["scheduler"], loader, options, case.epochs))
    return bus.current


def get_results(case: Case, directory: Path, run: Run, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the results of a completed training in a comparable form."""
    assert run.model is not None
    folders = [directory / "run-out", directory / "run" / "checkpoints"]
    files = [path for folder in folders for path in folder.glob("last*.pth")]
    last = max(files, key=lambda path: path.stat().st_mtime_ns)
    return {
        "model": fingerprint(get_local(run.model.state_dict())),
        "optimizer": fingerprint(get_local(optimizer.state_dict())),
        "last.pth": {} if case.sharded else dict(hash_checkpoint(last)),
        "log": read_log(directory / "run" / "logs" / "metrics.jsonl"),
    }


def get_local(state: Any) -> Any:
    """Return a nested state with the local shards of sharded tensors."""
    return tree_map(lambda value: value.to_local() if isinstance(value, DTensor) else value, state)


def read_log(path: Path) -> list[dict[str, Any]] | str:
    """Return the rows of a log without times, or the error of a damaged or missing one."""
    try:
        return [{key: value for key, value in row.items() if key != "time"} for row in read_jsonl(path)]
    except (OSError, ValueError) as error:
        return str(error)


def read_losses(directory: Path) -> Iterator[tuple[str, dict[int, str]]]:
    """Yield the process and the losses by iteration of each attempt, rank by rank."""
    for path in sorted(directory.glob("losses-*.txt")):
        attempts: dict[str, dict[int, str]] = {}
        for line in path.read_text().splitlines():
            process, iteration, loss = line.split()
            attempts.setdefault(process, {})[int(iteration)] = loss
        yield from ((f"{path.stem} {process}", losses) for process, losses in attempts.items())


def main(case: Case, directory: Path) -> None:
    """Train with the messages and the exit codes of the command line."""
    try:
        with handle_errors():
            code = train(case, directory)
    except typer.Exit as end:
        code = end.exit_code
    sys.exit(code)


if __name__ == "__main__":
    main(Case(**json.loads(sys.argv[1])), Path(sys.argv[2]))
