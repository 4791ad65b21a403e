"""Follow a page of the documentation in the current environment, as a reader would: `python follow_page.py PAGE`.

The script uses no module of the repository. It writes the blocks with a file name, executes Python blocks in one
namespace, and runs the commands of `hookbus` in the environment of the interpreter. Blocks whose modules are missing
(`<!-- requires: ... -->`) are skipped. It writes the number of executed Python blocks and commands.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

BLOCK = re.compile(
    r"(?:<!-- requires: (?P<requires>[\w ]+) -->\s+)?^```(?P<language>\w+)\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)


def main(page: str) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    blocks = commands = 0
    sys.path.insert(0, "")
    for match in BLOCK.finditer(Path(page).read_text()):
        language, text = match["language"], match["text"]
        if any(importlib.util.find_spec(name) is None for name in (match["requires"] or "").split()):
            continue
        if file := re.match(r"# (\S+\.(?:py|yaml))\n", text):
            Path(file[1]).write_text(text)
        if language == "python":
            exec(compile(text, page, "exec"), names)
            blocks += 1
        if language == "console":
            for command in re.findall(r"^\$ hookbus (.*)$", text, re.MULTILINE):
                subprocess.run([sys.executable, "-m", "hookbus", *shlex.split(command)], check=True)
                commands += 1
    sys.stdout.write(f"{blocks} blocks, {commands} commands\n")


if __name__ == "__main__":
    main(sys.argv[1])
