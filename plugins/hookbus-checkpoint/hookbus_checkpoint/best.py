"""Tracking of the best results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from hookbus import BestResult, Direction, Hook, Run
from hookbus.checkpoint import CheckpointStore
from hookbus.errors import CheckpointError, ConfigError, MetricError
from hookbus.metrics import Metrics, infer_direction, is_training_metric, resolve_metric_name
from hookbus_checkpoint.config import CheckpointConfig
from hookbus_checkpoint.file_names import BEST_PREFIX, MAX_NAME_BYTES, MAX_STEM_BYTES, SUFFIX, get_file_stem
from hookbus_checkpoint.ranking import RankedFile, Ranking, is_better


@dataclass(frozen=True, slots=True)
class Improvement:
    """Result that is the best one of its metric, or that belongs to its best `save_top_k` results.

    Attributes:
        metric: Full name of the metric.
        result: The result.
        rule: Which result is better.
        is_best: Whether it is the best one so far.
        is_ranked: Whether it belongs to the ranking.
        file_name: Name of its file in the ranking; "" if it is not known yet.
    """

    metric: str
    result: BestResult
    rule: Direction
    is_best: bool = True
    is_ranked: bool = False
    file_name: str = ""

    def __str__(self) -> str:
        return f"{'best' if self.is_best else 'ranked'} {self.metric}: {self.result.value:.6g}"


class BestTracker:
    """Compare results with the best so far, which are stored in `run.best`.

    Args:
        config: Configuration with the metrics and their directions.
        hook: Hook that the messages name.

    Attributes:
        ranking: Checkpoints with the best results of each metric, with `save_top_k` other than 0 and 1.
    """

    def __init__(self, config: CheckpointConfig, hook: Hook) -> None:
        self._config, self._hook = config, hook
        self.ranking = Ranking(config.save_top_k)
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
        """Collect the metrics whose best checkpoint other hooks request; none if no best checkpoints are kept.

        Raises:
            ConfigError: If two hooks request different directions of a metric.
        """
        self._requested, self._required = {}, set()
        if not self._config.keeps_best:
            return
        requests = [
            (hook, *request) for hook in hooks if isinstance(hook, Hook) for request in hook.best_metrics.items()
        ]
        known = {metric: self._config.get_rule(metric) for metric in self._config.metrics}
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
                self.ranking.sort(full, current)

    @property
    def uses_training_metrics(self) -> bool:
        """Whether the best of a training metric is kept, also one that another hook requests."""
        return any(map(is_training_metric, (*self._config.metrics, *self._requested)))

    def missing_best_files(self, run: Run) -> Iterator[Improvement]:
        """Yield best results of a resumed run whose files have to be written again.

        A file does not contain the best result if a save was interrupted before its link was created, if the file was
        deleted, or if the run resumes from an older checkpoint. If the weights of the best result are not those of the
        run, the file cannot be written: a warning is logged, and the path of the result is removed.

        Yields:
            Best results whose files can be written.
        """
        # Rank 0 decides, because other ranks may not see its directory.
        own = [metric for metric in run.best if metric in self._names]
        for metric in run.ranks.call_on_main("the best files", lambda: [m for m in own if _is_missing(run.best[m])]):
            best = run.best[metric] = replace(run.best[metric], path=None)
            # The weights that a hook has exchanged exist only if the run resumes from the file of the best result.
            has_weights = best.weights != "evaluated" or run.weights.evaluated.is_captured
            if best.step == run.steps_done and has_weights and self._config.keeps_best:
                yield Improvement(metric, best, self._get_direction(self._names[metric]))
            else:
                message = "No checkpoint of the best %s is available (%.6g in epoch %s)."
                run.logger.warning(message, metric, best.value, best.epoch)

    def missing_ranked_files(self, run: Run, missing: Iterable[tuple[str, RankedFile]]) -> Iterator[Improvement]:
        """Yield the results of a resumed run whose files in the rankings have to be written again.

        Args:
            run: The run.
            missing: Missing files with their metrics. Only those with the weights of the run can be written.
        """
        for metric, file in missing:
            if file.step == run.steps_done and metric in self._names:
                rule = self._get_direction(self._names[metric])
                if self.ranking.accepts(metric, file.value, rule):
                    result = BestResult(file.value, run.epochs_done, file.step)
                    yield Improvement(metric, result, rule, is_best=False, is_ranked=True, file_name=file.name)

    def iter_improvements(self, run: Run, metrics: Metrics, *, training: bool = False) -> Iterator[Improvement]:
        """Yield the results that are the best ones of their metrics, or belong to the ranking.

        A metric that an earlier validation provided and this one lacks is skipped.

        Args:
            run: The run.
            metrics: Results of a validation, or the means of an epoch.
            training: Whether `metrics` are the means of an epoch.

        Raises:
            MetricError: If a required metric, of this or another hook, was never provided. The message lists all
                metrics.
            ConfigError: If `auto` selected a metric whose name implies no direction, or two metrics would share a file.
        """
        # Two configured names may resolve to the same metric.
        done: set[str] = set()
        candidates = dict.fromkeys([*self._get_metrics(metrics), *self._requested])
        for configured in (name for name in candidates if is_training_metric(name) == training):
            full = self._resolve_name(run, configured, metrics)
            if full is None or full in done:
                continue
            done.add(full)
            self._register_name(full, configured)
            best, rule = run.best.get(full), self._get_direction(configured)
            self._directions[full] = rule
            value = metrics[full]
            is_best = is_better(value, None if best is None else best.value, rule)
            if is_best or self.ranking.accepts(full, value, rule):
                # Validation evaluates the averaged weights if a hook averages, so `publish` has to write those.
                weights = "raw" if training else run.weights.describe(full)
                result = BestResult(value, run.current("epoch"), run.steps_done, weights)
                yield Improvement(full, result, rule, is_best, self.ranking.accepts(full, value, rule))

    def improves(self, run: Run, metrics: Mapping[str, float]) -> bool:
        """Return whether a result of a validation would be the best one of its metric, or belong to the ranking.

        Unlike `iter_improvements`, it neither reports a missing metric nor selects the one of `auto`.
        """
        results = Metrics(metrics)
        candidates = dict.fromkeys([*self._get_metrics(results), *self._requested])
        for configured in (name for name in candidates if not is_training_metric(name)):
            try:
                full, rule = resolve_metric_name(configured, results), self._get_direction(configured)
            except (MetricError, ConfigError):
                continue
            best, value = run.best.get(full), results[full]
            if is_better(value, None if best is None else best.value, rule) or self.ranking.accepts(full, value, rule):
                return True
        return False

    def warn_if_unused(self, run: Run) -> None:
        """Log a warning if no validation has provided the metrics of the configuration, unless they are the default."""
        if self._config.keeps_best and not (self._config.has_default_metric or self._names):
            metrics = ", ".join(map(repr, self._config.metrics)) or "a metric"
            run.logger.warning("%s: no validation provided %s; no best checkpoint was kept.", self._hook.name, metrics)

    def file_name(self, metric: str) -> str:
        """Return the file name of a best checkpoint, such as `best_accuracy.pth`."""
        return f"{BEST_PREFIX}{self._get_stem(metric)}{SUFFIX}"

    def ranked_file_name(self, metric: str, name: str) -> str:
        """Return the file name of a checkpoint in the ranking, such as `best_accuracy_epoch_2.pth`.

        Args:
            metric: Full name of the metric.
            name: Name of a periodic checkpoint at this time.
        """
        return f"{BEST_PREFIX}{self._get_stem(metric)}_{name}"

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
        self.ranking.files = {}

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
        advice = "`best_metric`" if is_own else "the metric of the hook that requests it, or its `save_best: false`"
        run.logger.warning("%s: %s No best checkpoint is kept for it. Set %s.", self._hook.name, error, advice)

    def _register_name(self, full: str, configured: str) -> None:
        """Register the configured name of a metric, which determines its file name, and check for conflicts."""
        self._names[full] = configured
        name = self.file_name(full)
        # Without the case, which macOS and Windows do not distinguish.
        conflicts = sorted(metric for metric in self._names if self.file_name(metric).casefold() == name.casefold())
        if len(conflicts) > 1:
            problem = f"metrics must have different file names, got {name} for {' and '.join(conflicts)}"
            raise ConfigError([f"save_best: {problem}. Rename one of the metrics."])

    def _get_stem(self, metric: str) -> str:
        # A name in the ranking also contains that of a periodic checkpoint.
        limit = MAX_STEM_BYTES if self.ranking.is_empty else MAX_STEM_BYTES - MAX_NAME_BYTES
        return get_file_stem(self._names.get(metric, metric), limit)

    def _get_direction(self, metric: str) -> Direction:
        rule = self._requested.get(metric) or self._config.get_rule(metric)
        if rule is None:
            raise ConfigError([f"save_best: auto selected {metric!r}, whose name implies no direction. Set `rule`."])
        return rule


def select_best(improvements: Iterable[Improvement]) -> list[Improvement]:
    """Return the best of the results of each metric, of which a custom loop may have several at one boundary."""
    selected: dict[str, Improvement] = {}
    for new in improvements:
        old = selected.setdefault(new.metric, new)
        if is_better(new.result.value, old.result.value, new.rule):
            selected[new.metric] = new
        elif new.result.value == old.result.value:  # both files of one result may be missing after an interruption
            is_best, is_ranked = old.is_best or new.is_best, old.is_ranked or new.is_ranked
            name = old.file_name or new.file_name
            selected[new.metric] = replace(old, is_best=is_best, is_ranked=is_ranked, file_name=name)
    return list(selected.values())


def _is_missing(best: BestResult) -> bool:
    """Whether the checkpoint of a best result is missing, corrupted, or of another step."""
    if best.path is None:
        return False
    try:
        meta = CheckpointStore(best.path.parent).load_on_meta(best.path).get("meta")
        return not isinstance(meta, dict) or bool(meta.get("step") != best.step)
    except CheckpointError:
        return True
