"""Does a hook keep the promises that users rely on?"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from hookbus.bus import HookBus
from hookbus.errors import ConfigError, HookbusError, HookWarning
from hookbus.hook import Hook
from hookbus.testing.fingerprints import fingerprint
from hookbus.testing.left_behind import children, outliving, seeded, shared_with_training, streams
from hookbus.testing.side_effects import device_reads, written_paths
from hookbus.testing.states import check_state, fresh_state, require
from hookbus.testing.traces import all_kept, conduct, hooks_on, process_settings
from hookbus.testing.training import Training, fake_training
from hookbus.training.rng import preserved_rng

__all__ = ["check_hook"]

UNKNOWN = "surely_no_such_setting"
SEED = 1_000_003
"""Of the trainings; one that no hook will use by chance."""


def check_hook(cls: type[Hook], **settings: Any) -> None:
    """See that a hook class keeps the promises that users rely on.

    * It builds with its defaults (or `settings`), from keywords and from a dict, and refuses an unknown setting. Its
      settings stay what they were.
    * It registers: its signatures are those of the points.
    * A small training with it ends well and without a failure of the hook, and so does a second one on the same bus.
    * It writes below the work directory only. The trainings run in an empty directory of their own.
    * Where it is called at every iteration it reads no number off the device, nor does what it puts around the step or
      on the model; `when=` tells how often it does.
    * Its state is plain data, and a fresh instance that loads it has the same state. To ask for the state changes
      nothing, nor does loading change what is loaded, and instances share none. It holds no tensor of the model or the
      optimizer, which would change as training goes on.
    * No thread of its own outlives a training, no process of each, and no batch or loss of every iteration.
    * Process-wide settings, random seeds, and the PyTorch hooks of model and optimizer are in the end what they were.
    * Unregistered after the trainings, it leaves nothing on the bus.
    * An observer leaves weights, modes, the optimizer and random streams as they would be without it.

    Args:
        cls: the hook class.
        settings: what it cannot do without.

    Raises:
        AssertionError: it does not; the message says what.
    """
    name = cls.__name__
    _check_config(cls, settings)
    hook = cls(dict(settings))
    bus = _bus_with(hook)
    new = fresh_state(cls, settings)
    given = fingerprint(hook.config.model_dump())
    with _empty_directory() as directory:
        without = fake_training(scores=_scores, work_dir=directory / "without", seed=SEED)
        with _watched(bus, directory, name), _threads_end(name), _settings_stay(name):
            with_hook = _train(bus, directory / "first", name)
            check_state(cls, settings, hook, new)
            _check_own_memory(hook, with_hook)
            with _processes_end(name):
                _train(bus, directory / "second", name, fresh=True)
        require(fingerprint(hook.config.model_dump()) == given, f"{name} changes its own settings while it trains.")
        _check_unregistered(bus, hook)
        _check_left_behind(with_hook, without, name)
        if cls.observer:
            _check_observer(with_hook, without, name)


def _check_config(cls: type[Hook], settings: Mapping[str, Any]) -> None:
    name = cls.__name__
    try:
        built = [cls(dict(settings)), cls(**settings)]
    except (ConfigError, TypeError) as error:
        raise AssertionError(f"{name} cannot be built from {dict(settings)}: {error}") from error
    require(built[0].config == built[1].config, f"{name} differs when built from keywords and from a dict.")
    try:
        cls({**settings, UNKNOWN: 1})
    except ConfigError:
        return
    raise AssertionError(f"{name} accepts an unknown setting; let its Config forbid extra fields, as HookConfig does.")


def _bus_with(hook: Hook) -> HookBus:
    try:
        return HookBus([hook])
    except HookbusError as error:
        raise AssertionError(str(error)) from error


def _check_unregistered(bus: HookBus, hook: Hook) -> None:
    bus.unregister(hook)
    left = [*bus.hooks, *(f"a listener at {point}" for point in bus.explain().points)]
    require(not left, f"{type(hook).__name__} leaves something on the bus when it is unregistered: {', '.join(left)}.")


def _check_left_behind(with_hook: Training, without: Training, name: str) -> None:
    left = _different(hooks_on(with_hook), hooks_on(without))
    require(not left, f"{name} leaves PyTorch hooks behind: {left}. Keep their handles, and remove them in cleanup.")
    require(
        not all_kept(with_hook),
        f"{name} keeps something of every iteration in memory: the batch, or the loss with its graph. Keep "
        "loss.detach(), and no more than the last few.",
    )


def _check_own_memory(hook: Hook, training: Training) -> None:
    name, place = type(hook).__name__, shared_with_training(hook.state_dict(), training)
    require(
        place is None,
        f"{name}.state_dict(){place} is a tensor of the model or its optimizer, so it changes as training goes on. "
        "Keep a clone, or leave it out: checkpoints hold both.",
    )


def _check_observer(with_hook: Training, without: Training, name: str) -> None:
    require(
        fingerprint(with_hook.model.state_dict()) == fingerprint(without.model.state_dict()),
        f"{name} calls itself an observer, but the weights are not what they are without it.",
    )
    changed = _different(conduct(with_hook), conduct(without))
    require(not changed, f"{name} calls itself an observer, but it changes {changed}.")
    require(
        fingerprint(with_hook.rng) == fingerprint(without.rng),
        f"{name} calls itself an observer, but it uses the random streams of the training. Draw from a "
        "generator of its own.",
    )


def _different(found: Mapping[str, Any], expected: Mapping[str, Any]) -> str:
    """The names of what is not the same."""
    names = sorted(found.keys() | expected.keys())
    return ", ".join(name for name in names if fingerprint(found.get(name)) != fingerprint(expected.get(name)))


@contextlib.contextmanager
def _empty_directory() -> Iterator[Path]:
    """An empty directory that is the current one while the context is open."""
    with tempfile.TemporaryDirectory() as path, contextlib.chdir(path):
        yield Path(path).resolve()


@contextlib.contextmanager
def _watched(bus: HookBus, directory: Path, name: str) -> Iterator[None]:
    """See what is done inside that should not be; the work directories are those in `directory`."""
    with written_paths() as written, device_reads(bus) as reads:
        yield
    require(
        not reads,
        f"{name} waits for the device at every iteration ({', '.join(dict.fromkeys(reads))}). Keep the tensor: "
        "run.log and run.request_record do; or say how often by @hookimpl(when=...).",
    )
    strays = [str(path) for path in sorted(written | set(directory.rglob("*"))) if _is_stray(path, directory)]
    require(
        not strays,
        f"{name} writes outside the work directory: {', '.join(strays)}. Write below one of the directories that the "
        'run provides: self.get_service("experiment_dir").',
    )


@contextlib.contextmanager
def _threads_end(name: str) -> Iterator[None]:
    """See that no thread that begins inside is alive afterwards."""
    before = set(threading.enumerate())
    yield
    left = [thread.name for thread in threading.enumerate() if thread not in before]
    require(not left, f"{name} leaves threads running after a training: {', '.join(left)}. End them in cleanup.")


@contextlib.contextmanager
def _processes_end(name: str) -> Iterator[None]:
    """See that no process that begins inside runs afterwards. One that libraries start once is there already."""
    before = children()
    yield
    left = outliving(before)
    require(not left, f"{name} leaves processes running after a training: {', '.join(left)}. End them in cleanup.")


@contextlib.contextmanager
def _settings_stay(name: str) -> Iterator[None]:
    """See that process-wide settings are afterwards what they are now."""
    with preserved_rng():
        torch.manual_seed(SEED)
        before, drawn_from = process_settings(), streams()
        yield
        after, sown = process_settings(), seeded(drawn_from)
        changed = _different({name: after.get(name) for name in before}, before)  # variables that are new are its own
    require(
        not sown,
        f"{name} calls {' and '.join(sown)}, so what others draw from there depends on it. Draw from a generator of "
        "its own: random.Random(seed), numpy.random.default_rng(seed).",
    )
    require(
        not changed, f"{name} changes what belongs to the whole process: {changed}. Put it back where the run ends."
    )


def _is_stray(path: Path, directory: Path) -> bool:
    """Whether a path that was written is there still and lies outside, caches and devices excepted."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    allowed = (*(directory / name for name in ("without", "first", "second")), cache, Path("/dev"))
    return path.exists() and "__pycache__" not in path.parts and not any(map(path.is_relative_to, allowed))


def _train(bus: HookBus, work_dir: Path, name: str, **options: Any) -> Training:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", HookWarning)  # an observer's failure would only be told
            return fake_training(bus=bus, scores=_scores, work_dir=work_dir, seed=SEED, **options)
    except Exception as error:
        raise AssertionError(f"{name} breaks a small training: {type(error).__name__}: {error}") from error


def _scores(epoch: int) -> dict[str, float]:
    return {"accuracy": 0.5 + 0.1 * epoch, "loss": 1.0 / (1 + epoch)}
