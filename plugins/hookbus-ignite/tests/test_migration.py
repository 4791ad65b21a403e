"""Each row of the page for users of Ignite: what it claims to be equivalent."""

from __future__ import annotations

import pytest

pytest.importorskip("ignite", reason="ignite is not installed: run `make bridges HOST=ignite`")

from tests.migration_page import read_rows

from .migration_handlers import (
    test_averages,
    test_best_checkpoints,
    test_checkpoint,
    test_early_stopping,
    test_evaluator,
    test_invalid_loss,
    test_learning_rates,
    test_learning_rates_with_warm_up,
    test_range_test,
    test_restored_checkpoint,
    test_time_limit,
    test_times,
)
from .migration_loggers import (
    gpu,
    offline_wandb,
    test_gpu,
    test_histograms,
    test_mlflow,
    test_progress,
    test_tensorboard,
    test_wandb,
)
from .migration_points import (
    test_counters,
    test_end_of_a_validation,
    test_events_of_the_user,
    test_exception,
    test_filters_by_a_function,
    test_filters_of_events,
    test_requests,
    test_start_and_end_of_epochs,
    test_start_and_end_of_iterations,
    test_start_and_end_of_the_training,
)

__all__ = ["gpu", "offline_wandb"]  # fixtures

TESTS = {
    ("`Events.STARTED`, `Events.COMPLETED`", "`before_train`, `after_train`"): test_start_and_end_of_the_training,
    ("`Events.EPOCH_STARTED`, `Events.EPOCH_COMPLETED`", "`before_epoch`, `after_epoch`"): test_start_and_end_of_epochs,
    (
        "`Events.ITERATION_STARTED`, `Events.ITERATION_COMPLETED`",
        "`before_train_iter`, `after_train_iter`",
    ): test_start_and_end_of_iterations,
    ("`Events.EXCEPTION_RAISED`", "`on_exception`, once, and only if the exception ends the training"): test_exception,
    ("an evaluator's `Events.COMPLETED`", "`after_val`"): test_end_of_a_validation,
    ("`(every=50)`, `(once=3)`", "`when=every(50)`, `when=once(3)`"): test_filters_of_events,
    (
        "`(event_filter=f)`",
        "`when=lambda run: ...`; `when=every(0.1)` is due ten times in the run",
    ): test_filters_by_a_function,
    (
        "`engine.register_events`, `engine.fire_event`",
        "`bus.declare` and the function that it returns",
    ): test_events_of_the_user,
    (
        "`engine.state.iteration`, `engine.state.epoch`",
        "`run.iter + 1`, `run.epoch + 1`; after the iteration or the epoch also `run.iters_done`, `run.epochs_done`",
    ): test_counters,
    (
        "`engine.terminate()`, `engine.terminate_epoch()`",
        "`run.request_stop()`, `run.request_stop_epoch()`",
    ): test_requests,
    ("`Checkpoint`", "`checkpoint`"): test_checkpoint,
    ("`n_saved` with a score function", "`checkpoint` with `save_top_k`"): test_best_checkpoints,
    ("`Checkpoint.load_objects`", "`checkpoint`, with `resume: auto`"): test_restored_checkpoint,
    (
        "`EarlyStopping`",
        "`early_stopping` with `restore_best_weights: false`, and with a `min_delta` `cumulative_delta: false` unless "
        "`cumulative=True`",
    ): test_early_stopping,
    (
        "`EMAHandler`",
        "`ema` with `warm_up: 0`, once per optimizer step; `momentum=0.0002` is `momentum: 0.9998`",
    ): test_averages,
    ("an evaluator at `EPOCH_COMPLETED(every=2)`", "`eval` with `interval: 2`, `at_end: false`"): test_evaluator,
    ("`LRScheduler`", "`param_scheduler` with `interval: step`, which is an optimizer step"): test_learning_rates,
    ("`TerminateOnNan`", "`check_invalid_loss` with `policy: stop`, `interval: 1`"): test_invalid_loss,
    ("`TimeLimit`", "`time_limit` with `per_run: true`"): test_time_limit,
    ("`BasicTimeProfiler`", "`iter_timer`, `time_tracking`"): test_times,
    ("`ProgressBar`", "`progress`"): test_progress,
    ("`TensorboardLogger`", "`tensorboard`"): test_tensorboard,
    ("`MLflowLogger`", "`mlflow`"): test_mlflow,
    ("`GpuInfo`", "`system_monitor`, without memory that the driver reserves; `memory_profiler`"): test_gpu,
    ("`WandBLogger`", "`wandb`"): test_wandb,
    (
        "`WeightsHistHandler`, `GradsHistHandler`",
        "`tensorboard` with `log_weights: true`, `log_gradients: true`, before the optimizer step; `gradient_flow`",
    ): test_histograms,
    (
        "`FastaiLRFinder`",
        "`lr_finder` with `smoothing: 0.95`, whose average is bias-corrected, and `early_stop_threshold: 5.0`",
    ): test_range_test,
    (
        "`create_lr_scheduler_with_warmup`",
        "`param_scheduler` with `interval: step` and `lr_scheduler.SequentialLR`",
    ): test_learning_rates_with_warm_up,
}
"""Test of each row, which must change with the row."""


def test_each_row_has_a_test() -> None:
    assert read_rows("Ignite") == list(TESTS)
