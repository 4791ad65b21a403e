"""Range test for the learning rate before the training."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hookbus import Needs, Priority, Run
from hookbus.checkpoint import schema
from hookbus.errors import ConfigError
from hookbus.writers import OutputFiles, image_directory
from hookbus_finders.chart import render_range_test
from hookbus_finders.config import LRFinderConfig
from hookbus_finders.finder import FinderHook
from hookbus_finders.lr_range import RangeTest, Smoother, get_rates
from hookbus_finders.trials import train_steps

_numbers = schema.list_of(schema.number())


class LRFinderHook(FinderHook):
    """Train with growing learning rates before the training, and suggest the one at which the loss decreases fastest.

    The steps leave no trace, see `run.sandbox`. The result is available as the service `lr_finder`, a `RangeTest`. A
    resumed run does not repeat the test.

    Attributes:
        result: Result of the test; None before it.
    """

    Config = LRFinderConfig
    subject, service = "learning rate", "lr_finder"
    # After all hooks have prepared their training steps, and after the search for the batch size.
    priority = Priority.LOWEST
    needs = Needs(actions=("train_step",), optimizer=True)
    config: LRFinderConfig
    result: RangeTest | None
    state_schema = schema.record(
        {
            "result": schema.nullable(
                schema.record({"rates": _numbers, "losses": _numbers, "planned": schema.integer(1)})
            )
        }
    )

    @property
    def output_paths(self) -> dict[str, str | None]:
        """Directory of the plot and the table."""
        return {"save_dir": self.config.save_dir}

    def state_dict(self) -> dict[str, Any]:
        """Return the result."""
        result = self.result
        if result is None:
            return {"result": None}
        return {"result": {"rates": [*result.rates], "losses": [*result.losses], "planned": result.planned}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state returned by `state_dict()`."""
        saved = state["result"]
        self.result = (
            None
            if saved is None
            else RangeTest(tuple(map(float, saved["rates"])), tuple(map(float, saved["losses"])), saved["planned"])
        )

    def _check_training(self, run: Run) -> None:
        if len(run.optimizers) > 1:
            names = ", ".join(run.optimizers)
            raise ConfigError(f"requires a single optimizer, whose learning rate it changes, got {names}.")
        if not any(get_base_rates(run.optimizer)):
            raise ConfigError("requires a parameter group with a learning rate > 0, which is scaled, got 0.")

    def _get_obstacle(self, limit: str) -> str:
        return limit if limit == "fast_dev_run" else ""  # the loader is read again and again

    def _apply(self, run: Run, result: RangeTest) -> None:
        if result.suggestion is not None:
            run.scale_learning_rates(result.suggestion / max(get_base_rates(run.optimizer)))

    def _search(self, run: Run) -> RangeTest:
        config, groups, base = self.config, run.optimizer.param_groups, get_base_rates(run.optimizer)
        rates = get_rates(config.min_lr, config.max_lr, config.num_training_steps, config.mode)
        smoother, losses = Smoother(config.smoothing), list[float]()
        with run.sandbox() as trial:
            steps = train_steps(run, trial)
            for rate in rates:
                for group, own in zip(groups, base, strict=True):
                    set_rate(group, rate * own / max(base))
                losses.append(smoother.update(self._reduce(run, next(steps))))
                if self._has_diverged(losses):
                    break
            steps.close()
        return RangeTest(tuple(rates[: len(losses)]), tuple(losses), len(rates))

    def _has_diverged(self, losses: list[float]) -> bool:
        """Return whether to end the test: all later losses would be NaN, or the loss exceeds the threshold."""
        threshold = self.config.early_stop_threshold
        if not math.isfinite(losses[-1]):
            return True
        # A multiple of a negative loss is less than it.
        best = min(losses)
        return threshold is not None and losses[-1] - best > (threshold - 1) * abs(best)

    def _reduce(self, run: Run, loss: float) -> float:
        """Return the mean of a loss over the ranks."""
        total = run.ranks.all_reduce(f"loss of {self.name}", torch.tensor([loss], dtype=torch.float64))
        return total.item() / run.ranks.world_size

    def _report(self, run: Run, result: RangeTest) -> None:
        """Log the result, and write the plot and the table."""
        suggestion, tested = result.suggestion, f"{len(result.rates)} of {result.planned} learning rates"
        if suggestion is None:
            remedy = " The learning rate is unchanged." if self.config.apply else ""
            run.logger.warning(
                "%s: no suggestion after %s, because %s. Change `min_lr` and `max_lr`.%s",
                self.name,
                tested,
                result.problem,
                remedy,
            )
        else:
            run.logger.info("%s: suggestion %.3g, after %s", self.name, suggestion, tested)
            run.bus.emit("log_scalars", values={f"{self.name}/suggestion": suggestion})
        image = render_range_test(result, self.config.mode)
        run.bus.emit("log_images", tag=self.name, images=np.asarray(image), caption="Smoothed loss")
        run.bus.emit("log_text", tag=self.name, text=result.to_csv())
        default = re.sub(r"[^\w-]", "_", self.name)  # a name such as "../x" must not leave the directory
        directory = image_directory(
            run, self.name, "save_dir", self.config.save_dir, default, "learning-rate range test"
        )
        if directory is not None and run.ranks.is_main:
            files = OutputFiles(run, directory)
            files.write("lr_finder.png", lambda file: image.save(file, format="png"))
            files.write("lr_finder.csv", lambda file: file.write(result.to_csv().encode()))


def get_base_rates(optimizer: Any) -> list[float]:
    """Return the learning rate of each parameter group from which its schedule is derived.

    This is the largest one of a OneCycleLR, and the one before any other scheduler of torch.
    """
    groups = optimizer.param_groups
    return [float(group.get("max_lr", group.get("initial_lr", group["lr"]))) for group in groups]


def set_rate(group: dict[str, Any], rate: float) -> None:
    """Set the learning rate of a parameter group; a tensor is changed in place, as compiled optimizers require."""
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate
