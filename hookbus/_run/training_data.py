"""Iteration over the training data: remaining epochs and batches of a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from hookbus._run.interrupts import handle_lost_workers
from hookbus.errors import LoopError, RankError

if TYPE_CHECKING:
    from hookbus._run.run import Run
    from hookbus.data.resumable_loader import ResumableLoader
    from hookbus.data.seeded_dataset import DatasetHook
    from hookbus.data.train_shard import TrainShard

__all__ = ["TrainingData"]


class TrainingData:
    """Position of a run in its training data.

    Args:
        run: The run.
        state: State returned by `state_dict()` of the run that this run continues; {} if there is none.

    Attributes:
        leaving_epoch: Whether the epoch is to end after this iteration, as if its loader had ended.
        shard: Shard of the training data that this rank reads; None for all of it.
    """

    def __init__(self, run: Run, state: Mapping[str, Any]) -> None:
        self._run = run
        self._resumable: ResumableLoader | None = None
        self._source: object = None
        self._dataset_hooks: list[DatasetHook] = []
        self._state = dict(state)
        self._to_skip = self._get_epoch_progress()
        self.leaving_epoch = False
        self.shard: TrainShard | None = None

    def register_dataset_hook(self, hook: DatasetHook) -> None:
        """Register a function that modifies the dataset while `run.batches` reads it, in the process that reads it.

        Args:
            hook: `hook(dataset, epoch, iteration)`, with indices from 0; called before the samples of each
                iteration are read. It must depend on these arguments only, since every worker process has its own copy
                of the dataset. It must be picklable if workers are spawned.

        Raises:
            LoopError: If the training data is already being read.
        """
        if self._resumable is not None:
            raise LoopError(
                "training_data.register_dataset_hook: the training data is already being read. Register the function "
                "at before_run or before_train."
            )
        self._dataset_hooks.append(hook)

    def require_managed_loader(self, hook: str) -> None:
        """Check, during an iteration, that the training data is read through `run.batches`.

        Hooks can modify the data only if it is.

        Args:
            hook: Name of the hook, for the message.

        Raises:
            LoopError: If the loop reads its data directly.
        """
        if self._resumable is None:
            raise LoopError(
                f"hook {hook!r} modifies the training data while it is read, but the loop reads its loader directly. "
                "Iterate over run.batches(loader)."
            )

    def begin_epoch(self) -> None:
        """Begin or continue an epoch; called before the listeners of `before_epoch` and `before_train_epoch`."""
        run = self._run
        # An epoch that a resumed run continues keeps its means and its position.
        if not run.clock.epoch_open:
            run.metrics.epoch.reset()
            self.leaving_epoch, self._to_skip = False, 0
        run.clock.begin_epoch()
        # A stop request at the end of the previous epoch: the loop may begin this epoch before it checks for stops.
        if run.stops:
            run.clock.truncate_epoch()

    def epochs(self) -> Iterator[int]:
        """Yield the remaining epochs.

        Raises:
            LoopError: If the run has no limit, since the iteration would never end.
        """
        run, clock = self._run, self._run.clock
        if clock.max_epochs is None and clock.max_iters is None:
            raise LoopError("run.epochs(): the run has no limit. Set epochs= or iterations=.")
        if clock.is_at_limit:
            run.logger.warning(
                "Nothing to train: %s epochs and %s iterations are already complete. Increase the limit, or start from "
                "scratch.",
                clock.epochs_done,
                clock.iters_done,
            )
            if run.auto_nesting:  # hooks may do work at the end of training, such as restoring the best weights
                run.nesting.open_training()
        while not run.should_stop and not clock.is_at_limit:
            self.begin_epoch()
            yield clock.epoch
            run.nesting.close_epoch()
            clock.end_epoch()

    def batches(self, loader: Iterable[Any]) -> Iterator[tuple[int, Any]]:
        """Yield the remaining batches of the epoch with their indices.

        Args:
            loader: Training data.

        Raises:
            LoopError: If the loader is empty.
            RankError: If the ranks have different numbers of batches.
        """
        if self._run.should_stop_epoch:
            return
        with handle_lost_workers(self._run, in_loader=True):
            yield from self._iter_batches(loader)

    def _iter_batches(self, loader: Iterable[Any]) -> Iterator[tuple[int, Any]]:
        """Yield the remaining batches of a loader with their indices."""
        run, clock = self._run, self._run.clock
        resumable = self._resumable_loader(loader)
        index = start = self._take_skip_count(resumable.length)
        if index and not resumable.exact:
            run.logger.warning(
                "The training loader has no state to restore. Skipping %s batches by reading them again.", index
            )
        batches = resumable.batches(clock.epoch, index, clock.iters_done)
        clock.epoch_length = resumable.length
        self._check_equal_lengths()
        for batch in batches:
            run.batch_sizes.hand_out(batch, getattr(batches, "size", None))
            yield index, batch
            index += 1
            # Checked after the iteration and not at the next batch, which a worker would have to load first.
            if self.leaving_epoch or run.stops or clock.limit_reached:
                if clock.epoch_truncated and clock.epoch_length is None:
                    self._probe_exhausted(batches)
                break
        if index == start == 0:
            raise LoopError(
                "The training loader yielded no batch. Pass a loader that can be iterated in every epoch (an iterator "
                "is exhausted after one) and has at least one batch (check drop_last)."
            )

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the loader, in addition to epoch and iteration."""
        return self._resumable.state_dict() if self._resumable is not None else self._state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state returned by `state_dict()`."""
        self._resumable = self._source = None  # the next loader is positioned when it is read
        self._state, self._to_skip = dict(state), self._get_epoch_progress()

    def close(self) -> None:
        """Release the loader and thereby end its workers; the position is kept.

        Without an explicit release, the garbage collector closes the queues of the workers before their termination
        message is sent, and torch waits 5 seconds for each worker.
        """
        self.load_state_dict(self.state_dict())

    def _take_skip_count(self, length: int | None) -> int:
        """Return the number of batches of the next loader that were done before this run resumed within an epoch."""
        # An epoch may read several loaders in sequence: the rest is skipped in the next one.
        skipped = self._to_skip if length is None else min(self._to_skip, length)
        self._to_skip -= skipped
        return skipped

    def _check_equal_lengths(self) -> None:
        """Check that the loaders of all ranks have the same number of batches.

        Otherwise the gradient all-reduce of a rank with more batches would deadlock.

        Raises:
            RankError: If the numbers differ.
        """
        ranks, length = self._run.ranks, self._run.clock.epoch_length
        lengths = ranks.all_gather("batches per epoch", length) if self.shard is not None else [length]
        if len(set(lengths)) > 1:
            raise RankError(
                f"The training loaders of the ranks must have the same number of batches, got "
                f"{', '.join(map(str, lengths))}. Make the sampler drop or repeat samples, as DistributedSampler does."
            )

    def _warn_unsharded(self, loader: Iterable[Any]) -> None:
        """Log that the loader is not sharded automatically."""
        from hookbus.data.loaders import is_shardable

        if self.shard is not None and not is_shardable(loader):
            self._run.logger.info(
                "The training loader cannot be sharded automatically, so each of the %s processes reads it unchanged. "
                "Make the loader yield different samples on each rank.",
                self.shard.world_size,
            )

    def _get_epoch_progress(self) -> int:
        """Return the number of completed iterations of the epoch in progress; 0 if there is none."""
        clock = self._run.clock
        return clock.iters_done - clock.epoch_first_iter if clock.epoch_open else 0

    def _probe_exhausted(self, batches: Iterator[Any]) -> None:
        """Determine whether a truncated epoch of a loader without length was complete.

        The next batch must be requested for this, so the position is saved before and restored if there is one.
        """
        state, clock = self.state_dict(), self._run.clock
        try:
            clock.epoch_truncated = next(batches, self) is not self
        finally:
            if clock.epoch_truncated:
                self.load_state_dict(state)

    def _resumable_loader(self, loader: Iterable[Any]) -> ResumableLoader:
        """Return the resumable loader of a loader, which is created for each new loader."""
        if self._resumable is None or self._source is not loader:
            from hookbus.data.resumable_loader import make_resumable

            self._resumable = make_resumable(loader, self._run.seed, self._dataset_hooks, self.shard)
            self._source = loader
            self._warn_unsharded(loader)
            self._resumable.load_state_dict(self._state)
            self._state = {}  # applies to the first loader after a resume only
        return self._resumable
