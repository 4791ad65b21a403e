"""The tests of what changes most between versions of torch, and few enough for each `.ci/run`."""

from __future__ import annotations

__all__ = ["FAST_TORCH_TESTS", "SLOW_TORCH_TESTS"]

# Checkpoints, loaders, optimizers, AMP, RNG states, averaged weights, profilers, guards.
FAST_TORCH_TESTS = (
    "tests/checkpoint",
    "tests/data",
    "tests/distributed",
    "tests/run/test_belongings.py",
    "tests/run/test_optimizer_steps.py",
    "tests/run/test_sandbox.py",
    "tests/run/test_weights.py",
    "tests/test_averaged_weights.py",
    "tests/test_golden_run.py",
    "tests/test_schedule_free.py",
    "tests/training",
    "plugins/hookbus-checkpoint",
    "plugins/hookbus-ema",
    "plugins/hookbus-gradient-flow",
    "plugins/hookbus-guards",
    "plugins/hookbus-profiler",
    "plugins/hookbus-schedule",
    "plugins/hookbus-sync",
    "tests/training/test_isolation.py",
)
# DDP and FSDP with several processes, and their end: one test of each kind.
SLOW_TORCH_TESTS = (
    "tests/distributed/test_exit.py::test_no_rank_aborts_at_the_end_of_a_script[Trainer]",
    "tests/distributed/test_fsdp_training.py::test_weights_averages_and_metrics_match_a_single_process_run",
    "tests/distributed/test_fsdp_training.py::test_run_of_two_ranks_resumes_with_one_rank_and_with_four",
    "tests/distributed/test_training.py::test_hooks_receive_the_unwrapped_model_and_gradients_average_once_per_step",
    "tests/distributed/test_training.py::test_custom_loop_with_its_own_process_group_stops_on_all_ranks",
)
