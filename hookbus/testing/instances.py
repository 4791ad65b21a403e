"""Check that two instances of a hook work side by side."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hookbus._run.run import Run
from hookbus.bus import HookBus
from hookbus.errors import HookbusError, format_error
from hookbus.hook import Hook
from hookbus.testing.leaks import iter_items, training_state
from hookbus.testing.states import ensure, explain_errors, fingerprint
from hookbus.testing.training import CheckpointWriter, fake_training

NAMES = ("first_instance", "second_instance")
ORDER_FIX = (
    "Store state on the instance, combine the instances independently of their order, or raise a ConfigError in "
    "`check(run)`."
)
RESUME_FIX = "Return from state_dict everything on which later iterations depend, such as the state of a generator."


@dataclass(frozen=True)
class Outcome:
    """Result of a training with two instances of a hook.

    Attributes:
        values: Fingerprints of the weights, the optimizer, the RNG states and the entries of the hook states.
        refusal: Error that refused the instances before the first iteration, "" if they were accepted.
    """

    values: dict[str, str]
    refusal: str = ""


class InterruptionError(Exception):
    """Failure of a training after its first epoch."""


class Saver(CheckpointWriter):
    """Requests a checkpoint after the first epoch, and writes it if no other hook does.

    Args:
        fails: Whether to interrupt the training at the beginning of the second epoch.
    """

    def __init__(self, fails: bool) -> None:
        super().__init__()
        self._fails = fails
        self.has_resumed = False

    def after_load_checkpoint(self) -> None:
        """Record that a checkpoint was found."""
        self.has_resumed = True

    def after_epoch(self, run: Run) -> None:
        """Request the checkpoint."""
        if run.epochs_done == 1:
            run.request_save("check of two instances", saver=run.get("checkpoint_saver", self))

    def before_epoch(self, run: Run) -> None:
        """Interrupt the training, as if the process was killed."""
        if self._fails and run.epochs_done == 1:
            raise InterruptionError


def check_two_instances(cls: type[Hook], *settings: Mapping[str, Any], directory: Path, **options: Any) -> None:
    """Check that two instances of a hook work side by side, in either order and after a resume, or are refused.

    Args:
        cls: Hook class.
        settings: Settings of both instances, or those of the first and of the second.
        directory: Empty directory for the files of the trainings.
        options: Keyword arguments of `fake_training`.

    Raises:
        AssertionError: If a requirement is not met. The message states which one.
    """
    name, pairs = cls.__name__, dict(zip(NAMES, (settings[0], settings[-1]), strict=True))
    reverse = dict(reversed(pairs.items()))
    forward = _train(cls, pairs, directory / "forward", **options)
    backward = _train(cls, reverse, directory / "backward", **options)
    ensure(
        bool(forward.refusal) == bool(backward.refusal),
        f"two instances of {name} are refused in one order only: {forward.refusal or backward.refusal}",
    )
    if forward.refusal:
        return
    resumed = _train(cls, pairs, directory / "resumed", interrupted=True, **options)
    ensure(not resumed.refusal, f"two instances of {name} cannot resume: {resumed.refusal}")
    if forward == backward == resumed:
        return
    # Trained again, because states may contain times and paths that differ between any two trainings.
    noise = _find_differences(forward, _train(cls, pairs, directory / "again", **options))
    for other, condition, fix in (
        (backward, "in the opposite order", ORDER_FIX),
        (resumed, "after a resume", RESUME_FIX),
    ):
        different = sorted(_find_differences(forward, other) - noise)
        shown = ", ".join(different[:3])
        ensure(not different, f"two instances of {name} have other results {condition}: {shown}. {fix}")


def _train(
    cls: type[Hook], settings: dict[str, Any], work_dir: Path, *, interrupted: bool = False, **options: Any
) -> Outcome:
    """Train with instances of a hook, which are registered in the order of their settings.

    Args:
        cls: Hook class.
        settings: Settings by instance name.
        work_dir: Work directory.
        interrupted: Whether to interrupt the training after an epoch and resume it with new instances, which are
            registered in the opposite order.
        options: Keyword arguments of `fake_training`.
    """
    with explain_errors(f"two instances of {cls.__name__} fail in a small training: ", form=format_error):
        if interrupted:
            with suppress(InterruptionError):
                _train_instances(cls, settings, Saver(fails=True), work_dir=work_dir, **options)
            settings, options = dict(reversed(settings.items())), {**options, "resume": "auto"}
        outcome = _train_instances(cls, settings, saver := Saver(fails=False), work_dir=work_dir, **options)
    ensure(
        saver.has_resumed == interrupted or bool(outcome.refusal),
        f"two instances of {cls.__name__} do not resume from the checkpoint after an epoch.",
    )
    return outcome


def _train_instances(cls: type[Hook], settings: Mapping[str, Any], saver: Saver, **options: Any) -> Outcome:
    bus, instances = HookBus(), {name: cls(dict(values)) for name, values in settings.items()}
    try:
        for name, hook in instances.items():
            bus.register(hook, name)
        bus.register(saver)
        training = fake_training(bus=bus, **options)
    except HookbusError as error:
        if bus.current.iters_done:
            raise
        return Outcome({}, str(error))
    parts = {"the weights": training.model.state_dict(), "the RNG states": training.rng, **training_state(training)}
    parts |= {f"the state of {name}": hook.state_dict() for name, hook in instances.items()}
    return Outcome({name + path: fingerprint(leaf) for name, part in parts.items() for path, leaf in iter_items(part)})


def _find_differences(first: Outcome, second: Outcome) -> set[str]:
    paths = first.values.keys() | second.values.keys()
    return {path for path in paths if first.values.get(path) != second.values.get(path)}
