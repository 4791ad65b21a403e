"""Training of a short part of a run file in a temporary directory, with a trace of its hooks."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from hookbus._cli.console import error_console, escape_text
from hookbus._cli.trainers import build_trainer
from hookbus.errors import HookbusError
from hookbus.hook import Hook
from hookbus.testing.tracing import record_trace
from hookbus.trainer.dev_run import omit_hooks
from hookbus.writers.hook import WriterHook

if TYPE_CHECKING:
    from hookbus._run.run import Run
    from hookbus.bus import HookBus
    from hookbus.testing.spans import HookTrace

STOP_HOOK = "trace_end"
"""Name of the hook that ends the training."""


class TraceEndHook(Hook):
    """Stop the training after a number of iterations. Its limits, on which schedules depend, are those of the file."""

    def __init__(self, iterations: int) -> None:
        super().__init__()
        self._last = iterations

    def after_train_iter(self, run: Run) -> None:
        """Stop after the last traced iteration."""
        if run.iters_done >= self._last:
            run.request_stop(f"{self._last} iterations traced")


def trace_training(file: Path, overrides: Sequence[str], iterations: int) -> list[HookTrace]:
    """Train some iterations of a run file in a temporary directory, and return the trace of each rank.

    Args:
        file: Run file.
        overrides: Overrides of the command line.
        iterations: Number of iterations.

    Raises:
        HookbusError: If the file is invalid, or the training fails or ends without an iteration.
    """
    with _temporary_directory() as directory:
        trainer = build_trainer(file, [*overrides, f"work_dir={directory}", "resume=never"])
        trainer.work_dir = trainer.ranks.broadcast("the temporary directory", str(directory))
        for name, reason in _omit_hooks_with_outside_output(trainer.bus, directory).items():
            error_console().print(escape_text(f"{name}: omitted, because it {reason}."), soft_wrap=True)
        # Standard output contains only the result.
        trainer.register_service("console", error_console())
        trainer.register_hook(TraceEndHook(iterations), STOP_HOOK)
        with record_trace(trainer.bus, without=[STOP_HOOK]) as trace:
            trainer.fit()
        if not trace.iterations:
            raise HookbusError(f"{file}: the training ended without an iteration. Check the loader and the limits.")
        return trainer.ranks.all_gather("the trace", trace)


@contextmanager
def _temporary_directory() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="hookbus-trace-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _omit_hooks_with_outside_output(bus: HookBus, directory: Path) -> dict[str, str]:
    """Unregister the hooks that would write outside of a directory; return the reason for each of them."""
    reasons = {name: reason for name, hook in bus.hooks.items() if (reason := _find_outside_output(hook, directory))}
    omit_hooks(bus, lambda hook: _find_outside_output(hook, directory))
    return reasons


def _find_outside_output(hook: object, directory: Path) -> str:
    """Return the reason for which a hook is omitted, "" if it writes into the directory only."""
    if not isinstance(hook, Hook):
        return ""
    if isinstance(hook, WriterHook) and not hook.output_paths:
        return "may send data to a service"
    for setting, path in hook.output_paths.items():
        is_outside = path is not None and Path(path).is_absolute() and not Path(path).is_relative_to(directory)
        if is_outside or "://" in str(path):
            return f"writes to {setting}={path}"
    return ""
