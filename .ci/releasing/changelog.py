"""Check that a change of the sources of a package adds a line to the changelog of that package.

`make changelog BASE=main` compares the working tree with the commit at which the branch left `main`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from releasing.projects import find_projects, run_git, sources_of

__all__ = ["added_lines", "find_missing", "main"]


def added_lines(root: Path, base: str) -> dict[Path, int]:
    """Return the number of added lines of each file that differs from the common ancestor with `base`.

    Binary files and removed files have none.
    """
    ancestor = run_git(root, "merge-base", base, "HEAD").strip()
    rows = run_git(root, "diff", "--numstat", "--no-renames", "-z", ancestor).split("\0")
    fields = [row.split("\t", 2) for row in rows if row]
    return {Path(path): int(added) if added.isdigit() else 0 for added, _, path in fields}


def find_missing(projects: Mapping[str, Path], added: Mapping[Path, int]) -> dict[str, list[Path]]:
    """Return the changed sources of each package whose changelog has no new line."""
    missing = {}
    for name, folder in projects.items():
        sources = [path for path in added if path.is_relative_to(sources_of(name, folder))]
        if sources and not added.get(folder / "CHANGELOG.md"):
            missing[name] = sources
    return missing


def main(arguments: list[str], root: Path) -> int:
    """Print a message per package without a changelog line and return the exit code: 1 if there is any."""
    missing = find_missing(find_projects(root), added_lines(root, arguments[0] if arguments else "main"))
    for name, sources in missing.items():
        changelog = find_projects(root)[name] / "CHANGELOG.md"
        print(
            f"{changelog}: no line describes the change of {name}, got {len(sources)} changed files, such as"
            f" {sources[0]}. Add a line, or set the label 'no changelog' if users notice nothing."
        )
    return min(len(missing), 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Path.cwd()))
