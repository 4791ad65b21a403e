"""Tracking of the best results, and export of their weights as safetensors."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor

from hookbus import BestResult, Direction, Hook, Run
from hookbus.checkpoint import CheckpointStore, atomic_write, flatten_weights, read_checkpoint
from hookbus.distributed import to_full_tensors
from hookbus.errors import CheckpointError, ConfigError, HookWarning, MetricError, format_path
from hookbus.metrics import Metrics, infer_direction, resolve_metric_name
from hookbus_checkpoint.config import CheckpointConfig, get_file_stem


class BestTracker:
    """Compare results with the best so far, which are stored in `run.best`.

    Args:
        config: Configuration with the metrics and their directions.
    """

    def __init__(self, config: CheckpointConfig) -> None:
        self._config = config
        # Directions of the metrics that other hooks request.
        self._requested: dict[str, Direction | None] = {}
        # Metrics that other hooks request and that every validation has to provide.
        self._required: set[str] = set()
        # Configured names of the metrics, by full name.
        self._names: dict[str, str] = {}
        # Directions of the best results, by full name.
        self._directions: dict[str, Direction] = {}
        self._warned = False

    def collect_requested_metrics(self, hooks: Iterable[object]) -> None:
        """Collect the metrics whose best checkpoint other hooks request; none with `save_best: false`.

        Raises:
            ConfigError: If two hooks request different directions of a metric.
        """
        self._requested, self._required = {}, set()
        if self._config.save_best is False:
            return
        requests = [
            (hook, *request) for hook in hooks if isinstance(hook, Hook) for request in hook.best_metrics.items()
        ]
        known = {metric: self._config.rule or infer_direction(metric) for metric in self._config.metrics}
        # Explicit directions first: a hook that sets none follows the others.
        for hook, metric, requested in sorted(requests, key=lambda request: request[2] is None):
            rule = requested or known.get(metric) or infer_direction(metric)
            if (other := known.setdefault(metric, rule)) != rule:
                problem = f"the direction of {metric!r} must be {other} as in another hook, got {rule}"
                raise ConfigError([f"hook {hook.name!r}: {problem}. Set the same direction in both hooks."])
            self._requested[metric] = rule
            self._required |= {metric} & {*hook.required_metrics}

    def reset_flipped(self, run: Run) -> None:
        """Reset the best results of metrics whose direction changed, since they may now be the worst ones."""
        for full, rule in list(self._directions.items()):
            configured = self._names[full]
            is_tracked = self._config.save_best == "auto" or configured in {*self._config.metrics, *self._requested}
            if is_tracked and full in run.best and (current := self._get_direction(configured)) != rule:
                message = "The direction of %s changed from %s to %s; its best result is reset."
                run.logger.warning(message, full, rule, current)
                del run.best[full], self._directions[full]

    def missing_best_files(self, run: Run) -> Iterator[tuple[str, BestResult]]:
        """Yield best results of a resumed run whose files have to be written again.

        A file does not contain the best result if a save was interrupted before its link was created, if the file was
        deleted, or if the run resumes from an older checkpoint. If the weights of the best result are not those of the
        run, the file cannot be written: a warning is logged, and the path of the result is removed.

        Yields:
            Full names of metrics with their best results.
        """
        # Rank 0 decides, because other ranks may not see its directory.
        own = [metric for metric in run.best if metric in self._names]
        for metric in run.ranks.call_on_main("the best files", lambda: [m for m in own if _is_missing(run.best[m])]):
            best = run.best[metric] = replace(run.best[metric], path=None)
            if best.step == run.steps_done and self._config.save_best is not False:
                yield metric, best
            else:
                message = "No checkpoint of the best %s is available (%.6g in epoch %s)."
                run.logger.warning(message, metric, best.value, best.epoch)

    def iter_improvements(self, run: Run, metrics: Metrics) -> Iterator[tuple[str, BestResult]]:
        """Yield the metrics that improved.

        A metric that an earlier validation provided and this one lacks is skipped.

        Yields:
            Full names of metrics with their new best results.

        Raises:
            MetricError: If a required metric, of this or another hook, was never provided. The message lists all
                metrics.
            ConfigError: If `auto` selected a metric whose name implies no direction, or two metrics would share a file.
        """
        # Two configured names may resolve to the same metric.
        done: set[str] = set()
        for configured in dict.fromkeys([*self._get_metrics(metrics), *self._requested]):
            full = self._resolve_name(run, configured, metrics)
            if full is None or full in done:
                continue
            done.add(full)
            self._register_name(full, configured)
            best, rule = run.best.get(full), self._get_direction(configured)
            self._directions[full] = rule
            if is_better(metrics[full], None if best is None else best.value, rule):
                # Validation evaluates the averaged weights if a hook averages, so `publish` has to write those.
                weights = run.weights.describe(full)
                yield full, BestResult(metrics[full], run.current("epoch"), run.steps_done, weights)

    def warn_if_unused(self, run: Run, hook: str) -> None:
        """Log a warning if no validation has provided the metrics of the configuration, unless they are the default."""
        if self._config.save_best is not False and not (self._config.has_default_metric or self._names):
            metrics = ", ".join(map(repr, self._config.metrics)) or "a metric"
            run.logger.warning("%s: no validation provided %s; no best checkpoint was kept.", hook, metrics)

    def file_name(self, metric: str) -> str:
        """Return the file name of a best checkpoint, such as `best_accuracy.pth`."""
        return f"best_{get_file_stem(self._names.get(metric, metric))}.pth"

    def primary_best(self, run: Run) -> tuple[str, BestResult] | None:
        """Return the primary metric with its best result, None without any best result.

        The primary metric is the first configured metric with a best result, then the first one of other hooks.
        """
        full_names = {configured: full for full, configured in self._names.items()}
        candidates = (full_names.get(configured) for configured in (*self._config.metrics, *full_names))
        return next(((full, run.best[full]) for full in candidates if full in run.best), None)

    def reset(self) -> None:
        """Reset the state for a run that starts at iteration 0."""
        self._names, self._directions, self._warned = {}, {}, False

    def state_dict(self) -> dict[str, Any]:
        """Return the tracked metrics with their directions, and whether a missing metric was reported."""
        return {"names": dict(self._names), "rules": dict(self._directions), "warned": self._warned}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state returned by `state_dict()`."""
        self._names, self._warned = dict(state["names"]), state["warned"]
        # Checkpoints of early versions contain no directions.
        self._directions = dict(state.get("rules", {}))

    def _get_metrics(self, metrics: Metrics) -> list[str]:
        if self._config.save_best != "auto":
            return self._config.metrics
        # The metric that the first validation selected is used for the rest of the run.
        return list(self._names.values())[:1] or list(metrics)[:1]

    def _resolve_name(self, run: Run, configured: str, metrics: Metrics) -> str | None:
        try:
            return resolve_metric_name(configured, metrics)
        except MetricError as error:
            if configured in self._names.values():
                return None
            is_own = configured in self._config.metrics
            if configured in self._required or (is_own and not self._config.has_default_metric):
                raise
            self._warn_missing(run, error, is_own)
            return None

    def _warn_missing(self, run: Run, error: MetricError, is_own: bool) -> None:
        """Report once that the default metric, of this or another hook, is missing."""
        if self._warned:
            return
        self._warned = True
        if is_own:
            warnings.warn(f"{error} No best checkpoint is kept. Set `best_metric`.", HookWarning, stacklevel=2)
        else:
            advice = "Set the metric of the hook that requests it, or its `save_best: false`."
            run.logger.warning("%s It has no best checkpoint. %s", error, advice)

    def _register_name(self, full: str, configured: str) -> None:
        """Register the configured name of a metric, which determines its file name, and check for conflicts."""
        self._names[full] = configured
        name = self.file_name(full)
        # Without the case, which macOS and Windows do not distinguish.
        conflicts = sorted(metric for metric in self._names if self.file_name(metric).casefold() == name.casefold())
        if len(conflicts) > 1:
            problem = f"metrics must have different file names, got {name} for {' and '.join(conflicts)}"
            raise ConfigError([f"save_best: {problem}. Rename one of the metrics."])

    def _get_direction(self, metric: str) -> Direction:
        rule = self._requested.get(metric) or self._config.rule or infer_direction(metric)
        if rule is None:
            raise ConfigError([f"save_best: auto selected {metric!r}, whose name implies no direction. Set `rule`."])
        return rule


def is_better(score: float, best: float | None, rule: Direction) -> bool:
    """Whether a score improves on the best so far. Ties, NaN and infinities are not improvements."""
    if best is None or not math.isfinite(score):
        return math.isfinite(score)
    return score > best if rule == "greater" else score < best


def _is_missing(best: BestResult) -> bool:
    """Whether the checkpoint of a best result is missing, corrupted, or of another step."""
    if best.path is None:
        return False
    try:
        meta = CheckpointStore(best.path.parent).load_on_meta(best.path).get("meta")
        return not isinstance(meta, dict) or bool(meta.get("step") != best.step)
    except CheckpointError:
        return True


def publish(run: Run, path: Path, best: tuple[str, BestResult] | None) -> None:
    """Write the weights of the best result, or the final weights without one, averaged if a hook averages.

    The metadata of the file contains the metric, its value, and the step. Tied weights are written under each name.
    Must be called on every rank: sharded weights are all-gathered, and rank 0 writes.

    Raises:
        CheckpointError: If the best checkpoint cannot be loaded, or the file cannot be written.
    """
    # References to the model are written, which contains other weights in training mode of some optimizers.
    with run.weights.eval_mode():
        weights, metadata = _get_weights(run, best)
        run.ranks.call_on_main(f"the file {path}", partial(_write, path, run.id, to_full_tensors(weights), metadata))


def _write(path: Path, run: str, weights: dict[str, Tensor], metadata: dict[str, Any]) -> None:
    # safetensors rejects tensors that share memory, so each is cloned.
    separate = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in weights.items()}
    content = save(separate, metadata={key: str(value) for key, value in metadata.items()})
    try:
        atomic_write(path, lambda file: file.write(content), 0, run)
    except OSError as error:
        problem = f"{format_path(path)} could not be written: {error}. {len(content):,} bytes are required."
        raise CheckpointError(problem) from error


def _get_weights(run: Run, best: tuple[str, BestResult] | None) -> tuple[dict[str, Tensor], dict[str, Any]]:
    if best is None or best[1].path is None:
        # An averaging hook may still update its averages on another thread.
        run.weights.wait()
        return _merge_tensors(run.weights.raw(), run.weights.averaged()), {"step": run.steps_done}
    metric, result = best
    checkpoint = read_checkpoint(best[1].path)
    # The weights that were evaluated: a checkpoint contains raw and averaged weights.
    kind, _, hook = result.weights.partition("/")
    averaged = (
        checkpoint["averages"][hook] if hook else checkpoint.get("ema_state_dict") if kind == "averaged" else None
    )
    weights = _merge_tensors(flatten_weights(checkpoint["state_dict"]), flatten_weights(averaged or {}))
    return weights, {"metric": metric, "value": result.value, "step": result.step}


def _merge_tensors(raw: dict[str, Any], averaged: dict[str, Any] | None) -> dict[str, Tensor]:
    return {name: value for name, value in {**raw, **(averaged or {})}.items() if isinstance(value, Tensor)}
