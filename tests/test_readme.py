"""Tests of statements in the README that its code blocks do not cover."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages import ROOT, Reader, blocks

README = ROOT / "README.md"


def run(*command: str, cwd: Path, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **({"PYTHONPATH": str(path)} if path else {})}
    return subprocess.run(
        [sys.executable, *command], cwd=cwd, env=environment, capture_output=True, text=True, timeout=110, check=False
    )


def checkpoints(directory: str) -> set[str]:
    return {path.name for path in Path(directory, "checkpoints").glob("*.pth")}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_readme_examples_run_and_write_their_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    Reader(README).follow()

    assert checkpoints("runs/digits") == {
        f"{n}.pth" for n in ("best_accuracy", "last", *(f"epoch_{i}" for i in range(1, 6)))
    }
    assert checkpoints("runs/mine") == {"epoch_1.pth", "epoch_2.pth", "last.pth"}


@pytest.mark.slow
def test_error_message_matches_the_readme(tmp_path: Path) -> None:
    (run_file,) = blocks(README, "yaml")
    (shown,) = (block for block in blocks(README, "text") if "intervall" in block.text)
    (tmp_path / "run.yaml").write_text(run_file.text.replace("interval:", "intervall:"))

    process = run("-m", "hookbus", "train", "run.yaml", cwd=tmp_path)

    assert process.returncode == 2
    assert shown.text.strip() in process.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_published_hook_is_found_by_its_name(tmp_path: Path) -> None:
    site = tmp_path / "site"
    for block in blocks(README):
        if block.file:
            (tmp_path / block.file).parent.mkdir(exist_ok=True)
            (tmp_path / block.file).write_text(block.text)
    install = ("-m", "pip", "install", "--no-deps", "--no-build-isolation", "--target", str(site), ".")
    assert run(*install, cwd=tmp_path).returncode == 0

    with (tmp_path / "run.yaml").open("a") as file:
        file.write("  - {type: greet, text: hi, interval: 1}\n")
    listed = run("-m", "hookbus", "hooks", cwd=tmp_path, path=site)
    trained = run("-m", "hookbus", "train", "run.yaml", "training.epochs=1", cwd=tmp_path, path=site)
    check = "from hookbus.testing import check_hook\nfrom hookbus_greet import GreetHook\ncheck_hook(GreetHook)\n"
    conforms = run("-c", check, cwd=tmp_path, path=site)

    assert "greet" in listed.stdout
    assert trained.returncode == 0, trained.stderr
    assert "hi, Sequential" in trained.stdout + trained.stderr
    assert conforms.returncode == 0, conforms.stderr


def test_table_lists_every_package() -> None:
    listed = set(re.findall(r"\]\(plugins/([a-z-]+)\)", README.read_text()))
    packages = {path.parent.name for path in ROOT.glob("plugins/*/pyproject.toml")}

    assert listed == packages
