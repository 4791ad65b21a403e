import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def _no_thread_is_left_behind() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("QueueFeederThread"):  # of a loader with workers, which lets it end by itself
            thread.join(10)
    assert set(threading.enumerate()) <= before


class FakeClock:
    """A clock that stands still until it is told to go on."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def pass_(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def build_driver(directory: Path, *flags: str) -> Path:
    """Compile the library that stands in for NVIDIA's; returns the directory in which it is."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.fail(
            "These tests build a small C library that stands in for NVIDIA's driver: install gcc, for instance."
        )
    library = directory / "libnvidia-ml.so.1"
    command = [compiler, "-shared", "-fPIC", "-Wall", "-Werror", *flags, "-o", str(library), str(HERE / "nvml.c")]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return directory


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a driver library is that answers as a scenario says."""
    return build_driver(tmp_path_factory.mktemp("driver"))


@dataclass
class Machine:
    """A machine with GPUs that are made up: a process in which the real binding reads them."""

    directory: Path
    library: Path
    process: Any = None
    lines: dict[str, list[str]] = field(default_factory=dict)

    @property
    def scenario(self) -> Path:
        return self.directory / "scenario"

    @property
    def calls(self) -> Path:
        return self.directory / "calls"

    @property
    def environment(self) -> dict[str, str]:
        found = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
        paths = {"NVML_SCENARIO": self.scenario, "NVML_CALLS": self.calls, "LD_LIBRARY_PATH": self.library}
        return found | {name: str(path) for name, path in paths.items()}

    def boot(self) -> "Machine":
        command = [sys.executable, str(HERE / "nvml_reader.py")]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, env=self.environment, stdin=pipe, stdout=pipe, text=True)
        return self

    def watch(self, scenario: str, entries: list[int | str] | None = None, **settings: bool) -> "Machine":
        """Begin anew, with a provider for these devices."""
        self.calls.write_text("")
        self._ask(scenario=scenario, new={"entries": entries, **settings})
        return self

    def read(self, scenario: str | None = None) -> dict[str, float | None]:
        """One reading, of another scenario where one is given."""
        return self.reads(1, scenario)[0]

    def reads(self, count: int, scenario: str | None = None) -> list[dict[str, float | None]]:
        change = {} if scenario is None else {"scenario": scenario}
        return self._ask(reads=count, **change)["values"]

    def close(self) -> None:
        self._ask(close=True)

    def opened_and_closed(self) -> list[str]:
        return self.calls.read_text().split()

    def _ask(self, **command: Any) -> dict[str, Any]:
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        self.lines = {name: answer[name] for name in ("told", "warned", "complained")}
        return answer

    def shut_down(self) -> None:
        self.process.communicate(timeout=30)
        assert self.process.returncode == 0


def booted(directory: Path, library: Path) -> Iterator[Machine]:
    made = Machine(directory, library)
    made.scenario.write_text("")
    made.boot()
    yield made
    made.shut_down()


@pytest.fixture(scope="module")
def machine(driver: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A machine with a driver of today."""
    yield from booted(tmp_path_factory.mktemp("machine"), driver)


@pytest.fixture(scope="module")
def old_machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A machine whose driver does not have the newer calls."""
    library = build_driver(tmp_path_factory.mktemp("old_driver"), "-DOLD_DRIVER")
    yield from booted(tmp_path_factory.mktemp("old_machine"), library)


@pytest.fixture
def bare_machine(tmp_path: Path) -> Iterator[Machine]:
    """A machine without a driver; its library directory is empty."""
    library = tmp_path / "library"
    library.mkdir()
    yield from booted(tmp_path, library)


@pytest.fixture
def foreign_machine(tmp_path: Path) -> Iterator[Machine]:
    """A machine where a file with the name of the driver's library is another library."""
    library = tmp_path / "library"
    library.mkdir()
    yield from booted(tmp_path, build_driver(library, "-DnvmlInitWithFlags=something_else"))


@pytest.fixture
def made_up_driver(driver: Path, tmp_path: Path) -> Callable[[str], dict[str, str]]:
    """The environment of a process that sees the GPUs of a scenario."""

    def environment(scenario: str) -> dict[str, str]:
        made = Machine(tmp_path, driver)
        made.scenario.write_text(scenario)
        made.calls.write_text("")
        return made.environment

    return environment
