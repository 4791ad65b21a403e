"""Requirements for hooks that write from a thread, such as every `WriterHook`."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hookbus.testing.backends import WriterTestCase, collect_warnings
from hookbus.testing.training import fake_training
from hookbus.writers.writer import Writer


def _continues_after_thread_error(test_case: WriterTestCase, work_dir: Path) -> None:
    calls = iter(range(100))

    def fail_once(writer: Writer, values: Mapping[str, float], step: int) -> None:
        if next(calls) == 2:
            raise RuntimeError("unexpected error")
        type(writer).write_scalars(writer, values, step)

    messages = collect_warnings(lambda: _train_with(test_case, work_dir, fail_once))
    reported = [text for text in messages if "1 records are missing: 1 numbers" in text]
    assert (len(messages), len(reported)) == (2, 1), f"Expected two warnings for one failed record, got {messages}."
    assert test_case.read_curves(work_dir)["train/loss"] == [(k, float(k)) for k in (1, 2, 4, 5, 6, 7, 8, 9, 10)]


def _drops_records_of_slow_backend(test_case: WriterTestCase, work_dir: Path) -> None:
    def slow(writer: Writer, values: Mapping[str, float], step: int) -> None:
        time.sleep(0.05)
        type(writer).write_scalars(writer, values, step)

    messages = collect_warnings(lambda: _train_with(test_case, work_dir, slow, queue_bytes=600, epochs=20, batches=50))
    curve = test_case.read_curves(work_dir)["train/loss"]
    counts = [int(count) for count in re.findall(r"(\d+) numbers", messages[-1])]
    assert curve == sorted(set(curve)), "Values are duplicated or out of order."
    missing = f"{len(curve)} of 1000 records were written, but the warnings report another number: {messages}."
    assert (len(messages), counts) == (2, [1000 - len(curve)]), missing


def _train_with(test_case: WriterTestCase, work_dir: Path, write_scalars: Any, **changes: Any) -> None:
    """Train with the hook and a patched `write_scalars` of its writer."""
    training = {"batches": 5, **{key: changes.pop(key) for key in ("epochs", "batches") if key in changes}}

    def factory(self: Any, run: Any) -> Callable[[], Writer]:
        make = test_case.cls.writer_factory(self, run)  # type: ignore[attr-defined]

        def make_patched() -> Writer:
            writer: Any = make()
            writer.write_scalars = lambda values, step: write_scalars(writer, values, step)
            return writer  # type: ignore[no-any-return]

        return make_patched

    hook = test_case.create_hook()
    cls = type(test_case.cls.__name__, (test_case.cls,), {"writer_factory": factory, **changes})
    fake_training([cls(hook.config, name=hook.name)], losses=float, work_dir=work_dir, **training)


THREAD_REQUIREMENTS: Mapping[str, Callable[[WriterTestCase, Path], None]] = {
    "an exception in the writer thread drops one record": _continues_after_thread_error,
    "records that a slow backend cannot accept are dropped and counted": _drops_records_of_slow_backend,
}
"""Additional requirements for a `WriterHook`, by description."""
