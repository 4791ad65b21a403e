"""Signals sent to DataLoader workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SequentialSampler, TensorDataset

from hookbus.data.workers import SizedBatches, init_worker, iter_loader

SCRIPT = """
import multiprocessing, os, signal, sys, time
import torch
from hookbus.data.workers import iter_loader

class OwnContext(multiprocessing.context.SpawnContext): pass

class Slow(torch.utils.data.Dataset):
    def __len__(self): return 100
    def __getitem__(self, index):
        if index >= 8 and "stuck" in sys.argv: time.sleep(1); time.sleep(1000)
        return index

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: None)
    method, end, persistent = sys.argv[1:4]
    method = OwnContext() if method == "own" else method
    loader = torch.utils.data.DataLoader(
        Slow(), batch_size=4, num_workers=2, multiprocessing_context=method, persistent_workers=persistent == "True"
    )
    batches = iter_loader(loader)
    next(batches), next(batches)  # both workers are initialized
    workers = batches._workers
    print(*(worker.pid for worker in workers), flush=True)
    for worker in workers:
        os.kill(worker.pid, signal.SIGTERM)
    time.sleep(0.3)
    assert all(worker.is_alive() for worker in workers)
    if end == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if end == "close":
        del batches, loader
        assert not any(worker.is_alive() for worker in workers)
    if end == "raise":
        raise ValueError
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "end", "persistent", "stuck"),
    [
        pytest.param("fork", "exit", False, "stuck", marks=pytest.mark.exhaustive),
        ("fork", "raise", True, ""),
        pytest.param("fork", "kill", False, "", marks=pytest.mark.exhaustive),
        pytest.param("spawn", "exit", False, "", marks=pytest.mark.exhaustive),
        ("forkserver", "kill", True, ""),
        ("own", "exit", True, "stuck"),
        ("fork", "close", False, "stuck"),
        ("spawn", "kill", True, ""),
        pytest.param("forkserver", "exit", True, "", marks=pytest.mark.exhaustive),
        pytest.param("own", "kill", False, "", marks=pytest.mark.exhaustive),
    ],
)
def test_workers_ignore_sigterm_and_end_with_the_main_process(
    tmp_path: Path, method: str, end: str, persistent: bool, stuck: str
) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "script.py", method, end, str(persistent), stuck]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            workers = [int(number) for number in process.stdout.readline().split()]
            code = process.wait(timeout=60)
            assert len(workers) == 2
            deadline = time.monotonic() + 20
            while any(map(_is_running, workers)) and time.monotonic() < deadline:
                time.sleep(0.1)
            assert not any(map(_is_running, workers))
            assert code == {"kill": -signal.SIGKILL, "raise": 1}.get(end, 0)
        finally:
            process.kill()


def _is_running(number: int) -> bool:
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def sigusr1_handler() -> Iterator[None]:
    previous = signal.signal(signal.SIGUSR1, lambda *_: None)
    yield
    signal.signal(signal.SIGUSR1, previous)


class SignalDataset:
    """Dataset that sends a signal to the process that reads a sample."""

    def __init__(self, number: signal.Signals) -> None:
        self.number = number

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        os.kill(os.getpid(), self.number)
        return index


@pytest.mark.usefixtures("sigusr1_handler")
def test_handled_signal_does_not_end_a_worker() -> None:
    loader = DataLoader(SignalDataset(signal.SIGUSR1), num_workers=1)  # type: ignore[arg-type]

    assert [batch.tolist() for batch in iter_loader(loader)] == [[0], [1]]
    assert loader.worker_init_fn is None
    assert loader.multiprocessing_context is None


@pytest.mark.slow
def test_signal_without_a_handler_ends_a_worker() -> None:
    loader = DataLoader(SignalDataset(signal.SIGUSR2), num_workers=1)  # type: ignore[arg-type]

    with pytest.raises(RuntimeError, match="DataLoader worker"):
        list(iter_loader(loader))


NESTED = """
import multiprocessing, signal
import torch
from hookbus.data.workers import iter_loader

def train():
    global batches
    signal.signal(signal.SIGTERM, lambda *_: None)
    batches = iter_loader(torch.utils.data.DataLoader(range(8), num_workers=1))
    next(batches)

if __name__ == "__main__":
    process = multiprocessing.get_context("fork").Process(target=train)
    process.start()
    process.join(60)
    code = process.exitcode
    process.kill()
    assert code == 0
"""


@pytest.mark.slow
def test_process_of_multiprocessing_ends_with_its_workers(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(NESTED)
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")


TRACKED = """
import os, signal, sys, time
import torch
from multiprocessing.resource_tracker import _resource_tracker
from hookbus.data.workers import iter_loader

if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, lambda *_: None)
    loader = torch.utils.data.DataLoader(range(8), num_workers=1, multiprocessing_context=sys.argv[1])
    batches = iter_loader(loader)
    next(batches)
    os.kill(_resource_tracker._pid, signal.SIGUSR1)
    time.sleep(0.3)
    assert _resource_tracker._check_alive()
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_resource_tracker_survives_a_handled_signal(tmp_path: Path, method: str) -> None:
    (tmp_path / "script.py").write_text(TRACKED)
    done = subprocess.run(
        [sys.executable, "script.py", method], cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")


def test_other_iterables_are_iterated_unchanged() -> None:
    assert list(iter_loader([1, 2])) == [1, 2]


def test_worker_init_fn_of_the_user_is_called() -> None:
    called: list[int] = []
    init_worker(frozenset(), called.append, 3)

    assert called == [3]


BATCHES = [[0], [1, 2, 3], [4, 5]]


class Numbers(Dataset[Any]):
    def __getitem__(self, index: Any) -> Any:
        if index == 2:
            raise ValueError("broken")
        return torch.zeros(7) if isinstance(index, list) else torch.zeros(1)


def pack(samples: list[Any]) -> torch.Tensor:
    """Return the samples as one row, whose shape does not depend on their number."""
    return torch.zeros(1, 7)


def loader(**options: Any) -> DataLoader[Any]:
    options = {"batch_sampler": BATCHES, "collate_fn": pack} | options
    return DataLoader(TensorDataset(torch.arange(6.0)), **options)


def read_sizes(source: DataLoader[Any]) -> list[int | None]:
    batches = iter_loader(source)
    return [getattr(batches, "size", None) for _ in batches]


@pytest.mark.parametrize(
    "options",
    [{}, {"num_workers": 2}, {"num_workers": 1, "prefetch_factor": 1}, {"num_workers": 2, "persistent_workers": True}],
    ids=str,
)
def test_size_is_the_number_of_indices_of_the_batch(options: dict[str, Any]) -> None:
    source = loader(**options)

    assert read_sizes(source) == [1, 3, 2]
    assert read_sizes(source) == [1, 3, 2]
    assert source.batch_sampler is BATCHES


@pytest.mark.parametrize("options", [{}, {"num_workers": 2, "persistent_workers": True}], ids=str)
def test_abandoned_iterator_does_not_change_the_next_one(options: dict[str, Any]) -> None:
    source = loader(**options)
    next(iter_loader(source))

    assert read_sizes(source) == [1, 3, 2]


def test_two_iterators_of_one_loader_have_their_own_sizes() -> None:
    source = loader()
    first, second = iter_loader(source), iter_loader(source)
    assert isinstance(first, SizedBatches)
    assert isinstance(second, SizedBatches)
    next(first), next(first), next(second)

    assert (first.size, second.size) == (3, 1)


def test_batch_after_a_failed_one_has_its_own_size() -> None:
    batches = iter_loader(DataLoader(Numbers(), batch_sampler=BATCHES))
    next(batches)
    with pytest.raises(ValueError, match="broken"):
        next(batches)
    next(batches)

    assert batches.size == 2  # type: ignore[attr-defined]


def test_sampler_that_yields_lists_of_indices_determines_the_size() -> None:
    batches = BatchSampler(SequentialSampler(range(2)), batch_size=2, drop_last=False)

    assert read_sizes(DataLoader(Numbers(), batch_size=None, sampler=batches)) == [2]
    assert read_sizes(DataLoader([torch.zeros(8, 3)], batch_size=None)) == [None]  # type: ignore[arg-type]


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([1, 2, 3])


class Halving(DataLoader[Any]):
    def __iter__(self) -> Any:
        return iter([batch[:1] for batch in super().__iter__()])


@pytest.mark.parametrize(
    "source",
    [
        loader(num_workers=2, in_order=False),
        DataLoader(Endless(), batch_size=2),
        Halving(TensorDataset(torch.arange(2.0)), batch_size=2, collate_fn=pack),
    ],
    ids=["in_order=False", "iterable dataset", "own __iter__"],
)
def test_size_is_unknown_if_batches_are_not_those_of_the_sampler(source: DataLoader[Any]) -> None:
    assert set(read_sizes(source)) == {None}


@pytest.mark.slow
def test_loader_read_without_sizes_does_not_accumulate_them() -> None:
    source = DataLoader(range(1000), batch_size=1, num_workers=1, persistent_workers=True)  # type: ignore[arg-type]
    batches = iter_loader(source)
    for _ in batches._batches:  # type: ignore[attr-defined]
        pass

    assert len(batches._steps) == 4  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "options", [{}, {"num_workers": 2, "persistent_workers": True}], ids=["main process", "workers"]
)
def test_indices_of_each_batch_are_provided_on_request(options: dict[str, Any]) -> None:
    loader = DataLoader(list(range(5)), batch_sampler=[[4, 1], [0], [3, 2]], **options)  # type: ignore[arg-type]
    for _ in range(2):
        batches = iter_loader(loader, indices=True)
        assert [(batch.tolist(), batches.indices, batches.size) for batch in batches] == [  # type: ignore[attr-defined]
            ([4, 1], [4, 1], 2),
            ([0], [0], 1),
            ([3, 2], [3, 2], 2),
        ]
    batches = iter_loader(loader)
    assert [(batches.indices, batches.size) for _ in batches] == [(None, 2), (None, 1), (None, 2)]  # type: ignore[attr-defined]


def test_keys_that_are_no_integers_are_no_indices() -> None:
    batches = iter_loader(DataLoader({"a": 1, "b": 2}, batch_sampler=[["b", "a"]]), indices=True)  # type: ignore[arg-type]
    assert [(batches.indices, batches.size) for _ in batches] == [(None, 2)]  # type: ignore[attr-defined]
