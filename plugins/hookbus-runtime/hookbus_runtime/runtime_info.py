"""What ran, in which versions, where, with which seed and settings: in the log, the status file and the writers."""

from __future__ import annotations

import json
from typing import Any

from hookbus import Hook, Priority, Run
from hookbus.records.secrets import flattened, recordable
from hookbus.runs.ending import write_status
from hookbus_runtime.facts import facts

__all__ = ["RuntimeInfoHook"]


class RuntimeInfoHook(Hook):
    """Tells what runs where: the log and `status.json` when a run begins, every writer when training begins."""

    priority = Priority.VERY_HIGH
    observer = True
    ranks = "main"

    def before_run(self, run: Run) -> None:
        """Find out, log it, and have it in the status file."""
        run.about.update(facts(run.device), seed=run.seed)
        for name, value in {**run.about, **flattened({"config": recordable(run.config)})}.items():
            run.logger.info("%s: %s", name, _as_text(value))
        write_status(run)

    def before_train(self, run: Run) -> None:
        """Give it to the writers; a resumed run has its own seed by now."""
        run.about["seed"] = run.seed
        lines = [f"{name}: {_as_text(value)}" for name, value in run.about.items()]
        run.bus.emit("log_text", tag="runtime_info", text="\n".join(lines))


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)
