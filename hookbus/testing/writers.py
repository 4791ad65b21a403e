"""Does a hook that records keep the promises that users rely on? The same known runs for every back end.

The hook and its library are real, and what they wrote is read back.
"""

from __future__ import annotations

import math
import os
import re
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from hookbus.errors import HookWarning
from hookbus.hook import Hook
from hookbus.recording import WriterHook
from hookbus.testing.fingerprints import fingerprint
from hookbus.testing.ordeals import EXPECTED, ordeal, scores_of
from hookbus.testing.training import fake_training
from hookbus.writers import Writer

__all__ = ["PROMISES", "THREAD_PROMISES", "BackEnd", "check_writer"]

Number = tuple[str, int, float]

NAMES = [
    "plain",
    "with space",
    "a/b/c",
    "acc,top1",
    "acc;top1",
    "01: time",
    "größe",
    "損失",
    "x" * 300,
    "x" * 299 + "y",
    "%d\\",
]
SECRET = "a-secret-that-nobody-may-read"


@dataclass(frozen=True)
class BackEnd:
    """A hook that records, and how what it wrote is read back.

    Attributes:
        cls: the hook class; it can be imported by its name, and has a setting `interval`.
        read: given the work directory, the numbers in the order in which the back end shows them: (name, step, value).
        settings: what the hook cannot do without, as JSON has it.
        stored_name: the name under which the back end has a number.
        own_files: whether the numbers are appended to files by this process, so that a full disk can be tried.
    """

    cls: type[Hook]
    read: Callable[[Path], list[Number]]
    settings: Mapping[str, Any] = field(default_factory=dict)
    stored_name: Callable[[str], str] = str
    own_files: bool = True

    def hook(self, **settings: Any) -> Hook:
        """The hook, with a record at every iteration."""
        return self.cls({**self.settings, "interval": 1, **settings})

    def curves(self, work_dir: Path) -> dict[str, list[tuple[int, float]]]:
        """What is there, by name, in the order in which it is shown."""
        found: dict[str, list[tuple[int, float]]] = {}
        for name, step, value in self.read(work_dir):
            found.setdefault(name, []).append((step, float(value)))
        return found


def check_writer(back_end: BackEnd) -> None:
    """See that a hook keeps the promises of this module, each with an empty work directory.

    Args:
        back_end: the hook, and how it is read back.

    Raises:
        AssertionError: it does not; the message says what.
    """
    threaded = THREAD_PROMISES if issubclass(back_end.cls, WriterHook) else {}
    for name, promise in {**PROMISES, **threaded}.items():
        with tempfile.TemporaryDirectory() as directory:
            try:
                promise(back_end, Path(directory))
            except AssertionError as error:
                raise AssertionError(f"{back_end.cls.__name__} does not keep its promise: {name}. {error}") from error


# -- promises of every hook that records ---------------------------------------------------------


def _records_all(back_end: BackEnd, work_dir: Path) -> None:
    with _no_warning():
        fake_training([back_end.hook()], batches=5, losses=float, scores=scores_of, work_dir=work_dir)
    _same(back_end.curves(work_dir), EXPECTED)


def _records_numbers_of_every_kind(back_end: BackEnd, work_dir: Path) -> None:
    given = {
        "bf16": torch.tensor(0.5, dtype=torch.bfloat16),
        "half": torch.tensor([0.25], dtype=torch.float16),
        "whole": torch.tensor(7),
        "array": torch.tensor(0.125).numpy(),
        "numpy": torch.tensor([3]).numpy()[0],
        "int": 2,
        "bool": True,
        "nan": math.nan,
        "inf": torch.tensor(math.inf),
        "-inf": -math.inf,
    }
    expected = {name: float(value) for name, value in given.items()}
    _same_numbers(back_end, work_dir, given, expected)


def _keeps_names_apart(back_end: BackEnd, work_dir: Path) -> None:
    values = {f"odd/{name}": float(number) for number, name in enumerate(NAMES)}
    _same_numbers(back_end, work_dir, values, {back_end.stored_name(name): value for name, value in values.items()})


def _records_10_000_names(back_end: BackEnd, work_dir: Path) -> None:
    values = {f"many/{number}": float(number) for number in range(10_000)}
    _same_numbers(back_end, work_dir, values, values)


def _goes_on_after_a_kill(back_end: BackEnd, work_dir: Path) -> None:
    ordeal(back_end.cls, back_end.settings, work_dir, kill_at=7)
    _resume(back_end, work_dir)


def _goes_on_after_a_kill_when_all_was_written(back_end: BackEnd, work_dir: Path) -> None:
    ordeal(back_end.cls, back_end.settings, work_dir, kill_at=7, settle=2.0)
    _resume(back_end, work_dir)


def _goes_on_when_killed_before_the_first_checkpoint(back_end: BackEnd, work_dir: Path) -> None:
    ordeal(back_end.cls, back_end.settings, work_dir, kill_at=3, settle=2.0)
    _resume(back_end, work_dir)


def _recovers_from_a_full_disk(back_end: BackEnd, work_dir: Path) -> None:
    if not back_end.own_files:
        return
    told = ordeal(back_end.cls, back_end.settings, work_dir, full_at=4, free_at=7)
    assert len(told) == 1, f"The disk was full for a while, and the user was told {len(told)} times: {told}"
    _same(back_end.curves(work_dir), EXPECTED)


def _keeps_what_was_recorded_before_a_crash(back_end: BackEnd, work_dir: Path) -> None:
    def losses(iteration: int) -> float:
        return float(iteration) if iteration < 4 else 1 / 0

    try:
        fake_training([back_end.hook()], batches=5, losses=losses, work_dir=work_dir)
    except ZeroDivisionError:
        found = back_end.curves(work_dir).get("train/loss")
        assert found == [(1, 1.0), (2, 2.0), (3, 3.0)], f"Before the crash 1, 2, 3 were reported, and there is {found}."


def _closes_twice(back_end: BackEnd, work_dir: Path) -> None:
    hook: Any = back_end.hook()
    with _no_warning():
        fake_training([hook], batches=5, losses=float, scores=scores_of, work_dir=work_dir)
        hook.cleanup()
    _same(back_end.curves(work_dir), EXPECTED)


def _leaves_the_training_alone(back_end: BackEnd, work_dir: Path) -> None:
    without = fake_training(scores=scores_of, work_dir=work_dir / "without")
    with_it = fake_training([back_end.hook()], scores=scores_of, work_dir=work_dir / "with")
    one, other = (fingerprint(training.model.state_dict()) for training in (without, with_it))
    assert one == other, "The weights are not what they are without the hook."
    assert fingerprint(without.rng) == fingerprint(with_it.rng), "It uses the random streams of the training."


def _records_on_the_main_rank_only(back_end: BackEnd, work_dir: Path) -> None:
    os.environ.update(RANK="1", WORLD_SIZE="2")
    try:
        fake_training([back_end.hook()], batches=5, losses=float, work_dir=work_dir)
    finally:
        del os.environ["RANK"], os.environ["WORLD_SIZE"]
    left = [path for path in work_dir.rglob("*") if path.is_file()]
    assert not left, f"A rank that is not the main one wrote {left}."


def _hides_secrets(back_end: BackEnd, work_dir: Path) -> None:
    config = {
        "lr": 0.1,
        "api_key": SECRET,
        "hooks": [{"type": "x", "token": SECRET, "url": f"http://me:{SECRET}@host/"}],
    }
    fake_training([back_end.hook()], losses=float, work_dir=work_dir, config=config)
    leaks = [path for path in work_dir.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
    assert not leaks, f"A secret of the configuration stands in {leaks}."


def _records_nothing_of_a_sanity_check(back_end: BackEnd, work_dir: Path) -> None:
    fake_training([back_end.hook(), _Sanity()], batches=5, losses=float, scores=scores_of, work_dir=work_dir)
    _same(back_end.curves(work_dir), EXPECTED)


# -- promises of hooks that write from a thread --------------------------------------------------


def _outlives_an_exception_in_the_thread(back_end: BackEnd, work_dir: Path) -> None:
    calls = iter(range(100))

    def fail_once(writer: Writer, values: Mapping[str, float], step: int) -> None:
        if next(calls) == 2:
            raise RuntimeError("nobody expected this")
        type(writer).write_scalars(writer, values, step)

    told = _told(lambda: _train_with(back_end, work_dir, fail_once))
    counted = [text for text in told if "1 records are missing: 1 numbers" in text]
    assert (len(told), len(counted)) == (2, 1), f"One record failed, and it told {told}."
    assert back_end.curves(work_dir)["train/loss"] == [(k, float(k)) for k in (1, 2, 4, 5, 6, 7, 8, 9, 10)]


def _drops_and_counts_when_it_is_slow(back_end: BackEnd, work_dir: Path) -> None:
    def slow(writer: Writer, values: Mapping[str, float], step: int) -> None:
        time.sleep(0.05)
        type(writer).write_scalars(writer, values, step)

    told = _told(lambda: _train_with(back_end, work_dir, slow, queue_bytes=600, epochs=20, batches=50))
    curve = back_end.curves(work_dir)["train/loss"]
    counts = [int(count) for count in re.findall(r"(\d+) numbers", told[-1])]
    assert curve == sorted(set(curve)), "Numbers stand twice, or out of order."
    assert (len(told), counts) == (2, [1000 - len(curve)]), f"Of 1000 records {len(curve)} are there; it told {told}."


PROMISES: Mapping[str, Callable[[BackEnd, Path], None]] = {
    "every number is there once, in order, train and validation on one axis": _records_all,
    "numbers of every kind, NaN and infinities included, are numbers": _records_numbers_of_every_kind,
    "odd names are recorded, and kept apart": _keeps_names_apart,
    "10,000 names are recorded": _records_10_000_names,
    "a run that was killed goes on where its checkpoint was taken": _goes_on_after_a_kill,
    "it does when everything was written before the kill": _goes_on_after_a_kill_when_all_was_written,
    "it does when there was no checkpoint yet": _goes_on_when_killed_before_the_first_checkpoint,
    "it recovers from a full disk": _recovers_from_a_full_disk,
    "what was recorded before a crash is there": _keeps_what_was_recorded_before_a_crash,
    "it can be closed twice": _closes_twice,
    "weights and random streams are what they are without it": _leaves_the_training_alone,
    "only the main rank writes": _records_on_the_main_rank_only,
    "secrets are hidden": _hides_secrets,
    "a validation before training leaves no record": _records_nothing_of_a_sanity_check,
}
"""What every hook that records promises, by a sentence; each takes the back end and an empty directory."""

THREAD_PROMISES: Mapping[str, Callable[[BackEnd, Path], None]] = {
    "an exception in its thread costs one record": _outlives_an_exception_in_the_thread,
    "what a slow back end cannot take is dropped and counted": _drops_and_counts_when_it_is_slow,
}
"""What a `WriterHook` promises besides."""


class _Sanity(Hook):
    """Asks for a validation before training."""

    def before_train(self, run: Any) -> None:
        run.request_validation()


class _Numbers(Hook):
    """Reports numbers once."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__()
        self.values = values

    def before_train(self, run: Any) -> None:
        run.bus.emit("log_scalars", values=self.values)


def _same_numbers(back_end: BackEnd, work_dir: Path, given: Mapping[str, Any], expected: Mapping[str, float]) -> None:
    with _no_warning():
        fake_training([back_end.hook(), _Numbers(given)], epochs=1, batches=1, losses=float, work_dir=work_dir)
    curves = back_end.curves(work_dir)
    _same({name: curve for name, curve in curves.items() if name not in ("train/loss", "lr")}, _once(expected))


def _once(values: Mapping[str, float]) -> dict[str, list[tuple[int, float]]]:
    return {name: [(0, value)] for name, value in values.items()}


def _resume(back_end: BackEnd, work_dir: Path) -> None:
    """The same command again, and the whole run is there."""
    with _no_warning():
        fake_training(
            [back_end.hook()], batches=5, losses=float, scores=scores_of, work_dir=work_dir, resume="auto", fresh=True
        )
    _same(back_end.curves(work_dir), EXPECTED)


def _same(found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    names = set(found) ^ set(expected)
    wrong = {name: found[name] for name in expected if name in found and repr(found[name]) != repr(expected[name])}
    assert not names, f"{len(names)} names are missing or too many: {sorted(names)[:5]}"
    assert not wrong, f"{len(wrong)} curves are wrong: {dict(list(wrong.items())[:3])}"


def _train_with(back_end: BackEnd, work_dir: Path, write_scalars: Any, **changes: Any) -> None:
    """Train with the hook, its writer changed."""
    training = {"batches": 5, **{key: changes.pop(key) for key in ("epochs", "batches") if key in changes}}

    def factory(self: Any, run: Any) -> Callable[[], Writer]:
        make = back_end.cls.writer_factory(self, run)  # type: ignore[attr-defined]

        def changed() -> Writer:
            writer: Any = make()
            writer.write_scalars = lambda values, step: write_scalars(writer, values, step)
            return writer  # type: ignore[no-any-return]

        return changed

    hook = back_end.hook()
    cls = type(back_end.cls.__name__, (back_end.cls,), {"writer_factory": factory, **changes})
    fake_training([cls(hook.config, name=hook.name)], losses=float, work_dir=work_dir, **training)


def _told(call: Callable[[], object]) -> list[str]:
    """What the user was warned of meanwhile."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", HookWarning)
        call()
    return [str(each.message) for each in caught if issubclass(each.category, HookWarning)]


@contextmanager
def _no_warning() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error", HookWarning)
        yield
