"""The run object that hooks receive: clock, model, services, metrics and requests of one run."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from hookbus._events.call_stack import current_point, current_points
from hookbus._events.ordering import Listener
from hookbus._run.belongings import release_belongings
from hookbus._run.boundary_state import BoundaryState
from hookbus._run.clock import Clock, ProgressMixin
from hookbus._run.completeness import Completeness
from hookbus._run.history import History
from hookbus._run.history_recorder import HistoryRecorder
from hookbus._run.hook_budget import HookBudget
from hookbus._run.html import build_run_html, iter_positions
from hookbus._run.interrupts import SignalHandling
from hookbus._run.known_secrets import KnownSecrets, iter_settings
from hookbus._run.loop_methods import LoopMixin, Replacements
from hookbus._run.nesting import Nesting
from hookbus._run.objects import combine_models, freeze_names
from hookbus._run.optimizer_steps import OptimizerEvents
from hookbus._run.participants import Participants
from hookbus._run.request_sync import RequestSync
from hookbus._run.requests import SETTLE, Outcome, Record, Request, RequestQueue, process_requests
from hookbus._run.results import BestResult as BestResult
from hookbus._run.results import BestResults, EvaluationKind, LogSource, Recording
from hookbus._run.run_journal import RunJournal
from hookbus._run.sandbox import Trial, sandbox
from hookbus._run.services import OwnedServices
from hookbus._run.status import Metadata
from hookbus._run.step_hooks import IterationGap
from hookbus._run.tokens import build_measure
from hookbus._run.training_data import TrainingData
from hookbus._run.validation import Evaluator, Validations
from hookbus._run.weights import Weights
from hookbus._run.work_dir import DIRECTORIES
from hookbus._utils.arguments import get_by_name
from hookbus._utils.detached_copies import deepcopy_as_none
from hookbus._utils.redaction import redact_config
from hookbus.data.batch_sizes import BatchSizes
from hookbus.distributed.collectives import Collectives
from hookbus.distributed.process_group import is_main
from hookbus.errors import LoopError, MetricError
from hookbus.hook import Hook
from hookbus.metrics.logged import EVALUATIONS
from hookbus.metrics.results import Metrics
from hookbus.metrics.store import MetricStore
from hookbus.metrics.windows import Window

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from hookbus._run.host import Host
    from hookbus._run.run_bus import RunBus
    from hookbus._run.work_dir import WorkDir
    from hookbus.lifecycle import Mode


class Run(ProgressMixin, LoopMixin):
    """State of one run, and the operations that hooks can request from it.

    Attributes:
        bus: Bus that emits the events of the run.
        id (str): Unique ID of the run; a run that resumes from a checkpoint keeps it.
        mode (Mode): "train", "val", "test" or "predict".
        metrics (MetricStore): Store of logged values; `run.log` writes into it.
        weights (Weights): Raw and averaged weights.
        best (dict[str, BestResult]): Best result of each metric so far, by name; the checkpoint hook records them.
        history (History): Rows of the training: metrics and learning rate of each epoch and each validation.
        ranks: Collective communication between the processes of the run.
        model (Module | None): Model; an `nn.ModuleDict` of named models; None if the loop has none.
        optimizer (Any): Optimizer; a read-only mapping of named optimizers; None if the loop has none.
        scheduler (Any): Learning-rate scheduler; a read-only mapping of named schedulers; None if the loop has none.
        scaler (Any): Gradient scaler; None if the loop has none.
        loss (Module | None): Loss function that is a module; None for any other loss function.
        state (Mapping[str, Any]): State of a custom loop, by name: pairs (get, set), or objects with `state_dict`.
        train_loader (Any): Training loader; None if the loop has not set it.
        val_loader (Any): Validation loader, or a mapping of names to loaders; None if the loop has not set it.
        test_loader (Any): Test loader, or a mapping of names to loaders; None if the loop has not set it.
        predict_loader (Any): Prediction loader, or a mapping of names to loaders; None if the loop has not set it.
        trainer (Any): Trainer that executes the run; None in a custom loop.
        host (Host | None): Other trainer that executes the run; None if there is none.
        config (Any): Resolved configuration; {} if there is none.
        seed (int): Seed of data order and augmentation.
        device (Any): Device of the model.
        work_dir (WorkDir | None): Work directory; None for a run without files.
        outcome (Outcome): "running", or the outcome after the end of the run.
        is_running (bool): Whether the run is in progress, from `before_run` to `cleanup`.
        trial (Trial | None): Trial steps in progress inside `sandbox()`; None outside of it.
        resumed (bool | None): Whether the run continues from a checkpoint; None until this is decided, after
            `before_run`.
        may_resume (bool): Whether the run may continue from a checkpoint, whose state then replaces the settings that
            a check reads. Set before the checks of a run; whether it has resumed is known in `resumed`.
        validating: Whether a validation, test or prediction is in progress.
        sanity_checking (bool): Whether it is the sanity check before training, whose results are discarded.
        exception: Exception that ended a failed run.
        metadata (Metadata): Metadata that hooks collect for `status.json`, as built-in Python types. Each assignment
            writes the file.
        accumulated (int): Number of micro-batches whose gradients are accumulated since the last optimizer step.
        counts_steps (bool): Whether the loop emits the optimizer points itself, which then count the steps.
        auto_nesting (bool): Whether nested points that the loop omits are emitted automatically.
        pending (bool): Whether requests or records are pending.
        stops (list[Request]): Requests that stopped the run.
        ended_at (int | None): Number of iterations at which the run ended within an epoch; None if it did not.
        should_skip_iter (bool): Whether a hook requested to skip this micro-batch. A custom loop checks it after
            `before_train_iter` and after `after_forward`.
    """

    # Attributes that the docstring does not list are parts of the implementation. `orphaned_hook_states` contains the
    # hook states of the checkpoint that no active hook restores; the next checkpoint contains them unchanged.

    _belongs_to_run: ClassVar[bool] = True  # see `hookbus._utils.detached_copies`
    __deepcopy__ = deepcopy_as_none

    __slots__ = (
        "accumulated",
        "auto_nesting",
        "batch_sizes",
        "best",
        "boundary_state",
        "bus",
        "clock",
        "closer",
        "completeness",
        "config",
        "counts_steps",
        "device",
        "exception",
        "history",
        "history_recorder",
        "hook_budget",
        "host",
        "id",
        "initial_structure",
        "is_running",
        "iteration_gap",
        "journal",
        "known_secrets",
        "locks",
        "loss",
        "may_resume",
        "metadata",
        "metrics",
        "mode",
        "model",
        "model_names",
        "nesting",
        "optimizer",
        "optimizer_events",
        "orphaned_hook_states",
        "outcome",
        "participants",
        "planned_directory",
        "predict_loader",
        "ranks",
        "recording",
        "records",
        "replacements",
        "request_sync",
        "resolved_config",
        "resumed",
        "sanity_checking",
        "scaler",
        "scheduler",
        "seed",
        "services",
        "sets_lr",
        "signals",
        "state",
        "test_loader",
        "train_loader",
        "trainer",
        "training_data",
        "trial",
        "val_loader",
        "validating",
        "validations",
        "weights",
        "work_dir",
        "writes_report",
    )  # fmt: skip

    def __init__(
        self,
        bus: RunBus,
        *,
        mode: Mode = "train",
        model: nn.Module | Mapping[str, nn.Module] | None = None,
        model_names: Iterable[str] = (),
        optimizer: Optimizer | Mapping[str, Optimizer] | None = None,
        scheduler: Any = None,
        scaler: Any = None,
        loss: nn.Module | None = None,
        state: Mapping[str, Any] | None = None,
        trainer: Any = None,
        host: Host | None = None,
        config: Any = None,
        device: Any = None,
        seed: int | None = None,
        epochs: int | None = None,
        iterations: int | None = None,
        tokens: int | None = None,
        validate: Evaluator | None = None,
        test: Evaluator | None = None,
        predict: Evaluator | None = None,
        work_dir: WorkDir | None = None,
        report: bool = True,
        counts_steps: bool = False,
        auto_nesting: bool = False,
        batch_size: Callable[[Any], int] | None = None,
        batch_tokens: Callable[[Any], Any] | str | None = None,
        hook_budget: float | None = None,
        ranks: Collectives | None = None,
        previous: Run | None = None,
    ) -> None:
        self.bus, self.mode, self.trainer, self.host = bus, mode, trainer, host
        self.model = combine_models(model)
        self.model_names = tuple(model) if isinstance(model, Mapping) else tuple(model_names)
        self.optimizer: Any = freeze_names(optimizer)
        self.scheduler, self.scaler = freeze_names(scheduler), scaler
        self.loss, self.state = loss, dict(state or {})
        self.config, self.device, self.work_dir = config or {}, device, work_dir
        self.resolved_config: Any = None
        self.known_secrets = KnownSecrets()
        self.train_loader: Any = None
        self.val_loader: Any = None
        self.test_loader: Any = None
        self.predict_loader: Any = None
        self.counts_steps, self.auto_nesting = counts_steps, auto_nesting
        self.ranks, self.writes_report = ranks or Collectives(), report
        # The parts below read the clock and the ID: both are inherited first.
        self._inherit_state(previous, seed)
        self.clock.leave_iteration()
        self.clock.max_epochs, self.clock.max_iters = epochs, iterations
        self.clock.counts_iterations = optimizer is None and not counts_steps
        self.batch_sizes = BatchSizes(batch_size, lambda message: self.logger.warning("%s", message))
        self.clock.measure_batch = self.batch_sizes.measure
        self._count_tokens(batch_tokens, tokens)
        self.clock.check_limits()
        validated_at = previous.validations.validated_at if previous else -1
        evaluators: dict[EvaluationKind, Evaluator | None] = {"val": validate, "test": test, "predict": predict}
        self.validations: Validations = Validations(self, evaluators, validated_at)
        self.training_data: TrainingData = TrainingData(self, previous.training_data.state_dict() if previous else {})
        self.request_sync: RequestSync = RequestSync(self)
        self.optimizer_events: OptimizerEvents = OptimizerEvents(
            self, previous.optimizer_events.counts if previous else {}
        )
        self.participants = Participants(self)
        self.nesting = Nesting(self)
        self.replacements: Replacements = Replacements(self)
        self.boundary_state: BoundaryState = BoundaryState(self)
        self.completeness = Completeness(self)
        self.history_recorder = HistoryRecorder(self, self.history)
        self.recording = Recording(bus)
        self.iteration_gap = IterationGap(self)
        is_measured = mode == "train" and self.ranks.is_main
        self.hook_budget = HookBudget(self, hook_budget) if is_measured and hook_budget is not None else None
        self._init_state()

    def _count_tokens(self, batch_tokens: Callable[[Any], Any] | str | None, limit: int | None) -> None:
        """Count the tokens of each batch if it is known how, up to a limit."""
        clock = self.clock
        counts = batch_tokens is not None and self.mode == "train"
        clock.counts_tokens, clock.tokens.limit = counts, limit
        clock.tokens.measure = build_measure(batch_tokens, self.batch_sizes) if counts and batch_tokens else None
        clock.tokens.is_summed = self.ranks.world_size > 1

    def _inherit_state(self, previous: Run | None, seed: int | None) -> None:
        """Take the state of the previous run that this run continues, or initialize it."""
        bus = self.bus
        self.clock: Clock = previous.clock if previous else Clock()
        self.metrics: MetricStore = previous.metrics if previous else MetricStore(bus.pm.members.find_caller)
        self.best: dict[str, BestResult] = previous.best if previous else BestResults()
        self.history: History = previous.history if previous else History()
        self.weights: Weights = (
            previous.weights
            if previous
            else Weights(lambda: bus.current.model, lambda: bus.current.optimizers, lambda: bus.hooks)
        )
        self.orphaned_hook_states: dict[str, Any] = previous.orphaned_hook_states if previous else {}
        # Names and shapes of the weights before any hook changed the model; None before the run starts.
        self.initial_structure: dict[str, Any] | None = previous.initial_structure if previous else None
        self.accumulated: int = previous.accumulated if previous else 0
        self.id: str = previous.id if previous else uuid.uuid4().hex
        self.seed: int = previous.seed if previous and seed is None else _resolve_seed(seed)

    def _init_state(self) -> None:
        """Initialize the state that no run takes from a previous one."""
        self.queue = RequestQueue()
        self.services = OwnedServices()
        self.planned_directory: Path | None = None
        self.sets_lr: bool | None = None  # whether a hook sets the learning rate; None if unknown
        self.signals: SignalHandling = SignalHandling(self)
        self.stops: list[Request] = []
        self.ended_at: int | None = None
        self.records: dict[tuple[str, str], Record] = {}
        self.locks: dict[Path, Callable[[], object]] = {}
        self.closer: Callable[[BaseException | None], None] | None = None  # of a run that `bus.open` has begun
        self.metadata = Metadata()
        self.journal = RunJournal(self.redact)
        self.outcome: Outcome = "running"
        self.exception: BaseException | None = None
        self.resumed: bool | None = None
        self.may_resume = False
        self.trial: Trial | None = None
        self.pending = self.validating = self.sanity_checking = self.should_skip_iter = self.is_running = False

    def __repr__(self) -> str:
        return f"Run({', '.join([self.mode, self.outcome, *iter_positions(self)])})"

    def _repr_html_(self) -> str:
        """Return the outcome, the best results, and the history with its curves, for notebooks."""
        return build_run_html(self)

    # -- optimizer steps ---------------------------------------------------------------------

    @property
    def optimizers(self) -> Mapping[str, Optimizer]:
        """Optimizers by name; a single optimizer has the name ""."""
        return get_by_name(self.optimizer)

    @property
    def schedulers(self) -> Mapping[str, Any]:
        """Learning-rate schedulers by name; a single scheduler has the name ""."""
        return get_by_name(self.scheduler)

    def scale_learning_rates(self, factor: float) -> None:
        """Multiply the learning rates of all parameter groups by a factor.

        The base values of the schedulers of the run, and of those that hooks step (`Hook.lr_schedulers`), are
        multiplied as well, so that the whole schedule is.

        Args:
            factor: Factor, greater than 0.

        Raises:
            ConfigError: If the factor is not a finite number greater than 0.
        """
        # Imports torch, which a run without an optimizer does not need.
        from hookbus._training.learning_rates import scale_learning_rates

        self._check_trains("run.scale_learning_rates")
        hooks = [scheduler for hook in self.bus.hooks.values() for scheduler in getattr(hook, "lr_schedulers", ())]
        scale_learning_rates(self.optimizers.values(), [*self.schedulers.values(), *hooks], factor)

    def track_optimizer_values(self, *names: str) -> None:
        """Record values that the optimizers use in each step, for `optimizer_values()`.

        Args:
            names: "lr", "momentum" or "weight_decay".
        """
        self.optimizer_events.track_values(*names)

    def optimizer_values(self, *names: str) -> dict[str, float]:
        """Return values that the optimizers used in their last steps, by parameter group.

        Before the first step of an optimizer, and without `track_optimizer_values()`, these are the current ones. The
        momentum of optimizers with `betas`, such as Adam, is the first of them. Synchronizes with the device if a value
        is a tensor.

        Args:
            names: "lr", "momentum" or "weight_decay".

        Returns:
            `lr`, or `lr/<group>` with the `name` of the parameter group, else its index; `lr/<optimizer>` or
            `lr/<optimizer>/<group>` for named optimizers. Values that a group does not have are omitted.
        """
        return self.optimizer_events.get_values(*names)

    def track_learning_rates(self) -> None:
        """Record the learning rates that the optimizers use in each step, for `learning_rates()`."""
        self.track_optimizer_values("lr")

    def learning_rates(self) -> dict[str, float]:
        """Return the learning rates that the optimizers used in their last steps, see `optimizer_values()`."""
        return self.optimizer_values("lr")

    def optimizer_steps(self) -> dict[str, int]:
        """Return the number of steps of each named optimizer, as `steps/<name>`; {} without names."""
        return {f"steps/{name}": self.optimizer_events.counts[name] for name in self.optimizers if name}

    @property
    def accumulating(self) -> bool:
        """Whether gradients are accumulated for an optimizer step that is still pending."""
        if self.optimizer_events.has_pending_step:
            return True
        if self.trainer is not None:
            return self.accumulated > 0
        # A custom loop does not report its micro-batches: count the iterations since the last step instead.
        return self.optimizer is not None and self.clock.iters_since_step > 0

    # -- services ----------------------------------------------------------------------------

    @property
    def writer(self) -> Any:
        """Writer whose methods emit the `log_*` points, the service `writer`."""
        return self.get("writer")

    def call_hook(self, fn_name: str, /, **kwargs: Any) -> None:
        """Emit an event at a point, as `bus.emit` does.

        Args:
            fn_name: Name of the point.
            kwargs: Arguments of the point.

        Raises:
            PointError: If the point does not exist or does not have an argument.
        """
        emit: Any = self.bus.emit
        emit(fn_name, **kwargs)

    # -- files -------------------------------------------------------------------------------

    def register_output(self, path: Path | str, description: str = "") -> bool:
        """Register a file or directory before the run creates it, so that `overwrite` may remove it.

        `hookbus train` lists the registered files at the end of the run.

        Args:
            path: Path inside the work directory. A directory is removed with its content. A path outside is listed, if
                it has a description, and not removed.
            description: Content of the file, for that list, such as "CSV file of all metrics". Default: none.

        Returns:
            True if the path belongs to the run; False if it already exists and was not created by a run, if it is
            outside the work directory, or if the run has no work directory.
        """
        return self.work_dir is not None and self.work_dir.register_output(Path(path), description)

    def describe_output(self, path: Path | str, description: str) -> None:
        """Describe a file in the list that `hookbus train` prints at the end of the run.

        Unlike a registered file, it is not removed by `overwrite`: the hook that writes it determines who owns it.

        Args:
            path: Path, inside or outside the work directory.
            description: Content of the file.
        """
        if self.work_dir is not None:
            self.work_dir.describe_output(Path(path), description)

    def lock_directory(self, directory: Path) -> None:
        """Lock a directory for the files of this run until the run ends, so that no other active run writes into it.

        A directory inside the work directory is locked already. Temporary files that killed processes of this run
        left in the directory are removed, as are the files of a run that this one overwrites.

        Args:
            directory: Directory; created if it is missing.

        Raises:
            WorkDirError: If an active run has locked the directory.
        """
        # Two paths may denote one directory, and a link inside the work directory may lead out of it.
        real = Path(os.path.realpath(directory))
        if not is_main() or real in self.locks:
            return
        from hookbus._run.acquisition import lock_directory

        # The lock of the work directory covers its subdirectories.
        inside = self.work_dir is not None and real.is_relative_to(os.path.realpath(self.work_dir.path))
        removed = self.work_dir.removed_runs if self.work_dir is not None else ()
        self.locks[real] = lock_directory(directory, self.id, removed, locked=inside)
        if self.work_dir is not None and not inside:
            self.work_dir.record_directory(real)

    @property
    def checkpoint_directory(self) -> Path | None:
        """Directory of checkpoints for a hook without its own; None if the run has no work directory.

        Unlike that of the service `checkpoints_dir`, the directory need not exist and is not created.
        """
        provided = self.services.get("checkpoints_dir")
        if provided is not None:
            return Path(provided)
        return None if self.work_dir is None else self.work_dir.path / DIRECTORIES["checkpoints_dir"]

    # -- metrics -----------------------------------------------------------------------------

    def log(self, values: Mapping[str, Any] | None = None, **more: Any) -> None:
        """Log values of this iteration, validation or test, without a device synchronization.

        Values that are logged in the batches of a validation are averaged over its samples. Values that are logged at
        `after_val_epoch` belong to the loader, and those at `after_val` to the validation; they are logged once.

        Args:
            values: Numbers or zero-dimensional tensors by name. A name without a slash gets the prefix `train/`; in a
                validation or test, a name gets the prefix of the results in progress, such as `val/` or
                `val/<loader>/`.
            more: Further values as keyword arguments.

        Raises:
            MetricError: If a value is not a single number, a name has the prefix of something that is not in progress,
                the validation or its batch already has a value of this name, a run without training logs outside a
                validation, or the run has ended.
        """
        if self.outcome != "running" and not self.is_running:
            raise MetricError(
                f"run.log: the run has ended, got {', '.join(map(repr, {**(values or {}), **more}))}. Log inside of "
                "`with bus.run(...)`, or before run.close()."
            )
        if self.mode != "train" and self.is_running and not self.validating:
            raise MetricError(
                f"run.log: no {EVALUATIONS[self.mode]} is in progress in this run of mode "
                f"{self.mode!r}, got {', '.join(map(repr, values or more))}. Log between before_{self.mode} and "
                f"after_{self.mode}."
            )
        self.metrics.log({**values, **more} if values else more, is_running=self.is_running)

    def log_source(self, values: object) -> LogSource | None:
        """Return the source of the values that a listener of `log_scalars` receives.

        Args:
            values: Argument `values` of the listener.

        Returns:
            Source of a record of training or of the results of a validation or test; None for values that a hook or
            the loop has emitted.
        """
        return self.recording.get_source(values)

    def request_record(self, window: Window, deliver: Callable[[Metrics, int], None]) -> None:
        """Request the means of a window at the end of the iteration; the window is reset.

        Args:
            window: Window returned by `run.metrics.window(name)`.
            deliver: Function that is called with the means and the step. In an iteration without an optimizer step, the
                record is delayed until the next step: a window then has one record per step.
        """
        if self.trial is not None:
            self.trial.discard(f"record requested by {self._requester()}")
            return
        self.records[self._requester(), window.name] = Record(window, deliver)
        self.pending = True

    def plain_config(self) -> Mapping[str, Any]:
        """Return the configuration as built-in Python types, with secrets redacted; {} if there is none.

        From `log_config` on, the configuration of a run file is that of `config.yaml`, with the settings of all hooks.
        """
        plain: Mapping[str, Any] = self.redact(redact_config(self.resolved_config or self.config))
        return plain

    def redact(self, value: Any) -> Any:
        """Return a copy of a value with secrets redacted, to write it to a file.

        In addition to `hookbus.writers.redact`, the secret values of the configuration and of the hooks are redacted
        wherever they occur, for example in the message of an exception.

        Args:
            value: Nested mappings, sequences and values.
        """
        return self.known_secrets.redact(value, self.config, iter_settings(self.bus.hooks.values()))

    @property
    def loss_dict(self) -> dict[str, Tensor]:
        """Latest loss and other training values by name, as tensors without dimensions. No device synchronization."""
        import torch  # importing this module must not import torch

        return {name: torch.as_tensor(value) for name, value in self.metrics.training_values().items()}

    # -- validation --------------------------------------------------------------------------

    def around_validation(self, context: Callable[[], AbstractContextManager[Any]]) -> None:
        """Wrap every validation and test in a context, entered before `before_val` and exited after `after_val`.

        Args:
            context: Function that returns a new context manager at each call.
        """
        self.validations.contexts.add(context, self.bus.pm.members.find_caller())

    def validate(self, *, sanity: bool = False) -> Metrics:
        """Validate now. Training modes, gradient mode and RNG states are restored afterwards.

        Args:
            sanity: Whether to discard the results: no best value is updated, no patience counted, nothing logged.

        Returns:
            Metrics with names `val/...`.

        Raises:
            RequestError: If the run has no validation function.
        """
        self._check_no_trial("run.validate")
        return self.validations.execute("val", sanity=sanity)

    def test(self) -> Metrics:
        """Test now. Training modes, gradient mode and RNG states are restored afterwards.

        Returns:
            Metrics with names `test/...`.

        Raises:
            RequestError: If the run has no test function.
        """
        self._check_no_trial("run.test")
        return self.validations.execute("test", sanity=False)

    def predict(self) -> Any:
        """Predict now. Training modes, gradient mode and RNG states are restored afterwards.

        Returns:
            What the prediction function returns: the predictions of the Trainer, see `Trainer.predict`.

        Raises:
            RequestError: If the run has no prediction function.
        """
        self._check_no_trial("run.predict")
        return self.validations.predict()

    def all_metrics(self) -> Metrics:
        """Return the means of the epoch and the latest validation results: the argument `metrics` during training."""
        return self.metrics.means(self.metrics.epoch) | self.metrics.results

    def epoch_means(self) -> Metrics:
        """Return the training means of the epoch in progress or just completed over all ranks. A collective call.

        Each iteration of each rank has the same weight. The means are equal on every rank, for decisions of hooks; an
        epoch that a resumed run completes includes its iterations before the resume. Synchronizes with the device.

        Raises:
            RankError: If another rank has failed, or makes another collective call.
        """
        return self.metrics.rank_means(self.metrics.epoch, self.ranks)

    @property
    def is_epoch_full(self) -> bool:
        """Whether the epoch is complete and was not left early, by a stop, a limit or `request_stop_epoch`."""
        return self.epoch_complete and not self.training_data.leaving_epoch

    # -- the loop ----------------------------------------------------------------------------

    def sandbox(self, *, local: bool = False) -> AbstractContextManager[Trial]:
        """Return a context manager for trial steps, such as a learning-rate range test or a search for the batch size.

        On exit, also after an exception, everything is as before: counts, clock and axes of the log, metrics and
        their windows, RNG states, position in the data, weights, gradients, modes and buffers of model and loss
        function, optimizers with their parameter groups, schedulers, gradient scaler, and the state of a custom loop.
        The training after it is bitwise the same.

        Inside, no event is emitted. Logged values are discarded; requests and records of the `log_*` points are
        discarded with a warning. Hooks that replace or wrap the action `train_step` are called. The copies of the
        weights, gradients and optimizer states are on the host. With multiple ranks, enter it on every rank.

        Args:
            local: Whether the steps of the Trainer use the gradients of this rank only, so that they do not communicate
                and a step that fails on one rank does not block the others. Default: False.

        Example:
            ```py
            def before_train(self, run):
                with run.sandbox() as trial:
                    for batch in islice(trial.batches(), 100):
                        losses.append(float(trial.train_step(batch)["loss"]))
            ```

        Returns:
            Context manager that returns the trial, with the methods `train_step`, `eval_step` and `batches`.

        Raises:
            LoopError: If it is entered before `before_train`, within an iteration after `before_train_iter`, within a
                validation or a save, or in a run that only evaluates; with `local`, if its steps communicate: those
                of a custom loop with multiple ranks, or of sharded parameters.
        """
        return sandbox(self, local=local)

    def settle(self) -> None:
        """Process the pending requests now, in a custom loop between two iterations.

        Emits no event of the training, advances no count and ends no epoch: a save that is requested after a complete
        epoch is left to the end of the epoch. With multiple ranks this is a collective call.

        Raises:
            LoopError: If it is called within an event, an iteration or a validation.
        """
        self._check_no_trial("run.settle")
        point = current_point(self)
        place = f"within {point}" if point else "within a validation" if self.validating else "within an iteration"
        if point or self.validating or self.clock.mid_iteration:
            raise LoopError(
                f"run.settle: called {place}, at iteration {self.clock.current('iter')}, epoch "
                f"{self.clock.current('epoch')}. Call it in the loop, between after_train_iter and the next "
                "before_train_iter."
            )
        process_requests(self, SETTLE)

    def close(self, error: BaseException | None = None) -> None:
        """End a run that `bus.open` has begun: close its open points, and emit `after_run` and `cleanup`.

        Only the first call has an effect.

        Args:
            error: Exception that ended the loop, for `on_exception` and the outcome. It is not raised again.

        Raises:
            LoopError: If the run was not begun by `bus.open`, or it is called within an event or in `sandbox()`.
            BaseException: If a hook raised it at the end of a run whose loop did not fail.
        """
        self._check_no_trial("run.close")
        if self.closer is None:
            raise LoopError("run.close: the run was not begun by bus.open. It ends with its `with` block or Trainer.")
        if point := current_point(self):
            raise LoopError(
                f"run.close: called within {point}. Call it in the loop, or call run.request_stop() in a hook."
            )
        self.closer(error)

    def begin_validation(self, *, sanity: bool = False) -> None:
        """Begin a validation that the loop performs itself; a test or prediction in the modes "test" and "predict".

        Averaged weights are applied, and `before_val` is emitted unless the loop emits it next. Modes of the model,
        gradients and random numbers are left to the loop.

        Args:
            sanity: Whether it is a sanity check, whose results are discarded.

        Raises:
            LoopError: If a validation or test is in progress, or it is called within an event or in `sandbox()`.
        """
        self._check_no_trial("run.begin_validation")
        self.validations.begin(sanity=sanity)

    def end_validation(self, metrics: Mapping[str, Any] | None = None) -> None:
        """End a validation that `begin_validation` has begun, with the same effect as one of `validate`.

        `after_val` is emitted unless the loop has emitted it. Afterwards pending requests are processed, so that a stop
        is known in `should_stop`.

        Args:
            metrics: Results by name, in addition to the means of the values logged in its batches.

        Raises:
            LoopError: If `begin_validation` was not called, or results are passed after `after_val`.
        """
        self.validations.end_begun(metrics)

    @property
    def open_points(self) -> set[str]:
        """Points of the events that are in progress: the innermost event, and those that it is nested in."""
        return current_points(self)

    @property
    def has_lr_hook(self) -> bool:
        """Whether a hook sets the learning rate. Not computed again until a hook is registered or leaves."""
        if self.sets_lr is None:
            hooks = [hook for hook in self.bus.hooks.values() if isinstance(hook, Hook)]
            self.sets_lr = any(hook.schedules_learning_rate for hook in hooks)
        return self.sets_lr

    def on_hooks_changed(self) -> None:
        """Update what depends on the registered hooks; called after hooks were registered or unregistered."""
        self.sets_lr = None
        self.optimizer_events.on_hooks_changed()
        self.recording.on_hooks_changed()
        self.metrics.has_reader = self.metrics.has_reader or bool(self.bus.pm.members)

    def release(self, name: str, plugin: object) -> None:
        """Remove what a hook has registered with the run; called when it was unregistered or disabled."""
        if name not in self.bus.pm.members:
            self.participants.remove(name)
        release_belongings(self, name, plugin)

    def runs_on_this_rank(self, plugin: object) -> bool:
        """Return whether a hook is active on this rank."""
        return getattr(plugin, "ranks", "all") == "all" or is_main()

    def receives(self, hook: str, target: str) -> bool:
        """Return whether a hook takes part in the events of a point, or in an action, at this position."""
        return self.participants.receives(hook, target)

    def record_opening(self, listener: Listener) -> Callable[..., Any]:
        """Return the function of a listener, which records that its hook is opened."""
        return self.participants.record_opening(listener)

    def watch_completeness(self) -> None:
        """Check from now on that checkpoints contain everything that is trained. Idempotent."""
        if not self.completeness.is_started:
            self.completeness.start()
            self.iteration_gap.is_watching = self.auto_nesting

    # -- checkpoints -------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the run itself for a checkpoint."""
        work_dir = None if self.work_dir is None else self.work_dir.path
        return {
            "clock": self.clock.state_dict(),
            "metrics": self.metrics.state_dict(),
            "best": {name: best.state_dict(work_dir) for name, best in self.best.items()},
            "accumulated": self.accumulated,
            "id": self.id,
            "validated_at": self.validations.validated_at,
            "seed": self.seed,
            "data": self.training_data.state_dict(),
            "optimizers": self.optimizer_events.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state returned by `state_dict()`."""
        self.clock.load_state_dict(state["clock"])
        self.clock.check_limits()
        self.metrics.load_state_dict(state["metrics"])
        self.best.clear()
        self.best.update({name: BestResult.from_state(best) for name, best in state["best"].items()})
        self.accumulated, self.seed = state["accumulated"], state["seed"]
        self.validations.validated_at = state["validated_at"]
        self.id = state.get("id", "")  # checkpoints of the first format version have no ID
        self.training_data.load_state_dict(state["data"])
        self.optimizer_events.load_state_dict(state.get("optimizers", {}))  # absent in earlier checkpoints
        self.resumed = True
        # Compiled schedules store the next due iteration, which the restored counts change.
        self.bus.invalidate()


def _resolve_seed(seed: int | None) -> int:
    """Return the given seed, or the initial seed of torch, or 0 if torch is not imported."""
    if seed is not None:
        return seed
    torch = sys.modules.get("torch")
    return int(torch.initial_seed()) if torch is not None else 0
