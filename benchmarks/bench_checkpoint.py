"""Training time blocked by a checkpoint of model and Adam state, compared with torch.save and a copy of the bytes.

Run `python -m benchmarks.bench_checkpoint [--megabytes 399] [--rounds 7]`.

A save is measured in a separate run, from the processing of the request to the return to the loop. With `overlap` the
wait before the next optimizer step is measured as well, after a simulated forward and backward pass of `--iteration`
milliseconds.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict_saver import async_save

from benchmarks.measure import print_table, report
from hookbus import HookBus
from hookbus_checkpoint import CheckpointHook

BYTES_PER_WEIGHT = 3 * 4  # float32 parameter and two Adam moments
WIDTH = 1024
MODES: dict[str, Any] = {"sync": False, "async": True, "overlap": "overlap"}


class Blocks(nn.Module):
    """Square layers of about one million parameters each; the forward pass is not used."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(count))


class Training:
    """A model with Adam state to save."""

    def __init__(self, megabytes: int) -> None:
        self.model = Blocks(max(1, round(megabytes * 1e6 / (BYTES_PER_WEIGHT * (WIDTH * WIDTH + WIDTH)))))
        self.optimizer = torch.optim.Adam(self.model.parameters())
        for parameter in self.model.parameters():
            parameter.grad = torch.full_like(parameter, 1e-3)
        self.optimizer.step()

    def checkpoint(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def tensors(self) -> list[torch.Tensor]:
        state = self.optimizer.state.values()
        return [
            *self.model.state_dict().values(),
            *(moments[key] for moments in state for key in ("exp_avg", "exp_avg_sq")),
        ]


class Saves:
    """Saves by the checkpoint hook in a separate run."""

    def __init__(self, training: Training, bus: HookBus, iteration: float) -> None:
        self._training, self._bus, self._iteration = training, bus, iteration

    def once(self) -> tuple[float, float]:
        """Save once and return the seconds blocked by the save and before the next optimizer step."""
        self._training.optimizer.step()
        start = time.perf_counter()
        self._bus.emit("after_train_iter", batch_idx=0, batch=None)
        saved = time.perf_counter() - start
        time.sleep(self._iteration)
        start = time.perf_counter()
        self._bus.emit("before_optimizer_step")
        waited = time.perf_counter() - start
        saver: Any = self._bus.current.require("checkpoint_saver")
        saver.wait_for_pending(self._bus.current)
        return saved, waited


@contextmanager
def saving(training: Training, mode: bool | str, directory: Path, iteration: float) -> Iterator[Saves]:
    hook = CheckpointHook(interval=1, by_epoch=False, max_keep_ckpts=1, save_last=False, async_save=mode)
    bus = HookBus([hook])
    with bus.run(model=training.model, optimizer=training.optimizer, iterations=10**9, work_dir=directory):
        yield Saves(training, bus, iteration)


def copy_into(targets: list[torch.Tensor], tensors: list[torch.Tensor]) -> None:
    for target, source in zip(targets, tensors, strict=True):
        target.copy_(source)


def save_durably(checkpoint: dict[str, Any], path: Path) -> None:
    """Save with a temporary name, fsync and rename."""
    temporary = path.with_suffix(".tmp")
    with open(temporary, "wb") as file:
        torch.save(checkpoint, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


class DistributedCheckpointSave:
    """`torch.distributed.checkpoint.async_save`: measures the time until it returns, then waits for completion."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._count = directory, 0

    def __call__(self, checkpoint: dict[str, Any]) -> float:
        self._count += 1
        path = self._directory / str(self._count)
        start = time.perf_counter()
        future: Any = async_save(checkpoint, checkpoint_id=str(path), no_dist=True)
        blocked = time.perf_counter() - start
        future.result()
        shutil.rmtree(path)
        return blocked


def measure(training: Training, directory: Path, rounds: int, iteration: float) -> dict[str, list[float]]:
    """Measure the candidates in turn and return seconds per round. The first round is discarded.

    After each candidate the file system is synced.
    """
    results: dict[str, list[float]] = {}
    targets = [torch.empty_like(tensor) for tensor in training.tensors()]
    distributed = DistributedCheckpointSave(directory / "dcp")
    with ExitStack() as stack:
        savers = {
            name: stack.enter_context(saving(training, mode, directory / name, iteration))
            for name, mode in MODES.items()
        }

        def add(name: str, value: float) -> None:
            results.setdefault(name, []).append(value)
            os.sync()

        for _ in range(rounds + 1):
            add("copy", seconds(lambda: copy_into(targets, training.tensors())))
            add("torch.save", seconds(lambda: torch.save(training.checkpoint(), directory / "plain.pth")))
            add(
                "torch.save, fsync, rename",
                seconds(lambda: save_durably(training.checkpoint(), directory / "safe.pth")),
            )
            add("dcp.async_save", distributed(training.checkpoint()))
            for name, saves in savers.items():
                saved, waited = saves.once()
                add(f"hookbus {name}", saved)
                add(f"hookbus {name}, before the update", waited)
    return {name: values[1:] for name, values in results.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=399)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--iteration", type=int, default=300, help="milliseconds of a forward and backward pass")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)  # torch.distributed warns about `no_dist=True`
    training = Training(arguments.megabytes)
    with tempfile.TemporaryDirectory() as directory:
        results = measure(training, Path(directory), arguments.rounds, arguments.iteration / 1000)
    rows, figures = [], {}
    for name, values in results.items():
        against = {
            base: statistics.median(a / b for a, b in zip(values, results[base], strict=True))
            for base in ("copy", "torch.save")
        }
        milliseconds = statistics.median(values) * 1000
        rows.append([name, f"{milliseconds:.2f}", f"{against['copy']:.3f}", f"{against['torch.save']:.3f}"])
        figures[name] = {"ms": round(milliseconds, 3), **{f"of {k}": round(v, 4) for k, v in against.items()}}
    title = f"Training blocked by a checkpoint of {arguments.megabytes} MB"
    print_table(title, ["", "ms", "of a copy", "of torch.save"], rows)
    report("checkpoint", megabytes=arguments.megabytes, rounds=arguments.rounds, **figures)


if __name__ == "__main__":
    main()
