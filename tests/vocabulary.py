"""Search source code and documentation for words that have a standard term, and print the term for each match.

`make lint` runs it over every tracked file. Arguments restrict the search to paths:
`python tests/vocabulary.py hookbus/bus.py docs`.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent

TERMS = {
    r"tell(s|ing)?|told": "report, log, warn, return; determine",
    r"spread(s|ing)?": "sharded, distributed; variance",
    r"dealt out|deals out": "distributed, assigned round-robin, sharded",
    r"comes? together": "all-gathered, reduced",
    r"random streams?": "RNG state, random number generator",
    r"anew|afresh": "re-initialized, reseeded, from scratch",
    r"wish(es|ed)?": "request; ordering constraint",
    r"judg\w*": "evaluate",
    r"made-up": "synthetic, dummy",
    r"(do|does|did|that) not hold|hold no": "is invalid; contains no",
    r"(stands?|stood) still": "is blocked, stalls",
    r"puts? back": "restore",
    r"(takes?|took|taken) back": "restore, undo",
    r"(gives?|gave|given) back": "return, release, free",
    r"(written|writes?|wrote) over": "overwritten",
    r"be had": "is available, can be obtained",
    r"there and whole|whole or not there": "atomic",
    r"vouch\w*": "matches the checksum of, verifies",
    r"so many": "every N iterations, at most N samples",
    r"meanwhile|while this lasts": "inside the context, while active",
    r"meets? the others": "joins the process group",
    r"rooms?": "package; free space",
    r"troubles?|troubled": "error, failure",
    r"lets? go( of)?": "release, drop the reference",
    r"lets? the others wait": "blocks, deadlocks",
    r"papers": "metadata files",
    r"surely|for certain": "always, guaranteed",
    r"thaw(s|ed|ing)?": "unfreeze",
    r"pictures?": "image, figure, plot",
    r"go(es|ing)? on|went on": "continue, resume",
    r"brings? back|brought back": "restore",
    r"see(s)? (to it )?that": "check that, ensure",
    r"\w*colour\w*|behaviours?|grey|centre[ds]?|spelt|favoured|neighbours?|labell\w+|modell\w+|artefacts?": (
        "American spelling"
    ),
    r"(normal|synchron|initial|serial|optim|organ|recogn|summar|visual|general|minim|maxim)is(e|es|ed|ing|ation)": (
        "American spelling: -ize"
    ),
}
"""Pattern of words, in any case, and what to write instead."""

PRONOUNS = {"each", "found", "given", "told", "said", "troubles", "odd", "wish", "what"}
"""Names that denote nothing in particular. Name the object: `hook`, `path`, `message`."""

_PATTERNS = [(re.compile(rf"(?<![\w/])({words})(?![\w(])", re.IGNORECASE), term) for words, term in TERMS.items()]
_TEXT_TOKENS = {tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
_TEXT_FILES = {".md", ".toml", ".yaml", ".yml", ".txt", ".css", ".cfg"}


class Match(NamedTuple):
    """A word to replace: its line and column (both from 1), the word, and the standard term."""

    line: int
    column: int
    word: str
    term: str


def find_terms(text: str, line: int = 1, column: int = 1) -> Iterator[Match]:
    """Yield the words of `TERMS` in a text that starts at a line and a column."""
    for pattern, term in _PATTERNS:
        for match in pattern.finditer(text):
            before = text[: match.start()]
            first_line = "\n" not in before
            start = match.start() + column if first_line else match.start() - before.rfind("\n")
            yield Match(line + before.count("\n"), start, match.group(), term)


def find_in_source(source: str) -> Iterator[Match]:
    """Yield the words to replace in the strings, comments and names of Python source."""
    pronouns = PRONOUNS - {"given"} if "from hypothesis import" in source else PRONOUNS  # its decorator
    previous = ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        line, column = token.start[0], token.start[1] + 1
        if token.type in _TEXT_TOKENS:
            yield from find_terms(token.string, line, column)
        elif token.type == tokenize.NAME:
            if token.string in pronouns and previous != ".":
                yield Match(line, column, token.string, "the noun that it denotes")
            if previous in ("def", "class"):
                for match in find_terms(token.string.replace("_", " "), line, column):
                    yield match._replace(word=token.string, term=f"{match.word}: {match.term}")
        if token.type not in (tokenize.NL, tokenize.NEWLINE, tokenize.COMMENT):
            previous = token.string


def find_in_file(path: Path) -> list[Match]:
    """Return the words to replace in a file; files that are neither Python source nor text have none."""
    if path.suffix == ".py":
        return list(find_in_source(path.read_text()))
    if path.suffix in _TEXT_FILES or path.name == "Makefile":
        return list(find_terms(path.read_text()))
    return []


def tracked_files(paths: list[str]) -> list[Path]:
    """Return the files below the given paths that git tracks, without this file and its test."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *paths]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    own = {"tests/vocabulary.py", "tests/test_vocabulary.py"}
    return [ROOT / name for name in names if name not in own and (ROOT / name).is_file()]


def main() -> int:
    """Print one line per word and return the exit code: 1 if there is any."""
    matches = [(path, match) for path in tracked_files(sys.argv[1:] or ["."]) for match in find_in_file(path)]
    for path, match in matches:
        print(f"{path.relative_to(ROOT)}:{match.line}:{match.column}: {match.word!r}: use {match.term}")
    return min(len(matches), 1)


if __name__ == "__main__":
    sys.exit(main())
