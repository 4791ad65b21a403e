"""Tests of what macOS and Windows lack: static ones, and trainings in a process that is restricted to the rest."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from releasing.projects import find_bridges, find_projects

from tests import windows

ROOT = Path(__file__).parent.parent
SOURCES = sorted(
    path for folder in (ROOT / "hookbus", *ROOT.glob("plugins/*/hookbus_*")) for path in folder.rglob("*.py")
)

SYSTEM_MODULES = {*windows.MODULES, "msvcrt", "winreg"}
IMPORTED_BY = {"hookbus/_utils/system.py", "plugins/hookbus-system-monitor/hookbus_system_monitor/memory.py"}
"""Modules that have the fallbacks of the modules of a system."""

TERMINATES = "hookbus/testing/backends.py"
"""Module that kills a process on purpose: on Windows, `os.kill` terminates a process whatever the signal."""

POSITION_OF_ENCODING = {"read_text": 0, "write_text": 1}

IMPORT_SCRIPT = """
import importlib, pkgutil, sys
from pathlib import Path
from tests import windows
windows.restrict()
packages = sys.argv[1:]
for name in packages:
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, f"{name}."):
        importlib.import_module(module.name)
print(len(packages))
"""

TRAIN_SCRIPT = """
import json, logging, sys
from pathlib import Path
from tests import windows
windows.restrict()
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from hookbus import Trainer, hooks
from hookbus_checkpoint import CheckpointHook, PreemptionHook

warnings = []
class Handler(logging.Handler):
    def emit(self, record):
        warnings.append(record.getMessage())
logging.getLogger("hookbus").addHandler(Handler(logging.WARNING))

def train(work_dir, epochs, **options):
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(32, 4), torch.arange(32) % 2)
    model = nn.Linear(4, 2)
    extra = [hooks.JsonlHook(), hooks.TensorBoardHook(), hooks.MemoryProfilerHook(interval=2), PreemptionHook()]
    saver = CheckpointHook(max_keep_ckpts=1, save_best="accuracy", publish=True, async_save=True)
    trainer = Trainer(
        model, torch.optim.SGD(model.parameters(), lr=0.1), nn.functional.cross_entropy, DataLoader(data, 8),
        DataLoader(data, 8), metrics=["accuracy"], epochs=epochs, hooks=[*extra, saver], work_dir=work_dir, seed=0,
        **options)
    trainer.train()
    return [weight.tolist() for weight in model.parameters()]

directory = Path(sys.argv[1])
train(directory / "b", 2)
first = list(warnings)
resumed, complete = train(directory / "b", 3, resume="auto"), train(directory / "a", 3)
train(directory / "b", 1, overwrite=True)
print(json.dumps({"warnings": first, "is_exact": resumed == complete, "count": len(warnings)}))
"""


@cache
def parse(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(path.read_text("utf-8"))))


def get_name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def iter_calls(path: Path) -> Iterator[tuple[str, ast.Call]]:
    """Yield the calls in a module with the name of the function or method."""
    for node in parse(path):
        if isinstance(node, ast.Call) and isinstance(node.func, (ast.Attribute, ast.Name)):
            yield getattr(node.func, "attr", getattr(node.func, "id", "")), node


def reads_text_of_unknown_encoding(name: str, call: ast.Call) -> bool:
    """Return whether a call opens or reads text in the encoding of the system."""
    options = {keyword.arg: keyword.value for keyword in call.keywords}
    receiver = ast.unparse(call.func).removesuffix(name).removesuffix(".")
    if "encoding" in options:
        return False
    if name in ("run", "Popen", "check_output"):
        return receiver == "subprocess" and bool({"text", "universal_newlines"} & set(options))
    if name == "open":
        modes = [*call.args[not receiver :], *(value for key, value in options.items() if key == "mode")]
        is_binary = any(isinstance(mode, ast.Constant) and "b" in str(mode.value) for mode in modes)
        return not is_binary and (not receiver or receiver.endswith("path"))
    return name in POSITION_OF_ENCODING and len(call.args) <= POSITION_OF_ENCODING[name]


@pytest.mark.slow
def test_modules_of_a_system_are_imported_where_their_fallbacks_are() -> None:
    importing = {
        get_name(path)
        for path in SOURCES
        for node in parse(path)
        if (isinstance(node, ast.Import) and SYSTEM_MODULES & {alias.name for alias in node.names})
        or (isinstance(node, ast.ImportFrom) and node.module in SYSTEM_MODULES)
    }
    assert importing == IMPORTED_BY


@pytest.mark.slow
def test_function_that_windows_lacks_is_used_if_it_exists() -> None:
    lacking = {"os": windows.OS_NAMES, "signal": [*windows.SIGNAL_NAMES, "SIGCHLD", "SIGHUP", "SIGKILL", "SIGUSR1"]}
    unchecked = [
        f"{get_name(path)}:{node.lineno}: {ast.unparse(node)}"
        for path in SOURCES
        for node in parse(path)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        # The constants of `pthread_sigmask` exist with the function.
        if node.attr in lacking.get(node.value.id, ()) and not node.attr.startswith("SIG_")
        if f'hasattr({node.value.id}, "{node.attr}")' not in path.read_text("utf-8")
    ]
    assert unchecked == []


def test_no_process_is_tested_with_a_signal_that_terminates_it() -> None:
    calls = {get_name(path) for path in SOURCES for _, call in iter_calls(path) if ast.unparse(call.func) == "os.kill"}
    assert calls == {TERMINATES}


@pytest.mark.slow
def test_text_is_read_and_written_in_a_stated_encoding() -> None:
    calls = [
        f"{get_name(path)}:{call.lineno}: {ast.unparse(call)}"
        for path in SOURCES
        for name, call in iter_calls(path)
        if reads_text_of_unknown_encoding(name, call)
    ]
    assert calls == []


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("open(path)", True),
        ("open(path, 'rb')", False),
        ("path.open()", True),
        ("path.open('w', encoding='utf-8')", False),
        ("path.open(mode='rb')", False),
        ("path.read_text()", True),
        ("path.read_text('utf-8')", False),
        ("path.write_text(text)", True),
        ("subprocess.run(command, text=True)", True),
        ("subprocess.run(command)", False),
    ],
)
def test_call_with_the_encoding_of_the_system_is_found(call: str, expected: bool) -> None:
    node: Any = ast.parse(call, mode="eval").body
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    assert reads_text_of_unknown_encoding(name, node) is expected


@pytest.mark.slow
def test_every_module_can_be_imported_without_what_windows_lacks() -> None:
    names = [name.replace("-", "_") for name in find_projects(ROOT) if name not in find_bridges(ROOT)]
    assert int(run(IMPORT_SCRIPT, *names)) == len(names)


@pytest.mark.slow
def test_training_without_what_windows_lacks_is_exact_and_warns_once(tmp_path: Path) -> None:
    result = json.loads(run(TRAIN_SCRIPT, str(tmp_path)).splitlines()[-1])

    assert result["is_exact"]
    locks, fsync = result["warnings"]
    assert locks.startswith(f"{tmp_path / 'b'}: the file system does not support locks (Function not implemented)")
    assert fsync.startswith(f"{tmp_path / 'b'}: the file system does not support fsync of directories")
    assert result["count"] == 8, "each of four runs has two warnings"


def run(script: str, *arguments: str) -> str:
    """Run a script in the root of the repository, and return its output."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    process = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout
