"""Fixtures shared by the tests: run files with custom components, and environments with test packages."""

from __future__ import annotations

import base64
import gc
import hashlib
import importlib.metadata
import json
import os
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from hypothesis import settings

import hookbus
from hookbus._utils import packages

os.environ.pop("COLUMNS", None)  # set by pytest-xdist; it would change the width of the output
for name in [name for name in os.environ if name.upper().startswith("HOOKBUS_")]:
    del os.environ[name]  # defaults of the user's runs

# The time of an example depends on the machine: a garbage collection may take a second on a busy one.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_collection_finish() -> None:
    """Exclude modules and collected tests from garbage collections, each of which would take a second."""
    gc.collect()
    gc.freeze()


PARTS = """
    import torch
    from pydantic import Field
    from torch import nn
    from torch.utils.data import TensorDataset

    from hookbus import Hook, HookConfig, every, hookimpl
    from hookbus import Splits


    def points(count=32):
        inputs = torch.randn(count, 4, generator=torch.Generator().manual_seed(0))
        data = TensorDataset(inputs, (inputs.sum(1) > 0).long())
        return Splits(data, data, None, (4,), 2)


    def train_only():
        return Splits(points().train)


    def net(width=8, num_classes=2, input_shape=(4,)):
        return nn.Sequential(nn.Linear(input_shape[0], width), nn.ReLU(), nn.Linear(width, num_classes))


    class ProbeConfig(HookConfig):
        interval: int = Field(default=1, ge=1)
        ratio: float = 0.5
        tags: list[str] = []


    class ProbeHook(Hook):
        Config = ProbeConfig

        @hookimpl(when=every("interval"))
        def after_train_iter(self, run):
            pass


    class QuietHook(Hook):
        def before_run(self, run):
            pass


    class KeywordHook(Hook):
        def __init__(self, interval=50):
            self.interval = interval


    class DictHook(Hook):
        def __init__(self, config=None):
            super().__init__(config)
            self.built = True


    class AnyHook(Hook):
        def __init__(self, **settings):
            self.settings = settings


    class RaisingHook(Hook):
        def __init__(self, config=None):
            raise ValueError("no disk there")


    class MisspelledHook(Hook):
        def before_trian_iter(self, run):
            pass


    class Plain:
        def __init__(self, size=1):
            self.size = size

        @hookimpl
        def before_run(self, run):
            pass
"""


class Project:
    """Current directory of a test, with run files and the module `parts` that they import."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "parts.py").write_text(dedent(PARTS))

    def write(self, text: str, name: str = "run.yaml") -> Path:
        """Write a file and return its relative path."""
        (self.path / name).write_text(dedent(text))
        return Path(name)

    def run(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run the command line in a separate process."""
        command = [sys.executable, "-m", "hookbus", *arguments]
        environment = {**os.environ, **variables}
        return subprocess.run(command, cwd=self.path, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    path = list(sys.path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "parts", raising=False)
    yield Project(tmp_path)
    sys.path[:] = path
    sys.modules.pop("parts", None)


def write_wheel(
    directory: Path,
    name: str,
    version: str,
    modules: Mapping[str, str],
    entry_points: Mapping[str, Mapping[str, str]],
    requires: Sequence[str] = ("hookbus",),
) -> Path:
    """Write a wheel of pure Python modules in the wheel format 1.0."""
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    metadata = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}", *(f"Requires-Dist: {r}" for r in requires)]
    groups = [
        f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in entries.items()) for group, entries in entry_points.items()
    ]
    files = {
        **{f"{module}.py": dedent(text) for module, text in modules.items()},
        f"{info}/METADATA": "\n".join(metadata) + "\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "\n".join(groups),
    }
    lines = [f"{path},sha256={_digest(text)},{len(text.encode())}" for path, text in files.items()]
    wheel = directory / f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
        archive.writestr(f"{info}/RECORD", "\n".join([*lines, f"{info}/RECORD,,"]) + "\n")
    return wheel


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


class Environment:
    """Virtual environment with hookbus and its dependencies, and with the plugin packages that a test installs.

    The packages of the environment of the tests are linked, so that nothing is downloaded.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        # Not `importlib.util.find_spec`, where setuptools warns about distutils, which torch 2.6 imports.
        venv.EnvBuilder(with_pip=PathFinder.find_spec("pip") is None).create(path)
        self.executable = path / "bin" / "python"
        self.packages = next(path.glob("lib/python3*/site-packages"))
        plugins = _plugin_files()
        for directory in map(Path, sys.path):
            if directory.name in ("site-packages", "dist-packages"):
                self._link(directory, plugins)
        first = self.packages / "0.pth"  # read before other .pth files, so that this copy of hookbus is imported
        first.write_text(f"{Path(hookbus.__file__).parent.parent}\n")

    def _link(self, directory: Path, skipped: set[str]) -> None:
        """Link the packages of a directory, except those that an earlier directory provides in another version."""
        linked = {entry.name.partition("-")[0] for entry in self.packages.glob("*.dist-info")}
        for entry in directory.iterdir():
            target = self.packages / entry.name
            is_shadowed = entry.suffix == ".dist-info" and entry.name.partition("-")[0] in linked
            if entry.name not in skipped and not is_shadowed and not target.exists():
                target.symlink_to(entry)

    def install(self, *wheels: Path) -> None:
        """Install wheels with pip."""
        command = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-index", *map(str, wheels)]
        self.python(*command, check=True)

    def python(self, *arguments: str, check: bool = False, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run Python of this environment in the directory of the environment."""
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("HOOKBUS", "PYTHON"))}
        command = [str(self.executable), *arguments]
        return subprocess.run(
            command, cwd=self.path, env={**inherited, **variables}, capture_output=True, text=True, check=check
        )

    def hookbus(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run the command line of this environment."""
        return self.python("-m", "hookbus", *arguments, **variables)

    def answer(self, script: str, **variables: str) -> Any:
        """Return the value of the variable `answer` of a script."""
        code = f"import json\n{dedent(script)}\nprint(json.dumps(answer))"
        done = self.python("-c", code, **variables)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


def _plugin_files() -> set[str]:
    """Return the top-level names of all files of installed plugin packages."""
    names = set()
    for distribution in importlib.metadata.distributions():
        if any(entry.group.startswith("hookbus.") for entry in distribution.entry_points):
            names |= {file.parts[0] for file in distribution.files or () if file.parts[0] != ".."}
    return names


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Environment with valid and invalid third-party packages."""
    result = Environment(tmp_path_factory.mktemp("environment"))
    wheels = tmp_path_factory.mktemp("wheels")
    result.install(*(write_wheel(wheels, *package) for package in PACKAGES))
    return result


@pytest.fixture(scope="session")
def bare_environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Environment without plugin packages."""
    return Environment(tmp_path_factory.mktemp("bare"))


GREET = '''
    from hookbus import Hook, HookConfig


    class GreetConfig(HookConfig):
        text: str = "hello"


    class GreetHook(Hook):
        """Greet the run: first line.

        Second paragraph.
        """

        Config = GreetConfig

        def before_run(self, run):
            print("greet says", self.config.text)


    def not_a_class():
        pass
'''
TWIN = """
    from hookbus import Hook


    class TwinHook(Hook):
        origin = __name__
"""
MARKING = """
    import os
    import pathlib

    from hookbus import Hook

    pathlib.Path(os.environ.get("MARKER", "imported")).touch()


    class SilentHook(Hook):
        pass
"""
RENDER = """
    from hookbus import Hook


    class RenderPoints:
        def after_render(self, image=None):
            '''An image was rendered.'''


    class RenderHook(Hook):
        def after_render(self, image):
            print("rendered", image)
"""
LOGGER = """
    from hookbus import Hook, HookConfig


    class LoggerConfig(HookConfig):
        text: str = "default"


    class LoggerHook(Hook):
        Config = LoggerConfig

        def after_epoch(self, epoch):
            print("record", epoch, self.config.text)
"""
HOOKS, POINTS = packages.HOOKS_GROUP, packages.POINTS_GROUP
PACKAGES: list[tuple[Any, ...]] = [
    ("acme-hooks", "1.2", {"acme_hooks": GREET}, {HOOKS: {"greet": "acme_hooks:GreetHook"}}),
    (
        "acme-render",
        "1.0",
        {"acme_render": RENDER},
        {
            HOOKS: {"render": "acme_render:RenderHook"},
            POINTS: {"after_render": "acme_render:RenderPoints"},
        },
    ),
    (
        "broken-hooks",
        "0.3",
        {"broken_hooks": "import surely_not_there"},
        {HOOKS: {"broken": "broken_hooks:BrokenHook"}},
    ),
    ("impostor", "6.6", {"impostor": MARKING}, {HOOKS: {"progress": "impostor:SilentHook"}}),
    ("killing-hooks", "0.1", {"killing": "import os\nos.abort()"}, {HOOKS: {"killing": "killing:KillingHook"}}),
    ("leaving-hooks", "0.1", {"leaving": "import os\nos._exit(0)"}, {HOOKS: {"leaving": "leaving:LeavingHook"}}),
    ("hookbus-logger", "0.1.0", {"stub_logger": LOGGER}, {HOOKS: {"logger": "stub_logger:LoggerHook"}}),
    ("odd-hooks", "0.1", {}, {HOOKS: {"odd": "acme_hooks:not_a_class"}}),
    ("silent-hooks", "1.0", {"silent_hooks": MARKING}, {HOOKS: {"silent": "silent_hooks:SilentHook"}}),
    ("tomorrow-hooks", "5.0", {"tomorrow": TWIN}, {HOOKS: {"tomorrow": "tomorrow:TwinHook"}}, ["hookbus>=99"]),
    ("twin-one", "1.0", {"twin_one": TWIN}, {HOOKS: {"twin": "twin_one:TwinHook"}}),
    ("Twin.Two", "2.0", {"twin_two": TWIN}, {HOOKS: {"twin": "twin_two:TwinHook"}}),
]
"""Name, version, modules, entry points and requirements of each package."""
