"""Freezing of modules, permanently or for a number of epochs or iterations."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from hookbus import Hook, Needs, Run, Unit, hookimpl
from hookbus.distributed import named_modules, named_parameters, unwrap_model
from hookbus.errors import ConfigError, HookError, suggest_names
from hookbus_schedule.config import FreezeConfig
from hookbus_schedule.milestones import Milestone, get_start_points


class FreezeHook(Hook):
    """Freeze modules: no gradients, no optimizer steps, no weight decay, no updates of running statistics.

    The frozen modules are a function of epoch and iteration, so a resumed run requires no state. Parameters that were
    frozen before the run stay frozen, and a module that multiple hooks freeze stays frozen until the last of them
    unfreezes it. At the end of the run, `requires_grad` and training modes are restored.

    If no trainable parameter would remain, `loss.backward()` would raise. The parameters then keep `requires_grad`, and
    their gradients are dropped before each step of an optimizer of the run.
    """

    Config = FreezeConfig
    makes_requests = False
    config: FreezeConfig

    def __init__(self, config: Any = None, **settings: Any) -> None:
        super().__init__(config, **settings)
        self._end = Milestone(self.config.until_epoch, self.config.until_iter)
        self._frozen: list[nn.Parameter] = []
        self._with_gradients: list[nn.Parameter] = []  # frozen parameters that keep requires_grad
        self._norm_layers: list[nn.Module] = []

    @property
    def needs(self) -> Needs:
        """The start of iterations, if something changes there; modules, to find normalization layers."""
        config = self.config
        points = get_start_points("iter") if config.keep_statistics or config.until_iter is not None else ()
        points = get_start_points("epoch") if config.until_epoch is not None else points
        return Needs(points=points, modules=config.keep_statistics)

    def check(self, run: Run) -> None:
        """Check that the run has a model, and that each pattern matches a module or parameter.

        Raises:
            HookError: If the run has no model.
            ConfigError: If a pattern matches nothing.
        """
        if run.model is None:
            raise HookError("requires the model of the run, got None. Pass `model` to the run.")
        names = [name for name, _ in (*named_modules(run.model), *named_parameters(run.model)) if name]
        problems = [
            f"modules: {pattern!r} matches no module or parameter of the model.{suggest_names(pattern, names)}"
            for pattern in self.config.modules
            if not any(fnmatchcase(name, pattern) for name in names)
        ]
        if problems:
            raise ConfigError(problems)

    def get_milestones(self, run: Run) -> dict[str, tuple[int, Unit]]:
        """Return the epoch or iteration in which the modules are unfrozen."""
        return self._end.get_first_numbers("until")

    def before_train(self, run: Run, model: nn.Module) -> None:
        """Freeze the modules, unless they are unfrozen at the position of a resumed run."""
        model = unwrap_model(model)
        if self._end.is_reached(run.epochs_done, run.iters_done):
            return
        # Parameters that another hook has frozen already are frozen by this hook as well.
        held = self._get_held_by_others(run)
        self._frozen = [
            parameter
            for name, parameter in named_parameters(model)
            if (parameter.requires_grad or id(parameter) in held) and _matches(name, self.config.modules)
        ]
        self._disable_gradients(run, model)
        if self.config.keep_statistics:
            self._norm_layers = [
                layer
                for name, layer in named_modules(model)
                if getattr(layer, "track_running_stats", False)
                and (layer.training or id(layer) in held)
                and _matches(name, self.config.modules)
            ]

    @hookimpl(frequency=False)
    def before_train_iter(self, run: Run) -> None:
        """Unfreeze the modules when the limit is reached; keep frozen normalization layers in evaluation mode."""
        if self._frozen and self._end.is_reached(run.epoch, run.iter):
            self._unfreeze(run)
            numbers = run.current("epoch"), run.current("iter")
            run.logger.info("%s: unfroze the modules at epoch %s, iteration %s.", self.name, *numbers)
        # At every iteration, because custom loops call model.train() at each epoch or after each validation.
        for layer in self._norm_layers:
            if layer.training:
                layer.eval()

    @hookimpl(frequency=False)
    def before_optimizer_step(self) -> None:
        """Drop the gradients of frozen parameters that keep `requires_grad`."""
        _drop_gradients(self._with_gradients)

    def cleanup(self, run: Run) -> None:
        """Restore `requires_grad` and the training modes."""
        self._unfreeze(run)

    def _disable_gradients(self, run: Run, model: nn.Module) -> None:
        """Disable the gradients of the frozen parameters, unless they are all that remains for `loss.backward()`."""
        trainable = {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
        if run.optimizers and trainable and trainable <= {id(parameter) for parameter in self._frozen}:
            self._with_gradients = self._frozen
            run.logger.warning(
                "%s: no trainable parameter remains. The gradients of the %d frozen ones are computed, and dropped "
                "before each optimizer step.",
                self.name,
                len(self._frozen),
            )
        else:
            for parameter in self._frozen:
                parameter.requires_grad_(False)
        _drop_gradients(self._frozen)

    def _unfreeze(self, run: Run) -> None:
        held = self._get_held_by_others(run)
        for parameter in self._frozen:
            if id(parameter) not in held:
                parameter.requires_grad_(True)
        for layer in self._norm_layers:
            if id(layer) not in held:
                layer.train()
        self._frozen, self._with_gradients, self._norm_layers = [], [], []

    def _get_held_by_others(self, run: Run) -> set[int]:
        """Return the IDs of the parameters and layers that other hooks keep frozen."""
        others = self.find_others(run, FreezeHook)
        return {id(item) for hook in others.values() for item in (*hook._frozen, *hook._norm_layers)}


def _drop_gradients(parameters: Iterable[nn.Parameter]) -> None:
    # An optimizer skips parameters only if the gradient is None: it applies weight decay to a zero gradient.
    for parameter in parameters:
        parameter.grad = None


def _matches(name: str, patterns: Iterable[str]) -> bool:
    """Return whether a pattern matches a module or parameter, or a module that contains it."""
    parts = name.split(".")
    ancestors = [".".join(parts[: i + 1]) for i in range(len(parts))]
    return any(fnmatchcase(ancestor, pattern) for ancestor in ancestors for pattern in patterns)
