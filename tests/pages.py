"""Pages of documentation whose code blocks are executed, as a reader would: in the order of the page, in one directory.

What each language means:

* `python` runs, in one namespace per page; a first line `# name.py` also writes it to that file. A module of a package,
  `# package/name.py`, is only written: what comes below imports it.
* `py` is other people's code, for packages that are not here: it is compiled.
* `yaml` is a run file, or a part of one, and has to hold; a first line `# run.yaml` also writes it to that file.
* `console`: lines after `$` are run, and what stands below has to be what they print; `...` stands for more lines.
* `bash` is a script for a cluster: bash has to understand it.
* `toml` and `json` have to be such; JSON may be one value per line.
* `text` is for people.
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
from torch import nn
from torch.distributed.run import get_args_parser
from typer.testing import CliRunner

from hookbus import Trainer
from hookbus.cli import app
from hookbus.config import load_config
from hookbus.discovery import PUBLISHED

ROOT = Path(__file__).parent.parent
PAGES = [  # those of the sample packages are followed where the packages are installed, in packaging/test_samples.py
    ROOT / "README.md",
    *sorted(ROOT.glob("docs/*.md")),
    *sorted(ROOT.glob("docs/plugins/*.md")),
    *sorted(ROOT.glob("plugins/*/README.md")),
]
FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```$", re.DOTALL | re.MULTILINE)
NAME = re.compile(r"# (\S+\.(?:py|yaml|toml))")
INSTALLABLE = {"hookbus", "hookbus-zoo", *PUBLISHED}


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block of a page.

    Attributes:
        language: how it is tagged.
        text: what stands in it.
        line: of the page, that of the opening fence.
    """

    language: str
    text: str
    line: int

    @property
    def file(self) -> str | None:
        """The file that its first line names."""
        found = NAME.fullmatch(self.text.partition("\n")[0])
        return found[1] if found else None


def blocks(page: Path, language: str | None = None) -> list[Block]:
    """The blocks of a page, in order; all of them, or those in one language."""
    text = page.read_text(encoding="utf-8")
    found = [
        Block(m["language"], textwrap.dedent(m["text"]), text.count("\n", 0, m.start()) + 1)
        for m in FENCE.finditer(text)
    ]
    return [block for block in found if language in (None, block.language)]


class Reader:
    """Somebody who types in what a page shows. The current directory is the reader's.

    Args:
        page: what is read.
    """

    def __init__(self, page: Path) -> None:
        self.page = page
        self.names: dict[str, Any] = {"__name__": "__main__", "Trainer": _AnyTrainer, **_what_everybody_has()}

    def follow(self) -> None:
        """Do everything on the page.

        Raises:
            AssertionError: something is not as the page says.
        """
        for block in blocks(self.page):
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
        """Nothing to do."""

    def do_console(self, block: Block) -> None:
        for command, shown in _commands(block.text):
            printed = _run(command)
            assert _looks_like(printed, shown), f"{self.page.name}:{block.line}: {command} printed\n{printed}"

    def _code(self, block: Block) -> Any:
        return compile("\n" * block.line + block.text, str(self.page), "exec")


def _commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """Each command with the lines that it is said to print."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, *shown = part.rstrip("\n").split("\n")
        yield command, shown


def _run(command: str) -> str:
    """Run a command line, and return what it prints; what cannot be tried here is looked up.

    What torchrun would start in several processes is run in this one.
    """
    program, *arguments = shlex.split(command)
    if program == "hookbus":
        return CliRunner().invoke(app, arguments, catch_exceptions=False).output
    if program == "torchrun":
        started = get_args_parser().parse_args(arguments)
        assert (started.module, started.training_script) == (True, "hookbus")
        return CliRunner().invoke(app, started.training_script_args, catch_exceptions=False).output
    if program == "pip":
        assert arguments[0] == "install"
        packages = {each for each in arguments[1:] if not each.startswith("dist/")}
        assert packages <= INSTALLABLE, f"{command}: there is no such package"
        return ""
    if program == "python":  # what it does to a package is tried in packaging/test_samples.py
        assert arguments[0] == "-m"
        assert importlib.util.find_spec(arguments[1]) is not None, f"{command}: there is no such module"
        return ""
    assert program == "make", f"{command}: say in tests/pages.py how this is tried"
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert arguments[0] in targets, f"{command}: there is no such target"
    return ""


def _looks_like(printed: str, shown: list[str]) -> bool:
    """Whether a page shows what was printed, spaces at the end of lines aside; nothing shown is right for anything."""
    pattern = [r"(?:.*\n)*" if line == "..." else f"{re.escape(line.rstrip())} *\n" for line in shown]
    return not shown or re.fullmatch("".join(pattern), printed.rstrip("\n") + "\n") is not None


def _what_everybody_has() -> Mapping[str, Any]:
    """The names that a page may use without saying where they come from: what a Trainer takes, in its order."""
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


class _AnyTrainer(Trainer):
    """A Trainer for pages that write `Trainer(..., hooks=[...])`, where `...` is what every training has."""

    def __init__(self, *given: Any, **options: Any) -> None:
        if given == (...,):
            given = tuple(_what_everybody_has().values())
            options = {"epochs": 2, "metrics": ["accuracy"], **options}
        super().__init__(*given, **options)
