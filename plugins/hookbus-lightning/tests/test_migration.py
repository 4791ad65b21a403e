"""Each row of the migration page for Lightning has a test, or a reason why it has none."""

from __future__ import annotations

import pytest

pytest.importorskip("lightning", reason="Lightning is not installed: run `make bridges HOST=lightning`")

from tests.migration_page import read_rows

from . import test_migration_checkpoints as checkpoints
from . import test_migration_finders as finders
from . import test_migration_logs as logs
from . import test_migration_points as points
from . import test_migration_predictions as predictions
from . import test_migration_training as training

TESTS = {
    ("`setup`, `on_fit_start`", "`before_run`"): points.test_method_and_point_are_called_between_the_same_steps,
    (
        "`on_sanity_check_start`, `on_sanity_check_end`",
        "`before_val`, `after_val` if `run.sanity_checking`",
    ): points.test_sanity_check_is_a_validation,
    (
        "`on_train_start`, `on_train_end`",
        "`before_train`, `after_train`",
    ): points.test_method_and_point_are_called_between_the_same_steps,
    (
        "`on_train_epoch_start`, `on_train_epoch_end`",
        "`before_epoch`, `after_epoch`",
    ): points.test_method_and_point_are_called_between_the_same_steps,
    (
        "`on_train_batch_start`, `on_train_batch_end`",
        "`before_train_iter`, `after_train_iter`",
    ): points.test_method_and_point_are_called_between_the_same_steps,
    (
        "`on_before_backward`, `on_after_backward`",
        "`after_forward`, `after_backward`",
    ): points.test_method_and_point_are_called_between_the_same_steps,
    (
        "`on_before_optimizer_step`",
        "`before_optimizer_step`; in addition `after_optimizer_step`",
    ): points.test_method_and_point_are_called_between_the_same_steps,
    (
        "`on_before_zero_grad`",
        "`after_optimizer_step`, with the same gradients; Lightning calls it in the next iteration",
    ): points.test_gradients_of_a_step_are_present_after_it_and_before_they_are_set_to_zero,
    (
        "`on_validation_start`, `on_validation_end`",
        "`before_val`, `after_val`",
    ): points.test_method_and_point_are_called_between_the_same_steps,
    (
        "`on_validation_epoch_start`, `on_validation_epoch_end`",
        "`before_val_epoch`, `after_val_epoch`; once per loader",
    ): points.test_epoch_of_a_validation_is_one_for_each_loader,
    (
        "`on_validation_batch_start`, `on_validation_batch_end`",
        "`before_val_iter`, `after_val_iter`",
    ): points.test_method_and_point_are_called_between_the_same_steps,
    ("`on_test_…`", "`before_test…`, `after_test…`"): points.test_points_of_a_test,
    (
        "`on_save_checkpoint`, `on_load_checkpoint`",
        "`before_save_checkpoint`, `after_load_checkpoint`",
    ): points.test_checkpoint_is_saved_and_loaded,
    ("`on_exception`", "`on_exception`"): points.test_error_is_reported_and_the_run_is_cleaned_up,
    (
        "`on_fit_end`, `teardown`",
        "`after_run`, `cleanup`, also after an error",
    ): points.test_error_is_reported_and_the_run_is_cleaned_up,
    (
        "`on_predict_…`",
        "`before_predict…`, `after_predict…` in `Trainer.predict`; `trainer.predict` of Lightning emits none",
    ): points.test_points_of_a_prediction,
    ("`state_dict`, `load_state_dict`", "the same"): points.test_state_is_saved_and_restored,
    ('`pl_module.log("x", x)`', "`run.log(x=x)`"): points.test_logged_value_is_the_same,
    ("`trainer.should_stop = True`", '`run.request_stop("reason")`'): points.test_stop_ends_at_the_same_step,
    (
        "`trainer.global_step`, `trainer.current_epoch`",
        "`run.steps_done`, `run.epoch`",
    ): points.test_counters_are_the_same,
    ("`trainer.sanity_checking`", "`run.sanity_checking`"): points.test_sanity_check_is_known,
    (
        "`ModelCheckpoint`",
        "`checkpoint`",
    ): checkpoints.test_checkpoints_of_epochs_have_the_same_weights_and_continue_to_the_same_result,
    (
        "`save_top_k` of `ModelCheckpoint`",
        "`checkpoint` with `save_top_k`; `monitor` and `mode` are `save_best: {val_loss: less}`",
    ): checkpoints.test_checkpoints_of_the_best_two_validations_are_the_same,
    (
        "`filename` of `ModelCheckpoint`",
        '`checkpoint` with `filename_tmpl: "{epoch}-{val_loss:.2f}"`, with completed epochs and without the names of '
        "the fields",
    ): checkpoints.test_checkpoints_of_the_best_two_validations_are_the_same,
    (
        "`save_on_train_epoch_end`",
        "`checkpoint` with `best_metric: train/loss`",
    ): checkpoints.test_best_epoch_and_stop_depend_on_the_training_loss,
    (
        "`check_on_train_epoch_end`",
        "`early_stopping` with `monitor: train/loss`",
    ): checkpoints.test_best_epoch_and_stop_depend_on_the_training_loss,
    (
        '`ckpt_path="last"`',
        "`checkpoint`, with `resume: auto`",
    ): checkpoints.test_checkpoints_of_epochs_have_the_same_weights_and_continue_to_the_same_result,
    (
        "`SLURMEnvironment`",
        "`preemption`, which stops the training instead of requeueing the job",
    ): checkpoints.test_signal_of_slurm_saves_the_same_step,
    (
        "`EarlyStopping`",
        "`early_stopping`, which also restores the best weights by default",
    ): training.test_training_stops_after_the_same_validation,
    (
        "`EMAWeightAveraging`",
        "`ema` with `warm_up: 0` and `start_step: 1`; `update_starting_at_step=n` is `start_step: n + 1`",
    ): training.test_averages_have_the_same_decay_and_start,
    (
        "`StochasticWeightAveraging`",
        "`swa` with `swa_lrs`; it averages the weights after each epoch, not those before it",
    ): training.test_last_epochs_are_averaged_at_the_same_learning_rates,
    (
        "`update_starting_at_epoch`",
        "`ema` with `start_epoch`; its first average is that of the weights at the start of the epoch",
    ): training.test_average_starts_with_an_epoch,
    (
        "`check_val_every_n_epoch`",
        "`eval`, by default also at the end",
    ): training.test_validations_follow_the_same_epochs,
    ("`lr_scheduler`", "`param_scheduler`"): training.test_learning_rates_are_the_same,
    (
        "`LearningRateFinder`",
        "`lr_finder` with `apply: true`; its slope is that over the logarithm of the learning rate",
    ): finders.test_learning_rates_and_losses_of_the_range_test,
    (
        "`BatchSizeFinder`",
        "`batch_size_finder` with `apply: true`; the default margin applies to both modes",
    ): finders.test_batch_size_is_the_same,
    ("`trainer.predict`", "`Trainer.predict(loader)`, which returns the batches as one"): predictions.test_predictions,
    (
        "`BasePredictionWriter`",
        "`predictions` with `interval`, whose values are the same",
    ): predictions.test_written_predictions,
    (
        "`GradientAccumulationScheduler`",
        "`accumulation`, with epochs counted from 1",
    ): training.test_batches_are_accumulated_from_the_same_epoch_on,
    ("`BaseFinetuning`", "`freeze`"): training.test_layer_is_frozen_for_the_same_epochs,
    (
        "`detect_anomaly`",
        "`check_invalid_loss`, which names no function of the backward pass",
    ): training.test_invalid_loss_ends_the_training_in_the_same_iteration,
    ("`Timer`", "`time_limit`"): training.test_time_limit_ends_the_training_after_the_same_step,
    (
        "`ThroughputMonitor` with `length_fn`",
        "`iter_timer` with `flops_per_batch`, `time_tracking`; `training.batch_tokens` counts tokens",
    ): logs.test_throughput_of_tokens,
    ("`RichProgressBar`", "`progress`"): logs.test_progress,
    ("`CSVLogger`", "`csv`, with all values of a step in one row"): logs.test_csv,
    ("`TensorBoardLogger`", "`tensorboard`"): logs.test_tensorboard,
    ("`MLFlowLogger`", "`mlflow`"): logs.test_mlflow,
    ("`DeviceStatsMonitor`", "`system_monitor`, `memory_profiler`"): logs.test_statistics_of_the_device,
    ("`PyTorchProfiler`", "`profiler`"): logs.test_profiler,
    (
        "`use_distributed_sampler`",
        "`dist_sampler_seed` for the epochs of a sampler in a custom loop",
    ): training.test_sampler_receives_the_same_epochs,
    ("`WandbLogger`", "`wandb`"): logs.test_wandb,
    (
        "`LearningRateMonitor`",
        "`logger` and every writer log `lr`, with `log_momentum`, `log_weight_decay` and `logging_interval`",
    ): logs.test_optimizer_values,
    (
        "`DDPStrategy`, `FSDPStrategy`",
        "`training.distributed: ddp` or `fsdp2`",
    ): "several ranks; tests/distributed runs the strategies of hookbus",
    ("`gradient_clip_val`", "`training.clip_grad_norm`"): training.test_gradients_are_clipped_to_the_same_norm,
    (
        "`sync_batchnorm`",
        "`sync_norm` synchronizes the state of the layers, not the batch statistics",
    ): "several ranks; the page names the difference",
    ("`grad_norm`", "`gradient_flow`"): logs.test_norms_of_gradients,
    ("`ModelSummary`", "`model_summary`, or `hookbus summary run.yaml`"): logs.test_model_summary,
    ("`LambdaCallback`", '`@bus.on("after_train_iter")`'): training.test_function_is_called_at_the_same_iterations,
    (
        "`limit_train_batches`, `limit_val_batches`",
        "`training.limit_train_batches`, `training.limit_val_batches`",
    ): training.test_limits_select_the_same_batches,
    ("`limit_test_batches`", "`training.limit_test_batches`"): training.test_limit_of_the_test,
    (
        "`overfit_batches`",
        "`training.overfit_batches`, which leaves the samples of a custom sampler to the sampler",
    ): training.test_overfitted_batches_are_the_same,
    (
        "`fast_dev_run`",
        "`training.fast_dev_run`, or `hookbus train run.yaml --fast-dev-run`",
    ): training.test_fast_dev_run_trains_the_same_batch,
    (
        "`num_sanity_val_steps`",
        "`training.validate_first` with all batches, or `hookbus check`",
    ): training.test_validation_before_the_training_has_all_batches,
}
"""Test of each row; a text is the reason why a row is not executed."""


def test_each_row_has_a_test() -> None:
    assert [*TESTS] == read_rows("Lightning")
