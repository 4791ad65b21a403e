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
def _no_leaked_threads() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("QueueFeederThread"):  # of a loader with workers, which does not join it
            thread.join(10)
    assert set(threading.enumerate()) <= before


class FakeClock:
    """Clock that is advanced by the test."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def build_driver(directory: Path, *flags: str) -> Path:
    """Compile the fake NVML library and return its directory."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.fail("The tests require a C compiler to build a fake NVML library. Install gcc.")
    library = directory / "libnvidia-ml.so.1"
    command = [compiler, "-shared", "-fPIC", "-Wall", "-Werror", *flags, "-o", str(library), str(HERE / "nvml.c")]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return directory


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a fake NVML library controlled by a scenario file."""
    return build_driver(tmp_path_factory.mktemp("driver"))


@dataclass
class Machine:
    """Machine with fake GPUs: a process that reads them through the real NVML binding."""

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
        variables = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
        paths = {"NVML_SCENARIO": self.scenario, "NVML_CALLS": self.calls, "LD_LIBRARY_PATH": self.library}
        return variables | {name: str(path) for name, path in paths.items()}

    def boot(self) -> "Machine":
        command = [sys.executable, str(HERE / "nvml_reader.py")]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, env=self.environment, stdin=pipe, stdout=pipe, text=True)
        return self

    def watch(self, scenario: str, entries: list[int | str] | None = None, **settings: bool) -> "Machine":
        """Create a provider for the given devices in a scenario."""
        self.calls.write_text("")
        self._send(scenario=scenario, new={"entries": entries, **settings})
        return self

    def remove_from_binding(self, *names: str) -> None:
        """Remove functions or constants from the binding until the next `watch`, as in an old version."""
        self._send(lacks=names)

    def read(self, scenario: str | None = None) -> dict[str, float | None]:
        """Return one reading, after a change of the scenario if one is given."""
        return self.read_times(1, scenario)[0]

    def read_times(self, count: int, scenario: str | None = None) -> list[dict[str, float | None]]:
        change = {} if scenario is None else {"scenario": scenario}
        return self._send(reads=count, **change)["values"]

    def close(self) -> None:
        self._send(close=True)

    def get_calls(self) -> list[str]:
        return self.calls.read_text().split()

    def _send(self, **command: Any) -> dict[str, Any]:
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        response = json.loads(self.process.stdout.readline())
        self.lines = {name: response[name] for name in ("info", "warnings", "unavailable")}
        return response

    def shut_down(self) -> None:
        self.process.communicate(timeout=30)
        assert self.process.returncode == 0


def boot_machine(directory: Path, library: Path) -> Iterator[Machine]:
    machine = Machine(directory, library)
    machine.scenario.write_text("")
    machine.boot()
    yield machine
    machine.shut_down()


@pytest.fixture(scope="module")
def machine(driver: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """Machine with a current driver."""
    yield from boot_machine(tmp_path_factory.mktemp("machine"), driver)


@pytest.fixture(scope="module")
def old_machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """Machine whose driver lacks recent functions."""
    library = build_driver(tmp_path_factory.mktemp("old_driver"), "-DOLD_DRIVER")
    yield from boot_machine(tmp_path_factory.mktemp("old_machine"), library)


@pytest.fixture
def bare_machine(tmp_path: Path) -> Iterator[Machine]:
    """Machine without a driver: its library directory is empty."""
    library = tmp_path / "library"
    library.mkdir()
    yield from boot_machine(tmp_path, library)


@pytest.fixture
def foreign_machine(tmp_path: Path) -> Iterator[Machine]:
    """Machine on which another library has the file name of NVML."""
    library = tmp_path / "library"
    library.mkdir()
    yield from boot_machine(tmp_path, build_driver(library, "-DnvmlInitWithFlags=something_else"))


@pytest.fixture
def fake_driver(driver: Path, tmp_path: Path) -> Callable[[str], dict[str, str]]:
    """Return a factory of environments in which a process reads the GPUs of a scenario."""

    def environment(scenario: str) -> dict[str, str]:
        machine = Machine(tmp_path, driver)
        machine.scenario.write_text(scenario)
        machine.calls.write_text("")
        return machine.environment

    return environment
