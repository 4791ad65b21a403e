"""Tests of the first docstring lines, read from the source of wheels, archives, editable installs and packages."""

from __future__ import annotations

import sys
import zipfile
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from hookbus._cli.hook_summaries import read_summary
from hookbus._utils.plugin_entries import PluginEntry

FAILS = "raise AssertionError('imported')\n"
CLASS = 'class SeenHook:\n    """First line.\n\n    More.\n    """\n'
FILES = {
    "seen_plain": FAILS + CLASS,
    "seen_package/__init__": FAILS + "from seen_package.inner import Named as SeenHook",
    "seen_package/inner/__init__": FAILS + "if True:\n    from ..hook import SeenHook as Named",
    "seen_package/hook": FAILS + CLASS,
    "seen_nested": FAILS + "class Outer:\n" + "".join(f"    {line}\n" for line in CLASS.splitlines()),
    "seen_twice": "try:\n    from missing import SeenHook\nexcept ImportError:\n"
    + "".join(f"    {line}\n" for line in CLASS.splitlines()),
    "seen_silent": "class SeenHook:\n    x = 1\n",
    "seen_invalid": "class SeenHook(",
    "seen_cycle": "from seen_cycle import SeenHook",
    "seen_made": "SeenHook = type('SeenHook', (), {})",
}


def read(module: str, name: str = "SeenHook") -> str:
    entry = EntryPoint("seen", f"{module}:{name}", "hookbus.hooks")
    return read_summary(PluginEntry("seen", name, "seen", "1.0", entry))


def write(path: Path, module: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(FILES[module])


def test_summary_is_read_without_an_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in FILES:
        write(tmp_path / f"{module}.py", module)
    monkeypatch.syspath_prepend(tmp_path)
    for module in ("seen_plain", "seen_package", "seen_package.hook", "seen_twice"):
        assert read(module) == "First line."
    assert read("seen_nested", "Outer.SeenHook") == "First line."
    for module in ("seen_silent", "seen_invalid", "seen_cycle", "seen_made", "seen_nowhere", "sys"):
        assert read(module) == ""
    assert not {name for name in sys.modules if name.startswith("seen_")}


def test_summary_is_read_from_an_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(tmp_path / "seen.zip", "w") as archive:
        archive.writestr("seen_zipped/__init__.py", FAILS + "from .hook import SeenHook")
        archive.writestr("seen_zipped/hook.py", FAILS + CLASS)
    monkeypatch.syspath_prepend(tmp_path / "seen.zip")
    assert read("seen_zipped") == "First line."


def test_summary_is_read_from_an_editable_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Finder:
        """Finder as of an editable install: it maps the names of packages to folders that are not on the path."""

        @staticmethod
        def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
            file = tmp_path / "elsewhere" / "code.py"
            return ModuleSpec(name, SourceFileLoader(name, str(file))) if name == "seen_editable" else None

    write(tmp_path / "elsewhere" / "code.py", "seen_plain")
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    assert read("seen_editable") == "First line."
