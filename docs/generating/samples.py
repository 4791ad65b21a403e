"""Source files of the example packages."""

from __future__ import annotations

from pathlib import Path

__all__ = ["sample"]

HELLO = Path(__file__).parents[1] / "examples" / "hookbus-hello"
FILES = (
    "pyproject.toml",
    "hookbus_hello/config.py",
    "hookbus_hello/hook.py",
    "hookbus_hello/__init__.py",
    "tests/test_hook.py",
)


def sample() -> str:
    """Return the files of hookbus-hello as code blocks."""
    return "\n\n".join(_block(name) for name in FILES)


def _block(name: str) -> str:
    language = {"py": "python"}.get(name.rpartition(".")[2], "toml")
    return f"```{language}\n# {name}\n{(HELLO / name).read_text().strip()}\n```"
