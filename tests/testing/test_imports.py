"""Tests of `check_imports`: packages that use private modules or names of hookbus are rejected."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hookbus.testing import check_imports

PUBLIC = """
from __future__ import annotations
import hookbus
import torch
from hookbus import Hook, WriterHook, checkpoint
from hookbus.checkpoint import CheckpointStore, schema
from hookbus.hooks import EMAHook
from .sibling import something


def load():
    from hookbus.data import iter_datasets
"""


@pytest.fixture
def write_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def write(name: str, source: str) -> Path:
        path = tmp_path / name / "hook.py"
        path.parent.mkdir()
        (tmp_path / name / "__init__.py").touch()
        path.write_text(source)
        return path

    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return write


def test_package_with_public_imports_passes(write_package) -> None:
    write_package("public_imports", PUBLIC)
    check_imports("public_imports")


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("from hookbus._run.run import Run", "hookbus._run.run is a private module. Import Run from hookbus."),
        ("import hookbus._run.run", "hookbus._run.run is a private module."),
        ("import hookbus.bus as bus", "hookbus.bus is a private module."),
        (
            "from hookbus.checkpoint.state import read_checkpoint",
            "hookbus.checkpoint.state is a private module. Import read_checkpoint from hookbus.checkpoint.",
        ),
        ("from hookbus import _events", "hookbus has no public name '_events'."),
        ("from hookbus import time_hooks", "has no public name 'time_hooks'. Import time_hooks from hookbus.testing."),
        ("from hookbus.data import iter_dataset", "Did you mean 'iter_datasets'?"),
        ("from hookbus.errors import *", "hookbus.errors has no public name '*'."),
        ("if True:\n    def f():\n        from hookbus.hook import snake_case", "hookbus.hook is a private module."),
    ],
)
def test_private_import_is_rejected_with_its_line(write_package, statement: str, message: str) -> None:
    path = write_package("private_imports", f"import os\n{statement}\n")

    with pytest.raises(AssertionError) as caught:
        check_imports("private_imports")

    heading, problem = str(caught.value).splitlines()
    assert heading == "private_imports: imports that are not public:"
    line = 2 + statement.count("\n")
    assert problem.startswith(f"{path}:{line}: ")
    assert message in problem


def test_all_private_imports_are_listed(write_package) -> None:
    write_package("many_imports", "from hookbus.bus import HookBus\nfrom hookbus.hook import Hook\n")

    with pytest.raises(AssertionError, match=r"(?s)hook.py:1: .*hook.py:2: "):
        check_imports("many_imports")


def test_single_module_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "single_imports.py").write_text("import hookbus._cli\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])

    with pytest.raises(AssertionError, match="hookbus._cli is a private module"):
        check_imports("single_imports")


def test_unknown_package_raises() -> None:
    with pytest.raises(ModuleNotFoundError, match="No module named 'no_such_package'. Install the package"):
        check_imports("no_such_package")
