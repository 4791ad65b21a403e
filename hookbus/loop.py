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

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hookbus._numbers import check_count
from hookbus.assembly.arguments import check_arguments, check_model, device_of, hooks_of, limit_of, optimizer_of
from hookbus.assembly.checking import check_ready, check_trainer
from hookbus.assembly.start_files import load_given_weights
from hookbus.assembly.trainer_runs import TrainerRuns
from hookbus.bus import HookBus
from hookbus.dispatch.table import Order
from hookbus.hook import Hook
from hookbus.metrics import Metrics
from hookbus.model.wrappers import inside_ddp
from hookbus.ranks import join
from hookbus.run import Run
from hookbus.runs.interrupts import graceful_interrupts
from hookbus.session import resume_from
from hookbus.training.batches import move
from hookbus.training.parallel import Distributed, check_distributed, make_steps, part_of, spread_if_asked
from hookbus.training.scheduling import SchedulerSteps
from hookbus.training.scores import scores_from
from hookbus.training.steps import Precision

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
        load_strict: every one has to fit; False leaves out what does not, and reports it.
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
        load_strict: bool = True,
        overwrite: bool = False,
        config: RunConfig | Mapping[str, Any] | None = None,
    ) -> None:
        check_model(model)
        check_arguments(locals())  # by their names, before any of them is used
        check_distributed(distributed)
        check_count(agree_every, "agree_every")
        self.device = device_of(device)
        self.ranks = join(self.device)
        self.model = inside_ddp(model.to(self.device))
        spread_if_asked(distributed, self.ranks, self.model, optimizer, self.device, fsdp2)
        self.optimizer = optimizer_of(optimizer, model)
        self.scheduler = SchedulerSteps(scheduler, scheduler_interval, scheduler_monitor)
        self.train_loader, self.val_loader, self.test_loader = train_loader, val_loader, test_loader
        self.epochs, self.iterations = limit_of("epochs", epochs), limit_of("iterations", iterations)
        self.work_dir, self.resume, self.overwrite = work_dir, resume_from(resume), overwrite
        self.load_from, self.load_weights, self.load_strict = load_from, load_weights, load_strict
        self.validate_first, self.agree_every, self.seed, self.config = validate_first, agree_every, seed, config
        self.scores, self.part = scores_from(metrics), part_of(distributed, self.ranks)
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
        self.bus = HookBus(order=order)
        self.bus.table.steps.update(
            train_step=self.steps.train_step, val_step=self.steps.eval_step, test_step=self.steps.eval_step
        )
        self.runs = TrainerRuns(self, resume)
        for hook in hooks_of(hooks, default_hooks, work_dir):
            self.bus.register(hook)

    # -- the loop --------------------------------------------------------------------------------

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
            self.epochs, self.iterations = limit_of("epochs", epochs), limit_of("iterations", iterations)
        check_ready(self)
        with self.runs.living("train") as run, graceful_interrupts(run):
            load_given_weights(self, run)
            self._train(run)
        if run.outcome == "interrupted":
            raise KeyboardInterrupt
        return run

    train = fit

    def _train(self, run: Run) -> None:
        fire = self.bus.fire
        if self.validate_first:
            run.request_validation("before training")
        self.scheduler.say_if_it_never_comes(run)
        fire("before_train")
        for _ in run.epochs():
            fire("before_epoch")
            fire("before_train_epoch")
            self._train_epoch(run)
            if self._wants_validation():
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

    def _wants_validation(self) -> bool:
        """Whether the Trainer validates by itself: at the end of an epoch, unless a hook decides when."""
        return self.val_loader is not None and not any(
            isinstance(hook, Hook) and hook.schedules_validation for hook in self.bus.hooks.values()
        )

    def _say_what_is_left(self, run: Run) -> None:
        """The last group of an accumulation may be too small for an update, which then waits for a longer run."""
        if run.accumulated and not run.stops:
            run.logger.warning(
                "The last micro-batches, %s of the %s that make an update, have changed no weights. A run that goes on "
                "uses them; for none to be left, let the number of iterations be a multiple of accumulate.",
                run.accumulated,
                self.steps.accumulate,
            )

    # -- what else users call --------------------------------------------------------------------

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

    def validate(self) -> Metrics:
        """One validation on its own.

        Returns:
            The results, `val/...`.

        Raises:
            RequestError: there is no val_loader.
        """
        with self.runs.living("val") as run:
            load_given_weights(self, run)
            return run.validate()

    def test(self) -> Metrics:
        """One test on its own, with averaged weights where a hook averages.

        Returns:
            The results, `test/...`.

        Raises:
            RequestError: there is no test_loader.
        """
        with self.runs.living("test") as run:
            load_given_weights(self, run)
            return run.validations.make("test", sanity=False)

    def check(self) -> list[str]:
        """See what would go wrong, without training: one batch of each loader goes through the model.

        Returns:
            Lines that say what a training would do.

        Raises:
            HookbusError: something would go wrong.
        """
        check_ready(self)
        return check_trainer(self)

    def register_hook(self, hook: object, name: str | None = None, *, priority: int | None = None) -> object:
        """Add a hook, see `HookBus.register`."""
        return self.bus.register(hook, name, priority=priority)

    def register_service(self, name: str, service: Any) -> None:
        """Offer an object to hooks under a name: `run.get(name)`."""
        self.runs.provide(name, service)
