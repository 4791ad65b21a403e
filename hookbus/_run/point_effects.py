"""Statements that the bus executes at a point, before and after its listeners.

The tables define at which points the clock advances, the defaults of arguments, after which points requests are
processed, and which statements follow. The strings are statements of the generated function of a point, see
`hookbus._events.codegen`, in which `_run`, `_clock`, `_metrics` and `_process_requests` are available.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hookbus._events.points import Point
from hookbus._run.requests import AFTER_VAL, RECORDED_POINTS, VALIDATION_POINTS, process_requests
from hookbus.metrics.logged import EVALUATIONS
from hookbus.metrics.results import Metrics

if TYPE_CHECKING:
    from hookbus._run.hook_budget import HookBudget
    from hookbus._run.run import Run

PROLOGUE: dict[str, list[str]] = {
    "before_run": ["_run.participants.begin()"],
    "before_train": [
        "_run.participants.open('train')",
        "_clock.start()",
        "_run.journal.begin('training')",
        "_run.optimizer_events.is_paused = True",
    ],
    "before_epoch": ["_run.participants.open('epoch')", "_run.training_data.begin_epoch()"],
    "before_train_epoch": ["_run.participants.open('train_epoch')", "_run.training_data.begin_epoch()"],
    "before_train_iter": ["_clock.begin_iter(batch)"],
    "after_train_iter": ["_clock.end_iter(batch)", "_metrics.log_outputs(outputs, loss)"],
    "after_train_epoch": [
        "_run.participants.close('train_epoch')",
        "_run.boundary_state.record_hooks()",
        "_run.training_data.end_epoch()",
        "_run.optimizer_events.report_idle()",
    ],
    "after_epoch": [
        "_run.participants.close('epoch')",
        "_run.boundary_state.record_hooks()",
        "_run.training_data.end_epoch()",
    ],
    "after_train": [
        "_run.participants.close('train')",
        "_run.history_recorder.end_training()",
        "_clock.stop()",
        "_run.journal.end('training')",
        "_run.optimizer_events.report_idle()",
    ],
    "after_run": ["_run.participants.close('run')"],
}
COUNTED = {
    "before_optimizer_step": "_run.optimizer_events.begin_emitted(optimizer)",
    "after_optimizer_step": "_run.optimizer_events.count_emitted(optimizer)",
}
"""Statements of a loop that counts its optimizer steps."""
CONVERTED_POINTS = frozenset(f"after_{name}" for name in ("train_epoch", "epoch", "train", *EVALUATIONS))
CONVERT_METRICS = "if metrics is not None: metrics = _to_metrics(metrics)"
"""Statement that makes the metrics that a custom loop passes read-only, at the points that do not name them."""
EPILOGUE: dict[str, list[str]] = {
    # An optimizer step of a listener before the training is not one of the training.
    "before_train": ["_run.optimizer_events.is_paused = False"],
    "after_train_iter": ["_metrics.row += 1", "_run.should_skip_iter = False"],
    "after_epoch": ["_run.history_recorder.record_epoch()"],
}
AFTER_REQUESTS: dict[str, list[str]] = {
    # The results of the last validation do not apply to the exchanged weights.
    "after_train": ["if _run.weights.finish(): _run.validations.validated_at = -1"]
}

QUALIFY = "dataloader_name = _run.validations.qualify(dataloader_name)"
"""Statement that names the loader by the average that is evaluated, if it is not the primary one."""

for _kind in EVALUATIONS:
    PROLOGUE[f"before_{_kind}"] = [f"_run.validations.enter({_kind!r})"]
    PROLOGUE[f"before_{_kind}_epoch"] = [QUALIFY, f"_run.validations.begin_loader({_kind!r}, dataloader_name)"]
    PROLOGUE[f"before_{_kind}_iter"] = [
        QUALIFY,
        f"_run.validations.begin_batch({_kind!r}, batch_idx, batch, dataloader_name)",
    ]
    PROLOGUE[f"after_{_kind}_iter"] = [
        QUALIFY,
        f"_run.validations.end_batch({_kind!r}, batch_idx, batch, outputs, loss, dataloader_name)",
    ]
    PROLOGUE[f"after_{_kind}_epoch"] = [
        QUALIFY,
        f"metrics = _run.validations.end_loader({_kind!r}, metrics, dataloader_name)",
    ]
    EPILOGUE[f"after_{_kind}_epoch"] = [f"_run.validations.close_loader({_kind!r}, dataloader_name)"]
    PROLOGUE[f"after_{_kind}"] = [f"_run.validations.end({_kind!r}, metrics)"]
    EPILOGUE[f"after_{_kind}"] = [f"_run.validations.finish({_kind!r})"]
PROLOGUE["after_predict_iter"] = [
    "indices = _run.validations.end_prediction(batch_idx, batch, indices, dataloader_name)"
]

DEFAULTS = {
    "step": "_clock.steps_done",
    "batch_idx": "_clock.batch",
    "epoch": "_clock.epoch",
    "model": "_run.model",
    "optimizer": "_run.optimizer",
    "mode": "_run.mode",
    "config": "_run.plain_config()",
    "loss": "_get_loss(outputs)",
    "metrics": "_run.all_metrics()",
}
"""Default of each argument that the caller omits, at every point that has the argument."""


def prologue(point: str, run: Run) -> list[str]:
    """Return the statements before the listeners of a point."""
    if point in COUNTED and run.counts_steps:
        # Otherwise the step hooks of the optimizers count the steps.
        return [COUNTED[point]]
    is_waiting = point == "after_train_iter" and run.participants.has_waiting("iteration")
    is_measured = point == "before_train_iter" and run.hook_budget is not None and run.hook_budget.is_sampling
    return [
        *(["_hook_budget.begin_iter()"] if is_measured else []),
        *PROLOGUE.get(point, []),
        *([CONVERT_METRICS] if point in CONVERTED_POINTS else []),
        *(["_run.participants.end_waiting('iteration')"] if is_waiting else []),
    ]


def epilogue(point: str, run: Run) -> list[str]:
    """Return the statements after the listeners of a point.

    If requests are synchronized across ranks, they are synchronized at every boundary, on every rank.
    """
    # Synchronization is a collective call: it must not depend on whether this rank has a request.
    call = f"_process_requests(_run, {point!r})"
    # A run that ends at its limit saves its last checkpoint there, also if nothing is pending.
    has_limit = run.max_iters is not None or run.max_tokens is not None
    at_limit = " or _clock.limit_reached" if point == "after_train_iter" and has_limit else ""
    processing = [call if run.request_sync.active else f"if _run.pending{at_limit}: {call}"]
    skips = ["_run.request_sync.sync_skip()"] if point in run.request_sync.skipping else []
    records = ["_run.boundary_state.record()"] if point in RECORDED_POINTS and run.boundary_state.is_needed else []
    return [
        *(_measure_iteration(run.hook_budget) if point == "after_train_iter" and run.hook_budget is not None else []),
        *skips,
        *EPILOGUE.get(point, []),
        *records,
        *(processing if point in VALIDATION_POINTS or (point == AFTER_VAL and run.auto_nesting) else []),
        *AFTER_REQUESTS.get(point, []),
    ]


def _measure_iteration(budget: HookBudget) -> list[str]:
    """Return the statements at the end of an iteration of a run with a budget of the hooks."""
    if budget.is_sampling:
        return ["_hook_budget.end_iter()"]
    return ["if _clock.iters_done >= _hook_budget.next: _hook_budget.start()"]


def default_arguments(point: Point) -> dict[str, str]:
    """Return the defaults of the arguments of a point, by name."""
    defaults = {name: text for name, text in DEFAULTS.items() if name in point.args}
    if "outputs" not in point.args:
        # The default loss is taken from the outputs.
        defaults.pop("loss", None)
    if point.name.removeprefix("after_") in EVALUATIONS:  # the results of all loaders
        defaults["metrics"] = f"_run.validations.get_results({point.name.removeprefix('after_')!r})"
    return defaults


def namespace(run: Run) -> dict[str, Any]:
    """Return the globals of the statements."""
    return {
        "_run": run,
        "_metrics": run.metrics,
        "_hook_budget": run.hook_budget,
        "_process_requests": process_requests,
        "_get_loss": _get_loss,
        "_to_metrics": _to_metrics,
    }


def _to_metrics(metrics: Any) -> Any:
    """Return metrics as a read-only dict."""
    return metrics if isinstance(metrics, Metrics) or not isinstance(metrics, Mapping) else Metrics(metrics)


def _get_loss(outputs: Any) -> Any:
    return outputs.get("loss") if isinstance(outputs, dict) else None
