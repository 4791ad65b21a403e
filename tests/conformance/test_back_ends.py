"""Every back end of this repository keeps the same promises, with its real library and its real files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hookbus.recording import WriterHook
from hookbus.testing import BackEnd
from hookbus.testing.writers import PROMISES, THREAD_PROMISES
from tests.conformance.back_ends import BACK_ENDS

Promise = Callable[[BackEnd, Path], None]

pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy")  # MLflow's own, with SQLAlchemy 2.1

THREADED = [back_end for back_end in BACK_ENDS if issubclass(back_end.cls, WriterHook)]


def named(back_end: BackEnd) -> str:
    return back_end.cls.__name__


@pytest.mark.parametrize("promise", PROMISES.values(), ids=PROMISES)
@pytest.mark.parametrize("back_end", BACK_ENDS, ids=named)
def test_a_back_end_keeps_a_promise(back_end: BackEnd, promise: Promise, tmp_path: Path) -> None:
    promise(back_end, tmp_path)


@pytest.mark.parametrize("promise", THREAD_PROMISES.values(), ids=THREAD_PROMISES)
@pytest.mark.parametrize("back_end", THREADED, ids=named)
def test_one_that_writes_from_a_thread_keeps_another(back_end: BackEnd, promise: Promise, tmp_path: Path) -> None:
    promise(back_end, tmp_path)
