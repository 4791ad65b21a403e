"""The gradient flow hook: when gradients are read, and where what they say goes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from hookbus import Hook, Run, every, hookimpl
from hookbus.checkpoints.files import commit
from hookbus.errors import ConfigError, HookError, did_you_mean
from hookbus.model.layouts import layout_of
from hookbus.model.wrappers import unwrapped
from hookbus.pictures import pictures_directory
from hookbus_gradient_flow.chart import draw
from hookbus_gradient_flow.config import GradientFlowConfig
from hookbus_gradient_flow.flow import Gradient, Reading, measure, scale_of
from hookbus_gradient_flow.health import Complaints
from hookbus_gradient_flow.targets import chosen_of, paths_of, resolve

__all__ = ["GradientFlowHook"]


class GradientFlowHook(Hook):
    """Shows how large the gradients of an update are, parameter by parameter, and says where something is wrong.

    Gradients are read when those of the whole group of micro-batches are there: after the last backward, unscaled,
    before they are clipped. In a loop that does not fire `after_backward` they are read before the update, and in one
    without an optimizer at the end of the iteration. The device is waited for once per record, never in between.
    """

    Config = GradientFlowConfig
    observer = True
    ranks = "main"
    unit = "step"
    config: GradientFlowConfig

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self._parameters: dict[str, Tensor] = {}
        self._directory: Path | None = None
        self._reading: Reading | None = None
        self._read_at = -1
        self._complaints = Complaints()

    def check(self, run: Run) -> None:
        """See that each target stands for a parameter.

        Raises:
            HookError: the run has no model.
            ConfigError: a target stands for none.
        """
        if run.model is None:
            raise HookError("it reads the gradients of a model: give model= to the run.")
        parameters = _parameters_of(run.model)
        _, unknown = resolve(parameters, self.config.targets)
        if unknown:
            raise ConfigError(
                f"the target {target!r} stands for no parameter of the model."
                f"{did_you_mean(target, paths_of(parameters))}"
                for target in unknown
            )

    def before_train(self, run: Run, model: nn.Module) -> None:
        """Find the parameters and the folder.

        Raises:
            ConfigError: there is no place for `save_dir`.
        """
        if is_spread := layout_of(model) is not None:
            run.logger.warning("%s shows nothing: this process has only a part of each gradient.", self.name)
        self._parameters = {} if is_spread else chosen_of(_parameters_of(model), self.config.targets)
        own = re.sub(r"[^\w-]", "_", self.name)
        self._directory = pictures_directory(run, self.name, "save_dir", self.config.save_dir, own)
        self._reading, self._read_at, self._complaints = None, -1, Complaints()

    # -- reading -------------------------------------------------------------------------------

    def after_backward(self, run: Run) -> None:
        """Read the gradients of a due update; those of a later micro-batch of its group replace them."""
        if (run.steps_done + 1) % self.config.frequency == 0:
            self._read(run, scale_of(run.scaler, self._parameters))

    def before_optimizer_step(self, run: Run, optimizer: Any) -> None:
        """Read them here where nobody told of the backward. A fused optimizer is handed the scale."""
        if self._reading is None or self._read_at != run.iter:
            self._read(run, getattr(optimizer, "grad_scale", None))

    def after_optimizer_step(self, run: Run) -> None:
        """The update was made: report. An optimizer that is given a closure has made the gradients only now."""
        if self._reading is not None and not self._reading.names:
            self._read(run, None)
        self._report(run)

    @hookimpl(when=lambda config: every(config.frequency, unit="step"))
    def after_train_iter(self, run: Run) -> None:
        """Report where no optimizer is watched, so that each iteration is an update."""
        if self._read_at != run.iter:
            self._read(run, None)
        self._report(run)

    def _read(self, run: Run, scale: Tensor | None) -> None:
        if self._parameters:
            self._reading, self._read_at = measure(self._parameters, scale), run.iter

    # -- reporting -----------------------------------------------------------------------------

    def _report(self, run: Run) -> None:
        reading, self._reading = self._reading, None
        if reading is None:
            return
        gradients = reading.take()
        values = {f"gradients/{g.name}/{kind}": getattr(g, kind) for g in gradients for kind in ("mean", "max", "l2")}
        if values:
            run.bus.emit("log_scalars", values=values)
        missing = _learning(run, self._parameters, reading.missing)
        for text in self._complaints.about(gradients, missing, run.steps_done):
            run.logger.warning("%s: %s", self.name, text)
        if values or missing:
            self._show(run, gradients, missing)

    def _show(self, run: Run, gradients: Sequence[Gradient], missing: Sequence[str]) -> None:
        """The chart, for those who record pictures and as a file."""
        title = f"Gradients of step {run.steps_done}: largest (light) and mean (dark)"
        image = draw(gradients, missing, title)
        run.bus.emit("log_images", tag=f"gradients/{self.name}", images=np.asarray(image), caption=title)
        if self._directory is not None:
            path = self._directory / f"step-{run.steps_done:08}.png"
            commit(path, lambda file: image.save(file, format="png"))


def _parameters_of(model: nn.Module) -> dict[str, Tensor]:
    """By every name that they have in the module inside wrappers; those that are shared have several."""
    return dict(unwrapped(model).named_parameters(remove_duplicate=False))


def _learning(run: Run, parameters: Mapping[str, Tensor], names: Iterable[str]) -> list[str]:
    """Those that the optimizer of the run updates: those of another one have their gradients at its updates."""
    if run.optimizer is None:
        return list(names)
    own = {id(each) for group in run.optimizer.param_groups for each in group["params"]}
    return [name for name in names if id(parameters[name]) in own]
