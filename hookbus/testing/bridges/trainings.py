"""Trainings of a task with the same hooks, in another trainer and in the Trainer of hookbus."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hookbus._config.hooks import get_hook_class
from hookbus._run.host import Capabilities, Checkpoints
from hookbus._run.run import Run
from hookbus.bus import HookBus
from hookbus.testing.bridges.probe import Probe
from hookbus.testing.hosts import HostAdapter, HostTask
from hookbus.trainer.trainer import Trainer

HOOKS: Mapping[str, dict[str, Any]] = {
    "ema": {"momentum": 0.9, "warm_up": 0},
    "early_stopping": {"monitor": "val/loss", "patience": 9, "min_delta": 10.0, "restore_best_weights": False},
    "jsonl": {"interval": 1},
}
"""Hooks of each training: an average, a state that counts validations, and records."""

OUTERMOST = -(10**9)
"""Priority of the probe, which is called first at the beginning of everything and last at its end."""

OTHER_SEED = 4711
"""Seed of the global RNG before a training that resumes, which must restore the states of the checkpoint."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What a training has done.

    Attributes:
        task: The task, with the inputs and losses that were computed.
        probe: The emitted points.
        run: The run.
        directory: Directory of the files.
        weights: Weights of the model at the end, by name.
    """

    task: HostTask
    probe: Probe
    run: Run
    directory: Path
    weights: dict[str, Tensor]

    @property
    def averages(self) -> dict[str, Tensor]:
        """Averaged weights at the end, by the names in the model that was trained."""
        state: dict[str, Tensor] = self.run.bus.hooks["ema"].state_dict()["averaged"]  # type: ignore[attr-defined]
        return state

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Rows of the JSON lines, without the time."""
        files = sorted(self.directory.glob("hookbus*/**/metrics.jsonl"))
        rows = [json.loads(line) for file in files for line in file.read_text("utf-8").splitlines()]
        return [{name: value for name, value in row.items() if name != "time"} for row in rows]


class Kit:
    """Trainings with an adapter. Those that several checks compare are made once.

    Args:
        adapter: Adapter of the trainer.
    """

    def __init__(self, adapter: HostAdapter) -> None:
        self.adapter = adapter
        self._trained: dict[tuple[bool, int], Observation] = {}

    @property
    def capabilities(self) -> Capabilities:
        """What the trainer offers, according to its record."""
        return self.adapter.capabilities

    @property
    def checkpoints(self) -> Checkpoints:
        """Owner of the checkpoints in the trainings that are not about checkpoints."""
        return "host" if "host" in self.capabilities.checkpoints else "hookbus"

    def pair(self, directory: Path, accumulate: int = 1) -> tuple[Observation, Observation]:
        """Return the training in the trainer, and the same training in the Trainer of hookbus.

        Args:
            directory: Directory of the files, if the trainings have not been made before.
            accumulate: Number of iterations per optimizer step.
        """
        for is_host in (True, False):
            if (is_host, accumulate) not in self._trained:
                train = self.train if is_host else self.train_reference
                name = f"{'host' if is_host else 'reference'}-{accumulate}"
                self._trained[is_host, accumulate] = train(HostTask(accumulate=accumulate), directory / name)
        return self._trained[True, accumulate], self._trained[False, accumulate]

    def train(
        self,
        task: HostTask,
        directory: Path,
        hooks: Iterable[object] = (),
        *,
        bus: HookBus | None = None,
        checkpoints: Checkpoints | None = None,
        resume: bool = False,
    ) -> Observation:
        """Train in the trainer of the adapter.

        Args:
            task: What to train.
            directory: Directory of the files.
            hooks: Hooks in addition to `HOOKS`.
            bus: Bus with the hooks of an earlier training. Default: a new one.
            checkpoints: Owner of the checkpoints. Default: the trainer if it supports it.
            resume: Whether to continue from the checkpoint in the directory.
        """
        checkpoints = checkpoints or self.checkpoints
        bus = bus or self.make_bus(hooks, checkpoints)
        torch.manual_seed(OTHER_SEED if resume else task.seed)
        result = self.adapter.train(bus, task, directory, checkpoints=checkpoints, resume=resume)
        return Observation(task, get_probe(bus), result.bridge.active_run, directory, copy_weights(result.model))

    def train_reference(self, task: HostTask, directory: Path, hooks: Iterable[object] = ()) -> Observation:
        """Train in the Trainer of hookbus.

        Args:
            task: What to train.
            directory: Directory of the files.
            hooks: Hooks in addition to `HOOKS`.
        """
        model = task.model()
        trainer = Trainer(
            model,
            optimizer=task.optimizer(model),
            loss_fn=task.loss,
            train_loader=Batches(task),
            val_loader=task.val_loader() if task.validate else None,
            epochs=task.epochs,
            accumulate=task.accumulate,
            hooks=[*self._make_hooks(), *hooks],
            default_hooks=False,
            work_dir=directory / "hookbus",
            device="cpu",
        )
        trainer.bus.register(Probe(), "probe", priority=OUTERMOST)
        torch.manual_seed(task.seed)
        run = trainer.fit()
        return Observation(task, get_probe(trainer.bus), run, directory, copy_weights(model))

    def make_bus(self, hooks: Iterable[object] = (), checkpoints: Checkpoints | None = None) -> HookBus:
        """Return a bus with `HOOKS`, further hooks, a probe, and the checkpoint hook if it saves.

        Args:
            hooks: The further hooks.
            checkpoints: Owner of the checkpoints. Default: the trainer if it supports it.
        """
        owner = checkpoints or self.checkpoints
        savers = [make_hook("checkpoint", interval=1, save_best=False)] if owner == "hookbus" else []
        bus = HookBus([*self._make_hooks(), *hooks, *savers])
        bus.register(Probe(), "probe", priority=OUTERMOST)
        return bus

    def _make_hooks(self) -> list[Any]:
        stops = self.capabilities.honors("stop")  # which early stopping requires
        return [make_hook(type_, **settings) for type_, settings in HOOKS.items() if stops or type_ != "early_stopping"]


def make_hook(type_: str, **settings: Any) -> Any:
    """Return a hook of an installed package.

    Args:
        type_: Name of its entry point.
        settings: Its settings.
    """
    return find_class(type_)(settings)


@cache
def find_class(type_: str) -> Any:
    """Return the class of a hook. Each search reads the metadata of all installed packages.

    Args:
        type_: Name of its entry point.
    """
    return get_hook_class(type_)


def get_probe(bus: HookBus) -> Probe:
    """Return the probe of a bus that `make_bus` has made."""
    probe = bus.pm.get_plugin("probe")
    assert isinstance(probe, Probe)
    return probe


def copy_weights(model: torch.nn.Module) -> dict[str, Tensor]:
    """Return a copy of the weights and buffers of a model, by name."""
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


class Batches:
    """Batches of a task in the order of its loader, of which the Trainer of hookbus makes no seeded copy."""

    def __init__(self, task: HostTask) -> None:
        self._loader = task.train_loader()

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        return iter([*self._loader])
