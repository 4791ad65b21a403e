"""What does the loop do? The Trainer: a loop that emits events, and nothing else.

    before_run
      before_train
        for each epoch:
          before_epoch
            before_train_epoch
              for each batch: before_train_iter, train_step, after_train_iter
            after_train_epoch            -> a validation, if one was asked for
          after_epoch                    -> files, stops
      after_train
    after_run, cleanup

Policy lives in hooks: when to validate, save, stop, log. The loop asks the run whether to go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hookbus._numbers import check_count
from hookbus.assembly.beginnings import check_files
from hookbus.assembly.checking import check_ends, check_optimizer, check_trainer
from hookbus.bus import HookBus
from hookbus.dispatch.table import Order
from hookbus.distributed import local_device
from hookbus.errors import ConfigError, LoopError
from hookbus.hook import Hook
from hookbus.metrics import Metrics
from hookbus.model.layouts import layout_of
from hookbus.model.wrappers import inside_ddp
from hookbus.ranks import join
from hookbus.run import Mode, Run
from hookbus.runfile.builder import get_default_hooks
from hookbus.runfile.defaults import with_defaults
from hookbus.runs.workdir import WorkDir
from hookbus.session import claim_for, graceful_interrupts, living, refuse_second, resume_from
from hookbus.training.data import length_of
from hookbus.training.evaluation import judge
from hookbus.training.parallel import Distributed, check_distributed, make_steps, part_of, spread_if_asked
from hookbus.training.rng import seed_everything
from hookbus.training.scheduling import SchedulerSteps
from hookbus.training.scores import scores_from
from hookbus.training.seeding import seed_of_rank
from hookbus.training.steps import Precision, move

if TYPE_CHECKING:
    from hookbus.config import RunConfig

__all__ = ["Trainer"]


class Trainer:
    """Trains a model and emits the events of the run.

    Args:
        model: what is trained.
        optimizer: makes the updates: an optimizer, or a function of the parameters that returns one.
        loss_fn: `loss_fn(output, target)`; None where the model returns its loss.
        train_loader: batches for training; any iterable that can be iterated in every epoch.
        val_loader: batches for validation; a mapping gives several loaders names.
        test_loader: the same for `test`.
        scheduler: a learning-rate scheduler.
        scheduler_interval: when it is stepped: "epoch" or "step". One that needs a metric steps after validations.
        scheduler_monitor: the metric that it needs; default the validation loss.
        epochs, iterations: the limit; one of them.
        work_dir: where files go; None for a run that writes none.
        hooks: hooks to add. One of the same type as a default hook replaces it.
        default_hooks: whether logger, progress, timer, checkpoint and preemption are added, as far as installed.
        order: "nested" or "ascending", see `HookBus`.
        metrics: what validations measure: names, functions, torchmetrics objects; a mapping gives names of its own.
        step_fn: `step_fn(model, batch)` returns the loss, or a mapping with it; replaces the call of model and loss.
        accumulate: micro-batches per update. Groups go on over the end of an epoch.
        precision: "fp32", "bf16" or "fp16".
        clip_grad_norm: the largest allowed norm of all gradients together; None for no clipping.
        distributed: how several processes train, where torchrun has started them: "ddp"; "fsdp2" for weights that are
            spread over them; or "none" for a model and loaders that see to it themselves.
        ddp: options of torch's DistributedDataParallel.
        fsdp2: options of spread weights: `wrap`, class names of modules whose weights come together by themselves, and
            `mesh`, how the processes are arranged: [parts] or [copies, parts].
        agree_every: with so many iterations between do processes compare what hooks of each of them ask for.
        validate_first: one validation before training, which counts for nothing but is shown.
        device: "auto", or a device.
        seed: seeds every random stream when training begins; default: left as they are.
        resume: "never", "auto" (the newest checkpoint of the work directory, if any), or a file.
        load_from: a file whose weights training starts from.
        load_weights: which of them: "raw" or "averaged".
        overwrite: a run that is in the work directory is removed.
        config: recorded with the run.

    Raises:
        ConfigError: an argument does not hold.
        RegistrationError: a hook was refused.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Callable[[Iterable[nn.Parameter]], Optimizer] | None = None,
        loss_fn: Callable[[Any, Any], Tensor] | None = None,
        train_loader: Iterable[Any] | None = None,
        val_loader: Iterable[Any] | Mapping[str, Iterable[Any]] | None = None,
        test_loader: Iterable[Any] | Mapping[str, Iterable[Any]] | None = None,
        *,
        scheduler: Any = None,
        scheduler_interval: Literal["epoch", "step"] = "epoch",
        scheduler_monitor: str | None = None,
        epochs: int | None = None,
        iterations: int | None = None,
        work_dir: str | Path | None = "runs/train",
        hooks: Iterable[object] = (),
        default_hooks: bool = True,
        order: Order = "nested",
        metrics: Iterable[Any] | Mapping[str, Any] = (),
        step_fn: Callable[[nn.Module, Any], Any] | None = None,
        accumulate: int = 1,
        precision: Precision = "fp32",
        clip_grad_norm: float | None = None,
        distributed: Distributed = "ddp",
        ddp: Mapping[str, Any] | None = None,
        fsdp2: Mapping[str, Any] | None = None,
        agree_every: int = 1,
        validate_first: bool = False,
        device: str | torch.device = "auto",
        seed: int | None = None,
        resume: Literal["auto", "never"] | str | Path = "never",
        load_from: str | Path | None = None,
        load_weights: Literal["raw", "averaged"] = "raw",
        overwrite: bool = False,
        config: RunConfig | Mapping[str, Any] | None = None,
    ) -> None:
        _check_model(model)
        self.device = _device(device)
        self.ranks = join(self.device)
        check_distributed(distributed)
        check_count(agree_every, "agree_every")
        self.agree_every = agree_every
        self.model = inside_ddp(model.to(self.device))
        spread_if_asked(distributed, self.ranks, self.model, optimizer, self.device, fsdp2)
        self.optimizer = _optimizer(optimizer, model)
        self.train_loader, self.val_loader, self.test_loader = train_loader, val_loader, test_loader
        self.scheduler = SchedulerSteps(scheduler, scheduler_interval, scheduler_monitor)
        self.epochs, self.iterations = _limit("epochs", epochs), _limit("iterations", iterations)
        self.work_dir, self.resume, self.overwrite = work_dir, resume_from(resume), overwrite
        self._still_to_resume: str | Path = resume
        self._directory: Path | None = None
        self.load_from, self.load_weights = load_from, load_weights
        self.validate_first, self.seed, self.config = validate_first, seed, config
        self.scores = scores_from(metrics)
        self.part = part_of(distributed, self.ranks)
        self.steps = make_steps(
            distributed,
            self.ranks,
            model,
            ddp,
            optimizer=self.optimizer,
            loss_fn=loss_fn,
            step_fn=step_fn,
            accumulate=accumulate,
            precision=precision,
            clip_grad_norm=clip_grad_norm,
            device=self.device,
            on_update=self.scheduler.after_update,
        )
        self._services: dict[str, Any] = {}
        self.bus = HookBus(order=order)
        self.bus.table.steps.update(
            train_step=self.steps.train_step, val_step=self.steps.eval_step, test_step=self.steps.eval_step
        )
        for hook in with_defaults(hooks, _default_hooks(work_dir) if default_hooks else ()):
            self.bus.register(hook)

    @classmethod
    def from_file(cls, path: str | Path, overrides: Iterable[str] = ()) -> Trainer:
        """A trainer as a run file describes it.

        Args:
            path: the run file.
            overrides: `a.b=value` and `~a.b`, as on the command line.

        Raises:
            ConfigError: the file does not hold; all mistakes are listed.
        """
        from hookbus.assembly.assemble import trainer_from_file

        return trainer_from_file(cls, path, overrides)

    # -- what users call -----------------------------------------------------------------------

    def fit(self, *, epochs: int | None = None, iterations: int | None = None) -> Run:
        """Train up to the limit. Called again, it goes on where it was.

        Args:
            epochs, iterations: a new limit, counted from the very beginning.

        Returns:
            The run; `run.outcome` tells how it ended.

        Raises:
            LoopError: there is nothing to train with, or no limit.
            KeyboardInterrupt: Ctrl-C; a last checkpoint was written, where a hook writes any.
        """
        if epochs is not None or iterations is not None:
            self.epochs, self.iterations = _limit("epochs", epochs), _limit("iterations", iterations)
        self._check()
        with self._living("train") as run, graceful_interrupts(run):
            self._load(run)
            self._train(run)
        if run.outcome == "interrupted":
            raise KeyboardInterrupt
        return run

    train = fit

    def validate(self) -> Metrics:
        """One validation on its own.

        Returns:
            The results, `val/...`.

        Raises:
            RequestError: there is no val_loader.
        """
        with self._living("val") as run:
            self._load(run)
            return run.validate()

    def test(self) -> Metrics:
        """One test on its own, with averaged weights where a hook averages.

        Returns:
            The results, `test/...`.

        Raises:
            RequestError: there is no test_loader.
        """
        with self._living("test") as run:
            self._load(run)
            return run.validations.make("test", sanity=False)

    def check(self) -> list[str]:
        """See what would go wrong, without training: one batch of each loader goes through the model.

        Returns:
            Lines that say what a training would do.

        Raises:
            HookbusError: something would go wrong.
        """
        self._check()
        return check_trainer(self)

    def register_hook(self, hook: object, name: str | None = None, *, priority: int | None = None) -> object:
        """Add a hook, see `HookBus.register`."""
        return self.bus.register(hook, name, priority=priority)

    def register_service(self, name: str, service: Any) -> None:
        """Offer an object to hooks under a name: `run.get(name)`."""
        self._services[name] = service
        self.bus.current.provide(name, service)

    # -- the loop --------------------------------------------------------------------------------

    def _train(self, run: Run) -> None:
        fire = self.bus.fire
        if self.validate_first:
            run.request_validation("before training")
        fire("before_train")
        for _ in run.epochs():
            fire("before_epoch")
            fire("before_train_epoch")
            self._train_epoch(run)
            if self._wants_validation(run):
                run.request_validation("end of the epoch")
            fire("after_train_epoch")
            self.scheduler.after_epoch(run)
            fire("after_epoch")
        self._say_what_is_left(run)
        fire("after_train")

    def _train_epoch(self, run: Run) -> None:
        assert self.train_loader is not None
        calls, moves = self.bus.calls, self.device.type != "cpu"
        for batch_idx, batch in run.batches(self.train_loader):
            if moves:
                batch = move(batch, self.device)
            calls.before_train_iter(batch_idx=batch_idx, batch=batch)
            outputs = None if run.should_skip_iter else calls.train_step(run, batch)
            calls.after_train_iter(batch_idx=batch_idx, batch=batch, outputs=outputs)
            del batch, outputs  # nothing of this iteration may be alive in the next forward

    def _say_what_is_left(self, run: Run) -> None:
        """The last group of an accumulation may be too small for an update, which then waits for a longer run."""
        if run.accumulated and not run.stops:
            run.logger.warning(
                "The last micro-batches, %s of the %s that make an update, have changed no weights. A run that goes on "
                "uses them; for none to be left, let the number of iterations be a multiple of accumulate.",
                run.accumulated,
                self.steps.accumulate,
            )

    # -- around the loop -------------------------------------------------------------------------

    @contextmanager
    def _living(self, mode: Mode) -> Iterator[Run]:
        """One run from before_run to cleanup. A second one goes on where the first was."""
        refuse_second(self.bus)
        earlier = self.bus.current if self.bus.current.trainer is self else None
        if earlier is None:
            check_files(self)
        resume = self._still_to_resume if mode == "train" or self._still_to_resume != "auto" else "never"
        if earlier is None and self.seed is not None:
            seed_everything(seed_of_rank(self.seed, self.ranks.rank))
        run = self.new_run(mode, self._claim(mode, resume), earlier)
        with living(run, resume):
            if resume == self._still_to_resume:
                self._still_to_resume = "never"
            yield run

    def new_run(self, mode: Mode, work_dir: WorkDir | None = None, earlier: Run | None = None) -> Run:
        """A run of this trainer that has not begun.

        Args:
            mode: "train", "val" or "test".
            work_dir: where its files go; None for a run that writes none.
            earlier: the run that it goes on from.
        """
        run = Run(
            self.bus,
            mode=mode,
            model=self.model,
            optimizer=self.optimizer,
            scheduler=self.scheduler.scheduler,
            scaler=self.steps.scaler,
            trainer=self,
            config=self.config,
            device=self.device,
            seed=self.seed,
            epochs=self.epochs,
            iterations=self.iterations,
            validate=None if self.val_loader is None else self._validate,
            test=None if self.test_loader is None else self._test,
            work_dir=work_dir,
            ranks=join(self.device),
            continues=earlier,
        )
        run.train_loader, run.val_loader, run.test_loader = self.train_loader, self.val_loader, self.test_loader
        run.looping.part, run.decisions.every = self.part, self.agree_every
        run.clock.epoch_length = length_of(self.train_loader, self.part)
        run.validations.on_results = self.scheduler.after_validation
        for name, service in self._services.items():
            run.provide(name, service)
        return run

    def _claim(self, mode: Mode, resume: str | Path) -> WorkDir | None:
        """The directory of the trainings of this trainer; before the first of them, that in which one may be."""
        if self._directory is not None:
            return claim_for(self._directory, "auto", False, self.ranks)
        if mode != "train":
            return claim_for(self.work_dir, "auto", False, self.ranks)
        work_dir = claim_for(self.work_dir, resume, self.overwrite, self.ranks)
        self._directory = work_dir.path if work_dir is not None else None
        return work_dir

    def _validate(self, run: Run) -> None:
        judge(run, "val", self.val_loader, self.scores, self.device)

    def _test(self, run: Run) -> None:
        judge(run, "test", self.test_loader, self.scores, self.device)

    def _wants_validation(self, run: Run) -> bool:
        """Whether the Trainer validates by itself: at the end of an epoch, unless a hook decides when.

        A stop that came with the last batch leaves a complete epoch, its validation included.
        """
        if self.val_loader is None or (run.stops and run.clock.epoch_cut):
            return False
        return not any(isinstance(hook, Hook) and hook.schedules_validation for hook in self.bus.hooks.values())

    def _load(self, run: Run) -> None:
        if self.load_from is None or run.iters_done or self.resume not in ("never", "auto"):
            return
        from hookbus import state

        checkpoint = state.read_checkpoint(self.load_from, layout=layout_of(run.model))
        self.bus.fire("after_load_checkpoint", checkpoint=checkpoint, path=Path(self.load_from))
        state.load_weights(run, checkpoint, averaged=self.load_weights == "averaged")

    def _check(self) -> None:
        """See what can be seen at once, before the work directory is taken."""
        if self.optimizer is None:
            raise LoopError("fit needs an optimizer: give optimizer= to the Trainer.")
        if self.train_loader is None:
            raise LoopError("fit needs data: give train_loader= to the Trainer.")
        if (self.epochs is None) == (self.iterations is None):
            raise LoopError("fit needs one limit: give either epochs= or iterations=.")
        if self.scheduler.monitor is not None and self.val_loader is None:
            raise LoopError(
                f"The scheduler is stepped with {self.scheduler.monitor} after each validation, and there is none: "
                "give val_loader= to the Trainer."
            )
        check_optimizer(self)
        check_ends(self)


def _check_model(model: object) -> None:
    if isinstance(model, nn.Module):
        return
    what = type(model).__name__
    raise ConfigError(
        [
            f"model: should be a torch.nn.Module, but it is a {what}. A trainer of a run file is made by "
            "Trainer.from_file(path), and one of a configuration that was read already by "
            "hookbus.assembly.assemble.trainer_from_config(Trainer, config)."
        ]
    )


def _optimizer(given: Any, model: nn.Module) -> Optimizer | None:
    """The optimizer, made from the parameters where a function was given."""
    is_made = given is None or hasattr(given, "param_groups")
    return given if is_made else given(model.parameters())  # type: ignore[no-any-return]


def _default_hooks(work_dir: object) -> list[Hook]:
    """The default hooks; without a work directory, those that can do without one."""
    return [hook for hook in get_default_hooks() if work_dir is not None or not hook.needs_work_dir]


def _limit(name: str, value: int | None) -> int | None:
    if value is not None:
        check_count(value, name, least=0)
    return value


def _device(device: str | torch.device) -> torch.device:
    if device == "auto":
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        return local_device(accelerator if accelerator is not None else torch.device("cpu"))
    try:
        return torch.empty(0, device=local_device(torch.device(device))).device
    except (AssertionError, RuntimeError, TypeError) as error:  # torch raises each of them
        reason = str(error).partition("\n")[0].rstrip(".")
        raise ConfigError([f"device: {device!r} cannot be used here: {reason}. 'auto' takes what there is."]) from None
