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
    "plugins/hookbus-visualization/tests/test_isolated_forward.py",
)
# DDP and FSDP with several processes, and their end.
SLOW_TORCH_TESTS = (
    "tests/distributed/test_exit.py::test_no_rank_aborts_at_the_end_of_a_script[Trainer]",
    "tests/distributed/test_fsdp_training.py",
    "tests/distributed/test_training.py",
)
