"""Iteration over the training data: remaining epochs and batches of a run."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hookbus._run.data_passes import DataPass, EpochLengths, find_for_statement
from hookbus._run.interrupts import handle_lost_workers
from hookbus._run.loader_pool import LoaderPool, check_equal_lengths, check_not_empty, warn_changed_length
from hookbus._run.pass_list import Moment, PassList, are_exhausted, convert_former_state, split_former_pass
from hookbus._run.requests import SETTLE, process_requests
from hookbus._run.train_batch_size import TrainBatchSize
from hookbus.errors import LoopError

if TYPE_CHECKING:
    from hookbus._run.run import Run
    from hookbus.data.iterated_loaders import ResumableLoader


class TrainingData:
    """Position of a run in its training data.

    Args:
        run: The run.
        state: State returned by `state_dict()` of the run that this run continues; {} if there is none.

    Attributes:
        loaders: Loaders that are read, with the shard of this rank.
        batch_size: Changed batch size of the training loader.
        leaving_epoch: Whether the epoch is to end after this iteration, as if its loader had ended.
    """

    def __init__(self, run: Run, state: Mapping[str, Any]) -> None:
        self._run = run
        self.loaders, self.batch_size = LoaderPool(), TrainBatchSize(run)
        self._epoch_passes, self._run_passes, self._lengths = PassList(), PassList(), EpochLengths()
        self._last_ended: DataPass | None = None
        self._in_epoch = self.leaving_epoch = False
        self.load_state_dict(state)
        self._run_passes.drop_complete()
        run.clock.is_data_exhausted = self._is_exhausted

    @property
    def _passes(self) -> list[DataPass]:
        return [*self._run_passes.passes, *self._epoch_passes.passes]

    def release(self, owner: str) -> None:
        """Remove the functions of a hook that modify the dataset. A pass in progress ends with them."""
        rest = [entry for entry in self.loaders.dataset_hooks if entry[1] != owner]
        if len(rest) == len(self.loaders.dataset_hooks):
            return
        if not all(data_pass.ended for data_pass in self._passes):
            self._run.logger.warning(
                "%s left the run while the training data is being read: its function that modifies the data is called "
                "until the end of this pass.",
                owner,
            )
        self.loaders.set_dataset_hooks(rest)

    def begin_epoch(self) -> None:
        """Begin or continue an epoch; called before the listeners of `before_epoch` and `before_train_epoch`."""
        run = self._run
        # An epoch that a resumed run continues keeps its means and its position.
        if not run.clock.epoch_open:
            run.history_recorder.record_epoch()  # of a loop that has not emitted `after_epoch`
            run.metrics.epoch.reset()
            if not self.leaving_epoch:
                self._lengths.begin_epoch()
            self.leaving_epoch = False
            # Loaders that were not read in the previous epoch are released.
            read = [data_pass.resumable for data_pass in self._passes]
            self.loaders.keep(lambda resumable: any(resumable is other for other in read))
            # Passes that the loop reads in several epochs have ordinals of their own, and thereby another order.
            self._epoch_passes.begin_epoch(sum(not data_pass.ended for data_pass in self._run_passes.passes))
        self._in_epoch = True
        run.clock.begin_epoch()
        # A stop request at the end of the previous epoch: the loop may begin this epoch before it checks for stops.
        if run.stops:
            run.clock.truncate_epoch()
            run.pending = True  # the last checkpoint is saved at this boundary, before the loop continues

    def epochs(self) -> Iterator[int]:
        """Yield the remaining epochs.

        Raises:
            LoopError: If the run has no limit, since the iteration would never end.
        """
        run, clock = self._run, self._run.clock
        if clock.max_epochs is None and clock.max_iters is None and clock.tokens.limit is None:
            raise LoopError("run.epochs(): the run has no limit. Set epochs=, iterations= or tokens=.")
        if clock.is_at_limit and run.auto_nesting:
            # Hooks may do work at the end of training, such as restoring the best weights.
            run.nesting.open_training()
        while not run.should_stop and not clock.is_at_limit:
            self.begin_epoch()
            with run.nesting.turn():
                yield clock.epoch
            closed = run.nesting.close("epoch")
            self.end_epoch()
            run.history_recorder.record_epoch()  # of a loop without events of epochs
            if run.auto_nesting and not closed:  # otherwise `after_epoch` was the boundary
                process_requests(run, SETTLE)

    def end_epoch(self) -> None:
        """End the epoch, and compare its number of iterations with the lengths of its loaders."""
        clock, was_open = self._run.clock, self._run.clock.epoch_open
        clock.end_epoch()
        if was_open and clock.epoch_complete:
            self._run.history_recorder.end_epoch()
        if was_open and clock.epoch_complete and not self.leaving_epoch:
            clock.observed_epoch_length = clock.iters_done - clock.epoch_first_iter
            if clock.observed_epoch_length != clock.epoch_length and clock.max_epochs is not None:
                self._run.bus.invalidate()  # the limit in iterations has changed, by which compiled schedules count
            self._lengths.observe(clock.observed_epoch_length, clock.epoch_length)
            clock.epoch_length = self._lengths.observed or clock.epoch_length

    def batches(self, loader: Iterable[Any]) -> Iterator[tuple[int, Any]]:
        """Yield the remaining batches of a pass over a loader with their indices.

        Args:
            loader: Training data.

        Raises:
            LoopError: If the loader is empty.
            RankError: If the ranks have different numbers of batches.
        """
        run, clock = self._run, self._run.clock
        if run.should_stop_epoch:
            # The loop would read more data in this epoch: the run that resumes completes it.
            if clock.epoch_open and not self.leaving_epoch:
                clock.epoch_truncated = True
            return iter(())
        self.batch_size.apply()
        data_pass, iterations = DataPass(self.batch_size.resolve(loader), clock.iters_done), clock.iters_done
        data_pass.parents = [(p, p.position) for p in self._passes if p.encloses_call(iterations)]
        self._add_pass(data_pass)
        return self._iter_pass(data_pass)

    def _add_pass(self, data_pass: DataPass) -> None:
        """Add a pass to the epoch, or to the run if the loop has no epochs."""
        ended = self._last_ended
        # The loop restarts its iterator: `except StopIteration: iterator = run.batches(loader)`.
        restarts = isinstance(sys.exception(), StopIteration)
        replaced = ended if ended is not None and restarts and ended.loader is data_pass.loader else None
        if replaced is not None:
            data_pass.parents = replaced.parents
        self._run_passes.merge(self._run.clock.iters_done)
        continues_run = replaced in self._run_passes.passes or not self._in_epoch
        (self._run_passes if continues_run else self._epoch_passes).add(data_pass, replaced)

    def _iter_pass(self, data_pass: DataPass) -> Iterator[tuple[int, Any]]:
        """Yield the remaining batches of a pass with their indices."""
        run, clock = self._run, self._run.clock
        if data_pass.ended or run.should_stop_epoch:
            return
        try:
            with handle_lost_workers(run, in_loader=True):
                batches = self._open_pass(data_pass)
                data_pass.set_reader(find_for_statement())
                if self._in_epoch:
                    self._lengths.add(data_pass)
                clock.epoch_length = self._lengths.total if self._in_epoch else data_pass.length
                for batch in batches:
                    data_pass.count_batch(clock.iters_done)
                    run.batch_sizes.hand_out(batch, getattr(batches, "size", None))
                    yield data_pass.position - 1, batch
                    if data_pass.invalid:
                        raise LoopError(data_pass.invalid)
                    # Checked after the iteration and not at the next batch, which a worker would have to load first.
                    if self.leaving_epoch or run.stops or clock.limit_reached:
                        self._probe_exhausted(data_pass, batches)
                        return
                data_pass.exhausted = True
                check_not_empty(data_pass, self.loaders.shard)
        finally:
            # A pass that a stop has ended is continued by the run that resumes.
            if data_pass.exhausted or not (run.stops or clock.limit_reached):
                data_pass.end(clock.iters_done)
                self._last_ended = data_pass

    def _open_pass(self, data_pass: DataPass) -> Iterator[Any]:
        """Return an iterator over the remaining batches of a pass."""
        # Imports torch, which a run without a loader does not need.
        from hookbus.data.samplers import PassPosition

        run, clock = self._run, self._run.clock
        # A state of the previous epoch is that of a loader which this process has not read yet.
        is_current = data_pass.restored or data_pass.loader not in self.loaders
        resumable = self.loaders.get(data_pass.loader, run.seed, run.logger)
        self._invalidate_others(resumable)
        data_pass.resumable = resumable
        if data_pass.loader_state and is_current:
            resumable.load_state_dict(data_pass.loader_state)
        data_pass.loader_state = None
        if not data_pass.position:
            data_pass.start = resumable.get_start_state()
            data_pass.epoch, data_pass.iteration = clock.epoch, clock.iters_done
        rest = split_former_pass(data_pass, resumable.length)
        if rest is not None:
            self._epoch_passes.insert_saved(rest)
        skip, expected = data_pass.position, data_pass.length
        if skip and not resumable.exact:
            run.logger.warning(
                "The training loader has no state to restore. Skipping %s batches by reading them again.", skip
            )
        position = PassPosition(data_pass.epoch, skip, data_pass.iteration + skip, data_pass.ordinal)
        batches = resumable.batches(position, data_pass.start)
        data_pass.length = resumable.length
        if skip:
            warn_changed_length(run.logger, data_pass, expected)
        if self.loaders.shard is not None:
            check_equal_lengths(run.ranks, data_pass.length)
        return batches

    @property
    def is_reading(self) -> bool:
        """Whether a pass is in progress."""
        return any(data_pass.started and not data_pass.ended for data_pass in self._passes)

    def forget_lengths(self) -> None:
        """Expect epochs of another length than those before."""
        self._lengths = EpochLengths()

    # -- trial steps ------------------------------------------------------------------------------

    def trial_batches(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Return an iterator over the batches of a loader, from the start of the epoch, that counts no position.

        Raises:
            LoopError: If the loader cannot be read a second time.
        """
        from hookbus.data.samplers import PassPosition

        run = self._run
        resumable = self._build_trial_loader(loader)
        if resumable is None:
            raise LoopError(
                f"trial.batches: reading the loader changes its position, got {_get_type(loader)}. Pass a second "
                "loader: trial.batches(loader)."
            )
        return resumable.batches(PassPosition(run.clock.epoch, 0, run.iters_done))

    @property
    def trial_obstacle(self) -> str:
        """Type of the training loader if a trial would change its position, else ""."""
        loader = self._run.train_loader
        return "" if loader is None or self._build_trial_loader(loader) is not None else _get_type(loader)

    def _build_trial_loader(self, loader: Iterable[Any]) -> ResumableLoader | None:
        """Return a resumable loader for a trial, or None if a trial would change the position of the loader."""
        from hookbus.data.resumable_loader import SeededLoader

        run = self._run
        loader = self.batch_size.resolve(loader)
        if isinstance(_get_source(loader), Iterator):
            return None
        resumable = self.loaders.build(loader, run.seed, run.logger)
        is_copy = isinstance(resumable, SeededLoader)  # with workers and a sampler of its own
        in_use = loader is run.train_loader or loader in self.loaders
        return None if in_use and not is_copy and not resumable.concurrent else resumable

    @contextmanager
    def preserved_position(self) -> Iterator[None]:
        """Context manager that restores the state of a training loader that saves its own position.

        Raises:
            LoopError: If the training is reading the loader, whose iterator does not return to its position.
        """
        from hookbus.data.iterated_loaders import saves_position

        loader = self._run.train_loader
        if not saves_position(loader):
            yield
            return
        position = copy.deepcopy(loader.state_dict())
        try:
            yield
        finally:
            if not _are_equal(loader.state_dict(), position):
                self._check_not_read(loader)
                loader.load_state_dict(position)

    def _check_not_read(self, loader: Any) -> None:
        if any(p.loader is loader and p.started and not p.ended for p in self._passes):
            raise LoopError(
                f"run.sandbox: a trial has read the loader ({type(loader).__name__}) that the training is reading, and "
                "which saves its own position. Read a second loader: trial.batches(loader)."
            )

    # -- end of an epoch --------------------------------------------------------------------------

    def _is_exhausted(self) -> bool | None:
        """Return whether the loop has no further batch to read in this epoch; None if it does not read any."""
        clock, passes = self._run.clock, self._epoch_passes.passes
        if not passes or not self._in_epoch:
            return None
        expected = self._lengths.observed or 0
        if self._lengths.more_expected or clock.iters_done - clock.epoch_first_iter < expected:
            return False
        return are_exhausted(passes, clock.iters_done)

    def _probe_exhausted(self, data_pass: DataPass, batches: Iterator[Any]) -> None:
        """Determine whether a truncated epoch of a loader without length was complete.

        The next batch must be requested for this, so the state of the loader is kept.
        """
        if not self._run.clock.epoch_truncated or data_pass.length is not None:
            return
        data_pass.loader_state = data_pass.get_loader_state()
        if next(batches, self) is self:
            data_pass.exhausted, data_pass.loader_state = True, None
            self._run.clock.truncate_epoch()

    def _invalidate_others(self, resumable: ResumableLoader) -> None:
        """Invalidate the passes in progress over a loader that can be read by one iterator at a time."""
        for data_pass in self._passes:
            if data_pass.resumable is resumable and not (data_pass.ended or resumable.concurrent):
                data_pass.invalid = (
                    "run.batches: a second iterator reads the loader, but a loader that saves its position or has "
                    "persistent workers can be read by one iterator at a time. Create a second loader."
                )

    def close(self) -> None:
        """Release the loaders and thereby end their workers; the position is kept.

        Without an explicit release, the garbage collector closes the queues of the workers before their termination
        message is sent, and torch waits 5 seconds for each worker.
        """
        try:
            state = self.state_dict()
        except LoopError:
            # The run failed in an iteration, and the loader cannot be positioned at the start of this iteration.
            state = self._get_state(Moment(self._run.clock.iters_done, at_boundary=False))
        self.load_state_dict(state)

    # -- state ------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the positions of all passes at the last iteration boundary.

        Batches that were handed out after the boundary are not counted.

        Raises:
            LoopError: If a loader cannot be positioned there.
        """
        return self._get_state(Moment(self._run.clock.iters_done))

    def _get_state(self, moment: Moment) -> dict[str, Any]:
        return {
            "epoch": self._epoch_passes.to_state(moment, complete=not self._run.clock.epoch_open),
            "run": self._run_passes.to_state(moment),
            "lengths": self._lengths.state_dict(),
            **({} if self.batch_size.size is None else {"batch_size": self.batch_size.size}),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state returned by `state_dict()`."""
        self.loaders.keep(lambda _: False)
        self._last_ended, self._in_epoch = None, False
        self._epoch_passes, self._run_passes, self._lengths = PassList(), PassList(), EpochLengths()
        if "epoch" not in state:
            self._epoch_passes.load_state(convert_former_state(state, self._run.clock))
            return
        self._epoch_passes.load_state(state["epoch"])
        self._run_passes.load_state(state["run"])
        self._lengths.load_state_dict(state["lengths"])
        clock = self._run.clock
        clock.observed_epoch_length = self._lengths.last
        self.batch_size.size = state.get("batch_size")
        self.batch_size.apply()
        clock.epoch_length = self._lengths.observed or clock.epoch_length


def _get_source(loader: Any) -> Any:
    """Return the loader that a limited loader reads, or the loader itself."""
    from hookbus.data.limited_loader import LimitedLoader

    return loader.loader if isinstance(loader, LimitedLoader) else loader


def _get_type(loader: Any) -> str:
    return type(_get_source(loader)).__name__


def _are_equal(state: Any, other: Any) -> bool:
    """Return whether two states of a loader are known to be equal."""
    try:
        return bool(state == other)
    except (RuntimeError, ValueError):  # tensors or arrays with several elements
        return False
