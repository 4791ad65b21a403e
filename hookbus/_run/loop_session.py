"""Runs of loops that are not part of hookbus: `bus.run`, a context manager, and `bus.open`, closed by `run.close`."""

from __future__ import annotations

import atexit
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from hookbus._run.acquisition import preview
from hookbus._run.hook_budget import check_hook_budget
from hookbus._run.interrupts import handle_interrupts, handle_lost_workers
from hookbus._run.nesting import StopLoop
from hookbus._run.objects import check_loss, find_mode_problems, find_object_problems, find_state_problems
from hookbus._run.preconditions import check_preconditions
from hookbus._run.requests import SETTLE, process_requests
from hookbus._run.resume import Resume, find_recorded_run, verify_resume
from hookbus._run.run import Run
from hookbus._run.session import acquire_work_dir, ensure_no_active_run, may_resume, preconditions_scope, run_scope
from hookbus._run.tokens import check_batch_tokens, check_token_limit, to_token_limit
from hookbus._run.validation import Evaluator
from hookbus._run.work_dir import check_resume
from hookbus._utils.arguments import (
    check_bool,
    check_callable,
    check_count,
    check_path,
    check_seed,
    raise_config_error,
)
from hookbus.distributed.process_collectives import get_collectives

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from hookbus._run.host import Host
    from hookbus._run.run_bus import RunBus
    from hookbus.lifecycle import Mode


class RunSession(AbstractContextManager["Run"]):
    """Run of a loop, with the arguments of `bus.run`: a context manager, or opened and closed by two calls.

    Args:
        bus: Bus with the hooks of the run.
        resume, work_dir, overwrite, fresh: As in `bus.run`.
        loaders: Training loader, and validation, test or prediction loader.
        epoch_length: As in `bus.run`.
        arguments: Arguments of `Run`.
    """

    def __init__(
        self,
        bus: RunBus,
        *,
        resume: Resume,
        work_dir: str | Path | None,
        overwrite: bool,
        fresh: bool,
        loaders: tuple[Any, Any],
        epoch_length: int | None,
        arguments: Mapping[str, Any],
    ) -> None:
        self._bus, self._arguments, self._loaders = bus, arguments, loaders
        self._epoch_length = epoch_length
        self._resume, self._work_dir = resume, work_dir
        self._overwrite, self._fresh = overwrite, fresh
        self._context = self._execute()

    def __enter__(self) -> Run:
        return self._context.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return self._context.__exit__(kind, error, traceback)

    def open(self) -> Run:
        """Begin the run, which `run.close` ends. No signal handler is installed."""
        scope = ExitStack()
        run = scope.enter_context(run_scope(*self._prepare()))
        run.closer = RunCloser(run, scope)
        return run

    @contextmanager
    def _execute(self) -> Iterator[Run]:
        run, resume = self._prepare()
        # Ctrl-C ends a validation or test at once: there is no iteration to complete and no checkpoint to save.
        with run_scope(run, resume), handle_interrupts(run) if run.mode == "train" else nullcontext():
            # `StopLoop` exits a loop that does not check `run.should_stop` after Ctrl-C: not a failure of the run.
            with suppress(StopLoop), handle_lost_workers(run):
                yield run
            _finish_loop(run)
        # Raised after the teardown, so that a script ends with the exit code of Ctrl-C.
        if run.outcome == "interrupted":
            raise KeyboardInterrupt

    def _prepare(self) -> tuple[Run, Resume]:
        """Build the run, check its preconditions and acquire its work directory.

        Returns:
            The run, and what it resumes from.
        """
        bus, mode = self._bus, self._arguments["mode"]
        ensure_no_active_run(bus)
        ranks = get_collectives(self._arguments["device"])
        resume = verify_resume(self._resume, ranks)
        previous = None if self._fresh or bus.current.outcome == "running" else bus.current
        run = Run(bus, **self._arguments, auto_nesting=True, ranks=ranks, previous=previous)
        run.train_loader, run.val_loader = self._loaders
        if mode in ("test", "predict"):
            setattr(run, f"{mode}_loader", run.val_loader)
        run.clock.epoch_length = self._epoch_length or _get_length(run.train_loader)
        run.training_data.batch_size.apply()
        continued = find_recorded_run(resume, self._work_dir) if isinstance(resume, Mapping) else ""
        run.id = continued or run.id
        # A validation or test uses the directory of the training.
        used = resume if mode == "train" and not continued else "auto"
        run.may_resume = may_resume(used, self._work_dir)
        if self._work_dir:
            directory = Path(self._work_dir)
            run.planned_directory, _ = preview(directory, resume=used == "auto", overwrite=self._overwrite)
        with preconditions_scope(run):
            check_preconditions(run)
        # A validation or test writes into the directory of the training.
        run.work_dir = acquire_work_dir(self._work_dir, used, self._overwrite, ranks)
        return run, resume


def run_context(
    bus: RunBus,
    *,
    mode: Mode = "train",
    model: nn.Module | Mapping[str, nn.Module] | None = None,
    optimizer: Optimizer | Mapping[str, Optimizer] | None = None,
    scheduler: Any = None,
    scaler: Any = None,
    loss: nn.Module | None = None,
    state: Mapping[str, Any] | None = None,
    epochs: int | None = None,
    iterations: int | None = None,
    tokens: int | None = None,
    work_dir: str | Path | None = None,
    report: bool = True,
    validate: Callable[..., Mapping[str, Any] | None] | None = None,
    host: Host | None = None,
    train_loader: Any = None,
    val_loader: Any = None,
    epoch_length: int | None = None,
    config: Any = None,
    device: Any = None,
    seed: int | None = None,
    counts_steps: bool = False,
    batch_size: Callable[[Any], int] | None = None,
    batch_tokens: Callable[[Any], Any] | str | None = None,
    hook_budget: float | None = None,
    resume: Literal["auto", "never"] | str | Path | Mapping[str, Any] = "never",
    overwrite: bool = False,
    fresh: bool = False,
) -> RunSession:
    """Execute a custom loop as a run.

    Emits `before_run` on entry, `after_run` and `cleanup` on exit, and the nested points that the loop omits.

    Args:
        bus: Bus with the hooks of the run.
        mode: "train", or "val", "test" or "predict" for a loop that only evaluates: it writes no checkpoint and
            advances no count.
        model, optimizer, scheduler: Objects of the training, or mappings of names to objects; saved in checkpoints.
        scaler: Gradient scaler; saved in checkpoints.
        loss: Loss function that is a module. Its parameters and buffers are saved in checkpoints, and validations
            switch it to evaluation mode.
        state: Further state of the loop by name, saved in checkpoints: a pair (get, set) of a function that returns the
            value and a function that receives it on resume, or an object with `state_dict` and `load_state_dict`.
        epochs, iterations: Limit for `run.epochs()`, `run.batches()` and schedules; None for no limit.
        tokens: Limit in tokens of all ranks: the run ends after the iteration that reaches it. Requires `batch_tokens`.
        work_dir: Directory for the files of the run; None for a run without files.
        report: Whether to write `report.html` into the work directory at the end of a training.
        validate: Validation function for requested validations, called as `validate()` or `validate(run)`; returns the
            metrics by name. In the mode "test", the test function; in the mode "predict", the function whose result
            `run.predict()` returns.
        host: Owner of the loop, such as another trainer, which stops, saves and validates when hooks request it. A run
            without one does so itself.
        train_loader, val_loader: Loaders to register as services.
        epoch_length: Number of iterations per epoch. Default: the length of `train_loader`, if it has one.
        config: Configuration to log; its hash is saved in checkpoints.
        device: Device of the model.
        seed: Seed of the data order of `run.batches()`; default: the initial seed of torch.
        counts_steps: Whether the loop emits the optimizer points itself, which then count the steps.
        batch_size: Function of a batch that returns its number of samples. Default: the attribute `batch_size` of the
            batch, else the number of indices of the batch sampler, else inferred from the tensors and lists.
        batch_tokens: Function of a batch that returns its number of tokens as an integer or a tensor on the CPU, the
            name of a key or attribute of the batch that contains it, or an import string. Default: None, and tokens are
            not counted.
        hook_budget: Share of an iteration, between 0 and 1, that the hooks may take; a warning lists the hooks if they
            take more. Default: None, for no limit.
        resume: "never", "auto" (the newest checkpoint in the work directory, if any), the path of a checkpoint, or the
            result of `get_run_state` in the checkpoint of a loop that has restored the rest itself; the run then
            continues in its work directory.
        overwrite: Whether to remove a run that exists in the work directory.
        fresh: Whether to start from scratch after a previous run of this bus; default: continue that run.

    Returns:
        Context manager of the run.

    Raises:
        ConfigError: If an argument is invalid.
        HookbusError: If a precondition of a hook is not met; nothing is written and no event is emitted.
        WorkDirError: If the work directory is in use or cannot be written.
        CheckpointError: If the checkpoint cannot be resumed from.
        KeyboardInterrupt: If the run was interrupted by Ctrl-C. A final checkpoint is saved if a hook saves
            checkpoints. A loop that does not stop at the end of its iteration is left in the next one.
    """
    flags = {"counts_steps": counts_steps, "overwrite": overwrite, "fresh": fresh}
    raise_config_error(
        [
            *(check_bool(*flag) for flag in {**flags, "report": report}.items()),
            check_callable("validate", validate, "a function without arguments, or of the run"),
            check_callable("batch_size", batch_size, "a function of the batch that returns its number of samples"),
            check_batch_tokens(batch_tokens),
            check_token_limit(tokens := to_token_limit(tokens)),
            check_path("work_dir", work_dir),
            check_seed("seed", seed),
            check_hook_budget(hook_budget),
            "" if isinstance(resume, Mapping) else check_resume("resume", resume),
            *find_object_problems(model, optimizer, scheduler),
            check_loss(loss),
            *find_state_problems(state),
            *find_mode_problems(
                mode,
                epochs=epochs,
                iterations=iterations,
                tokens=tokens,
                batch_tokens=batch_tokens,
                hook_budget=hook_budget,
                train_loader=train_loader,
                epoch_length=epoch_length,
                **{**flags, "fresh": False},
            ),
        ]
    )
    for name, limit in (("epochs", epochs), ("iterations", iterations)):
        if limit is not None:
            check_count(limit, name, minimum=0)
    if epoch_length is not None:
        check_count(epoch_length, "epoch_length")
    evaluator = _as_evaluator(validate)
    arguments = {
        "mode": mode,
        "model": model,
        "optimizer": optimizer,
        "scheduler": scheduler,
        "scaler": scaler,
        "loss": loss,
        "state": state,
        "config": config,
        "device": device,
        "seed": seed,
        "epochs": epochs,
        "iterations": iterations,
        "tokens": tokens,
        "host": host,
        "validate": evaluator if mode in ("train", "val") else None,
        "test": evaluator if mode == "test" else None,
        "predict": evaluator if mode == "predict" else None,
        "report": report,
        "counts_steps": counts_steps,
        "batch_size": batch_size,
        "batch_tokens": batch_tokens,
        "hook_budget": hook_budget,
    }
    return RunSession(
        bus,
        resume=resume,
        work_dir=work_dir,
        overwrite=overwrite,
        fresh=fresh,
        loaders=(train_loader, val_loader),
        epoch_length=epoch_length,
        arguments=arguments,
    )


def open_run(bus: RunBus, **options: Any) -> Run:
    """Begin the run of a loop that calls back, such as that of another trainer; `run.close()` ends it.

    Arguments and events are those of `bus.run`. No signal handler is installed: Ctrl-C and signals belong to the
    owner of the loop.

    Returns:
        The run, which is active until it is closed.

    Raises:
        ConfigError: If an argument is invalid.
        HookbusError: If a precondition of a hook is not met; nothing is written and no event is emitted.
        WorkDirError: If the work directory is in use or cannot be written.
        CheckpointError: If the checkpoint cannot be resumed from.
    """
    return run_context(bus, **options).open()


class RunCloser:
    """Function that ends a run which `bus.open` has begun. Only the first call has an effect.

    Args:
        run: The run.
        scope: Contexts of the run.
    """

    def __init__(self, run: Run, scope: ExitStack) -> None:
        self._run, self._scope, self._is_closed = run, scope, False
        atexit.register(self._warn)

    def __call__(self, error: BaseException | None) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        atexit.unregister(self._warn)
        if error is not None:
            # Exceptions of hooks are added to it as notes.
            self._scope.__exit__(type(error), error, error.__traceback__)
            return
        with self._scope:
            _finish_loop(self._run)

    def _warn(self) -> None:
        self._run.logger.warning(
            "The process ends, and the run that bus.open began was not closed: its hooks did not receive after_run and "
            "cleanup. Call run.close() after the loop."
        )


# -- implementation --------------------------------------------------------------------------


def _finish_loop(run: Run) -> None:
    """Process the last requests of the loop, and emit the nested points that it has left open."""
    # Requests that the loop made after its last boundary, before its open epoch is closed as complete. With multiple
    # ranks they are left to the next boundary, at which all of them compare their requests.
    if run.queue and run.clock.epoch_open and not run.clock.mid_iteration and not run.request_sync.active:
        process_requests(run, SETTLE)
    run.nesting.close_all()


def _get_length(loader: Any) -> int | None:
    if loader is None:
        return None
    from hookbus.data.loaders import loader_length  # imports torch, which a run without a loader does not need

    return loader_length(loader)


def _as_evaluator(validate: Callable[..., Mapping[str, Any] | None] | None) -> Evaluator | None:
    """Return a validation function that takes the run, also if `validate` takes no argument."""
    if validate is None:
        return None
    with suppress(ValueError):  # a built-in function without a signature
        parameters = inspect.signature(validate).parameters.values()
        if any(p.default is p.empty and p.kind is not p.VAR_KEYWORD for p in parameters):
            return validate
    return lambda _: validate()
