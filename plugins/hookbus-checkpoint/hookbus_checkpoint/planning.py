"""Files that a run will write, for `hookbus plan`."""

from __future__ import annotations

from collections.abc import Iterator

from hookbus import Run
from hookbus.checkpoint import estimate_checkpoint_size
from hookbus.metrics import is_training_metric
from hookbus.writers import PlannedFile
from hookbus_checkpoint.config import CheckpointConfig
from hookbus_checkpoint.file_names import BEST_PREFIX, ITERATION_TEMPLATE, SUFFIX, get_file_stem


def iter_planned_files(config: CheckpointConfig, run: Run) -> Iterator[PlannedFile]:
    """Yield the patterns of the checkpoints of a run that has not started.

    Args:
        config: Settings of the hook.
        run: The run.
    """
    directory, size = config.out_dir or "checkpoints", estimate_checkpoint_size(run, optimizer=config.save_optimizer)
    # Checkpoints that `keep_every` keeps are not counted by `max_keep_ckpts`.
    keep = None if config.keep_every is not None else config.max_keep_ckpts
    if config.interval is not None:
        point = "after_train_epoch" if config.by_epoch else "after_train_iter"
        yield PlannedFile(f"{directory}/{config.template}", point, size=size, keep=keep)
    if config.every is not None:
        yield PlannedFile(f"{directory}/{ITERATION_TEMPLATE}", when=f"every {config.every}", size=size, keep=keep)
    if config.save_last:
        yield PlannedFile(f"{directory}/last{SUFFIX}", when="each checkpoint", size=0, keep=1)
    for metric in config.metrics:
        if run.val_loader is not None or is_training_metric(metric):
            yield from _iter_best_files(config, f"{directory}/{BEST_PREFIX}{get_file_stem(metric)}", size)
    if config.publish:
        yield PlannedFile(f"{directory}/model.safetensors", size=estimate_checkpoint_size(run, optimizer=False))


def _iter_best_files(config: CheckpointConfig, stem: str, size: int | None) -> Iterator[PlannedFile]:
    yield PlannedFile(f"{stem}{SUFFIX}", when="each better result", size=size if config.save_top_k == 1 else 0, keep=1)
    if config.save_top_k != 1:
        keep = None if config.save_top_k < 0 else config.save_top_k
        yield PlannedFile(f"{stem}_epoch_{{}}{SUFFIX}", when="each of the best results", size=size, keep=keep)
