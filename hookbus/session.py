"""The life of one run: work directory, before_run, resume, the loop, and its end, which always comes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hookbus import _arguments
from hookbus._numbers import check_count
from hookbus.dispatch.brackets import LoopLeft
from hookbus.errors import ConfigError, RequestError
from hookbus.model.wrappers import inside_ddp
from hookbus.ranks import Ranks, join
from hookbus.run import Run
from hookbus.runs.decisions import begin_together
from hookbus.runs.ending import agreed_outcome, end, fail, release_directories, write_status
from hookbus.runs.interrupts import ends_by_signal, graceful_interrupts
from hookbus.runs.preconditions import check_hooks
from hookbus.runs.resuming import go_on_from, take_up_recorded_run
from hookbus.runs.validations import Evaluator
from hookbus.runs.workdir import WorkDir, checked_resume, claim

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from hookbus.bus import HookBus

__all__ = ["claim_for", "custom_run", "living", "refuse_second", "resume_from"]


@contextmanager
def custom_run(
    bus: HookBus,
    *,
    model: nn.Module | None = None,
    optimizer: Optimizer | None = None,
    scheduler: Any = None,
    scaler: Any = None,
    epochs: int | None = None,
    iterations: int | None = None,
    work_dir: str | Path | None = None,
    validate: Callable[..., Mapping[str, Any] | None] | None = None,
    train_loader: Any = None,
    val_loader: Any = None,
    config: Any = None,
    device: Any = None,
    seed: int | None = None,
    counts_steps: bool = False,
    resume: Literal["auto", "never"] | str | Path = "never",
    overwrite: bool = False,
    fresh: bool = False,
) -> Iterator[Run]:
    """The run of a loop of one's own.

    Emits before_run on entry, after_run and cleanup on exit; opens and closes the brackets that the loop leaves out.

    Args:
        bus: the bus whose hooks take part.
        model, optimizer, scheduler, scaler: what is trained; checkpoints hold them.
        epochs, iterations: the limit, for `run.epochs()`, `run.batches()` and schedules.
        work_dir: where files go; None for a run that writes none.
        validate: makes a validation when one is asked for: `validate()` or `validate(run)`; returns the metrics.
        train_loader, val_loader: offered as services.
        config: recorded, and hashed into checkpoints.
        device: where the model is.
        seed: what the order of `run.batches()` follows from; default the one torch was seeded with.
        counts_steps: the loop emits the optimizer points itself, and updates are counted by them.
        resume: "never", "auto" (the newest checkpoint of the work directory, if any), or a file.
        overwrite: a run that is in the work directory is removed.
        fresh: begin at zero, where this bus has already made a run; otherwise that run goes on.

    Yields:
        The run.

    Raises:
        ConfigError: an argument cannot be what it is meant to be.
        WorkDirError: the work directory is in use, or cannot be written.
        RequestError: a hook will ask for validations, and there is no `validate`.
        CheckpointError: what should be resumed cannot be.
        KeyboardInterrupt: Ctrl-C; a last checkpoint was written, where a hook writes any. A loop that goes on after
            its iteration all the same is left at its next one.
    """
    refuse_second(bus)
    flags = {"counts_steps": counts_steps, "overwrite": overwrite, "fresh": fresh}
    _arguments.refuse(
        [
            *(_arguments.truth(*each) for each in flags.items()),
            _arguments.function("validate", validate, "a function of nothing, or of the run"),
            _arguments.path("work_dir", work_dir),
            _arguments.seed("seed", seed),
        ]
    )
    for name, limit in (("epochs", epochs), ("iterations", iterations)):
        if limit is not None:
            check_count(limit, name, least=0)
    evaluator, length = _of_the_run(validate), _length_of(train_loader)
    ranks = join(device)
    run = Run(
        bus,
        model=inside_ddp(model),
        optimizer=optimizer,
        scheduler=scheduler,
        scaler=scaler,
        config=config,
        device=device,
        seed=seed,
        epochs=epochs,
        iterations=iterations,
        validate=evaluator,
        work_dir=claim_for(work_dir, resume_from(resume), overwrite, ranks),
        counts_steps=counts_steps,
        keeps_brackets=True,
        ranks=ranks,
        continues=None if fresh or bus.current.outcome == "running" else bus.current,
    )
    run.train_loader, run.val_loader = train_loader, val_loader
    run.clock.epoch_length = length
    with living(run, resume), graceful_interrupts(run):
        with suppress(LoopLeft), ends_by_signal(run):
            yield run
        run.brackets.close_all()
    if run.outcome == "interrupted":
        raise KeyboardInterrupt


@contextmanager
def living(run: Run, resume: Literal["auto", "never"] | str | Path = "never") -> Iterator[Run]:
    """Everything that happens around the loop of a run.

    Args:
        run: the run that begins.
        resume: as for `custom_run`.

    Yields:
        The run.

    Raises:
        ConfigError: If the work directory records a run whose checkpoints are not found.
        HookbusError: it cannot begin: a hook cannot do its work in it, or there is nothing to resume from.
        BaseException: what has ended the loop, or a hook at the end of the run.
    """
    try:
        if resume == "auto":
            take_up_recorded_run(run)
    except BaseException:
        release_directories(run)
        raise
    try:
        with run.ranks.together():
            _begin(run)
            if resume != "never":
                go_on_from(run, resume)
            yield run
            run.outcome = agreed_outcome(run)
    except BaseException as error:
        fail(run, error)
        raise
    finally:
        end(run)


def _begin(run: Run) -> None:
    run.alive = True
    begin_together(run)
    run.bus.begin(run)
    check_hooks(run)
    run.optimizer_events.attach()
    write_status(run)
    _say_where(run)
    run.bus.fire("before_run", mode=run.mode)
    _record_config(run)
    run.decisions.begin()


def refuse_second(bus: HookBus) -> None:
    """See that a bus is in no run: its hooks could not tell one from the other.

    Raises:
        RequestError: it is in one.
    """
    if bus.current.alive:
        raise RequestError(
            f"This bus is in the middle of a run ({bus.current.mode}), so another one cannot begin on it. For a "
            "validation there, ask the run for it: run.request_validation() or run.validate()."
        )


def resume_from(given: object) -> str | Path:
    """Whether and from where a run goes on, as the user said it.

    Raises:
        ConfigError: it is neither "auto" nor "never" nor a path.
    """
    try:
        return checked_resume(given)
    except ValueError as error:
        raise ConfigError([f"resume: {error}"]) from None


def claim_for(work_dir: str | Path | None, resume: object, overwrite: bool, ranks: Ranks) -> WorkDir | None:
    """The work directory of a run, which the main rank takes for all; None where it writes nothing.

    Raises:
        ConfigError: resume and overwrite were both asked for.
        WorkDirError: it is in use, or cannot be written.
    """
    if resume != "never" and overwrite:
        raise ConfigError(["resume and overwrite contradict each other: the run either goes on or is removed."])
    if work_dir == "":
        raise ConfigError(["work_dir is empty: name a directory for the files of the run, or say None for none."])
    if work_dir is None:
        return None
    take = partial(claim, Path(work_dir), resume=resume == "auto", overwrite=overwrite)
    return ranks.by_main("the work directory", take)


# -- inside ----------------------------------------------------------------------------------


def _of_the_run(validate: Callable[..., Mapping[str, Any] | None] | None) -> Evaluator | None:
    if validate is None:
        return None
    try:
        parameters = inspect.signature(validate).parameters.values()
    except ValueError:  # a built-in that does not tell
        return lambda _: validate()
    takes_run = any(p.default is p.empty and p.kind is not p.VAR_KEYWORD for p in parameters)
    return validate if takes_run else lambda _: validate()


def _length_of(loader: Any) -> int | None:
    if loader is None:
        return None
    from hookbus.training.loaders import length_of

    return length_of(loader)


def _say_where(run: Run) -> None:
    """A run that had to go elsewhere says so, and one that could not remove all that was there."""
    if run.work_dir is not None and run.work_dir.left:
        run.logger.warning(
            "overwrite: not written by the run that was here, so left alone: %s.",
            ", ".join(map(str, run.work_dir.left)),
        )
    if run.work_dir is not None and run.work_dir.moved_from is not None:
        run.logger.warning(
            "%s holds a run already, so this one goes into %s. Say resume to go on with that one, or overwrite.",
            run.work_dir.moved_from,
            run.work_dir.path,
        )


def _record_config(run: Run) -> None:
    """The settings of a training go into its work directory, and to whoever records them."""
    if run.mode != "train" or not run.config:
        return
    to_yaml = getattr(run.config, "to_yaml", None)
    if run.work_dir is not None and run.ranks.is_main and to_yaml is not None:
        run.work_dir.write_config(to_yaml(), run.id)
    run.bus.fire("log_config")
