"""Control of a training loop of MMEngine: its end within an epoch, its validations, and its position after a resume."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop

from hookbus.data import get_rng_state, set_rng_state
from hookbus.errors import ConfigError
from hookbus_mmengine.passes import get_passes, repeat_pass, start_workers

if TYPE_CHECKING:
    from hookbus_mmengine.bridge import MMEngineBridge


class EpochEnd(Exception):  # noqa: N818
    """A hook has ended the epoch. Never leaves the loop."""


class TrainingEnd(Exception):  # noqa: N818
    """A hook has ended the training. Never leaves the loop."""


class TrainingLoop:
    """Control of the training loop of a Runner, from the start of the training.

    Args:
        bridge: The bridge.
        loop: The training loop.

    Attributes:
        by_epoch: Whether the loop consists of epochs.
        is_ending_epoch: Whether the validation of an epoch is in progress, which is the last part of the epoch.
        validated_at: Number of iterations at the last validation; -1 before the first one.

    Raises:
        ConfigError: If it is none of the loops of MMEngine.
    """

    def __init__(self, bridge: MMEngineBridge, loop: Any) -> None:
        if not isinstance(loop, EpochBasedTrainLoop | IterBasedTrainLoop):
            raise ConfigError(
                [
                    f"train_cfg: the training loop should be an EpochBasedTrainLoop or an IterBasedTrainLoop, got "
                    f"{type(loop).__name__}. Derive it from one of them."
                ]
            )
        self._bridge, self._loop = bridge, loop
        self.by_epoch = isinstance(loop, EpochBasedTrainLoop)
        self.is_ending_epoch = False
        self.validated_at = -1
        self._leaving: type[Exception] | None = None
        self._skipped = 0  # batches of the epoch that were trained before the checkpoint was saved
        self._rng_state: dict[str, Any] = {}  # of the checkpoint, until the first batch is read
        self._passes = get_passes(loop)
        if self.by_epoch:
            bridge.replace(loop, "run_epoch", self._wrap_epoch)
            bridge.replace(loop, "run_iter", self._wrap_iteration)

    # -- epochs ------------------------------------------------------------------------------

    def begin_epoch(self) -> None:
        """Begin a pass over the data: an epoch, or the first pass of an iteration-based loop unless it has begun."""
        if self.by_epoch or not self._passes.count:
            self._passes.begin()

    def end_epoch(self) -> None:
        """Emit `after_epoch`."""
        self.is_ending_epoch = False
        self._bridge.bus.emit("after_epoch")

    def _wrap_epoch(self, original: Callable[[], None]) -> Callable[[], None]:
        """Return a `run_epoch` that a hook can end, and after which `after_epoch` follows."""

        def run_epoch() -> None:
            try:
                original()
            except EpochEnd:
                self._bridge.host.call_hook("after_train_epoch")
                self._loop._epoch += 1
            if self._leaving is EpochEnd:
                self._leaving = None
            self.is_ending_epoch = self.is_validation_due()
            if not self.is_ending_epoch:
                self.end_epoch()

        return run_epoch

    @property
    def _progress(self) -> tuple[int, int]:
        """Number of epochs, or iterations, that are done, and their limit."""
        loop = self._loop
        return (loop.epoch, loop.max_epochs) if self.by_epoch else (loop.iter, loop.max_iters)

    @property
    def is_stopped_early(self) -> bool:
        """Whether a hook has ended the loop before its limit."""
        done, last = self._progress
        return self._loop.stop_training and done < last

    def is_validation_due(self) -> bool:
        """Return whether the loop validates now, at the end of an epoch or iteration."""
        loop = self._loop
        loop._decide_current_val_interval()  # idempotent; the loop calls it next
        done, last = self._progress
        is_due = done >= loop.val_begin and (done % loop.val_interval == 0 or done == last)
        return is_due and self._bridge.host.val_loop is not None

    # -- iterations --------------------------------------------------------------------------

    def _wrap_iteration(self, original: Callable[[int, Any], None]) -> Callable[[int, Any], None]:
        """Return a `run_iter` that skips batches after a resume, and after which a hook can end the epoch."""

        def run_iter(idx: int, data_batch: Any) -> None:
            if idx < self._skipped:
                self._skip(idx)
                return
            original(idx, data_batch)
            # After its last iteration, the epoch ends regularly.
            if self._leaving is not None and idx + 1 < len(self._loop.dataloader):
                self._leave()

        return run_iter

    def _leave(self) -> None:
        """End the epoch or the training, and save the position in the epoch, which no hook of MMEngine does."""
        assert self._leaving is not None
        if self._leaving is TrainingEnd and self._bridge.checkpoints == "host" and not self._bridge.active_run.aborted:
            self._bridge.save(["stop"])
        raise self._leaving

    def stop(self) -> None:
        """End the training after this iteration, or before the next one."""
        self._loop.stop_training = True
        self._leaving = TrainingEnd

    def stop_epoch(self) -> None:
        """End the epoch after this iteration."""
        self._leaving = self._leaving or EpochEnd

    # -- position ----------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed training needs besides the counts."""
        return {"validated_at": self.validated_at, "passes": self._passes.state_dict()}

    def resume(self, state: Mapping[str, Any]) -> None:
        """Continue at the position of a checkpoint that the run has restored.

        Args:
            state: What `state_dict` has returned; {} if the checkpoint was saved without hooks.
        """
        self.validated_at = state.get("validated_at", -1)
        if not state:
            return
        self._start_workers()
        if self.by_epoch:
            self._resume_epoch(state["passes"])
        if not self._skipped and self.validated_at != self._bridge.active_run.iters_done and self.is_validation_due():
            self._make_up_for_validation()
        if not self.by_epoch:
            self._resume_pass(state["passes"])

    def _start_workers(self) -> None:
        """Start the workers that are kept between passes, of the loaders of which a pass was complete."""
        if self.by_epoch and self._loop.epoch:
            start_workers(self._loop.dataloader)
        if self.validated_at >= 0 and self._bridge.host.val_loop is not None:
            start_workers(self._bridge.host.val_dataloader)

    def _resume_epoch(self, state: Mapping[str, Any]) -> None:
        """Repeat the epoch that the checkpoint has interrupted, without its trained batches, or begin the next one."""
        run = self._bridge.active_run
        self._skipped = run.iters_done - run.epoch_first_iter if run.epoch_open else 0
        if not self._skipped:
            self._passes.continue_after(state)
            return
        self._rng_state = get_rng_state()
        self._passes.repeat(state, index=0)

    def _resume_pass(self, state: Mapping[str, Any]) -> None:
        """Let the loop read the earlier passes and batches, and continue with the random numbers of the checkpoint."""
        restored = get_rng_state()
        self._passes = repeat_pass(self._loop, self._passes, state)
        self._loop.dataloader_iterator = _read_after(
            self._loop.dataloader_iterator, self._loop.iter, lambda: set_rng_state(restored)
        )

    def _make_up_for_validation(self) -> None:
        """Validate at the end of the epoch of the checkpoint, which MMEngine saves before it validates."""
        if self.by_epoch:
            clock = self._bridge.active_run.clock
            clock.epoch, clock.epoch_complete = clock.epochs_done - 1, True
        self._bridge.host.val_loop.run()

    def _skip(self, idx: int) -> None:
        """Skip a batch. After the last one, continue with the random numbers of the checkpoint."""
        if idx + 1 == self._skipped:
            set_rng_state(self._rng_state)
            self._skipped = 0


def _read_after(batches: Iterator[Any], count: int, start: Callable[[], None]) -> Iterator[Any]:
    """Yield batches, and call a function before that of an index is read."""
    yield from islice(batches, count)
    start()
    yield from batches
