"""Runs of a Trainer. Each call of `fit`, `validate`, `test` and `predict` continues from the previous run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookbus._run.acquisition import preview
from hookbus._run.preconditions import check_preconditions
from hookbus._run.resume import verify_resume
from hookbus._run.run import Run
from hookbus._run.services import OwnedServices
from hookbus._run.session import acquire_work_dir, ensure_no_active_run, may_resume, preconditions_scope, run_scope
from hookbus._training.evaluation import evaluate
from hookbus.data.loaders import loader_length
from hookbus.data.rng import rank_seed, seed_everything
from hookbus.distributed.process_collectives import get_collectives
from hookbus.trainer.arguments import LOADERS
from hookbus.trainer.initial_weights import check_files
from hookbus.trainer.missing_hooks import warn_of_missing_hooks
from hookbus.trainer.preconditions import check_training

if TYPE_CHECKING:
    from hookbus._run.results import EvaluationKind
    from hookbus._run.validation import Evaluator
    from hookbus._run.work_dir import WorkDir
    from hookbus._training.output_collector import OutputCollector
    from hookbus.lifecycle import Mode
    from hookbus.trainer.setup import TrainerSetup


class TrainerRuns:
    """Create the runs of a Trainer and store the state that is shared between runs.

    Args:
        trainer: Trainer. Its attributes are read at the start of each run.
        resume: Checkpoint that the first training resumes from: "never", "auto" or a path.

    Attributes:
        pending_resume: Checkpoint that the next training resumes from.
    """

    def __init__(self, trainer: TrainerSetup, resume: str | Path) -> None:
        self._trainer = trainer
        self.pending_resume = resume
        self._directory: Path | None = None
        self._services = OwnedServices()
        self._has_trained = self._is_announced = False

    def preview_work_dir(self) -> tuple[Path | None, str]:
        """Return the work directory of the next training, and the error message if it cannot be used."""
        trainer = self._trainer
        # The first training determines the directory of all later runs.
        if self._directory is not None or not trainer.work_dir:
            return self._directory, ""
        return preview(
            Path(trainer.work_dir),
            resume=self.pending_resume == "auto",
            overwrite=trainer.overwrite,
            writes_config=hasattr(trainer.config, "to_yaml"),
        )

    @property
    def continues(self) -> bool:
        """Whether the next run continues an earlier one of the trainer."""
        return self._trainer.bus.current.trainer is self._trainer

    def provide(self, name: str, service: Any) -> None:
        """Provide a service to hooks in the current run and in all later runs; that of a hook leaves with it."""
        bus = self._trainer.bus
        self._services.provide(name, service, bus.pm.members.find_caller())
        bus.current.provide(name, service)

    def release(self, owner: str) -> None:
        """Remove the services of a hook from the later runs, and restore the ones that it has replaced."""
        self._services.release(owner)

    @contextmanager
    def run_scope(self, mode: Mode, collector: OutputCollector | None = None) -> Iterator[Run]:
        """Context manager for one run, from `before_run` to `cleanup`.

        Args:
            mode: Mode of the run.
            collector: Receiver of the outputs of the evaluation. Default: None, to keep none.

        Raises:
            HookbusError: If the run cannot start, see `hookbus._run.session.run_scope`.
        """
        trainer = self._trainer
        ensure_no_active_run(trainer.bus)
        trainer.short_run.omit_hooks(trainer.bus)
        # The bus may have been used by a custom loop in between. Only runs of this trainer are continued.
        earlier = trainer.bus.current if self.continues else None
        run = self.create(mode, earlier, collector)
        with preconditions_scope(run):  # before the work directory is acquired
            if mode == "train":
                check_training(trainer, run)
            else:
                check_preconditions(run)
                check_files(trainer)
        # Only the first run seeds the RNGs: a later run continues from the RNG states of the previous one.
        if earlier is None and trainer.seed is not None:
            seed_everything(rank_seed(trainer.seed, trainer.ranks.rank))
        # Validation and test resume from an explicit checkpoint, but not from "auto", which only applies to training.
        resume = self.pending_resume if mode == "train" or self.pending_resume != "auto" else "never"
        path = verify_resume(resume, trainer.ranks)
        run.work_dir = self._acquire_work_dir(mode, resume)
        with run_scope(run, path):
            if resume == self.pending_resume:
                self.pending_resume = "never"
            self._announce(run)
            if mode == "train" and not self._has_trained:
                self._has_trained = True
                warn_of_missing_hooks(trainer, run)
            yield run

    def _announce(self, run: Run) -> None:
        """Log once what is shorter than in a full run. A warning, so that a limit left in a script is noticed."""
        if not self._is_announced and (description := self._trainer.short_run.describe()):
            run.logger.warning("%s", description)
        self._is_announced = True

    def create(self, mode: Mode, earlier: Run | None = None, collector: OutputCollector | None = None) -> Run:
        """Create a run without a work directory and without starting it."""
        trainer = self._trainer
        run = Run(
            trainer.bus,
            mode=mode,
            model=trainer.model,
            model_names=trainer.model_names,
            optimizer=trainer.optimizer,
            scheduler=trainer.scheduler.scheduler,
            scaler=trainer.steps.scaler,
            loss=trainer.loss,
            trainer=trainer,
            config=trainer.config,
            device=trainer.device,
            report=trainer.report,
            seed=trainer.seed,
            epochs=trainer.epochs,
            iterations=trainer.iterations,
            tokens=trainer.tokens,
            batch_size=trainer.batch_size,
            batch_tokens=trainer.batch_tokens,
            hook_budget=trainer.hook_budget,
            validate=self._get_evaluator("val", collector),
            test=self._get_evaluator("test", collector),
            predict=self._get_evaluator("predict", collector),
            ranks=get_collectives(trainer.device),
            previous=earlier,
        )
        self._connect(run)
        run.may_resume = may_resume(self.pending_resume, trainer.work_dir)
        # A validation or test reads and writes the directory of the training.
        is_new = mode == "train" or self._directory is not None
        planned = self.preview_work_dir()[0] if is_new else trainer.work_dir
        run.planned_directory = Path(planned) if planned else None
        return run

    def _connect(self, run: Run) -> None:
        """Connect a run with the loaders, the scheduler and the services of the trainer."""
        trainer = self._trainer
        for name in LOADERS:
            setattr(run, name, getattr(trainer, name))
        run.training_data.loaders.shard, run.request_sync.every = trainer.train_shard, trainer.agree_every
        run.clock.epoch_length = loader_length(trainer.train_loader, trainer.train_shard)
        run.training_data.batch_size.apply()
        run.optimizer_events.on_step = trainer.scheduler.after_optimizer_step
        run.validations.on_results = trainer.scheduler.after_validation
        run.services.provide_all(self._services)

    def _get_evaluator(self, kind: EvaluationKind, collector: OutputCollector | None) -> Evaluator | None:
        """Return the function that runs an evaluation, or None if the trainer has no loader for it."""
        trainer, loader = self._trainer, f"{kind}_loader"
        if getattr(trainer, loader) is None:
            return None
        metrics = {} if kind == "predict" else trainer.eval_metrics
        return lambda run: evaluate(run, kind, getattr(trainer, loader), metrics, trainer.device, collector)

    def _acquire_work_dir(self, mode: Mode, resume: str | Path) -> WorkDir | None:
        """Return the work directory of a run, or None.

        The first training determines the directory of all later runs.
        """
        trainer = self._trainer
        if self._directory is not None or mode != "train":
            return acquire_work_dir(self._directory or trainer.work_dir, "auto", False, trainer.ranks)
        work_dir = acquire_work_dir(trainer.work_dir, resume, trainer.overwrite, trainer.ranks)
        self._directory = work_dir.path if work_dir is not None else None
        return work_dir
