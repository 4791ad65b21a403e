"""The gradient flow hook: measures gradients and logs their statistics, charts and warnings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from hookbus import Hook, Needs, Run, every, hookimpl
from hookbus.distributed import named_parameters, sharding_of, unwrap_model
from hookbus.errors import ConfigError, HookError, suggest_names
from hookbus.writers import OutputFiles, image_directory
from hookbus_gradient_flow.chart import render_chart
from hookbus_gradient_flow.config import GradientFlowConfig
from hookbus_gradient_flow.diagnostics import ProblemReporter
from hookbus_gradient_flow.statistics import (
    Gradient,
    GradientStats,
    compute_gradient_stats,
    get_loss_scale,
    list_paths,
    match_targets,
    select_parameters,
)


class GradientFlowHook(Hook):
    """Log statistics of the gradients of each parameter, and warn of abnormal gradients.

    The gradients of all micro-batches of an optimizer step are measured after the last backward pass, divided by the
    loss scale, and before clipping. In a loop that does not emit `after_backward` they are measured before the
    optimizer step, and in a run without an optimizer at the end of the iteration. The device is synchronized once per
    measurement.
    """

    Config = GradientFlowConfig
    observer = True
    ranks = "main"
    unit = "step"
    needs = Needs(gradients=("after_backward", "before_optimizer_step", "after_train_iter"))
    config: GradientFlowConfig

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self._parameters: dict[str, Tensor] = {}
        self._files: OutputFiles | None = None
        self._stats: GradientStats | None = None
        self._measured_iter = -1
        self._problem_reporter = ProblemReporter()

    @property
    def output_paths(self) -> dict[str, str | None]:
        """Directory of the charts."""
        return {"save_dir": self.config.save_dir}

    def check(self, run: Run) -> None:
        """Check that each target matches a parameter, and that no other hook writes to the same directory.

        Raises:
            HookError: If the run has no model.
            ConfigError: If a target matches no parameter, or another hook has the same directory.
        """
        self.check_unique(
            run,
            f"writes to {self.config.save_dir}",
            "Set another `save_dir`.",
            setting="save_dir",
            get_value=lambda hook: Path(hook.config.save_dir or _get_directory_name(hook)),
        )
        if run.model is None:
            raise HookError("requires the model of the run, got None. Pass `model` to the run.")
        parameters = _get_parameters(run.model)
        _, unknown = match_targets(parameters, self.config.targets)
        if unknown:
            paths = list_paths(parameters)
            raise ConfigError(
                f"`targets`: {target!r} matches no parameter of the model.{suggest_names(target, paths)}"
                for target in unknown
            )

    def before_train(self, run: Run, model: nn.Module) -> None:
        """Select the parameters and determine the directory of the charts."""
        # The hook runs on rank 0 only, and the norms of sharded gradients require collectives on all ranks.
        if is_sharded := sharding_of(model) is not None:
            run.logger.warning(
                "%s: no gradients are measured, because the parameters are sharded across ranks.", self.name
            )
        self._parameters = {} if is_sharded else select_parameters(_get_parameters(model), self.config.targets)
        default_name = _get_directory_name(self)
        directory = image_directory(
            run, self.name, "save_dir", self.config.save_dir, default_name, "charts of gradients"
        )
        self._files = None if directory is None else OutputFiles(run, directory)
        self._stats, self._measured_iter, self._problem_reporter = None, -1, ProblemReporter()

    # -- measuring -----------------------------------------------------------------------------

    @hookimpl(frequency=False)
    def after_backward(self, run: Run) -> None:
        """Measure the gradients of a due optimizer step; a later micro-batch of the step measures them again."""
        # Which micro-batch is the last is unknown here. Nothing is copied to the host before the step, so the earlier
        # measurements only cost their kernels.
        if (run.steps_done + 1) % self.config.frequency == 0:
            self._measure(run, get_loss_scale(run.scaler, self._parameters))

    def before_optimizer_step(self, run: Run, optimizer: Any) -> None:
        """Measure the gradients if the loop did not emit `after_backward`."""
        # `GradScaler.step` unscales the gradients before the optimizer step, except with a fused optimizer, which
        # receives the scale as `grad_scale` and divides by it itself.
        if self._stats is None or self._measured_iter != run.iters_done:
            self._measure(run, getattr(optimizer, "grad_scale", None))

    def after_optimizer_step(self, run: Run) -> None:
        """Log the measurement of the optimizer step."""
        # An optimizer with a closure (LBFGS) computes the gradients inside its step, so they did not exist before.
        if self._stats is not None and not self._stats.names:
            self._measure(run, None)
        self._log_measurement(run)

    @hookimpl(when=lambda config: every(config.frequency, unit="step"))
    def after_train_iter(self, run: Run) -> None:
        """Measure and log at the end of a due iteration if no optimizer step was observed."""
        # Not `run.iter`, which begins with `before_train_iter`, if the loop emits it.
        if self._measured_iter != run.iters_done - 1:
            self._measure(run, None)
        self._log_measurement(run)

    def _measure(self, run: Run, scale: Tensor | None) -> None:
        if self._parameters:
            self._stats, self._measured_iter = compute_gradient_stats(self._parameters, scale), run.iters_done

    # -- reporting -----------------------------------------------------------------------------

    def _log_measurement(self, run: Run) -> None:
        stats, self._stats = self._stats, None
        if stats is None:
            return
        gradients = stats.to_host()
        values = {f"gradients/{g.name}/{kind}": getattr(g, kind) for g in gradients for kind in ("mean", "max", "l2")}
        if values:
            run.bus.emit("log_scalars", values=values)
        missing = _filter_optimized(run, self._parameters, stats.missing)
        for text in self._problem_reporter.update(gradients, missing, run.steps_done):
            run.logger.warning("%s: %s", self.name, text)
        if values or missing:
            self._log_chart(run, gradients, missing)

    def _log_chart(self, run: Run, gradients: Sequence[Gradient], missing: Sequence[str]) -> None:
        """Log the chart as an image, and write it to a file if the run has a directory."""
        title = f"Gradients of step {run.steps_done}: maximum (light) and mean (dark)"
        image = render_chart(gradients, missing, title)
        run.bus.emit("log_images", tag=f"gradients/{self.name}", images=np.asarray(image), caption=title)
        if self._files is not None:
            self._files.write(f"step-{run.steps_done:08}.png", lambda file: image.save(file, format="png"))


def _get_directory_name(hook: GradientFlowHook) -> str:
    """Return the name of the directory of the charts if `save_dir` is not set."""
    return re.sub(r"[^\w-]", "_", hook.name)  # a name such as "../x" must not leave the directory


def _get_parameters(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters of the unwrapped model by name; a shared parameter has multiple names."""
    return dict(named_parameters(unwrap_model(model), remove_duplicate=False))


def _filter_optimized(run: Run, parameters: Mapping[str, Tensor], names: Iterable[str]) -> list[str]:
    """Return the names of the parameters that the optimizer of the run updates."""
    if not run.optimizers:
        return list(names)
    groups = [group for optimizer in run.optimizers.values() for group in optimizer.param_groups]
    own = {id(parameter) for group in groups for parameter in group["params"]}
    return [name for name in names if id(parameters[name]) in own]
