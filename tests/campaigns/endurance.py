"""Long trainings and many trainings in one process: memory, objects, descriptors and threads stay the same."""

from __future__ import annotations

import gc
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np

from hookbus import Run
from hookbus_checkpoint import CheckpointHook
from hookbus_ema import EMAHook
from hookbus_logger import JsonlHook
from tests.campaigns.campaign import Campaign
from tests.toys import pairs, trainer

ITERATIONS, TRAINERS = 200_000, 300
SAMPLES = 40
"""Number of measurements, of which those of the second half count."""
LIMITS = {"memory in MB": 8.0, "objects": 500.0, "descriptors": 0.5, "threads": 0.5}
"""Largest increase from the middle to the end, by a linear fit."""


def measure() -> dict[str, float]:
    """Return the resources of this process."""
    gc.collect()
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    descriptors = len(os.listdir("/proc/self/fd"))
    return dict(
        zip(LIMITS, (resident / 2**20, len(gc.get_objects()), descriptors, threading.active_count()), strict=True)
    )


class MeasureHook:
    """Plugin that measures at regular iterations."""

    def __init__(self, interval: int) -> None:
        self.interval = interval
        self.samples: list[dict[str, float]] = []

    def after_train_iter(self, run: Run) -> None:
        if run.iters_done % self.interval == 0:
            self.samples.append(measure())


def train_long(directory: Path, iterations: int) -> list[dict[str, float]]:
    """Train with the standard hooks, and return the measurements."""
    measuring = MeasureHook(max(iterations // SAMPLES, 1))
    hooks = [CheckpointHook(interval=max(iterations // 20, 1), by_epoch=False), JsonlHook(interval=100), EMAHook()]
    training = trainer(*hooks, iterations=iterations, work_dir=directory / "run", train_loader=pairs(50))
    training.bus.on("after_train_iter")(measuring.after_train_iter)
    training.fit()
    return measuring.samples


def train_often(directory: Path, trainers: int) -> list[dict[str, float]]:
    """Execute short trainings one after the other, and return the measurements."""
    samples = []
    for number in range(trainers):
        hooks = [CheckpointHook(), JsonlHook(), EMAHook()]
        trainer(*hooks, epochs=1, work_dir=directory / str(number)).fit()
        samples.append(measure())
    return samples


def get_increases(samples: list[dict[str, float]]) -> dict[str, float]:
    """Return the increase of each resource over the second half, by a linear fit."""
    half = samples[len(samples) // 2 :]
    axis = np.arange(len(half))
    return {name: float(np.polyfit(axis, [sample[name] for sample in half], 1)[0]) * (len(half) - 1) for name in LIMITS}


def endure(campaign: Campaign, trials: int | None) -> None:
    """Train for many iterations, and many times; `trials` is the number of trainers."""
    trainers = trials or TRAINERS
    iterations = ITERATIONS * trainers // TRAINERS
    tasks: dict[str, Callable[[Path], list[dict[str, float]]]] = {
        f"{iterations:,} iterations": lambda directory: train_long(directory, iterations),
        f"{trainers} trainers": lambda directory: train_often(directory, trainers),
    }
    for name, task in tasks.items():
        directory = campaign.create_directory()
        increases = get_increases(task(directory))
        shutil.rmtree(directory)
        row = campaign.get_row(f"{name}: " + ", ".join(f"{key} {value:+.2f}" for key, value in increases.items()))
        row.trials += 1
        row.bad += [f"{name}: {key} {value:+.2f}" for key, value in increases.items() if value > LIMITS[key]]
