"""Which results are the best so far."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from hookbus import Hook
from hookbus.checkpoints.reading import outline_of
from hookbus.errors import CheckpointError, ConfigError, HookWarning, MetricError
from hookbus.metrics import Metrics, resolve
from hookbus.rules import Rule, infer_rule
from hookbus.run import Best, Run
from hookbus_checkpoint.config import CheckpointConfig
from hookbus_checkpoint.rules import file_stem, is_better

__all__ = ["BestKeeper"]


class BestKeeper:
    """Compares results with the best so far, which the run keeps.

    Args:
        config: which metrics, and which direction.
    """

    def __init__(self, config: CheckpointConfig) -> None:
        self._config = config
        self._wishes: dict[str, Rule | None] = {}  # of other hooks
        self._names: dict[str, str] = {}  # what the user wrote, by full name
        self._rules: dict[str, Rule] = {}  # which score was better, by full name
        self._warned = False

    def ask(self, hooks: Iterable[object]) -> None:
        """Hear which metrics other hooks want the best of. With `save_best: false` nobody's best is kept.

        Raises:
            ConfigError: two of them disagree about which score is better.
        """
        self._wishes = {}
        if self._config.save_best is False:
            return
        known = {metric: self._config.rule or infer_rule(metric) for metric in self._config.metrics}
        for hook in (each for each in hooks if isinstance(each, Hook)):
            for metric, rule in hook.keeps_best_of.items():
                wanted = rule or infer_rule(metric)
                if known.setdefault(metric, wanted) != wanted:
                    raise ConfigError(
                        [f"{hook.name}: {wanted} is better of {metric!r}, but another hook says otherwise."]
                    )
                self._wishes[metric] = wanted

    def forget_turned(self, run: Run) -> None:
        """Begin afresh with metrics of which the other direction is better now: the best so far is one of the worst."""
        for full, rule in list(self._rules.items()):
            written = self._names[full]
            is_wanted = self._config.save_best == "auto" or written in {*self._config.metrics, *self._wishes}
            if is_wanted and full in run.best and self._rule(written) != rule:
                run.logger.warning(
                    "%s is better of %s now, and it was %s: its best begins afresh.", self._rule(written), full, rule
                )
                del run.best[full], self._rules[full]

    def to_write_again(self, run: Run) -> Iterator[tuple[str, Best]]:
        """Best results that a run goes on with and whose files do not hold them: those at which it stands, to be saved.

        A save may have been cut off before the file got the name of the best; the file may be gone; and a run that goes
        on from an older checkpoint finds what came after that one in it. Where the weights are no longer at hand, that
        is said, and the path is forgotten.
        """
        own = [metric for metric in run.best if metric in self._names]
        for metric in run.ranks.by_main("the files of the best", lambda: [m for m in own if _is_lost(run.best[m])]):
            best = run.best[metric] = replace(run.best[metric], path=None)
            if best.step == run.steps_done and self._config.save_best is not False:
                yield metric, best
            else:
                run.logger.warning(
                    "No file holds the best %s, %.6g of epoch %s, any more.", metric, best.value, best.epoch
                )

    def improvements(self, run: Run, metrics: Metrics) -> Iterator[tuple[str, Best]]:
        """The metrics that are better than ever, by full name, with their scores.

        A metric that was there before and is missing now is passed over.

        Raises:
            MetricError: a metric that was asked for, here or by another hook, has never been there; the message lists
                what there is.
            ConfigError: `auto` chose a metric whose name does not tell the direction, or two would share one file.
        """
        done: set[str] = set()
        for written in dict.fromkeys([*self._wanted(metrics), *self._wishes]):
            full = self._full_name(written, metrics)
            if full is None or full in done:
                continue
            done.add(full)
            self._call(full, written)
            best, rule = run.best.get(full), self._rule(written)
            self._rules[full] = rule
            if is_better(metrics[full], None if best is None else best.value, rule):
                weights = "raw" if run.weights.averaged() is None else "averaged"
                yield full, Best(metrics[full], run.clock.number("epoch"), run.steps_done, weights)

    def file_name(self, metric: str) -> str:
        """The name of a best file, `best_accuracy.pth`."""
        return f"best_{file_stem(self._names.get(metric, metric))}.pth"

    def deciding(self, run: Run) -> tuple[str, Best] | None:
        """The full name and the best result of the metric that decides; None where none has been the best yet.

        Of several it is the first that was asked for here, then those that other hooks want.
        """
        full_names = {written: full for full, written in self._names.items()}
        seen = (full_names.get(written) for written in (*self._config.metrics, *full_names))
        return next(((full, run.best[full]) for full in seen if full in run.best), None)

    def with_path(self, best: Best, path: Path) -> Best:
        """The same result, with the file that holds it."""
        return replace(best, path=path)

    def forget(self) -> None:
        """A run begins at zero: nothing has been seen."""
        self._names, self._rules, self._warned = {}, {}, False

    def state_dict(self) -> dict[str, Any]:
        """Which metrics have been seen, with their directions, and whether a missing one was reported."""
        return {"names": dict(self._names), "rules": dict(self._rules), "warned": self._warned}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self._names, self._warned = dict(state["names"]), state["warned"]
        self._rules = dict(state.get("rules", {}))  # the first checkpoints had none

    def _wanted(self, metrics: Metrics) -> list[str]:
        if self._config.save_best != "auto":
            return self._config.metrics
        return list(self._names.values())[:1] or list(metrics)[:1]

    def _full_name(self, written: str, metrics: Metrics) -> str | None:
        try:
            return resolve(written, metrics)
        except MetricError as error:
            if written in self._names.values():
                return None
            if self._config.names_metrics or written in self._wishes:
                raise
            if not self._warned:
                self._warned = True
                warnings.warn(f"{error} No best checkpoint is kept: set best_metric.", HookWarning, stacklevel=2)
            return None

    def _call(self, full: str, written: str) -> None:
        """Remember what the user wrote for a metric; its best file is called by that, and no other may be."""
        self._names[full] = written
        name = self.file_name(full)
        alike = sorted(each for each in self._names if self.file_name(each) == name)
        if len(alike) > 1:
            raise ConfigError(
                [f"save_best: {' and '.join(alike)} would both be {name}. Give one of these metrics another name."]
            )

    def _rule(self, metric: str) -> Rule:
        rule = self._wishes.get(metric) or self._config.rule or infer_rule(metric)
        if rule is None:
            raise ConfigError([f"save_best: auto chose {metric!r}, which does not tell a direction: set rule."])
        return rule


def _is_lost(best: Best) -> bool:
    """Whether the file of a best result is gone, or was written at another step."""
    if best.path is None:
        return False
    try:
        return bool(outline_of(best.path).get("meta", {}).get("step") != best.step)
    except CheckpointError:
        return True
