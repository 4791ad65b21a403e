"""Construction of a Trainer: its arguments, its parts, hooks and services."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hookbus._events.table import Order
from hookbus._run.objects import build_module_dict
from hookbus._run.services import WRITERS
from hookbus._run.tokens import check_token_limit, to_token_limit
from hookbus._training.eval_metrics import build_metrics
from hookbus._training.lr_scheduler import LRSchedulerStepper
from hookbus._training.parallel import Distributed, build_steps, check_distributed, maybe_apply_fsdp, train_shard_for
from hookbus._training.steps import Precision, iter_parameters
from hookbus._utils.arguments import check_count, check_keywords, raise_config_error
from hookbus._utils.detached_copies import deepcopy_as_none
from hookbus.bus import HookBus
from hookbus.distributed.process_collectives import get_collectives
from hookbus.distributed.unwrap import unwrap_ddp
from hookbus.trainer.arguments import (
    check_arguments,
    check_model,
    get_only,
    resolve_device,
    resolve_hooks,
    resolve_optimizer,
    validate_limit,
)
from hookbus.trainer.checking import check_trainer
from hookbus.trainer.from_file import accept_config
from hookbus.trainer.runs import TrainerRuns
from hookbus.trainer.short_runs import ShortRun

if TYPE_CHECKING:
    from hookbus._config.models import RunConfig
    from hookbus._run.services import RunLogger


class TrainerSetup:
    """Base class of `Trainer` with everything except the loop."""

    _belongs_to_run: ClassVar[bool] = True  # see `hookbus._utils.detached_copies`
    __deepcopy__ = deepcopy_as_none

    @accept_config
    @check_keywords("Trainer")
    def __init__(
        self,
        model: nn.Module | Mapping[str, Any] | RunConfig,
        optimizer: Optimizer | Callable[[Iterable[nn.Parameter]], Optimizer] | Mapping[str, Optimizer] | None = None,
        loss_fn: Callable[[Any, Any], Tensor] | None = None,
        train_loader: Iterable[Any] | None = None,
        val_loader: Iterable[Any] | Mapping[str, Iterable[Any]] | None = None,
        test_loader: Iterable[Any] | Mapping[str, Iterable[Any]] | None = None,
        *,
        predict_loader: Iterable[Any] | Mapping[str, Iterable[Any]] | None = None,
        scheduler: Any = None,
        scheduler_interval: Literal["epoch", "step"] = "epoch",
        scheduler_monitor: str | None = None,
        epochs: int | None = None,
        iterations: int | None = None,
        tokens: int | None = None,
        work_dir: str | Path | None = "runs/train",
        hooks: Iterable[object] = (),
        default_hooks: bool = True,
        order: Order = "nested",
        metrics: Iterable[Any] | Mapping[str, Any] = (),
        step_fn: Callable[[nn.Module, Any], Any] | None = None,
        batch_size: Callable[[Any], int] | None = None,
        batch_tokens: Callable[[Any], Any] | str | None = None,
        accumulate: int = 1,
        precision: Precision = "fp32",
        clip_grad_norm: float | None = None,
        distributed: Distributed = "ddp",
        ddp: Mapping[str, Any] | None = None,
        fsdp2: Mapping[str, Any] | None = None,
        agree_every: int = 1,
        validate_first: bool = False,
        hook_budget: float | None = None,
        limit_train_batches: int | float = 1.0,
        limit_val_batches: int | float = 1.0,
        limit_test_batches: int | float = 1.0,
        overfit_batches: int | float = 0.0,
        fast_dev_run: bool | int = False,
        device: str | torch.device = "auto",
        seed: int | None = None,
        resume: Literal["auto", "never"] | str | Path = "never",
        load_from: str | Path | None = None,
        load_weights: Literal["raw", "averaged"] = "raw",
        load_strict: bool = True,
        overwrite: bool = False,
        report: bool = True,
        config: RunConfig | Mapping[str, Any] | None = None,
    ) -> None:
        """Create a trainer.

        Args:
            model: Model to train. A mapping of names to models becomes an `nn.ModuleDict`, which `step_fn` or the
                steps of hooks call. A configuration, loaded by `load_config` or as a mapping, provides all arguments
                like a run file; only `overwrite` is accepted in addition.
            optimizer: Optimizer, or a function that takes the parameters of the model and of the loss function, and
                returns an optimizer; or a mapping of names to optimizers. Several optimizers require a hook with a
                `train_step`, which steps them. Default: None, for `validate`, `test` and `predict` only.
            loss_fn: Loss function `loss_fn(output, target)`. Default: None, if the model or `step_fn` returns the loss.
                A module is moved to the device and saved in checkpoints, and its parameters are trained if they are
                in the optimizer.
            train_loader: Training batches; an iterable that can be iterated in every epoch.
            val_loader: Validation batches, or a mapping of names to loaders.
            test_loader: Test batches, or a mapping of names to loaders.
            predict_loader: Batches of `predict`, with or without targets, or a mapping of names to loaders.
            scheduler: Learning-rate scheduler, or a mapping of names to schedulers.
            scheduler_interval: Unit after which the scheduler is stepped, "epoch" or "step". A scheduler that requires
                a metric is stepped after each validation. Default: "epoch".
            scheduler_monitor: Metric that the scheduler requires. Default: the validation loss.
            epochs: Limit in epochs. Exactly one of `epochs`, `iterations` and `tokens` is required by `fit`.
            iterations: Limit in iterations.
            tokens: Limit in tokens of all ranks: the run ends after the iteration that reaches it. Requires
                `batch_tokens`.
            work_dir: Output directory, or None to write no files. Default: "runs/train".
            hooks: Hooks to register. A hook of the type of a default hook replaces the default hook.
            default_hooks: Add the installed hooks among logger, progress, iter_timer, checkpoint and preemption.
                Default: True.
            order: Order of hooks by priority, "nested" or "ascending", see `HookBus`. Default: "nested".
            metrics: Metrics that validations compute: names, functions or torchmetrics objects. A mapping assigns
                names.
            step_fn: Function `step_fn(model, batch)` that returns the loss or a mapping with it. Replaces the call of
                the model and the loss function.
            batch_size: Function of a batch that returns its number of samples. Default: the attribute `batch_size` of
                the batch, else the number of indices of the batch sampler, else inferred from its tensors and lists.
            batch_tokens: Function of a batch, before it is moved to the device, that returns its number of tokens as an
                integer or a tensor on the CPU; the name of a key or attribute of the batch that contains it; or an
                import string. Default: None, and tokens are not counted.
            accumulate: Number of micro-batches per optimizer step. Groups continue across epoch boundaries. Default: 1.
            precision: "fp32", "bf16" or "fp16". Default: "fp32".
            clip_grad_norm: Maximum norm of all gradients together, or None for no clipping. Default: None.
            distributed: Strategy of a distributed run that torchrun started: "ddp"; "fsdp2" to shard the parameters; or
                "none" for a model and loaders that are already distributed. Default: "ddp".
            ddp: Options of `torch.nn.parallel.DistributedDataParallel`.
            fsdp2: Options of FSDP2: `wrap`, class names of modules to shard separately, and `mesh`, the shape of the
                device mesh, [shards] or [replicas, shards].
            agree_every: Number of iterations between two synchronizations of requests across ranks. Default: 1.
            validate_first: Run a sanity-check validation before training. Default: False.
            hook_budget: Share of an iteration, between 0 and 1, that the hooks may take; a warning lists the hooks if
                they take more. Default: None, for no limit.
            limit_train_batches: Batches per epoch and rank: an int is a number, a float in [0, 1] a fraction, and 0
                disables the loader. Default: 1.0, for all batches.
            limit_val_batches, limit_test_batches: The same for each validation or test loader. Default: 1.0.
            overfit_batches: Number or fraction of the first training and validation batches, which are the same in
                every epoch, without shuffling. Default: 0.0, for the regular batches.
            fast_dev_run: Train one epoch of one batch, or of this number of batches, and evaluate as many. Nothing is
                written or resumed: hooks that write files or checkpoints, or stop the training, are omitted.
                Default: False.
            device: Device, or "auto" for the available accelerator, else the CPU. Default: "auto".
            seed: Seed of all random number generators at the start of training. Default: None, for no seeding.
            resume: "never", "auto" for the newest checkpoint of the work directory if there is one, or the path of a
                checkpoint. Default: "never".
            load_from: File with initial weights.
            load_weights: Weights to load from the file, "raw" or "averaged". Default: "raw".
            load_strict: Require all keys to match. If False, mismatches are skipped with a warning. Default: True.
            overwrite: Remove an existing run in the work directory. Default: False.
            report: Write `report.html` into the work directory at the end of a training. Default: True.
            config: Configuration to store with the run.

        Raises:
            ConfigError: If an argument is invalid.
            RegistrationError: If a hook is rejected.
        """
        arguments = dict(locals())  # all arguments by name, evaluated before any other assignment
        check_model(model)
        check_arguments(arguments)
        check_distributed(distributed)
        check_count(agree_every, "agree_every")
        self.device = resolve_device(device)
        self.ranks = get_collectives(self.device)
        self.train_shard = train_shard_for(distributed, self.ranks)
        self.short_run = ShortRun(arguments, self.train_shard)
        # An optimizer factory is called after the model was sharded, because FSDP2 replaces the parameters.
        self.model_names = tuple(model) if isinstance(model, Mapping) else ()
        # `accept_config` has replaced a configuration by its objects.
        combined = model if isinstance(model, nn.Module) else build_module_dict(model)  # type: ignore[arg-type]
        self.model = unwrap_ddp(combined.to(self.device))
        self.loss = loss_fn.to(self.device) if isinstance(loss_fn, nn.Module) else None
        maybe_apply_fsdp(distributed, self.ranks, self.model, optimizer, self.device, fsdp2)
        self.optimizer = resolve_optimizer(optimizer, iter_parameters(combined, loss_fn))
        self.scheduler = LRSchedulerStepper(scheduler, scheduler_interval, scheduler_monitor)
        self.train_loader, self.val_loader, self.test_loader, self.predict_loader = self.short_run.limit_loaders(
            {"train": train_loader, "val": val_loader, "test": test_loader, "predict": predict_loader}
        )
        self.set_limit(epochs, iterations, tokens)
        # A `fast_dev_run` must not touch the directory of a regular run.
        is_dev_run = self.short_run.dev_batches > 0
        self.work_dir, self.resume = (None, "never") if is_dev_run else (work_dir, resume)
        self.overwrite, self.report = overwrite and not is_dev_run, report
        self.load_from, self.load_weights, self.load_strict = load_from, load_weights, load_strict
        self.loads_hooks, self.loaded_hooks = False, list[str]()  # a test restores hook states from `load_from` as well
        self.validate_first, self.agree_every, self.seed, self.config = validate_first, agree_every, seed, config
        self.batch_size, self.batch_tokens, self.precision = batch_size, batch_tokens, precision
        self.hook_budget = hook_budget
        self.eval_metrics = build_metrics(metrics)
        self.steps = build_steps(
            distributed,
            self.ranks,
            combined,
            ddp,
            optimizer=get_only(self.optimizer),
            loss_fn=loss_fn,
            step_fn=step_fn,
            accumulate=accumulate,
            precision=precision,
            clip_grad_norm=clip_grad_norm,
            device=self.device,
        )
        self.bus = HookBus(order=order)
        # The default actions; a hook with a `train_step` replaces the step of the loop.
        self.bus.table.steps.update(
            train_step=self.steps.train_step,
            val_step=self.steps.eval_step,
            test_step=self.steps.eval_step,
            predict_step=self.steps.predict_step,
        )
        self.runs = TrainerRuns(self, self.resume)
        self.default_hooks = default_hooks
        for hook in resolve_hooks(hooks, default_hooks, work_dir):
            self.bus.register(hook)
        self.short_run.omit_hooks(self.bus)

    def set_limit(self, epochs: int | None, iterations: int | None, tokens: int | None) -> None:
        """Set the limit of the training; that of a `fast_dev_run` is one epoch.

        Raises:
            ConfigError: If a limit is not a non-negative integer.
        """
        self.epochs, self.iterations = validate_limit("epochs", epochs), validate_limit("iterations", iterations)
        raise_config_error([check_token_limit(tokens := to_token_limit(tokens))])
        self.tokens = tokens
        if self.short_run.dev_batches:
            self.epochs, self.iterations, self.tokens = 1, None, None

    @classmethod
    @check_keywords("Trainer.from_file")
    def from_file(cls, path: str | Path, overrides: Iterable[str] = ()) -> Self:
        """Create a trainer from a run file.

        Args:
            path: Path of the run file.
            overrides: Overrides `a.b=value` and `~a.b`, as on the command line. Default: none.

        Returns:
            The trainer.

        Raises:
            ConfigError: If the file is invalid. All errors are listed.
        """
        from hookbus.trainer.from_file import trainer_from_file

        return trainer_from_file(cls, path, overrides)

    def check(self) -> list[str]:
        """Validate the setup without training. One batch of each loader is passed through the model.

        Returns:
            Lines that describe the training.

        Raises:
            HookbusError: If the training would fail. The message lists all errors.
        """
        return check_trainer(self)

    @property
    def logger(self) -> RunLogger:
        """Logger of the current run, see `run.logger`."""
        return self.bus.current.logger

    @property
    def writer(self) -> Any:
        """Writer of the current run, see `run.writer`."""
        return self.bus.current.writer

    def call_hook(self, fn_name: str, /, **kwargs: Any) -> None:
        """Emit an event at a point, as `bus.emit` does.

        Args:
            fn_name: Name of the point.
            kwargs: Arguments of the point.

        Raises:
            PointError: If the point does not exist or does not have an argument.
        """
        self.bus.current.call_hook(fn_name, **kwargs)

    def register_hook(self, hook: object, name: str | None = None, *, priority: int | None = None) -> object:
        """Register a hook, see `HookBus.register`.

        Args:
            hook: Hook to register.
            name: Unique name. Default: the name of the hook.
            priority: Priority of the hook. Default: the priority that the hook defines.

        Returns:
            The registered hook.

        Raises:
            RegistrationError: If the hook is rejected.
        """
        return self.bus.register(hook, name, priority=priority)

    def register_service(self, name: str, service: Any) -> None:
        """Provide a service to hooks, which access it by `run.get(name)`.

        Args:
            name: Name of the service.
            service: The object.
        """
        # The records of a `fast_dev_run` go to the listeners of its hooks only.
        if not (self.short_run.dev_batches and name in WRITERS):
            self.runs.provide(name, service)
