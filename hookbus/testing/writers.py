"""Conformance check of hooks that write to an experiment tracker. Every backend runs the same trainings.

The hook and its library are real; the check reads back the data that they wrote.
"""

from __future__ import annotations

import math
import os
import re
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from pydantic import SecretStr

from hookbus.hook import Hook
from hookbus.testing.backends import (
    WriterTestCase,
    check_curves,
    check_training,
    compare_curves,
    forbid_warnings,
    get_scores,
    run_with_faults,
    train,
)
from hookbus.testing.states import explain_errors, fingerprint
from hookbus.testing.training import collect_warnings, fake_training
from hookbus.writers.hook import WriterHook
from hookbus.writers.writer import Writer

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


def check_writer(test_case: WriterTestCase) -> None:
    """Check that a hook meets the requirements of this module, each in an empty work directory.

    Args:
        test_case: The hook, and a function that reads back its data.

    Raises:
        AssertionError: If a requirement is not met. The message names it.
    """
    threaded = THREAD_REQUIREMENTS if issubclass(test_case.cls, WriterHook) else {}
    for name, requirement in {**REQUIREMENTS, **threaded}.items():
        message = f"{test_case.cls.__name__} does not meet the requirement: {name}. "
        with tempfile.TemporaryDirectory() as directory, explain_errors(message, (AssertionError,)):
            requirement(test_case, Path(directory))


# -- requirements for every hook that writes records -----------------------------------------------


def _records_all_number_types(test_case: WriterTestCase, work_dir: Path) -> None:
    values = {
        "bf16": torch.tensor(0.5, dtype=torch.bfloat16),
        "half": torch.tensor([0.25], dtype=torch.float16),
        "integer": torch.tensor(7),
        "array": torch.tensor(0.125).numpy(),
        "numpy": torch.tensor([3]).numpy()[0],
        "int": 2,
        "bool": True,
        "nan": math.nan,
        "inf": torch.tensor(math.inf),
        "-inf": -math.inf,
    }
    expected = {name: float(value) for name, value in values.items()}
    _check_values(test_case, work_dir, values, expected)


def _keeps_names_distinct(test_case: WriterTestCase, work_dir: Path) -> None:
    values = {f"special/{name}": float(number) for number, name in enumerate(NAMES)}
    _check_values(test_case, work_dir, values, {test_case.backend_name(name): value for name, value in values.items()})


def _records_10_000_names(test_case: WriterTestCase, work_dir: Path) -> None:
    values = {f"many/{number}": float(number) for number in range(10_000)}
    _check_values(test_case, work_dir, values, values)


def _continues_after_kill(test_case: WriterTestCase, work_dir: Path, **faults: Any) -> None:
    run_with_faults(test_case.cls, test_case.settings, work_dir, **faults)
    check_training(test_case, work_dir, resume="auto", fresh=True)


def _recovers_from_a_full_disk(test_case: WriterTestCase, work_dir: Path) -> None:
    if not test_case.writes_own_files:
        return
    messages = run_with_faults(test_case.cls, test_case.settings, work_dir, full_at=4, free_at=7)
    assert len(messages) == 1, f"Expected one warning for a full disk, got {len(messages)}: {messages}"
    check_curves(test_case, work_dir)


def _keeps_records_before_crash(test_case: WriterTestCase, work_dir: Path) -> None:
    def losses(iteration: int) -> float:
        return float(iteration) if iteration < 4 else 1 / 0

    try:
        train([test_case.create_hook()], work_dir, losses=losses)
    except ZeroDivisionError:
        curve = test_case.read_curves(work_dir).get("train/loss", [])
        compare_curves({"train/loss": [(1, 1.0), (2, 2.0), (3, 3.0)]}, {"train/loss": curve})


def _allows_second_cleanup(test_case: WriterTestCase, work_dir: Path) -> None:
    hook: Any = test_case.create_hook()
    with forbid_warnings():
        train([hook], work_dir)
        hook.cleanup()
    check_curves(test_case, work_dir)


def _records_optimizer_steps(test_case: WriterTestCase, work_dir: Path) -> None:
    expected = {
        "train/loss": [(1, 1.5), (2, 3.5), (3, 5.5), (4, 7.5), (5, 9.5)],  # means of losses 1 and 2, 3 and 4, ...
        "lr": [(step, 0.1) for step in range(1, 6)],
        "val/accuracy": [(2, 0.75), (5, 0.875)],  # validations after 5 and 10 iterations
    }
    check_training(test_case, work_dir, expected, accumulate=2)


def _preserves_training(test_case: WriterTestCase, work_dir: Path) -> None:
    without = fake_training(scores=get_scores, work_dir=work_dir / "without")
    with_it = fake_training([test_case.create_hook()], scores=get_scores, work_dir=work_dir / "with")
    weights_without, weights_with = (fingerprint(training.model.state_dict()) for training in (without, with_it))
    assert weights_without == weights_with, "The weights differ from a training without the hook."
    assert fingerprint(without.rng) == fingerprint(with_it.rng), "The RNG states differ from the ones without it."


def _records_on_rank_0_only(test_case: WriterTestCase, work_dir: Path) -> None:
    # Simulates rank 1 of a run without a process group.
    with mock.patch.dict(os.environ, RANK="1", WORLD_SIZE="2"):
        train([test_case.create_hook()], work_dir)
    written = [path for path in work_dir.rglob("*") if path.is_file()]
    assert not written, f"Rank 1 wrote {written}. Write on rank 0 only."


def _redacts_secrets(test_case: WriterTestCase, work_dir: Path) -> None:
    config = {
        "lr": 0.1,
        "api_key": SECRET,
        "hooks": [{"type": "x", "token": SECRET, "url": f"http://me:{SECRET}@host/"}],
        "headers": [f"Authorization: Bearer {SECRET}"],
        "source": f"https://host/x?api_key={SECRET}&page=2",
        "link": SecretStr(SECRET),
    }
    train([test_case.create_hook()], work_dir, config=config)
    leaks = [path for path in work_dir.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
    assert not leaks, f"A secret of the configuration is stored in {leaks}. Redact secrets."


def _ignores_sanity_check(test_case: WriterTestCase, work_dir: Path) -> None:
    check_training(test_case, work_dir, more_hooks=[_SanityCheck()])


# -- requirements for hooks that write from a thread ----------------------------------------------


def _continues_after_thread_error(test_case: WriterTestCase, work_dir: Path) -> None:
    calls = iter(range(100))

    def fail_once(writer: Writer, values: Mapping[str, float], step: int) -> None:
        if next(calls) == 2:
            raise RuntimeError("unexpected error")
        type(writer).write_scalars(writer, values, step)

    messages = collect_warnings(lambda: _train_with_patch(test_case, work_dir, fail_once))
    reported = [text for text in messages if "1 records are missing: 1 numbers" in text]
    assert (len(messages), len(reported)) == (2, 1), f"Expected two warnings for one failed record, got {messages}."
    written = {"train/loss": [(k, float(k)) for k in (1, 2, 4, 5, 6, 7, 8, 9, 10)]}
    compare_curves(written, {"train/loss": test_case.read_curves(work_dir).get("train/loss", [])})


def _drops_records_of_slow_backend(test_case: WriterTestCase, work_dir: Path) -> None:
    def slow(writer: Writer, values: Mapping[str, float], step: int) -> None:
        time.sleep(0.05)
        type(writer).write_scalars(writer, values, step)

    messages = collect_warnings(lambda: _train_with_patch(test_case, work_dir, slow, 600, epochs=20, batches=50))
    curve = test_case.read_curves(work_dir)["train/loss"]
    counts = [int(count) for count in re.findall(r"(\d+) numbers", messages[-1])]
    assert curve == sorted(set(curve)), "Values are duplicated or out of order."
    missing = f"{len(curve)} of 1000 records were written, but the warnings report another number: {messages}."
    assert (len(messages), counts) == (2, [1000 - len(curve)]), missing


REQUIREMENTS: Mapping[str, Callable[[WriterTestCase, Path], None]] = {
    "every value is recorded once, in order, training and validation on one axis": check_training,
    "numbers of every type, including NaN and infinities, are recorded": _records_all_number_types,
    "names with special characters are recorded and remain distinct": _keeps_names_distinct,
    "10,000 names are recorded": _records_10_000_names,
    "a killed run resumes at its checkpoint": partial(_continues_after_kill, kill_at=7),
    "a killed run resumes if everything was written before the kill": partial(
        _continues_after_kill, kill_at=7, kill_delay=2.0
    ),
    "a killed run restarts if there was no checkpoint": partial(_continues_after_kill, kill_at=3, kill_delay=2.0),
    "writing recovers from a full disk": _recovers_from_a_full_disk,
    "records from before a crash are written": _keeps_records_before_crash,
    "cleanup can be called twice": _allows_second_cleanup,
    "with accumulation, records are counted in optimizer steps": _records_optimizer_steps,
    "weights and RNG states equal those of a training without the hook": _preserves_training,
    "only rank 0 writes": _records_on_rank_0_only,
    "secrets are redacted": _redacts_secrets,
    "a validation before training is not recorded": _ignores_sanity_check,
}
"""Requirements by description. Each takes the test case and an empty directory."""

THREAD_REQUIREMENTS: Mapping[str, Callable[[WriterTestCase, Path], None]] = {
    "an exception in the writer thread drops one record": _continues_after_thread_error,
    "records that a slow backend cannot accept are dropped and counted": _drops_records_of_slow_backend,
}
"""Additional requirements for a `WriterHook`, by description."""


class _SanityCheck(Hook):
    """Request a validation before training."""

    def before_train(self, run: Any) -> None:
        run.request_validation()


class _LogValues(Hook):
    """Log values once."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__()
        self.values = values

    def before_train(self, run: Any) -> None:
        run.bus.emit("log_scalars", values=self.values)


def _check_values(
    test_case: WriterTestCase, work_dir: Path, values: Mapping[str, Any], expected: Mapping[str, float]
) -> None:
    curves = {"train/loss": [(1, 1.0)], "lr": [(1, 0.1)], "val/accuracy": [(1, 0.75)]}
    curves |= {name: [(0, value)] for name, value in expected.items()}
    check_training(test_case, work_dir, curves, [_LogValues(values)], epochs=1, batches=1)


def _train_with_patch(
    test_case: WriterTestCase,
    work_dir: Path,
    write_scalars: Any,
    queue_bytes: int = WriterHook.queue_bytes,
    **training: Any,
) -> None:
    """Train with a subclass of the hook, and with a patched `write_scalars` of its writer."""

    def writer_factory(self: Any, run: Any) -> Callable[[], Writer]:
        make = test_case.cls.writer_factory(self, run)  # type: ignore[attr-defined]

        def make_patched() -> Writer:
            writer: Writer = make()
            vars(writer)["write_scalars"] = partial(write_scalars, writer)
            return writer

        return make_patched

    hook = test_case.create_hook()
    cls = type(test_case.cls.__name__, (test_case.cls,), {"writer_factory": writer_factory, "queue_bytes": queue_bytes})
    train([cls(hook.config, name=hook.name)], work_dir, scores=None, **training)
