from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from releasing.changelog import added_lines, find_missing, main

PROJECTS = {"hookbus": Path(), "hookbus-ema": Path("plugins/hookbus-ema")}


@pytest.mark.parametrize(
    ("added", "missing"),
    [
        ({"hookbus/bus.py": 1, "CHANGELOG.md": 1}, {}),
        ({"hookbus/bus.py": 1}, {"hookbus": ["hookbus/bus.py"]}),
        ({"hookbus/bus.py": 0}, {"hookbus": ["hookbus/bus.py"]}),
        ({"hookbus/bus.py": 1, "CHANGELOG.md": 0}, {"hookbus": ["hookbus/bus.py"]}),
        ({"hookbus/bus.py": 1, "plugins/hookbus-ema/CHANGELOG.md": 1}, {"hookbus": ["hookbus/bus.py"]}),
        (
            {"plugins/hookbus-ema/hookbus_ema/hook.py": 2, "CHANGELOG.md": 1},
            {"hookbus-ema": ["plugins/hookbus-ema/hookbus_ema/hook.py"]},
        ),
        ({"plugins/hookbus-ema/tests/test_hook.py": 2, "tests/test_bus.py": 1, "docs/api.md": 1, "Makefile": 1}, {}),
        ({"hookbus_notes.md": 1}, {}),
    ],
)
def test_changed_sources_require_a_new_line_in_the_changelog_of_their_package(
    added: dict[str, int], missing: dict[str, list[str]]
) -> None:
    result = find_missing(PROJECTS, {Path(path): lines for path, lines in added.items()})
    assert result == {name: [Path(path) for path in paths] for name, paths in missing.items()}


class Repository:
    """A repository with one package, on a branch that left `main`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.git("init", "--quiet", "--initial-branch", "main")
        (root / "hookbus").mkdir()
        self.write("hookbus/bus.py", "a\nb\n")
        self.write("hookbus/hook.py", "a\n")
        self.write("CHANGELOG.md", "- One.\n- Two.\n")
        self.commit()
        self.git("switch", "--quiet", "--create", "feature")

    def git(self, *arguments: str) -> None:
        identity = ["-c", "user.name=Test", "-c", "user.email=test@example.org"]
        subprocess.run(["git", *identity, *arguments], cwd=self.root, check=True, capture_output=True)

    def write(self, path: str, text: str) -> None:
        (self.root / path).write_text(text)

    def commit(self) -> None:
        self.git("add", ".")
        self.git("commit", "--quiet", "--message", "Change")


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


@pytest.mark.slow
def test_added_lines_are_counted_from_where_the_branch_left_its_base(repository: Repository) -> None:
    repository.write("hookbus/bus.py", "a\nb\nc\n")
    repository.commit()
    repository.write("CHANGELOG.md", "- One.\n")  # not committed
    repository.git("rm", "--quiet", "hookbus/hook.py")

    assert added_lines(repository.root, "main") == {
        Path("hookbus/bus.py"): 1,
        Path("CHANGELOG.md"): 0,
        Path("hookbus/hook.py"): 0,
    }


@pytest.mark.slow
def test_commits_of_the_base_after_the_branch_do_not_count(repository: Repository) -> None:
    repository.git("switch", "--quiet", "main")
    repository.write("hookbus/bus.py", "a\nb\nd\n")
    repository.commit()
    repository.git("switch", "--quiet", "feature")

    assert added_lines(repository.root, "main") == {}


@pytest.mark.slow
def test_message_names_changelog_and_source(repository: Repository, capsys: pytest.CaptureFixture[str]) -> None:
    repository.write("hookbus/bus.py", "b\n")

    assert main(["main"], repository.root) == 1
    assert capsys.readouterr().out == (
        "CHANGELOG.md: no line describes the change of hookbus, got 1 changed files, such as hookbus/bus.py."
        " Add a line, or set the label 'no changelog' if users notice nothing.\n"
    )
    repository.write("CHANGELOG.md", "- One.\n- Two.\n- Three.\n")
    assert main(["main"], repository.root) == 0


@pytest.mark.slow
def test_unknown_base_is_an_error_with_the_message_of_git(repository: Repository) -> None:
    with pytest.raises(SystemExit, match="merge-base misspelled HEAD: fatal: .*misspelled"):
        main(["misspelled"], repository.root)
