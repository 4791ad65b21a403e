"""Errors and warnings about the loaders that `run.batches` reads."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from hookbus._run.data_passes import DataPass
from hookbus.errors import LoopError, RankError

if TYPE_CHECKING:
    from hookbus.distributed.collectives import Collectives


def check_equal_lengths(ranks: Collectives, length: int | None) -> None:
    """Check that the loaders of all ranks have the same number of batches.

    Otherwise the gradient all-reduce of a rank with more batches would deadlock.

    Raises:
        RankError: If the numbers differ.
    """
    lengths = ranks.all_gather("batches per epoch", length)
    if len(set(lengths)) > 1:
        raise RankError(
            f"The training loaders of the ranks must have the same number of batches, got "
            f"{', '.join(map(str, lengths))}. Make the sampler drop or repeat samples, as DistributedSampler does."
        )


def check_not_empty(data_pass: DataPass) -> None:
    """Check that a loader has yielded a batch.

    Raises:
        LoopError: If it has not.
    """
    if not data_pass.position:
        raise LoopError(
            "The training loader yielded no batch. Pass a loader that can be iterated in every epoch (an iterator "
            "is exhausted after one) and has at least one batch (check drop_last)."
        )


def warn_replay(logger: logging.Logger, count: int) -> None:
    """Warn that batches are read again."""
    logger.warning("The training loader has no state to restore. Skipping %s batches by reading them again.", count)


def warn_changed_length(logger: logging.Logger, data_pass: DataPass, saved_length: int | None) -> None:
    """Warn if the loader of a resumed pass does not have the length of the loader in the checkpoint."""
    if saved_length is not None and saved_length != data_pass.length:
        logger.warning(
            "resume: the loader of this pass had %s batches when the checkpoint was written, and has %s. The pass "
            "continues after batch %s. Call run.batches for the same loaders in the same order.",
            saved_length,
            data_pass.length,
            data_pass.position,
        )
