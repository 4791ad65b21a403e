"""The runs of a Trainer: each call of `fit`, `validate` and `test` is one, and goes on where the one before was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookbus.assembly.start_files import check_files
from hookbus.ranks import join
from hookbus.run import Run
from hookbus.session import claim_for, living, refuse_second
from hookbus.training.evaluation import judge
from hookbus.training.loaders import length_of
from hookbus.training.rng import seed_everything, seed_of_rank

if TYPE_CHECKING:
    from hookbus.lifecycle import Mode
    from hookbus.loop import Trainer
    from hookbus.runs.validations import Evaluator, Kind
    from hookbus.runs.workdir import WorkDir

__all__ = ["TrainerRuns"]


class TrainerRuns:
    """Makes the runs of a Trainer, and remembers from one to the next what a run alone does not know.

    Args:
        trainer: the trainer. What it is when a run begins counts for that run.
        resume: what its first training goes on from: "never", "auto" or a file.
    """

    def __init__(self, trainer: Trainer, resume: str | Path) -> None:
        self._trainer = trainer
        self._still_to_resume = resume
        self._directory: Path | None = None
        self._services: dict[str, Any] = {}

    def provide(self, name: str, service: Any) -> None:
        """Offer an object to hooks under a name, in the run that is going on and in all later ones."""
        self._services[name] = service
        self._trainer.bus.current.provide(name, service)

    @contextmanager
    def living(self, mode: Mode) -> Iterator[Run]:
        """One run from before_run to cleanup.

        Args:
            mode: "train", "val" or "test".

        Raises:
            HookbusError: it cannot begin, see `hookbus.session.living`.
        """
        trainer = self._trainer
        refuse_second(trainer.bus)
        earlier = trainer.bus.current if trainer.bus.current.trainer is trainer else None
        if earlier is None:
            check_files(trainer)
            if trainer.seed is not None:
                seed_everything(seed_of_rank(trainer.seed, trainer.ranks.rank))
        resume = self._still_to_resume if mode == "train" or self._still_to_resume != "auto" else "never"
        run = self.new(mode, self._claim(mode, resume), earlier)
        with living(run, resume):
            if resume == self._still_to_resume:
                self._still_to_resume = "never"
            yield run

    def new(self, mode: Mode, work_dir: WorkDir | None = None, earlier: Run | None = None) -> Run:
        """A run that has not begun.

        Args:
            mode: "train", "val" or "test".
            work_dir: where its files go; None for a run that writes none.
            earlier: the run that it goes on from.
        """
        trainer = self._trainer
        run = Run(
            trainer.bus,
            mode=mode,
            model=trainer.model,
            optimizer=trainer.optimizer,
            scheduler=trainer.scheduler.scheduler,
            scaler=trainer.steps.scaler,
            trainer=trainer,
            config=trainer.config,
            device=trainer.device,
            seed=trainer.seed,
            epochs=trainer.epochs,
            iterations=trainer.iterations,
            validate=self._evaluator("val"),
            test=self._evaluator("test"),
            work_dir=work_dir,
            ranks=join(trainer.device),
            continues=earlier,
        )
        self._connect(run)
        return run

    def _connect(self, run: Run) -> None:
        """Tell a run of the trainer's data, its scheduler and its services."""
        trainer = self._trainer
        run.train_loader, run.val_loader, run.test_loader = (
            trainer.train_loader,
            trainer.val_loader,
            trainer.test_loader,
        )
        run.training_data.part, run.decisions.every = trainer.part, trainer.agree_every
        run.clock.epoch_length = length_of(trainer.train_loader, trainer.part)
        run.validations.on_results = trainer.scheduler.after_validation
        for name, service in self._services.items():
            run.provide(name, service)

    def _evaluator(self, kind: Kind) -> Evaluator | None:
        """What makes a validation or test; None where the trainer has no data for one."""
        trainer, loader = self._trainer, f"{kind}_loader"
        if getattr(trainer, loader) is None:
            return None
        return lambda run: judge(run, kind, getattr(trainer, loader), trainer.scores, trainer.device)

    def _claim(self, mode: Mode, resume: str | Path) -> WorkDir | None:
        """The directory of the trainings of this trainer; before the first of them, that in which one may be."""
        trainer = self._trainer
        if self._directory is not None:
            return claim_for(self._directory, "auto", False, trainer.ranks)
        if mode != "train":
            return claim_for(trainer.work_dir, "auto", False, trainer.ranks)
        work_dir = claim_for(trainer.work_dir, resume, trainer.overwrite, trainer.ranks)
        self._directory = work_dir.path if work_dir is not None else None
        return work_dir
