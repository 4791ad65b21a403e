"""Environment, seed and configuration of a run, in the log, the status file and the writers."""

from __future__ import annotations

import json
from typing import Any

from hookbus import Hook, Priority, Run
from hookbus.writers import flatten
from hookbus_runtime.environment import collect_environment


class RuntimeInfoHook(Hook):
    """Log the environment of a run: to the log and `status.json` at its start, to all writers before training."""

    priority = Priority.VERY_HIGH
    observer = True
    ranks = "main"

    def before_run(self, run: Run) -> None:
        """Collect and log the environment, and write it to the status file."""
        run.metadata.update(run.redact(collect_environment(run.device)), seed=run.seed)
        for name, value in {**run.redact(run.metadata), **flatten({"config": run.plain_config()})}.items():
            run.logger.info("%s: %s", name, _format_value(value))

    def before_train(self, run: Run) -> None:
        """Log the environment to the writers."""
        # A resumed run restores the seed of the checkpoint after `before_run`.
        run.metadata["seed"] = run.seed
        lines = [f"{name}: {_format_value(value)}" for name, value in run.redact(run.metadata).items()]
        run.bus.emit("log_text", tag="runtime_info", text="\n".join(lines))


def _format_value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)
