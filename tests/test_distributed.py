from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.distributed import HashStore

from hookbus.distributed import _meeting, is_main, is_one_of_several, local_device, rank, rest, world_size

MEETING = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in MEETING:
        monkeypatch.delenv(name, raising=False)


def _set(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
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
def test_which_process_this_is_stands_in_the_environment(
    variables: dict[str, str], expected: tuple[int, int, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    _set(monkeypatch, variables)

    assert (rank(), world_size(), is_main()) == expected


class TestWhetherThereAreOthersToMeet:
    def test_there_are_where_all_is_said_that_is_needed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        _set(monkeypatch, MEETING)

        assert is_one_of_several()

    @pytest.mark.parametrize("missing", ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"])
    def test_there_are_none_where_a_part_is_missing(self, missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
        _set(monkeypatch, {name: value for name, value in MEETING.items() if name != missing})

        assert not is_one_of_several()

    def test_one_process_meets_nobody(self, monkeypatch: pytest.MonkeyPatch) -> None:
        _set(monkeypatch, {**MEETING, "RANK": "0", "WORLD_SIZE": "1"})

        assert not is_one_of_several()


class TestTheDeviceOfAProcess:
    def test_it_is_that_of_its_number_on_the_host(self, monkeypatch: pytest.MonkeyPatch) -> None:
        _set(monkeypatch, MEETING)

        assert local_device(torch.device("cuda")) == torch.device("cuda", 1)

    @pytest.mark.parametrize("device", ["cpu", "cuda:0"])
    def test_one_that_is_complete_stays(self, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
        _set(monkeypatch, MEETING)

        assert local_device(torch.device(device)) == torch.device(device)

    def test_one_process_takes_what_is_current(self) -> None:
        assert local_device(torch.device("cuda")) == torch.device("cuda")


class TestTheNameUnderWhichProcessesMeet:
    def met(self, store: HashStore, size: int) -> list[str]:
        """Under which name each process finds the others, where the first one comes last."""
        with ThreadPoolExecutor(size) as pool:
            others = [pool.submit(_meeting, store, number, size) for number in range(1, size)]
            first = _meeting(store, 0, size)
            return [first, *(other.result(timeout=10) for other in others)]

    def test_is_the_same_for_all(self) -> None:
        assert len(set(self.met(HashStore(), 3))) == 1

    def test_is_not_that_of_processes_that_met_there_before(self) -> None:
        store = HashStore()
        before, now = self.met(store, 3), self.met(store, 3)

        assert len(set(now)) == 1
        assert set(before).isdisjoint(now)


LATE_THREAD = """
import atexit, time, weakref

import torch
import torch.distributed as dist
from hookbus.distributed import rest

def put_away(_):
    end = time.monotonic() + 0.3
    while time.monotonic() < end:
        pass
    print("put away", flush=True)

atexit.register(rest)
dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
tensor = torch.ones(1)
watched = weakref.ref(tensor, put_away)  # called by the thread that has added up, when it drops what it worked on
dist.all_reduce(tensor, async_op=True)
del tensor
"""


def test_a_process_rests_until_gloo_has_put_away_what_it_worked_on() -> None:
    done = subprocess.run([sys.executable, "-c", LATE_THREAD], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, "put away\n", "")


def test_a_process_without_such_threads_need_not_rest() -> None:
    assert rest() is None


def test_who_leaves_does_what_is_to_be_done_at_the_end_and_has_the_code() -> None:
    code = (
        "import atexit; from hookbus.distributed import leave; atexit.register(print, 'end'); print('work'); leave(3)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (3, "work\nend\n", "")
