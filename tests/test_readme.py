"""The README's examples, executed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.DOTALL | re.MULTILINE)


def run(*command: str, cwd: Path, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **({"PYTHONPATH": str(path)} if path else {})}
    return subprocess.run(
        [sys.executable, *command], cwd=cwd, env=environment, capture_output=True, text=True, timeout=110, check=False
    )


def test_the_run_file_trains_and_goes_on(tmp_path: Path) -> None:
    (run_file,) = blocks("yaml")
    (tmp_path / "run.yaml").write_text(run_file)

    first = run("-m", "hookbus", "train", "run.yaml", cwd=tmp_path)
    second = run("-m", "hookbus", "train", "run.yaml", "--resume", "training.epochs=4", cwd=tmp_path)

    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    names = {path.name for path in (tmp_path / "runs/digits/checkpoints").glob("*.pth")}
    assert names == {"epoch_1.pth", "epoch_2.pth", "epoch_3.pth", "epoch_4.pth", "best_accuracy.pth", "last.pth"}


def test_the_mistake_is_reported_as_shown(tmp_path: Path) -> None:
    (run_file,) = blocks("yaml")
    (shown,) = [block for block in blocks("") if "intervall" in block]
    (tmp_path / "run.yaml").write_text(run_file.replace("interval:", "intervall:"))

    done = run("-m", "hookbus", "train", "run.yaml", cwd=tmp_path)

    assert done.returncode == 2
    assert shown.strip() in done.stderr


def test_the_loop_of_ones_own_leaves_its_checkpoints(tmp_path: Path) -> None:
    (loop,) = [block for block in blocks("python") if "bus.run(" in block]
    (tmp_path / "loop.py").write_text(loop)

    done = run("-W", "error", "loop.py", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    names = {path.name for path in (tmp_path / "runs/mine/checkpoints").glob("*.pth")}
    assert names == {"epoch_1.pth", "epoch_2.pth", "last.pth"}


@pytest.mark.slow
def test_the_published_hook_is_found_by_its_name(tmp_path: Path) -> None:
    (module,) = [block for block in blocks("python") if "GreetHook" in block]
    (project,) = blocks("toml")
    source, site = tmp_path / "source", tmp_path / "site"
    (source / "hookbus_greet").mkdir(parents=True)
    (source / "hookbus_greet/__init__.py").write_text(module)
    (source / "pyproject.toml").write_text(project)
    install = ("-m", "pip", "install", "--no-deps", "--no-build-isolation", "--target", str(site), str(source))
    assert run(*install, cwd=tmp_path).returncode == 0

    (tmp_path / "run.yaml").write_text(blocks("yaml")[0] + "  - {type: greet, text: hi, interval: 1}\n")
    listed = run("-m", "hookbus", "hooks", cwd=tmp_path, path=site)
    trained = run("-m", "hookbus", "train", "run.yaml", "training.epochs=1", cwd=tmp_path, path=site)
    (tmp_path / "conform.py").write_text(
        "from hookbus.testing import check_hook\nfrom hookbus_greet import GreetHook\ncheck_hook(GreetHook)\n"
    )
    conforms = run("conform.py", cwd=tmp_path, path=site)

    assert "greet" in listed.stdout
    assert trained.returncode == 0, trained.stderr
    assert "hi, Sequential" in trained.stdout + trained.stderr
    assert conforms.returncode == 0, conforms.stderr


def test_every_package_of_the_table_is_there() -> None:
    named = set(re.findall(r"\]\(plugins/([a-z-]+)\)", README))
    there = {path.parent.name for path in ROOT.glob("plugins/*/pyproject.toml")}

    assert named == there
