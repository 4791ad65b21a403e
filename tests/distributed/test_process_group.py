from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.distributed import HashStore

from hookbus.distributed.process_group import (
    _rendezvous_key,
    drain_threads,
    is_distributed,
    is_main,
    local_device,
    rank,
    world_size,
)

VARIABLES = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


@pytest.fixture(autouse=True)
def remove_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def set_variables(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, (0, 1, True)),
        ({"RANK": "0", "WORLD_SIZE": "2"}, (0, 2, True)),
        ({"RANK": "3", "WORLD_SIZE": "4"}, (3, 4, False)),
    ],
)
def test_rank_and_world_size_are_read_from_the_environment(
    variables: dict[str, str], expected: tuple[int, int, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_variables(monkeypatch, variables)

    assert (rank(), world_size(), is_main()) == expected


class TestIsDistributed:
    def test_process_is_distributed_if_all_variables_are_set(self, monkeypatch: pytest.MonkeyPatch) -> None:
        set_variables(monkeypatch, VARIABLES)

        assert is_distributed()

    @pytest.mark.parametrize("missing", ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"])
    def test_process_is_not_distributed_if_a_variable_is_missing(
        self, missing: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        set_variables(monkeypatch, {name: value for name, value in VARIABLES.items() if name != missing})

        assert not is_distributed()

    def test_process_is_not_distributed_with_a_world_size_of_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        set_variables(monkeypatch, {**VARIABLES, "RANK": "0", "WORLD_SIZE": "1"})

        assert not is_distributed()


class TestLocalDevice:
    def test_device_index_is_the_local_rank(self, monkeypatch: pytest.MonkeyPatch) -> None:
        set_variables(monkeypatch, VARIABLES)

        assert local_device(torch.device("cuda")) == torch.device("cuda", 1)

    @pytest.mark.parametrize("device", ["cpu", "cuda:0"])
    def test_device_with_an_index_or_on_the_cpu_is_unchanged(
        self, device: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        set_variables(monkeypatch, VARIABLES)

        assert local_device(torch.device(device)) == torch.device(device)

    def test_device_of_a_single_process_is_unchanged(self) -> None:
        assert local_device(torch.device("cuda")) == torch.device("cuda")


class TestRendezvousPrefix:
    def get_prefixes(self, store: HashStore, size: int) -> list[str]:
        """Return the prefix of each process if rank 0 starts last."""
        with ThreadPoolExecutor(size) as pool:
            others = [pool.submit(_rendezvous_key, store, number, size) for number in range(1, size)]
            first = _rendezvous_key(store, 0, size)
            return [first, *(other.result(timeout=10) for other in others)]

    def test_prefix_is_equal_for_all_processes(self) -> None:
        assert len(set(self.get_prefixes(HashStore(), 3))) == 1

    def test_prefix_differs_from_that_of_terminated_processes(self) -> None:
        store = HashStore()
        previous, current = self.get_prefixes(store, 3), self.get_prefixes(store, 3)

        assert len(set(current)) == 1
        assert set(previous).isdisjoint(current)


LATE_THREAD = """
import atexit, time, weakref

import torch
import torch.distributed as dist
from hookbus.distributed.process_group import drain_threads

def record_release(_):
    end = time.monotonic() + 0.3
    while time.monotonic() < end:
        pass
    print("released", flush=True)

atexit.register(drain_threads)
dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
tensor = torch.ones(1)
reference = weakref.ref(tensor, record_release)  # called by the worker thread when it releases the tensor
dist.all_reduce(tensor, async_op=True)
del tensor
"""


@pytest.mark.slow
def test_process_waits_at_exit_until_gloo_threads_release_tensors() -> None:
    done = subprocess.run([sys.executable, "-c", LATE_THREAD], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, "released\n", "")


def test_process_without_gloo_threads_does_not_wait() -> None:
    assert drain_threads() is None


def test_process_leaves_with_exit_handlers_and_exit_code() -> None:
    code = (
        "import atexit; from hookbus.distributed.process_group import exit_process; "
        "atexit.register(print, 'end'); print('work'); exit_process(3)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (3, "work\nend\n", "")
