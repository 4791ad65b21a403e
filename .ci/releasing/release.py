"""Build, check and tag the core and all plugins at one version.

`make release VERSION=0.2.0` checks the conditions, runs the tests of the wheels, and then builds and tags. Nothing is
uploaded, and nothing is tagged unless every check passes.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version

from releasing.projects import find_projects, run_git, sources_of

__all__ = ["build", "find_problems", "main", "tag_names"]

HISTORY = Path("benchmarks/history.md")


def find_problems(root: Path, version: str) -> list[str]:
    """Return a message for each condition of a release that is not met."""
    return [*_version_problems(version), *_repository_problems(root, version), *_package_problems(root, version)]


def tag_names(root: Path, version: str) -> list[str]:
    """Return the tag of each package."""
    return [f"{name}-{version}" for name in find_projects(root)]


def build(root: Path, target: Path) -> None:
    """Build a source distribution and a wheel of each package, and check their metadata.

    Raises:
        SystemExit: If a package cannot be built, or if its metadata is invalid or would not be rendered.
    """
    shutil.rmtree(target, ignore_errors=True)
    for folder in find_projects(root).values():
        _run_module("build", "--no-isolation", "--outdir", str(target), str(root / folder))
    _run_module("twine", "check", "--strict", *map(str, sorted(target.iterdir())))


def main(arguments: list[str], root: Path) -> int:
    """Check the conditions of a release and, without `--check`, build and tag it. Return the exit code."""
    parser = argparse.ArgumentParser(prog="make release", description=__doc__)
    parser.add_argument("version", metavar="VERSION")
    parser.add_argument("--check", action="store_true", help="only check the conditions")
    options = parser.parse_args(arguments)
    if problems := find_problems(root, options.version):
        print("\n".join(problems), file=sys.stderr)
        return 1
    if not options.check:
        build(root, root / "dist")
        for tag in tag_names(root, options.version):
            run_git(
                root, "tag", "--annotate", "--message", tag.replace(f"-{options.version}", f" {options.version}"), tag
            )
        print(f"Tagged {len(tag_names(root, options.version))} packages. Push the tags and upload the files in dist/.")
    return 0


def _version_problems(version: str) -> Iterator[str]:
    try:
        normal = str(Version(version))
    except InvalidVersion:
        normal = "a version such as 1.2.0"
    if normal != version:
        yield f"VERSION: the version is not in its normal form, got {version!r}. Use {normal}."


def _repository_problems(root: Path, version: str) -> Iterator[str]:
    if changed := run_git(root, "status", "--porcelain").splitlines():
        yield f"working tree: {len(changed)} files differ from the last commit, got {changed[0][3:]}. Commit them."
    existing = set(run_git(root, "tag", "--list").split())
    if tagged := [tag for tag in tag_names(root, version) if tag in existing]:
        yield f"tags: {len(tagged)} packages are released, got {tagged[0]}. Choose a new version."
    if f"\n| {version} |" not in (root / HISTORY).read_text():
        yield f"{HISTORY}: no row of version {version}. Run `make history VERSION={version}` on an idle machine."


def _package_problems(root: Path, version: str) -> Iterator[str]:
    projects = find_projects(root)
    for name, folder in projects.items():
        project = tomllib.loads((root / folder / "pyproject.toml").read_text())["project"]
        if project["version"] != version:
            yield f"{folder / 'pyproject.toml'}: the version is not {version}, got {project['version']}. Set it."
        extras = project.get("optional-dependencies", {}).values()
        for requirement in map(Requirement, [*project["dependencies"], *chain.from_iterable(extras)]):
            own = requirement.name in projects
            if own and not requirement.specifier.contains(version, prereleases=True):
                yield f"{folder / 'pyproject.toml'}: the range excludes {version}, got {requirement}. Change it."
        yield from _module_problems(root, sources_of(name, folder) / "__init__.py", version)
        yield from _changelog_problems(root, folder / "CHANGELOG.md", version)


def _module_problems(root: Path, module: Path, version: str) -> Iterator[str]:
    for stated in re.findall(r'^__version__ = "(.+)"$', (root / module).read_text(), re.MULTILINE):
        if stated != version:
            yield f"{module}: `__version__` is not {version}, got {stated}. Set it."


def _changelog_problems(root: Path, changelog: Path, version: str) -> Iterator[str]:
    headings = re.findall(r"^## .*$", (root / changelog).read_text(), re.MULTILINE)
    if not headings or not re.fullmatch(rf"## {re.escape(version)} - \d{{4}}-\d\d-\d\d", headings[0]):
        newest = headings[0] if headings else "no section"
        yield f"{changelog}: the first section is not `## {version} - <date>`, got {newest!r}. Set version and date."


def _run_module(*arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"python -m {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Path.cwd()))
