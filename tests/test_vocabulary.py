from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.vocabulary import find_in_file, find_in_source, find_terms


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The user is told that the weights are spread.", ["told", "spread"]),
        ("Random streams begin anew.", ["Random streams", "anew"]),
        ("The run goes on.", ["goes on"]),
        ("The checkpoint does not hold.", ["does not hold"]),
        ("Normalised colours of a picture.", ["colours", "Normalised", "picture"]),
        ("`file.tell()` returns the position.", []),
        ("Widespread; judicious; normalize the color.", []),
    ],
)
def test_homemade_words_are_found_in_text(text: str, words: list[str]) -> None:
    assert sorted(match.word for match in find_terms(text)) == sorted(words)


def test_match_has_line_and_column_from_one() -> None:
    first, second = sorted(find_terms("told\n  and told"))
    assert (first.line, first.column, second.line, second.column) == (1, 1, 2, 7)


def test_strings_comments_and_names_of_source_are_searched() -> None:
    source = 'def is_told(value):  # a wish\n    return f"no trouble: {value}"\n'
    assert [(match.line, match.word) for match in find_in_source(source)] == [
        (1, "is_told"),
        (1, "wish"),
        (2, "trouble"),
    ]


def test_code_outside_of_strings_is_not_searched() -> None:
    assert list(find_in_source("position = stream.tell()\nspread = position\n")) == []


def test_pronoun_as_a_name_is_found_but_not_as_an_attribute() -> None:
    source = "for each in items:\n    print(each, item.found)\n"
    assert [(match.line, match.word) for match in find_in_source(source)] == [(1, "each"), (2, "each")]


def test_given_of_hypothesis_is_allowed() -> None:
    assert list(find_in_source("from hypothesis import given\n\n@given(None)\ndef test_x(): ...\n")) == []


def test_files_that_are_not_text_have_no_matches(tmp_path: Path) -> None:
    (tmp_path / "image.png").write_bytes(b"told")
    (tmp_path / "page.md").write_text("The user is told.")
    assert find_in_file(tmp_path / "image.png") == []
    assert [match.word for match in find_in_file(tmp_path / "page.md")] == ["told"]


def test_exit_code_is_0_for_a_file_in_standard_vocabulary() -> None:
    done = subprocess.run([sys.executable, "tests/vocabulary.py", "LICENSE", "hookbus/py.typed"], capture_output=True)
    assert (done.returncode, done.stdout) == (0, b"")
