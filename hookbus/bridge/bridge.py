"""Base class of bridges: objects that drive a run of a bus from the callbacks of another trainer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from hookbus._events.call_stack import current_point
from hookbus._run.host import Capabilities, Checkpoints
from hookbus._run.host_needs import find_host_errors
from hookbus._run.loop_session import run_context
from hookbus._run.resume import resume_from_state
from hookbus._run.sandbox import call_model
from hookbus._utils.arguments import check_keywords, raise_errors
from hookbus._utils.values import format_value
from hookbus.checkpoint.plain_data import validate_plain_data
from hookbus.checkpoint.run_state import get_run_state
from hookbus.errors import CheckpointRefusedError, ConfigError

if TYPE_CHECKING:
    from hookbus._run.run import Run
    from hookbus.bus import HookBus

TRAINING_OPTIONS = frozenset({"batch_tokens", "hook_budget", "overwrite"})
"""Options that apply to the trainings of a trainer, and not to its runs that only evaluate."""


LIMITS = {"epochs", "iterations"}
"""Limits of a training. A trainer that sets one of them has no other."""


class Bridge:
    """Run of a bus whose loop is that of another trainer.

    Subclasses override `attach`, which registers their callbacks with the trainer, call the other methods from these
    callbacks, and override the methods of `Host` for the requests that the trainer can carry out.

    Args:
        bus: Bus with the hooks.
        host: The trainer.
        checkpoints: "host" (default): the trainer saves, and its checkpoints contain the state of the hooks and the
            loop. "hookbus": the checkpoint hook saves and restores everything.
        metric_prefix: Prefix of the names under which the trainer reports results of a validation, such as `eval_`.
            Default: `metric_prefixes` of the class.
        options: Arguments of `bus.open`: `work_dir`, `resume`, `overwrite`, `fresh`, `seed`, `batch_size`,
            `batch_tokens`, `hook_budget`.

    Attributes:
        capabilities: What the trainer offers.
        metric_prefixes: Prefixes of the names of validation results, which are removed.
        run: Current or last run; None before the first one.

    Raises:
        ConfigError: If a hook needs what the trainer does not offer, or an argument is invalid.
    """

    capabilities: ClassVar[Capabilities]
    metric_prefixes: ClassVar[Sequence[str]] = ("val_", "val/")

    def __init__(
        self,
        bus: HookBus,
        host: Any,
        *,
        checkpoints: Checkpoints = "host",
        metric_prefix: str | None = None,
        **options: Any,
    ) -> None:
        self.bus, self.host, self.checkpoints = bus, host, checkpoints
        self.run: Run | None = None
        self._prefixes = self.metric_prefixes if metric_prefix is None else (metric_prefix,)
        # Reported now, and not when the training of the trainer begins.
        check_keywords("bus.attach", type(self), Bridge, run_context)(run_context)(bus, **options)
        self._options = options
        self._pending_state: Mapping[str, Any] | None = None  # for the next run
        self._lacks_state = self._is_saving = False
        self._replaced = ExitStack()  # attributes of the trainer, until `detach`
        self._check_checkpoints()
        raise_errors(find_host_errors(bus.hooks, self.capabilities, checkpoints))

    def attach(self) -> None:
        """Register the callbacks of the bridge with the trainer. Called once, by `bus.attach`."""
        raise NotImplementedError

    def detach(self) -> None:
        """Undo `replace` of all attributes. Subclasses also remove their callbacks. Idempotent."""
        self._replaced.close()

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Replace an attribute of an object until `detach`, such as a method that no callback reports.

        Args:
            owner: Object whose attribute to replace. Its class is not modified.
            name: Name of the attribute.
            make: Function that receives the original attribute and returns the replacement.
        """
        original = getattr(owner, name)
        previous = vars(owner).get(name, owner)  # `owner` itself marks an attribute of the class
        object.__setattr__(owner, name, make(original))

        def restore() -> None:
            if previous is owner:
                object.__delattr__(owner, name)
            else:
                object.__setattr__(owner, name, previous)

        self._replaced.callback(restore)

    # -- the run -----------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether a run is in progress."""
        return self.run is not None and self.run.is_running

    @property
    def active_run(self) -> Run:
        """Run in progress; call it between `open` and `close` only."""
        assert self.run is not None
        return self.run

    def open(self, **arguments: Any) -> Run:
        """Begin the run, restore a state that the trainer has loaded before, and emit `before_train` in a training.

        Args:
            arguments: Arguments of `bus.open` that the trainer knows: `model`, `optimizer`, `epochs`, `device`, ...
        """
        run = self.bus.open(**self.get_run_arguments(arguments))
        try:
            self.begin(run)
            if run.mode == "train":
                self.bus.emit("before_train")
        except BaseException as error:
            run.close(error)
            raise
        return run

    def get_run_arguments(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of `bus.open` or `bus.run` for a run that resumes from a state loaded before.

        Args:
            arguments: Arguments that the trainer knows. `config` and `fresh` of the bridge take precedence; options of
                a training are omitted in a run of another mode.

        Raises:
            ConfigError: If an argument is among the options of the bridge as well.
        """
        self._check_options(arguments)
        # Taken now: if this run cannot begin, the next one may be a new training.
        state, self._pending_state = self._pending_state, None
        self._lacks_state = state is not None and not state
        # A new trainer starts from scratch, also if the bus has been used for another training before.
        is_training = arguments.get("mode", "train") == "train"
        applied = {name: value for name, value in self._options.items() if is_training or name not in TRAINING_OPTIONS}
        options = {"host": self, "fresh": self.run is None, **arguments, **applied}
        return {**options, "resume": state} if state else options

    def _check_options(self, arguments: Mapping[str, Any]) -> None:
        known = {name for name, value in arguments.items() if value is not None} - {"config", "fresh"}
        if known & LIMITS:
            known |= LIMITS
        if repeated := sorted(known & self._options.keys()):
            raise ConfigError(
                f"bus.attach: got {name}={format_value(self._options[name])}, which the training in "
                f"{self.capabilities.host} sets. Remove it."
                for name in repeated
            )

    def begin(self, run: Run) -> None:
        """Connect the bridge with a run that was begun with `get_run_arguments`.

        Args:
            run: The run.
        """
        self.run = run
        if self._lacks_state:
            self._report_missing_state(run)

    def set_epoch_length(self, length: int | None) -> None:
        """Set the length of the epochs of a trainer that loads its data after the run has begun.

        Args:
            length: Number of iterations per epoch; None if it is unknown.
        """
        self.active_run.clock.epoch_length = length
        self.bus.invalidate()  # schedules that end with the run

    def close(self, error: BaseException | None = None) -> None:
        """End the run. Idempotent; no effect without a run.

        Args:
            error: Exception that ended the training. It is not raised again.
        """
        if self.is_open:
            self.active_run.close(error)

    def report_stop(self) -> None:
        """Stop the run, because the trainer ends before its limits. No effect if a hook has stopped it.

        Call it between two iterations, such as for a trainer that a callback of its own has stopped.
        """
        run = self.active_run
        if not run.should_stop:
            run.request_stop(f"stopped by {self.capabilities.host}")
            run.settle()

    # -- validations -------------------------------------------------------------------------

    def select_results(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Return the results of a validation among the metrics of the trainer, without their prefix."""
        return {
            name.removeprefix(prefix): value
            for prefix in self._prefixes
            for name, value in metrics.items()
            if name.startswith(prefix)
        }

    # -- state in a checkpoint of the trainer ----------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Return the state of hooks and loop for a checkpoint of the trainer; {} without a run.

        `before_save_checkpoint` is emitted with it. Call it before the trainer writes or removes any file, within
        `omit_refused_save`.

        Raises:
            CheckpointRefusedError: If the run is aborted, such as by a hook that has inspected the weights.
        """
        if not self.is_open or self.checkpoints != "host":
            return {}
        self._check_weights()
        state = get_run_state(self.active_run)
        self.bus.emit("before_save_checkpoint", checkpoint=state)
        self._check_weights()
        validate_plain_data(state, "checkpoint")  # a listener may have modified it
        return state

    def _check_weights(self) -> None:
        run = self.active_run
        if reasons := run.abort_reasons:
            raise CheckpointRefusedError(
                f"No checkpoint of {self.capabilities.host} is saved after iteration {run.iters_done}, because a hook "
                f"has aborted the run. {'; '.join(reasons)}"
            )

    @contextmanager
    def omit_refused_save(self) -> Iterator[None]:
        """Context manager around a save of the trainer: end it without an error if a hook aborts the run.

        Within another one it has no effect, so that the code around the save ends as well.
        """
        is_nested, self._is_saving = self._is_saving, True
        try:
            yield
        except CheckpointRefusedError as error:
            if is_nested:
                raise
            run = self.active_run
            run.logger.warning("%s", error)
            if not current_point(run):  # otherwise a hook has requested the save, and the boundary is being processed
                run.settle()
        finally:
            self._is_saving = is_nested

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `get_state` has returned, now or when the run begins.

        Args:
            state: Entry of the checkpoint; {} if it was saved without hooks.
        """
        if not self.is_open:
            self._pending_state = state
        elif state:
            resume_from_state(self.active_run, state)
        else:
            self._report_missing_state(self.active_run)

    def report_save(self, path: Any) -> None:
        """Emit `after_save_checkpoint` for a checkpoint that the trainer has saved.

        Args:
            path: File or directory of the checkpoint.
        """
        if self.is_open:
            self.bus.emit("after_save_checkpoint", path=path, is_best=None, metrics=self.active_run.metrics.results)

    def _check_checkpoints(self) -> None:
        supported, host = self.capabilities.checkpoints, self.capabilities.host
        if self.checkpoints not in supported:
            names = " or ".join(map(repr, supported))
            raise ConfigError([f"checkpoints: should be {names} in {host}, got {self.checkpoints!r}."])
        if self.checkpoints == "host" and (resume := self._options.get("resume", "never")) != "never":
            other = ", or pass checkpoints='hookbus' if the checkpoint hook saves" if "hookbus" in supported else ""
            raise ConfigError(
                [
                    f"resume: the hooks resume from the checkpoint of {host}, got {resume!r}. "
                    f"Resume {host} itself{other}."
                ]
            )

    def _report_missing_state(self, run: Run) -> None:
        run.logger.warning(
            "The checkpoint of %s was saved without hookbus: the hooks start from their initial state.",
            self.capabilities.host,
        )

    def describe_lr_schedule(self) -> str:
        """Return what schedules the learning rate, and how to train without it; see `Host`. Default: nothing does."""
        return ""

    def compute_outputs(self, batch: Any) -> object:
        """Call the model with a batch, for trial steps; see `Host`. Override it if models are called in another way."""
        return call_model(self.active_run, batch)

    @property
    def can_validate(self) -> bool:
        """Whether `validate` is possible. Override it if the trainer may lack validation data."""
        return self.capabilities.honors("validation")

    # -- what hooks request; see `Host` --------------------------------------------------------

    def stop(self, reasons: Sequence[str]) -> None:
        """End the training. Override it if the capabilities contain the request, like the three methods below."""
        raise NotImplementedError

    def stop_epoch(self) -> None:
        """End the current epoch."""
        raise NotImplementedError

    def save(self, reasons: Sequence[str]) -> None:
        """Save a checkpoint of the trainer."""
        raise NotImplementedError

    def validate(self) -> None:
        """Validate."""
        raise NotImplementedError
