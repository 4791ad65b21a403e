"""The tests of what changes most between versions of torch; together they take about four minutes."""

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
# DDP and FSDP with several processes, their end, and workers of loaders.
SLOW_TORCH_TESTS = (
    "tests/data/test_workers.py",
    "tests/distributed/test_exit.py",
    "tests/distributed/test_fsdp_training.py",
    "tests/distributed/test_resume.py",
    "tests/distributed/test_training.py",
)
