"""What the bus itself does at a point, before and after its listeners.

Here it is written, in one place, which points move the clock, what an argument is filled with that the caller left
out, after which points requests are settled, and what comes after that. The texts are statements of the generated
function of a point (see `dispatch.compiling`), in which `_run`, `_clock`, `_metrics` and `_settle` are known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hookbus.lifecycle import Point
from hookbus.requests import SETTLING, settle

if TYPE_CHECKING:
    from hookbus.run import Run

__all__ = ["fill_for", "finally_for", "first_for", "names_for"]

FIRST: dict[str, list[str]] = {
    "before_train": ["_clock.start()"],
    "before_epoch": ["_run.training_data.begin_epoch()"],
    "before_train_epoch": ["_run.training_data.begin_epoch()"],
    "before_train_iter": ["_clock.begin_iter(batch)"],
    "after_train_iter": ["_clock.end_iter(batch)", "_metrics.note(outputs, loss)"],
    "after_train_epoch": ["_clock.end_epoch()"],
    "after_epoch": ["_clock.end_epoch()"],
    "after_train": ["_clock.stop()"],
}
RESULTS = {f"after_{kind}{part}": kind for kind in ("val", "test") for part in ("", "_epoch")}
"""Points at which `metrics` are the results of a validation or a test."""
FINALLY: dict[str, list[str]] = {"after_train_iter": ["_metrics.row += 1", "_run.should_skip_iter = False"]}
SETTLED: dict[str, list[str]] = {
    "after_train": ["if _run.weights.finish(): _run.validations.validated_at = -1"]  # that judged other weights
}

for _kind in ("val", "test"):
    FIRST[f"before_{_kind}"] = [f"_run.validations.enter({_kind!r})"]
    FIRST[f"before_{_kind}_epoch"] = ["_run.validations.begin_loader()"]
    FIRST[f"before_{_kind}_iter"] = ["_run.validations.begin_batch(batch_idx, batch)"]
    FIRST[f"after_{_kind}_iter"] = ["_run.validations.end_batch(batch_idx, batch, outputs, loss)"]
    FIRST[f"after_{_kind}_epoch"] = [f"metrics = _run.validations.end_loader({_kind!r}, metrics, dataloader_name)"]
    FINALLY[f"after_{_kind}"] = ["_run.validations.leave()"]

KNOWN = {
    "step": "_clock.steps_done",
    "batch_idx": "_clock.batch",
    "epoch": "_clock.epoch",
    "model": "_run.model",
    "optimizer": "_run.optimizer",
    "mode": "_run.mode",
    "config": "_run.plain_config()",
    "loss": "_loss_in(outputs)",
    "metrics": "_run.all_metrics()",
}
"""What an argument is when the caller left it out, wherever the point has it."""


def first_for(point: str, run: Run) -> list[str]:
    """What is done before the listeners of a point."""
    if point == "after_optimizer_step" and run.counts_steps:
        return ["_clock.count_step()"]
    return FIRST.get(point, [])


def finally_for(point: str, run: Run) -> list[str]:
    """What is done after the listeners of a point. Where ranks agree on requests, they do so at every boundary."""
    settles = [f"_settle(_run, {point!r})" if run.decisions.active else f"if _run.pending: _settle(_run, {point!r})"]
    skips = ["_run.decisions.agree_to_skip()"] if point in run.decisions.skipping else []
    return [*skips, *FINALLY.get(point, []), *(settles if point in SETTLING else []), *SETTLED.get(point, [])]


def fill_for(point: Point) -> dict[str, str]:
    """What the arguments of a point are filled with, by name."""
    filled = {name: text for name, text in KNOWN.items() if name in point.args}
    if "outputs" not in point.args:
        filled.pop("loss", None)
    if point.name in RESULTS:
        filled["metrics"] = f"_run.validations.results({RESULTS[point.name]!r})"
    return filled


def names_for(run: Run) -> dict[str, Any]:
    """What the texts may name."""
    return {"_run": run, "_metrics": run.metrics, "_settle": settle, "_loss_in": _loss_in}


def _loss_in(outputs: Any) -> Any:
    return outputs.get("loss") if isinstance(outputs, dict) else None
