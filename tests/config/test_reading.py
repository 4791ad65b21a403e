"""Tests of the reading of run files: limits, and files that are no run files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from hookbus._config.load import load_config
from hookbus._config.reading import MAX_FILE_SIZE, load_document
from hookbus.errors import ConfigError

if TYPE_CHECKING:
    from tests.conftest import Project


def get_problems(source: Any, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_config(source, overrides)
    return caught.value.problems


class TestFiles:
    def test_file_of_one_mebibyte_is_read(self, project: Project) -> None:
        (project.path / "run.yaml").write_text("seed: 1\n" + "#" * (MAX_FILE_SIZE - 8))
        assert load_document("run.yaml").data == {"seed": 1}

    def test_larger_file_is_refused_before_it_is_parsed(self, project: Project) -> None:
        (project.path / "run.yaml").write_text("[" * (MAX_FILE_SIZE + 1))
        problem = "run.yaml: the run file cannot be read: 1,048,577 bytes, but a run file has at most 1,048,576."
        assert get_problems("run.yaml") == [problem]

    def test_huge_sparse_file_is_refused(self, project: Project) -> None:
        with open(project.path / "run.yaml", "wb") as file:
            file.truncate(2**40)
        assert "1,099,511,627,776 bytes, but" in get_problems("run.yaml")[0]

    def test_fifo_and_device_are_refused_without_waiting(self, project: Project) -> None:
        os.mkfifo(project.path / "run.yaml")
        assert get_problems("run.yaml") == ["run.yaml: the run file cannot be read: not a regular file."]
        assert get_problems("/dev/zero") == ["/dev/zero: the run file cannot be read: not a regular file."]

    def test_symbolic_link_is_followed(self, project: Project) -> None:
        project.write("seed: 3\n")
        (project.path / "link.yaml").symlink_to("run.yaml")
        assert load_config("link.yaml").seed == 3

    @pytest.mark.parametrize(
        ("name", "problem"),
        [
            ("x\0", r"'x\x00': the run file cannot be read: embedded null byte."),
            ("x\x1b[31m", r"'x\x1b[31m': the run file cannot be read: No such file or directory."),
            ("x" * 5000, f"{'x' * 299}…: the run file cannot be read: File name too long."),
        ],
        ids=["nul", "escape", "long"],
    )
    def test_invalid_name_is_an_error(self, project: Project, name: str, problem: str) -> None:
        assert get_problems(name) == [problem]


class TestMappings:
    def test_mapping_that_contains_itself_is_refused(self) -> None:
        source: dict[str, Any] = {}
        source["model"] = source
        assert get_problems(source) == ["config: nested deeper than 60 levels."]

    def test_number_of_values_is_limited(self) -> None:
        assert get_problems({"metrics": ["a"] * 20_000}) == ["config: more than 20000 values."]

    def test_integer_is_limited(self) -> None:
        assert get_problems({"seed": 2**1024}) == ["config: seed: integer of more than 1024 bits."]


class TestErrors:
    @pytest.mark.slow
    def test_twenty_thousand_unknown_keys_are_counted(self, project: Project) -> None:
        (project.path / "run.yaml").write_text("".join(f"sead{i}: 1\n" for i in range(19_990)))
        with pytest.raises(ConfigError) as caught:
            load_config("run.yaml")
        lines = str(caught.value).splitlines()
        assert lines[0] == "run.yaml:1:1: sead0: unknown key. Did you mean 'seed'?"
        assert lines[49:] == ["run.yaml:50:1: sead49: unknown key. Did you mean 'seed'?", "and 19,940 more errors."]

    def test_hints_belong_to_the_first_errors_of_the_file(self, project: Project) -> None:
        (project.path / "run.yaml").write_text("".join(f"sead{i}: 1\n" for i in range(60)) + "training: {epoch: 1}\n")
        problems = get_problems("run.yaml")
        assert problems[49].endswith("unknown key. Did you mean 'seed'?")
        assert problems[50:] == [
            *(f"run.yaml:{i + 1}:1: sead{i}: unknown key." for i in range(50, 60)),
            "run.yaml:61:12: training.epoch: unknown key.",
        ]

    def test_unknown_hooks_are_counted(self, project: Project) -> None:
        problems = get_problems({"hooks": [f"nohook{i}" for i in range(60)]})
        assert [problem.partition(".")[0] for problem in problems] == ["config: hooks"] * 60
        assert "Available: " in problems[0]
        assert problems[-1] == (
            "config: hooks.59: No installed package publishes the hook 'nohook59'. Install the package that publishes "
            "it, or use an import string such as my_module:nohook59."
        )

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            ("seed: " + "x" * 900_000, f"run.yaml:1:7: seed: should be a valid integer, got '{'x' * 79}…'."),
            ("model: [" + "1," * 9_000 + "]", f"run.yaml:1:8: model: should be a mapping, got [{'1, ' * 26}…."),
            (f"? {'k' * 100_000}\n: 1", f"run.yaml:1:3: {'k' * 79}…: unknown key. Available: "),
            ('"a\\e[31m\\n": 1', r"run.yaml:1:1: a\x1b[31m\n: unknown key. Available: "),
            ("hooks: ['" + "a" * 5000 + "']", f"hooks.0: No installed package publishes the hook '{'a' * 79}…'."),
            ("hooks: ['" + "a" * 5000 + ":X']", f"hooks.0: hook: '{'a' * 79}…' cannot be imported: "),
            ("hooks: ['a" + ".a" * 50_000 + ":X']", "cannot be imported: RecursionError"),
            ("order: " + "x" * 5000, f"order: should be 'nested' or 'ascending', got '{'x' * 79}…'."),
        ],
        ids=range(8),
    )  # fmt: skip
    def test_values_are_shortened(self, project: Project, text: str, problem: str) -> None:
        (project.path / "run.yaml").write_text(text)
        (message,) = get_problems("run.yaml")
        assert problem in message
        assert len(message) < 2000
