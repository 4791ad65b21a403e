"""What hooks receive: one object with the clock, the model, services, metrics and requests of a run."""

from __future__ import annotations

import logging
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookbus.clock import Clock
from hookbus.dispatch.brackets import Brackets
from hookbus.distributed import is_main
from hookbus.metrics import Metrics, MetricStore, Window
from hookbus.model.weights import Weights
from hookbus.ranks import Ranks
from hookbus.records.secrets import plain_settings
from hookbus.requests import Outcome, Queue, Record, Request
from hookbus.runs.best import Best
from hookbus.runs.counts import Counts
from hookbus.runs.decisions import Decisions
from hookbus.runs.interrupts import Signals
from hookbus.runs.request_methods import RequestMethods
from hookbus.runs.services import Services
from hookbus.runs.training_data import TrainingData
from hookbus.runs.validations import Evaluator, Validations
from hookbus.training.optimizer import OptimizerEvents

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from hookbus.bus import HookBus
    from hookbus.lifecycle import Mode
    from hookbus.runs.workdir import WorkDir

__all__ = ["Best", "Run"]


class Run(Counts, RequestMethods):
    """One run: everything a hook may look at or ask for.

    Attributes:
        bus: the bus whose events these are.
        id: tells this run, and those that go on from its checkpoints, from all others.
        mode: "train", "val" or "test".
        clock: counts and units.
        metrics: the numbers; `run.log` writes into it.
        weights: raw and averaged weights.
        best: by metric, the best result so far.
        ranks: the processes of this run, and the one way to talk to the others.
        decisions: what hooks ask for, made the same on all of them.
        training_data: the place in the training data; hooks change that data through `training_data.before_reading`.
        model, optimizer, scheduler, scaler: what is trained, and how; None where the loop has none.
        trainer: the Trainer, None in a custom loop.
        config: the resolved configuration, {} where there is none.
        seed: what data order and augmentation follow from.
        device: where the model is.
        outcome: "running", then how it ended.
        alive: whether the run is going on: from `before_run` to `cleanup`.
        validating: whether a validation or test is going on.
        sanity_checking: whether it is the one before training, which counts for nothing.
        exception: what ended a failed run.
        about: facts that hooks have found out about this process, as plain values, for `status.json`.
        accumulated: micro-batches that went into the gradients since the last update.
        unclaimed: hook states of the checkpoint that no active hook claims; written back as they are.
        counts_steps: whether the loop emits the optimizer points itself, and updates are counted by them.
        keeps_brackets: whether brackets that the loop leaves out are opened and closed for it.
    """

    __slots__ = (
        "about", "accumulated", "alive", "best", "brackets", "bus", "clock", "config", "counts_steps",
        "decisions", "device", "exception", "held", "id", "keeps_brackets", "metrics", "mode", "model",
        "optimizer", "optimizer_events", "outcome", "ranks", "records", "sanity_checking", "scaler",
        "scheduler", "seed", "services", "signals", "test_loader", "train_loader", "trainer", "training_data", "unclaimed",
        "val_loader", "validating", "validations", "weights", "work_dir",
    )  # fmt: skip

    def __init__(
        self,
        bus: HookBus,
        *,
        mode: Mode = "train",
        model: nn.Module | None = None,
        optimizer: Optimizer | None = None,
        scheduler: Any = None,
        scaler: Any = None,
        trainer: Any = None,
        config: Any = None,
        device: Any = None,
        seed: int | None = None,
        epochs: int | None = None,
        iterations: int | None = None,
        validate: Evaluator | None = None,
        test: Evaluator | None = None,
        work_dir: WorkDir | None = None,
        counts_steps: bool = False,
        keeps_brackets: bool = False,
        ranks: Ranks | None = None,
        continues: Run | None = None,
    ) -> None:
        self.bus, self.mode, self.trainer = bus, mode, trainer
        self.model, self.optimizer, self.scheduler, self.scaler = model, optimizer, scheduler, scaler
        self.config, self.device, self.work_dir = config or {}, device, work_dir
        self.train_loader: Any = None
        self.val_loader: Any = None
        self.test_loader: Any = None
        self.counts_steps, self.keeps_brackets = counts_steps, keeps_brackets
        self.ranks = ranks or Ranks()
        self._take_over(continues, seed)
        self.clock.max_epochs, self.clock.max_iters = epochs, iterations
        self.clock.limit_reached = iterations is not None and self.clock.iters_done >= iterations
        self.clock.counts_iterations = optimizer is None and not counts_steps
        validated_at = continues.validations.validated_at if continues else -1
        self.validations = Validations(self, {"val": validate, "test": test}, validated_at)
        self.training_data = TrainingData(self, continues.training_data.state_dict() if continues else {})
        self.decisions = Decisions(self)
        self.optimizer_events = OptimizerEvents(self)
        self.brackets = Brackets(bus.fire)
        self.services = Services(self)
        self._begin_afresh()

    def _take_over(self, continues: Run | None, seed: int | None) -> None:
        """What the run has from the one that it goes on from; without one, the beginnings of it."""
        bus = self.bus
        self.clock: Clock = continues.clock if continues else Clock()
        self.metrics: MetricStore = continues.metrics if continues else MetricStore()
        self.best: dict[str, Best] = continues.best if continues else {}
        self.weights: Weights = continues.weights if continues else Weights(lambda: bus.current.model)
        self.unclaimed: dict[str, Any] = continues.unclaimed if continues else {}
        self.accumulated: int = continues.accumulated if continues else 0
        self.id: str = continues.id if continues else uuid.uuid4().hex
        self.seed: int = continues.seed if continues and seed is None else _seed(seed)

    def _begin_afresh(self) -> None:
        """What every run has for itself."""
        self.queue = Queue()
        self.signals = Signals(self)
        self.stops: list[Request] = []
        self.records: dict[tuple[str, str], Record] = {}
        self.held: dict[Path, Callable[[], object]] = {}
        self.about: dict[str, Any] = {}
        self.outcome: Outcome = "running"
        self.exception: BaseException | None = None
        self.pending = self.validating = self.sanity_checking = self.should_skip_iter = self.alive = False

    # -- updates -----------------------------------------------------------------------------

    @property
    def mid_accumulation(self) -> bool:
        """Whether gradients wait for an update that has not been made yet."""
        if self.trainer is not None:
            return self.accumulated > 0
        return self.optimizer is not None and self.clock.iters_since_step > 0

    # -- services ----------------------------------------------------------------------------

    def provide(self, name: str, service: Any) -> None:
        """Offer an object to hooks under a name; it replaces what is there under this name."""
        self.services.provide(name, service)

    def get(self, name: str, default: Any = None) -> Any:
        """The service of this name, or `default` where nobody provides it."""
        return self.services.get(name, default)

    def require(self, name: str) -> Any:
        """The service of this name.

        Raises:
            ServiceError: nobody provides it; the message lists what there is.
        """
        return self.services.require(name)

    @property
    def logger(self) -> logging.Logger:
        """Where messages for people go."""
        return self.services.logger

    # -- files -------------------------------------------------------------------------------

    def own(self, path: Path | str) -> bool:
        """Say that the run is about to make a file or directory in its work directory, which `overwrite` may remove.

        Args:
            path: the file; of a directory, all that will be in it is the run's own.

        Returns:
            Whether it is the run's own: False where something is there that no run has made, or outside.
        """
        return self.work_dir is not None and self.work_dir.own(Path(path))

    def hold(self, directory: Path) -> None:
        """Lock a directory for the files of this run until it ends, so that no other live run writes into it.

        A directory inside the work directory is locked already. Temporary files that killed processes of this run
        left in the directory are removed, as are the files of a run that this one overwrites.

        Raises:
            WorkDirError: If a live run has locked it.
        """
        if not is_main() or directory in self.held:
            return
        from hookbus.runs.workdir import hold

        inside = self.work_dir is not None and directory.absolute().is_relative_to(self.work_dir.path.absolute())
        removed = self.work_dir.removed if self.work_dir is not None else ""
        self.held[directory] = hold(directory, self.id, removed, locked=inside)

    # -- metrics -----------------------------------------------------------------------------

    def log(self, values: Mapping[str, Any] | None = None, **more: Any) -> None:
        """Note values of this iteration, or of this validation batch. Does not wait for the device.

        Args:
            values: numbers or zero-dimensional tensors by name; a name without slash gets the prefix `train/`.
            more: the same as keywords.

        Raises:
            MetricError: a value is not a single number.
        """
        self.metrics.log({**values, **more} if values else more)

    def request_record(self, window: Window, deliver: Callable[[Metrics, int], None]) -> None:
        """Ask for the means of a window once the iteration is complete; the window is reset.

        Args:
            window: of `run.metrics.window(name)`.
            deliver: called with the means and the step. In an iteration without an update this waits for the next
                one, so that records stand on steps that were made, and a step has one record of a window.
        """
        self.records[self._asker(), window.name] = Record(window, deliver)
        self.pending = True

    def plain_config(self) -> Mapping[str, Any]:
        """The resolved configuration as plain values, {} where there is none."""
        plain: Mapping[str, Any] = plain_settings(self.config)
        return plain

    # -- validation --------------------------------------------------------------------------

    def around_validation(self, context: Callable[[], AbstractContextManager[Any]]) -> None:
        """Surround every validation and test by a context: entered before `before_val`, left after `after_val`.

        Args:
            context: returns a fresh context manager each time it is called.
        """
        self.validations.surround(context)

    def validate(self, *, sanity: bool = False) -> Metrics:
        """Validate now. Module modes, gradient mode and random streams are as before afterwards.

        Args:
            sanity: this pass counts for nothing: no best score, no patience, no record.

        Returns:
            The results, `val/...`.

        Raises:
            RequestError: the run has no way to validate.
        """
        return self.validations.make("val", sanity=sanity)

    def all_metrics(self) -> Metrics:
        """The means of the epoch and the latest results of validations: what hooks get as `metrics` in training.

        A run without any hook keeps no means, which costs it nothing; there, the results of validations are all.
        """
        return self.metrics.means(self.metrics.epoch) | self.metrics.results

    # -- the loop ----------------------------------------------------------------------------

    def epochs(self) -> Iterator[int]:
        """The epochs that are left, as indices from 0; ends when the run is to stop.

        Raises:
            LoopError: the run has no limit, so this would never end.
        """
        return self.training_data.epochs()

    def batches(self, loader: Iterable[Any]) -> Iterator[tuple[int, Any]]:
        """The batches that are left of this epoch, with their indices; ends when epoch or run is to stop.

        A resumed run goes on at its place. The order follows from the seed and the epoch.

        Raises:
            LoopError: the loader gives no batch at all.
        """
        return self.training_data.batches(loader)

    def members_changed(self) -> None:
        """Hooks came or went: from now on somebody may watch the updates and the numbers."""
        self.optimizer_events.members_changed()
        self.metrics.watched = self.metrics.watched or bool(self.bus.pm.members)

    def serves(self, plugin: object) -> bool:
        """Whether a hook takes part on this rank."""
        return getattr(plugin, "ranks", "all") == "all" or is_main()

    # -- checkpoints -------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The loop's own part of a checkpoint."""
        return {
            "clock": self.clock.state_dict(),
            "metrics": self.metrics.state_dict(),
            "best": {name: each.state_dict() for name, each in self.best.items()},
            "accumulated": self.accumulated,
            "id": self.id,
            "validated_at": self.validations.validated_at,
            "seed": self.seed,
            "data": self.training_data.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self.clock.load_state_dict(state["clock"])
        self.clock.limit_reached = self.max_iters is not None and self.iters_done >= self.max_iters
        self.metrics.load_state_dict(state["metrics"])
        self.best.clear()
        self.best.update({name: Best.from_state(each) for name, each in state["best"].items()})
        self.accumulated, self.seed = state["accumulated"], state["seed"]
        self.validations.validated_at = state["validated_at"]
        self.id = state.get("id", "")  # the first checkpoints had none
        self.training_data.load_state_dict(state["data"])
        self.bus.changed()


def _seed(seed: int | None) -> int:
    """The given seed, else the one torch was seeded with, else 0 where there is no torch in the process."""
    if seed is not None:
        return seed
    torch = sys.modules.get("torch")
    return int(torch.initial_seed()) if torch is not None else 0
