"""Execution of the code blocks of documentation pages: in page order, in one directory, as a reader would run them.

Languages of code blocks:

* `python` is executed in one namespace per page. A first line `# name.py` also writes the block to that file. A module
  of a package, `# package/name.py`, is only written; later blocks import it.
* `py` is code for packages that are not installed; it is compiled only.
* `yaml` is a run file or a part of one and must be valid. A first line `# run.yaml` also writes it to that file.
* `console`: lines after `$` are run, and their output must match the following lines; `...` matches any lines.
* `bash` is a cluster script; its syntax is checked by bash.
* `toml` and `json` must be valid; JSON may have one value per line.
* `text` is not checked.

A comment `<!-- requires: name other -->` before a block names modules that the test environment may lack. If one of
them is not installed, the block is listed in `Reader.skipped` instead.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import subprocess
import textwrap
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from packaging.requirements import Requirement
from releasing.projects import find_bridges
from torch import nn
from torch.distributed.run import get_args_parser
from typer.testing import CliRunner

from hookbus import Trainer
from hookbus._cli.app import app
from hookbus._config.load import load_config
from hookbus._utils.known_keys import PUBLISHED_HOOKS
from hookbus.bridge.discovery import PACKAGES as BRIDGE_PACKAGES

ROOT = Path(__file__).parent.parent
PAGES = [  # packaging/test_samples.py runs the pages of the sample packages, which must be installed
    ROOT / "README.md",
    *sorted(ROOT.glob("docs/*.md")),
    *sorted(ROOT.glob("docs/plugins/*.md")),
    *sorted(ROOT.glob("docs/recipes/*.md")),
    *sorted(ROOT.glob("plugins/*/README.md")),
]
PAGES_OF_TRAINERS = [
    ROOT / "docs/bridges.md",
    *(ROOT / folder / "README.md" for folder in find_bridges(ROOT).values()),
]
"""Pages whose code needs another trainer."""
FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```$", re.DOTALL | re.MULTILINE)
NAME = re.compile(r"# (\S+\.(?:py|yaml|toml))")
REQUIRES = re.compile(r"<!-- requires: ([\w ]+) -->\s*\Z")
INSTALLABLE = {"hookbus", "hookbus-zoo", *PUBLISHED_HOOKS, *BRIDGE_PACKAGES.values()}


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page.

    Attributes:
        language: Language tag.
        text: Content.
        line: Line number of the opening fence.
        requires: Modules without which the block cannot be executed.
    """

    language: str
    text: str
    line: int
    requires: tuple[str, ...] = ()

    @property
    def missing(self) -> list[str]:
        """Required modules that are not installed."""
        return [name for name in self.requires if importlib.util.find_spec(name) is None]

    @property
    def file(self) -> str | None:
        """File name in the first line, or None."""
        match = NAME.fullmatch(self.text.partition("\n")[0])
        return match[1] if match else None


def blocks(page: Path, language: str | None = None) -> list[Block]:
    """Return the blocks of a page in order, optionally of one language only."""
    text = page.read_text(encoding="utf-8")
    all_blocks = [
        Block(
            m["language"],
            textwrap.dedent(m["text"]),
            text.count("\n", 0, m.start()) + 1,
            tuple(required[1].split()) if (required := REQUIRES.search(text, 0, m.start())) else (),
        )
        for m in FENCE.finditer(text)
    ]
    return [block for block in all_blocks if language in (None, block.language)]


class Reader:
    """Executes the blocks of a page in the current directory.

    Args:
        page: Path of the page.

    Attributes:
        skipped: Reasons of the blocks that were not executed.
    """

    def __init__(self, page: Path) -> None:
        self.page = page
        self.skipped: list[str] = []
        self.names: dict[str, Any] = {"__name__": "__main__", "Trainer": _EllipsisTrainer, **_common_names()}

    def follow(self) -> None:
        """Execute all blocks.

        Raises:
            AssertionError: If the output of a command differs from the page.
        """
        for block in blocks(self.page):
            if block.missing:
                self.skipped.append(f"line {block.line}: requires {', '.join(block.missing)}")
                continue
            if block.file is not None:
                path = Path(block.file)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(block.text)
            getattr(self, f"do_{block.language}")(block)

    def do_python(self, block: Block) -> None:
        code = self._code(block)
        if "/" not in (block.file or ""):
            exec(code, self.names)

    def do_py(self, block: Block) -> None:
        self._code(block)

    def do_yaml(self, block: Block) -> None:
        path = Path(block.file or "part.yaml")
        path.write_text(block.text)
        load_config(path)

    def do_bash(self, block: Block) -> None:
        subprocess.run(["bash", "-n"], input=block.text, text=True, check=True)

    def do_toml(self, block: Block) -> None:
        tomllib.loads(block.text)

    def do_json(self, block: Block) -> None:
        for line in block.text.splitlines():
            json.loads(line)

    def do_text(self, block: Block) -> None:
        """Skip the block."""

    def do_console(self, block: Block) -> None:
        for command, shown in iter_commands(block.text):
            printed = _run(command)
            assert _matches(printed, shown), f"{self.page.name}:{block.line}: {command} printed\n{printed}"

    def _code(self, block: Block) -> Any:
        # A reader's file does not inherit `from __future__ import annotations` from this module.
        return compile("\n" * block.line + block.text, str(self.page), "exec", dont_inherit=True)


def iter_commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each command with its expected output lines."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, *shown = part.rstrip("\n").split("\n")
        yield command, shown


def _run(command: str) -> str:
    """Run a command line and return its output. Commands that cannot run in a test are validated instead.

    A `torchrun` command runs as a single process.
    """
    program, *arguments = shlex.split(command)
    if program == "hookbus":
        return CliRunner().invoke(app, arguments, catch_exceptions=False).output
    if program == "torchrun":
        options = get_args_parser().parse_args(arguments)
        assert (options.module, options.training_script) == (True, "hookbus")
        return CliRunner().invoke(app, options.training_script_args, catch_exceptions=False).output
    if program == "pip":
        assert arguments[0] == "install"
        _check_packages(command, [argument for argument in arguments[1:] if not argument.startswith("dist/")])
        return ""
    if program == "python":  # packaging/test_samples.py tests its effect on a package
        if arguments[0] != "-m":
            assert Path(arguments[0]).exists(), f"{command}: no such file"
            return ""
        assert importlib.util.find_spec(arguments[1]) is not None, f"{command}: unknown module"
        return ""
    if program == "cd":  # the following blocks are relative to the directory of the page
        assert Path(arguments[0]).is_dir(), f"{command}: no such directory"
        return ""
    if program == "pytest":  # cli/test_new.py runs it in the package that `hookbus new` writes
        return ""
    assert program == "make", f"{command}: add support for this command to tests/pages.py"
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert arguments[0] in targets, f"{command}: unknown target"
    return ""


def _check_packages(command: str, packages: list[str]) -> None:
    """Check that the packages of a `pip install` command and their extras exist."""
    for requirement in map(Requirement, packages):
        assert requirement.name in INSTALLABLE, f"{command}: unknown package"
        folder = ROOT if requirement.name == "hookbus" else ROOT / "plugins" / requirement.name
        project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        unknown = requirement.extras - set(project.get("optional-dependencies", {}))
        assert not unknown, f"{command}: unknown extra"
        quoted = f'"{requirement}"' in command
        assert quoted or not requirement.extras, f"{command}: quote the extra, because brackets are patterns in zsh"


def _matches(printed: str, shown: list[str]) -> bool:
    """Return whether the output matches a page, ignoring trailing spaces. An empty expectation matches any output."""
    pattern = [r"(?:.*\n)*" if line == "..." else f"{re.escape(line.rstrip())} *\n" for line in shown]
    return not shown or re.fullmatch("".join(pattern), printed.rstrip("\n") + "\n") is not None


def _common_names() -> Mapping[str, Any]:
    """Return the names that a page may use without defining them: arguments of a Trainer in positional order."""
    model = nn.Linear(4, 2)
    loader = [(torch.randn(4, 4), torch.tensor([0, 1, 0, 1])) for _ in range(3)]
    return {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "loss_fn": nn.functional.cross_entropy,
        "train_loader": loader,
        "val_loader": loader,
        "test_loader": loader,
    }


class _EllipsisTrainer(Trainer):
    """Trainer for pages that write `Trainer(..., hooks=[...])`, in which `...` denotes the common arguments."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        if arguments == (...,):
            arguments = tuple(_common_names().values())
            options = {"epochs": 2, "metrics": ["accuracy"], **options}
        super().__init__(*arguments, **options)
