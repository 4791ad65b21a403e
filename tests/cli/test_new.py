"""Tests of the command `new`, and of the packages and scripts that it writes."""

from __future__ import annotations

import errno
import importlib
import importlib.util
import re
import stat
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.testing import CliRunner

from hookbus._cli import scaffold
from hookbus._cli.app import app
from hookbus.testing import bridge_conformance

COMMON = {".github/workflows/ci.yml", ".gitignore", "CHANGELOG.md", "LICENSE", "README.md", "pyproject.toml"}
FILES = {
    "hook": {"__init__.py", "config.py", "hook.py", "py.typed"},
    "writer": {"__init__.py", "hook.py", "py.typed", "writer.py"},
    "bridge": {"__init__.py", "bridge.py", "capabilities.py", "py.typed", "trainer.py"},
}
TESTS = {"hook": {"test_hook.py"}, "writer": {"test_hook.py"}, "bridge": {"conftest.py", "test_bridge.py"}}
ENTRY_POINTS = {
    "hook": {"hookbus.hooks": {"my_log": "hookbus_my_log:MyLogHook"}},
    "writer": {"hookbus.hooks": {"my_log": "hookbus_my_log:MyLogHook"}},
    "bridge": {"hookbus.bridges": {"hookbus_my_log.Trainer": "hookbus_my_log.capabilities:CAPABILITIES"}},
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Change to an empty folder, and remove the modules that a test imports from it."""
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("hookbus_my_log", "test_hook", "test_bridge", "mine"):
            del sys.modules[name]


def invoke(*arguments: str) -> tuple[int, str]:
    """Run the command, and return its exit code and its output without line breaks."""
    result = CliRunner().invoke(app, ["new", *arguments])
    return result.exit_code, " ".join(result.output.split())


def write(variant: str) -> Path:
    """Write a package of a variant."""
    options = [] if variant == "hook" else [f"--{variant}"]
    assert invoke("hookbus-my-log", *options)[0] == 0
    return Path("hookbus-my-log").resolve()


def list_files(directory: Path) -> set[str]:
    return {path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()}


def load(path: Path) -> ModuleType:
    """Import a module of a package from its file."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("variant", FILES)
def test_package_is_complete(variant: str) -> None:
    package = write(variant)
    own = {f"hookbus_my_log/{name}" for name in FILES[variant]} | {f"tests/{name}" for name in TESTS[variant]}
    assert list_files(package) == COMMON | own
    assert list_files(package.parent) == {f"hookbus-my-log/{name}" for name in COMMON | own}  # nothing else remains
    project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    assert (project["name"], project["dependencies"]) == ("hookbus-my-log", ["hookbus>=0.1,<0.2"])
    assert project["entry-points"] == ENTRY_POINTS[variant]
    assert "${{ matrix.python }}" in (package / ".github/workflows/ci.yml").read_text()
    others = [path for path in package.rglob("*") if path.is_file() and path.suffix != ".yml"]
    assert not [path for path in others if re.search(r"\$[\w{]", path.read_text())]
    assert stat.S_IMODE(package.stat().st_mode) == stat.S_IMODE((package / "tests").stat().st_mode)


@pytest.mark.skipif(importlib.util.find_spec("ruff") is None, reason="requires ruff")
def test_code_passes_ruff() -> None:
    for name in ("zoo-of-hooks-with-a-long-name", "a"):
        for option in ([], ["--writer"], ["--bridge"]):
            assert invoke(name, *option)[0] == 0
            Path(name).rename("".join([name, "-package", *option]))
    invoke("--here")
    for command in (["check"], ["format", "--check", "--line-length", "120"]):
        done = subprocess.run([sys.executable, "-m", "ruff", *command, "."], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


def test_tests_of_a_hook_pass(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest
) -> None:
    package = write("hook")
    monkeypatch.syspath_prepend(str(package))
    for test in iter_tests(load(package / "tests/test_hook.py"), without="conformance"):
        caplog.clear()
        test(**{name: request.getfixturevalue(name) for name in signature(test).parameters})


@pytest.mark.slow
def test_tests_of_a_writer_pass(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    package = write("writer")
    monkeypatch.syspath_prepend(str(package))
    for test in iter_tests(load(package / "tests/test_hook.py"), without="conformance"):
        test(**{name: request.getfixturevalue(name) for name in signature(test).parameters})


@pytest.mark.slow
def test_tests_of_a_bridge_pass(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = write("bridge")
    monkeypatch.syspath_prepend(str(package))
    metadata = tmp_path / "metadata"
    metadata.mkdir()
    monkeypatch.syspath_prepend(str(load(package / "tests/conftest.py").write_metadata(metadata)))
    adapter = load(package / "tests/test_bridge.py").Adapter()
    for check in bridge_conformance(adapter):
        directory = tmp_path / str(check)
        directory.mkdir()
        check(directory)


def iter_tests(module: ModuleType, without: str) -> Iterator[Callable[..., None]]:
    for name, value in vars(module).items():
        if name.startswith("test_") and without not in name:
            yield value


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("MyHook", "lowercase letters, digits and single hyphens, got 'MyHook'. Pass a name such as my-hook."),
        ("hookbus--mine", "got 'hookbus--mine'. Pass a name such as hookbus-mine."),
        ("hookbus-", "got 'hookbus-'. Pass a name such as hookbus-mine."),
        ("-", "Pass a name such as hookbus-mine."),
        ("Größe", "got 'Größe'. Pass a name such as grosse."),
        ("Json", "got 'Json'. Pass a name such as hookbus-json."),
        ("2-hooks", "must be a valid Python module, got '2_hooks'. Pass a name such as hookbus-my-2-hooks."),
        ("class", "must be a valid Python module, got 'class'. Pass a name such as hookbus-class."),
        ("hookbus-3d", "must begin with a letter, got '3d' as a class. Pass a name such as hookbus-my-3d."),
        ("json", "would hide another one, got 'json'. Pass a name such as hookbus-json."),
        ("tests", "would hide another one, got 'tests'. Pass a name such as hookbus-tests."),
        ("test", "would hide another one, got 'test'. Pass a name such as hookbus-test."),
        ("conftest", "would hide another one, got 'conftest'. Pass a name such as hookbus-conftest."),
        ("torch", "would hide another one, got 'torch'. Pass a name such as hookbus-torch."),
        ("hookbus", "would hide another one, got 'hookbus'. Pass a name such as hookbus-mine."),
        ("numpy", "a module 'numpy' is installed already. Pass a name such as hookbus-numpy."),
        ("ema", "hookbus-ema provides a hook with the name 'ema' already. Pass a name such as hookbus-my-ema."),
        ("missing/hookbus-mine", "the folder missing does not exist. Create it first."),
    ],
)
def test_invalid_name_is_refused(name: str, message: str, folder: Path) -> None:
    code, output = invoke(name)
    assert code == 2
    assert message in output
    assert list(folder.iterdir()) == []


def test_existing_folder_is_refused(folder: Path) -> None:
    package = folder / "hookbus-mine"
    package.mkdir()
    assert invoke("hookbus-mine") == (
        2,
        "hookbus new: hookbus-mine exists already. Remove it, or pass another name.",
    )
    assert list(package.iterdir()) == []


def test_failure_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Path] = []

    def fail(path: Path, *arguments: Any) -> None:
        written.append(path)
        if len(written) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        _write(path, *arguments)

    _write = scaffold._write
    monkeypatch.setattr(scaffold, "_write", fail)
    code, output = invoke("hookbus-mine")
    assert (code, len(written)) == (1, 3)
    assert "hookbus-mine cannot be written: No space left on device" in output
    written[:] = [Path(), Path()]
    assert invoke("--here")[0] == 1
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the name of the package is missing"),
        (["hookbus-mine", "--writer", "--bridge"], "--writer and --bridge exclude each other"),
        (["mine", "--here", "--writer"], "--writer and --here exclude each other"),
        (["--here", "2d"], "must be a valid Python module, got '2d'. Pass a name such as my_2d."),
        (["--here", "json.py"], "would hide another one, got 'json'. Pass a name such as my_json."),
        (["--here", "conftest"], "would hide another one, got 'conftest'. Pass a name such as my_conftest."),
        (["--here", "torch"], "would hide another one, got 'torch'. Pass a name such as my_torch."),
        (["--here", "numpy"], "a module 'numpy' is installed already. Pass a name such as my_numpy."),
    ],
)
def test_invalid_arguments_are_refused(arguments: list[str], message: str, folder: Path) -> None:
    code, output = invoke(*arguments)
    assert code == 2
    assert message in output
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "file", "cls"), [([], "my_hook.py", "MyHook"), (["mine.py"], "mine.py", "MineHook")]
)
def test_script_trains_with_its_hook(
    arguments: list[str], file: str, cls: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert invoke("--here", *arguments) == (0, f"Wrote {file}. Next: python {file}")
    script = load(folder / file)
    assert issubclass(getattr(script, cls), script.Hook)
    with caplog.at_level("INFO", logger="hookbus"):
        script.main()
    # 64 iterations, with a message after each 10.
    name = getattr(script, cls)().name
    messages = [message for message in caplog.messages if message.startswith(f"{name}: loss ")]
    assert len(messages) == 6

    assert invoke("--here", *arguments)[1].startswith(f"hookbus new: {file} exists already.")


@pytest.mark.parametrize(("version", "requirement"), [("0.1.0", "hookbus>=0.1,<0.2"), ("1.2.3", "hookbus>=1.2,<2")])
def test_requirement_excludes_the_next_incompatible_version(version: str, requirement: str) -> None:
    assert scaffold.get_requirement(version) == requirement
