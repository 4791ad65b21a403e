"""The tests of what depends on torch most, which take minutes: what they use changes between its versions."""

from __future__ import annotations

__all__ = ["TORCH_TESTS"]

# Process groups, checkpoints, the state of optimizers and of RNGs, loaders, AMP, profilers, averaged weights.
TORCH_TESTS = (
    "tests/checkpoint",
    "tests/data",
    "tests/distributed",
    "tests/run/test_optimizer_steps.py",
    "tests/run/test_sandbox.py",
    "tests/test_averaged_weights.py",
    "tests/test_golden_run.py",
    "tests/test_schedule_free.py",
    "tests/test_trainer_and_custom_loop_agree.py",
    "tests/training",
    "tests/utils",
    "tests/writers",
    "plugins/hookbus-checkpoint",
    "plugins/hookbus-ema",
    "plugins/hookbus-guards",
    "plugins/hookbus-profiler",
    "plugins/hookbus-schedule",
    "plugins/hookbus-sync",
)
