"""Tests of the pytest fixtures, and of the utilities without pytest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

PLUGIN_TEST = """
    from hookbus import Hook

    class Mine(Hook):
        def before_run(self): ...

    def test_mine(recording_bus):
        recording_bus.register(Mine())
        recording_bus.emit("before_run")
        assert recording_bus.calls_made == [("mine", "before_run")]

    def test_bus_is_new(recording_bus):
        assert recording_bus.emitted_points == []
"""


@pytest.mark.slow
def test_fixtures_work_in_a_plugin_package(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["hookbus.testing.plugin"]\n')
    (tmp_path / "test_mine.py").write_text(dedent(PLUGIN_TEST))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        str(tmp_path),
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "2 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
def test_testing_package_does_not_require_pytest() -> None:
    code = "import sys; import hookbus.testing; sys.exit('pytest' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
