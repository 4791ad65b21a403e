"""For people who write hooks: a bus that records, a small training to try a hook in, and a conformance check.

Needs no pytest. `check_hook(MyHook)` in one test of your package tells whether the hook keeps the promises that users
rely on.
"""

from __future__ import annotations

import hashlib
import io
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hookbus._table import Order
from hookbus.bus import HookBus
from hookbus.errors import ConfigError, HookbusError, HookWarning
from hookbus.hook import Hook
from hookbus.markers import hookimpl
from hookbus.rng import get_rng_state
from hookbus.run import Run
from hookbus.trace import traced

__all__ = ["Event", "RecordingBus", "Training", "check_hook", "fake_training", "fingerprint"]

UNKNOWN = "surely_no_such_setting"


@dataclass(frozen=True, slots=True)
class Event:
    """One firing of a point.

    Attributes:
        point: its name.
        arguments: what listeners could ask for, `run` left out.
    """

    point: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


class RecordingBus(HookBus):
    """A bus that writes down what happens on it.

    Attributes:
        events: every point that was fired, with its arguments, in order.
        calls_made: every listener that was called, as (hook, point), in order; the recorder itself left out.
    """

    def __init__(self, hooks: Iterable[object] = (), *, order: Order = "nested") -> None:
        self.events: list[Event] = []
        self.calls_made: list[tuple[str, str]] = []
        super().__init__(hooks, order=order)
        self._tracing = traced(self, self._note_call)
        self._tracing.__enter__()
        self.register(_Recorder(self.points, self.events), "recorder", priority=-(10**9))

    def _note_call(self, hook: str, point: str) -> None:
        if hook != "recorder":
            self.calls_made.append((hook, point))

    @property
    def fired(self) -> list[str]:
        """The points that were fired, in order."""
        return [event.point for event in self.events]

    def arguments(self, point: str) -> list[Mapping[str, Any]]:
        """The arguments of each firing of a point."""
        return [event.arguments for event in self.events if event.point == point]


class _Recorder:
    """Listens at every point; outermost, so that it sees each event as its first or last listener."""

    def __init__(self, points: Iterable[str], events: list[Event]) -> None:
        for point in points:
            setattr(self, point, hookimpl(_recording(point, events)))


def _recording(point: str, events: list[Event]) -> Callable[..., None]:
    def record(**arguments: Any) -> None:
        arguments.pop("run", None)
        events.append(Event(point, arguments))

    return record


@dataclass(slots=True)
class Training:
    """What is left of a small training.

    Attributes:
        run: the run, after its end.
        model: what was trained.
        rng: the random streams at the end.
    """

    run: Run
    model: nn.Module
    rng: dict[str, Any]


def fake_training(
    hooks: Iterable[object] = (),
    *,
    bus: HookBus | None = None,
    epochs: int = 2,
    batches: int = 3,
    batch_size: int = 4,
    losses: Callable[[int], float] | None = None,
    scores: Callable[[int], Mapping[str, float]] | None = None,
    work_dir: str | Path | None = None,
    **options: Any,
) -> Training:
    """Train a tiny model on made-up numbers, on the CPU, with the given hooks.

    Args:
        hooks: put on a fresh bus.
        bus: use this bus instead.
        epochs, batches, batch_size: how much there is to do.
        losses: the loss to report at each iteration (from 1), instead of the real one.
        scores: the results of the validation after each epoch (from 1); None for no validation.
        work_dir: where files go.
        options: for `bus.run`.

    Returns:
        The run and the model, after the end.
    """
    from torch.nn import functional

    bus = bus if bus is not None else HookBus(hooks)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.1), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = torch.randn(batches, batch_size, 3, generator=torch.Generator().manual_seed(1))
    loader = [(x, (x.sum(1) > 0).long()) for x in data]
    validate = None if scores is None else lambda run: scores(run.epochs_done)
    with bus.run(
        model=model, optimizer=optimizer, epochs=epochs, work_dir=work_dir, validate=validate, **options
    ) as run:
        for _ in run.epochs():
            bus.emit("before_train_epoch")
            for batch_idx, batch in run.batches(loader):
                bus.emit("before_train_iter", batch_idx=batch_idx, batch=batch)
                optimizer.zero_grad()
                loss = functional.cross_entropy(model(batch[0]), batch[1])
                loss.backward()
                optimizer.step()
                shown = loss.detach() if losses is None else losses(run.iters_done + 1)
                bus.emit("after_train_iter", batch_idx=batch_idx, batch=batch, outputs={"loss": shown})
            if validate is not None:
                run.request_validation()
            bus.emit("after_train_epoch")
    return Training(run, model, get_rng_state())


def fingerprint(value: Any) -> str:
    """A hash of plain values and tensors, nested as they like; equal bits give equal hashes."""
    digest = hashlib.sha256()
    _feed(digest, value)
    return digest.hexdigest()


def check_hook(cls: type[Hook], **settings: Any) -> None:
    """See that a hook class keeps the promises that users rely on.

    * It builds with its defaults (or `settings`), from keywords and from a dict, and refuses an unknown setting.
    * It registers, and after `unregister` the bus is as before.
    * A small training with it ends well and without a failure of the hook, and so does a second one on the same bus.
    * Its state is plain data, and a fresh instance that loads it has the same state.
    * An observer leaves weights and random streams as they would be without it.

    Args:
        cls: the hook class.
        settings: what it cannot do without.

    Raises:
        AssertionError: it does not; the message says what.
    """
    name = cls.__name__
    _check_config(cls, settings)
    _check_registration(cls, settings)
    with tempfile.TemporaryDirectory() as directory:
        hook = cls(settings)
        bus = HookBus([hook])
        with_hook = _train(bus, Path(directory) / "first", name)
        _check_state(cls, settings, hook)
        _train(bus, Path(directory) / "second", name, fresh=True)
        if cls.observer:
            without = fake_training(scores=_scores, work_dir=Path(directory) / "without")
            _require(
                fingerprint(with_hook.model.state_dict()) == fingerprint(without.model.state_dict()),
                f"{name} calls itself an observer, but the weights are not what they are without it.",
            )
            _require(
                fingerprint(with_hook.rng) == fingerprint(without.rng),
                f"{name} calls itself an observer, but it uses the random streams of the training. Draw from a "
                "generator of its own.",
            )


def _check_config(cls: type[Hook], settings: Mapping[str, Any]) -> None:
    name = cls.__name__
    try:
        built = [cls(dict(settings)), cls(**settings)]
    except (ConfigError, TypeError) as error:
        raise AssertionError(f"{name} cannot be built from {dict(settings)}: {error}") from error
    _require(built[0].config == built[1].config, f"{name} differs when built from keywords and from a dict.")
    try:
        cls({**settings, UNKNOWN: 1})
    except ConfigError:
        return
    raise AssertionError(f"{name} accepts an unknown setting; let its Config forbid extra fields, as HookConfig does.")


def _check_registration(cls: type[Hook], settings: Mapping[str, Any]) -> None:
    bus = HookBus()
    before = bus.explain()
    hook = cls(dict(settings))
    try:
        bus.register(hook)
    except HookbusError as error:
        raise AssertionError(str(error)) from error
    bus.unregister(hook)
    _require(bus.explain() == before and not bus.hooks, f"{cls.__name__} leaves something on the bus.")


def _check_state(cls: type[Hook], settings: Mapping[str, Any], hook: Hook) -> None:
    name, buffer = cls.__name__, io.BytesIO()
    state = hook.state_dict()
    torch.save(state, buffer)
    buffer.seek(0)
    try:
        loaded = torch.load(buffer, weights_only=True)
    except Exception as error:
        raise AssertionError(f"{name}.state_dict() is not plain data: {error}") from error
    fresh = cls(dict(settings))
    HookBus([fresh])
    fresh.load_state_dict(loaded)
    _require(
        fingerprint(fresh.state_dict()) == fingerprint(state),
        f"{name}: a fresh instance that loads the state of another has a different state.",
    )


def _train(bus: HookBus, work_dir: Path, name: str, **options: Any) -> Training:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", HookWarning)  # an observer's failure would only be told
            return fake_training(bus=bus, scores=_scores, work_dir=work_dir, **options)
    except Exception as error:
        raise AssertionError(f"{name} breaks a small training: {type(error).__name__}: {error}") from error


def _scores(epoch: int) -> dict[str, float]:
    return {"accuracy": 0.5 + 0.1 * epoch, "loss": 1.0 / (1 + epoch)}


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise AssertionError(message)


def _feed(digest: Any, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        plain = value.detach().cpu().contiguous()
        digest.update(f"{plain.dtype}{tuple(plain.shape)}".encode())
        digest.update(plain.reshape(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(value, Mapping):
        for key in value:
            digest.update(f"key {key!r}".encode())
            _feed(digest, value[key])
    elif isinstance(value, (list, tuple)):
        digest.update(f"{len(value)} items".encode())
        for each in value:
            _feed(digest, each)
    else:
        digest.update(repr(value).encode())
