"""Cost of a training iteration in each installed trainer with a bus, relative to the trainer alone.

    .venv/trainers/lightning-2.6.6/bin/python -m benchmarks.bench_bridges [lightning] [--blocks 20]

`make bridges-newest` makes these environments. A block trains without a bus, with a callback of the trainer that does
nothing, with an empty bus and with jsonl, iter_timer and ema, each for one epoch. The times are those of the CPU, of
the fastest block of each; beside their ratio is the median of the ratios within a block. The callback is the floor of
an empty bus: what the trainer spends to call one. The floor of the three hooks is what they add in a loop without a
trainer, which `custom_loop` measures.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any, Literal

import torch
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.measure import print_table, report
from benchmarks.peers.common import BATCH, Batch, adam, compute_loss, model, run_quietly
from hookbus import HookBus, build_hook

HOOKS = ("jsonl", "iter_timer", "ema")
WARM_UP, MEASURED = 20, 200
TARGETS = {"lightning": 1.12, "transformers": 1.05, "ignite": 1.22, "mmengine": 1.16, "keras": 1.04}
"""Largest ratio with the three hooks."""
EMPTY_TARGETS = {"ignite": 1.10, "mmengine": 1.10}
"""Largest ratio with an empty bus, if it is not 1.05."""


class TimedBatches(DataLoader[Any]):
    """Loader that measures the time between its batches, after the first ones.

    A trainer requests no batch after the last one, so the time ends with the request of the last one.
    """

    def __init__(self) -> None:
        images, labels = torch.randn(BATCH, 1, 8, 8), torch.randint(10, (BATCH,))
        super().__init__(TensorDataset(images, labels), batch_size=BATCH)
        self.batch: Batch = (images, labels)
        self.seconds = 0.0

    def __len__(self) -> int:
        return WARM_UP + MEASURED + 1

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        for _ in range(WARM_UP):
            yield self.batch
        start = time.process_time()
        for _ in range(MEASURED):
            yield self.batch
        self.seconds = (time.process_time() - start) / MEASURED
        yield self.batch


Addition = HookBus | Literal["callback"] | None
Train = Callable[[TimedBatches, Addition, str], None]
"""Function that trains for an epoch, alone or with a bus or a callback, and with a directory for files."""


def lightning(batches: TimedBatches, added: Addition, directory: str) -> None:
    from lightning.pytorch import Callback, Trainer

    from benchmarks.peers.lightning import OFF, Module

    trainer = Trainer(max_epochs=1, callbacks=[Callback()] if added == "callback" else None, **OFF)
    if isinstance(added, HookBus):
        added.attach(trainer, work_dir=directory)
    trainer.fit(Module(), batches)


def transformers(batches: TimedBatches, added: Addition, directory: str) -> None:
    from transformers import TrainerCallback

    from benchmarks.peers.transformers import LIGHT, make_trainer

    trainer = make_trainer(batches, directory, LIGHT)
    if added == "callback":
        trainer.add_callback(TrainerCallback())
    elif added is not None:
        added.attach(trainer, work_dir=f"{directory}/hookbus")
    trainer.train()


def ignite(batches: TimedBatches, added: Addition, directory: str) -> None:
    from ignite.engine import Engine, Events

    trained = model()
    optimizer = adam(trained)

    def step(_engine: Engine, batch: Batch) -> dict[str, Any]:
        optimizer.zero_grad()
        loss = compute_loss(trained, batch)
        loss.backward()
        optimizer.step()
        return {"loss": loss.detach()}

    engine = Engine(step)
    if added == "callback":
        for event in (Events.ITERATION_STARTED, Events.ITERATION_COMPLETED):
            engine.add_event_handler(event, lambda: None)
    elif added is not None:
        added.attach(engine, model=trained, optimizer=optimizer, work_dir=directory)
    engine.run(batches, max_epochs=1)


def mmengine(batches: TimedBatches, added: Addition, directory: str) -> None:
    from mmengine.hooks import Hook

    from benchmarks.peers.mmengine import NO_HOOKS, runner

    made = runner(batches, directory, default_hooks=NO_HOOKS)
    if added == "callback":
        made.register_hook(Hook())
    elif added is not None:
        added.attach(made, work_dir=f"{directory}/hookbus")
    made.train()


def keras(batches: TimedBatches, added: Addition, directory: str) -> None:
    from keras import Sequential, callbacks, layers, losses, optimizers

    trained = Sequential([layers.Flatten(), *(layers.Dense(64, "relu") for _ in range(2)), layers.Dense(10)])
    trained.compile(optimizers.Adam(1e-3), losses.SparseCategoricalCrossentropy(from_logits=True))
    trained.build((None, 1, 8, 8))
    # Keras calls no callback at all if there is none
    extra = [callbacks.Callback()] if added == "callback" else None
    if isinstance(added, HookBus):
        added.attach(trained, work_dir=directory)
    trained.fit(batches, epochs=1, verbose=0, callbacks=extra)


def accelerate(batches: TimedBatches, added: Addition, directory: str) -> None:
    from accelerate import Accelerator

    accelerator, trained = Accelerator(cpu=True), model()
    trained, optimizer = accelerator.prepare(trained, adam(trained))

    def begin(bus: HookBus) -> Any:
        bridge: Any = bus.attach(accelerator, work_dir=directory)
        return bridge.train(model=trained, optimizer=optimizer, epochs=1)

    _run_loop(batches, added, begin, trained, optimizer, accelerator.backward)


def custom_loop(batches: TimedBatches, added: Addition, directory: str) -> None:
    trained = model()
    optimizer = adam(trained)

    def begin(bus: HookBus) -> Any:
        return bus.run(model=trained, optimizer=optimizer, epochs=1, work_dir=directory)

    _run_loop(batches, added, begin, trained, optimizer, torch.Tensor.backward)


def _run_loop(
    batches: TimedBatches,
    bus: Addition,
    begin: Callable[[HookBus], Any],
    trained: torch.nn.Module,
    optimizer: Any,
    backward: Callable[[torch.Tensor], object],
) -> None:
    def step(batch: Batch) -> torch.Tensor:
        optimizer.zero_grad()
        loss = compute_loss(trained, batch)
        backward(loss)
        optimizer.step()
        return loss.detach()

    if not isinstance(bus, HookBus):
        for batch in batches:
            step(batch)
        return
    with begin(bus) as run:
        for _ in run.epochs():
            bus.emit("before_train_epoch")
            for index, batch in run.batches(batches):
                bus.emit("before_train_iter", batch_idx=index, batch=batch)
                bus.emit("after_train_iter", batch_idx=index, batch=batch, outputs={"loss": step(batch)})
            bus.emit("after_train_epoch")


TRAINERS: dict[str, Train] = {
    function.__name__: function
    for function in (lightning, transformers, accelerate, ignite, mmengine, keras, custom_loop)
}


def measure(train: Train, added: tuple[str, ...] | Literal["callback"] | None) -> float:
    """Return the seconds per iteration of one epoch, with hooks of these names, a callback, or alone."""
    batches = TimedBatches()
    with tempfile.TemporaryDirectory() as directory:
        addition = HookBus([build_hook({"type": name}) for name in added]) if isinstance(added, tuple) else added
        run_quietly(lambda _: train(batches, addition, directory), batches)
    return batches.seconds


def compare(train: Train, blocks: int) -> dict[str, list[float]]:
    """Return the seconds per iteration of each candidate, one value per block."""
    candidates: dict[str, Any] = {"alone": None, "callback": "callback", "empty bus": (), "three hooks": HOOKS}
    measure(train, HOOKS)  # imports and caches
    results: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(blocks):
        for name, hooks in candidates.items():
            results[name].append(measure(train, hooks))
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=20)
    parser.add_argument("trainers", nargs="*", help="all that are installed without one")
    options = parser.parse_args()
    os.environ["KERAS_BACKEND"] = "torch"
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    rows, figures = [], {}
    for name in options.trainers or [name for name in TRAINERS if name == "custom_loop" or find_spec(name)]:
        results = compare(TRAINERS[name], options.blocks)
        alone = results.pop("alone")
        targets: dict[str, float | None] = {
            "empty bus": EMPTY_TARGETS.get(name, 1.05),
            "three hooks": TARGETS.get(name),
        }
        for candidate, seconds in results.items():
            median = statistics.median(own / base for own, base in zip(seconds, alone, strict=True))
            # Whatever disturbs a block only adds time.
            lowest = min(seconds) / min(alone)
            added, base = f"{(min(seconds) - min(alone)) * 1e6:+.0f}", f"{min(alone) * 1e6:.0f}"
            target = str(targets.get(candidate) or "")
            rows.append([f"{name}, {candidate}", base, added, f"{lowest:.3f}", f"{median:.3f}", target])
            figures[f"{name}, {candidate}"] = round(median, 4)
    print_table("One training iteration", ["", "alone us", "added us", "ratio", "median", "target"], rows)
    report("bridges", **figures)


if __name__ == "__main__":
    main()
