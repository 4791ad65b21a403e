"""Every back end of this repository keeps the same promises, with its real library and its real files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hookbus import WriterHook
from hookbus.testing import BackEnd
from hookbus.testing.threads import THREAD_PROMISES
from hookbus.testing.writers import PROMISES
from hookbus_mlflow import MLflowHook
from tests.conformance.back_ends import BACK_ENDS

Promise = Callable[[BackEnd, Path], None]


FULL_DISK = "it recovers from a full disk"
IN_A_PROCESS_OF_ITS_OWN = [
    "a run that was killed goes on where its checkpoint was taken",
    "it does when everything was written before the kill",
    "it does when there was no checkpoint yet",
    FULL_DISK,
]
SLOW = [PROMISES[sentence] for sentence in IN_A_PROCESS_OF_ITS_OWN]


def promises_of(back_end: BackEnd) -> dict[str, Promise]:
    """By sentence. A full disk says something of files of its own only."""
    threaded = THREAD_PROMISES if issubclass(back_end.cls, WriterHook) else {}
    named = {**PROMISES, **threaded}
    return {sentence: promise for sentence, promise in named.items() if back_end.own_files or sentence != FULL_DISK}


def cases() -> Iterator[Any]:
    for back_end in BACK_ENDS:
        for sentence, promise in promises_of(back_end).items():
            slow = promise in SLOW or back_end.cls is MLflowHook  # its database takes seconds to make
            marks = [pytest.mark.slow, pytest.mark.timeout(600)] if slow else []
            yield pytest.param(back_end, promise, id=f"{back_end.cls.__name__}: {sentence}", marks=marks)


@pytest.mark.parametrize(("back_end", "promise"), list(cases()))
def test_a_back_end_keeps_a_promise(back_end: BackEnd, promise: Promise, tmp_path: Path) -> None:
    promise(back_end, tmp_path)
