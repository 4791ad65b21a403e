"""Base class of bridges to libraries whose training loop is that of the user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hookbus.bridge.bridge import Bridge
from hookbus.errors import ConfigError, RequestError
from hookbus.hook import Hook


class LoopBridge(Bridge):
    """Runs of a loop of the user, which a library such as Accelerate or Fabric supports.

    The loop reads `run.should_stop` and `run.should_stop_epoch`, and passes its validation function to the run.
    """

    def check_validations(self) -> None:
        """Check that no hook schedules validations, for a run without a validation function.

        Raises:
            ConfigError: If a hook does, and no hook validates itself.
        """
        hooks = {name: hook for name, hook in self.bus.hooks.items() if isinstance(hook, Hook)}
        names = [name for name, hook in hooks.items() if hook.schedules_validation]
        if names and all(hook.validation_fn is None for hook in hooks.values()):
            raise ConfigError(
                [
                    f"validate: should be the validation function that {', '.join(map(repr, names))} schedules, got "
                    "None. Pass validate= to bridge.train."
                ]
            )

    # -- state in a checkpoint of the library --------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the state of hooks and loop."""
        return self.get_state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state returned by `state_dict()`."""
        self.set_state(state)

    @property
    def can_validate(self) -> bool:
        """False: a run with a validation function validates itself."""
        return False

    # -- what hooks request; see `Host` --------------------------------------------------------------

    def stop(self, reasons: Sequence[str]) -> None:
        """Leave it to the loop, which reads `run.should_stop`."""

    def stop_epoch(self) -> None:
        """Leave it to the loop, which reads `run.should_stop_epoch`."""

    def validate(self) -> None:
        """Raise, because a run with a validation function validates itself.

        Raises:
            RequestError: If a hook requests a validation without a validation function.
        """
        raise RequestError(
            "A hook has requested a validation, but the loop has no function for it. Pass validate= to bridge.train."
        )
